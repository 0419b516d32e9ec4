"""The command line: each command is one library function; nothing is decided here."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml

import progmem
from progmem.errors import ConfigError, InputError, ModelFolderError, TrainingError

TRAININGS = ("pretrain", "finetune")  # commands that take section.key=value


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"progmem: {message}; see progmem --help\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Bad use gives one line and exit code 2, a run that fails exit code 1."""
    parser = _make_parser()
    chosen, rest = parser.parse_known_args(arguments)
    chosen.overrides = [text for text in rest if "=" in text and not text.startswith("-")]
    if len(chosen.overrides) < len(rest) or (rest and chosen.command not in TRAININGS):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        chosen.run(chosen)
    except (ConfigError, InputError, ModelFolderError) as error:
        print(f"progmem: {error}", file=sys.stderr)
        return 2
    except (TrainingError, OSError) as error:  # a full disk, a folder that may not be written
        print(f"progmem: {error}", file=sys.stderr)
        return 1
    return 0


def _make_parser() -> _Parser:
    parser = _Parser(prog="progmem", description=progmem.__doc__)
    parser.add_argument("--version", action="version", version=f"progmem {progmem.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    p = commands.add_parser("demo", help="pretrain on the built-in sample, probe, write a report")
    p.add_argument("-o", "--out", type=Path, default=Path("progmem-demo"), help="folder to write")
    p.set_defaults(run=_demo)

    p = commands.add_parser("pretrain", help="train a model on recordings without labels")
    p.add_argument("data", help=".npy, .npz or .csv file, a folder of them, or a data set's name")
    p.add_argument("-o", "--out", type=Path, required=True, help="folder of the run")
    p.add_argument("--data-dir", type=Path, help="where data sets lie; by default $PROGMEM_DATA")
    p.add_argument("--split", default="official", help="whose training rows are used, for a set")
    p.add_argument("-c", "--config", type=Path, help="yaml file of settings")
    p.add_argument("--print-config", action="store_true", help="show all settings and stop")
    p.usage = "progmem pretrain DATA -o RUN [-c CONFIG.yaml] [section.key=value ...]"
    p.set_defaults(run=_pretrain)

    p = commands.add_parser("finetune", help="train a model on labels, from a run or from scratch")
    p.add_argument("data", help="a data set's name, or own series with --labels")
    p.add_argument("-o", "--out", type=Path, required=True, help="folder of the run")
    p.add_argument("--from", dest="pretrained", type=Path, help="folder of a pretrained run")
    p.add_argument("--labels", type=Path, help="labels of own series: .npy, .npz or .csv file")
    p.add_argument("--label-share", help="5%%, a number per class, or all (default)")
    p.add_argument("--only-head", action="store_true", help="leave the network as it is")
    p.add_argument("--data-dir", type=Path, help="where data sets lie; by default $PROGMEM_DATA")
    p.add_argument("--split", default="official", help="which rows of a set are tested on")
    p.add_argument("--result", type=Path, help=".json file to write, beside RUN/result.json")
    p.add_argument("-c", "--config", type=Path, help="yaml file of settings")
    p.add_argument("--print-config", action="store_true", help="show all settings and stop")
    p.usage = (
        "progmem finetune DATA -o RUN [--from RUN] [-c CONFIG.yaml] [section.key=value ...] "
        "[--label-share 5%%|all] [--only-head]"
    )
    p.set_defaults(run=_finetune)

    p = commands.add_parser("embed", help="write the three levels of recordings to a folder")
    p.add_argument("model", type=Path, help="folder of a model, e.g. RUN/model")
    p.add_argument("input", type=Path, help=".npy, .npz or .csv file, or a folder of them")
    p.add_argument("-o", "--out", type=Path, required=True, help="new folder to write")
    p.add_argument(
        "--sampling-rate",
        type=float,
        help="samples a second: spans as times too; by default the run's",
    )
    p.set_defaults(run=_embed)

    p = commands.add_parser("probe", help="what a frozen model is good for")
    probes = p.add_subparsers(dest="probe", metavar="PROBE", required=True)
    p = probes.add_parser("classify", help="classes from a few labels")
    p.add_argument("model", type=Path, help="folder of a model, e.g. RUN/model")
    p.add_argument("set", nargs="?", help="a data set's name: score the model on it")
    p.add_argument("--data-dir", type=Path, help="where data sets lie; by default $PROGMEM_DATA")
    p.add_argument("--split", help="which rows of the set are tested on, by default official")
    p.add_argument("--label-share", nargs="+", help="or numbers per class; default 1%% 5%%")
    p.add_argument("--x", type=Path, help="your own series: .npy, .npz or .csv file, or a folder")
    p.add_argument("--labels", type=Path, help="their labels: .npy, .npz or .csv file")
    p.add_argument("--probe", dest="kept", type=Path, help="a probe kept before, or a tuned RUN")
    p.add_argument("--predict", type=Path, help="series to label")
    p.add_argument("--pooling", help="what of a series the probe sees, by default sequence")
    p.add_argument("-o", "--out", type=Path, help="file to write: .json, .csv or .safetensors")
    p.set_defaults(run=_probe_classify)

    p = probes.add_parser("cue", help="whether the state at the end tells of a burst long before")
    p.add_argument("model", type=Path, help="folder of a model, e.g. RUN/model")
    p.add_argument("set", help="a data set's name: the cue is put into its test rows")
    p.add_argument("--data-dir", type=Path, help="where data sets lie; by default $PROGMEM_DATA")
    p.add_argument("--split", default="official", help="which rows of the set are test rows")
    p.add_argument("-o", "--out", type=Path, help="by default results/cue/SET-RUN.json")
    p.set_defaults(run=_probe_cue)

    p = probes.add_parser("forecast", help="values to come, from the last token")
    p.add_argument("model", type=Path, help="folder of a model, e.g. RUN/model")
    p.add_argument("data", help="a data set's name, or a .csv file with a column date")
    p.add_argument("--data-dir", type=Path, help="where data sets lie; by default $PROGMEM_DATA")
    p.add_argument(
        "--horizon", nargs="+", type=int, help="samples ahead; of a set all of the paper"
    )
    p.add_argument("--predict", type=Path, help=".csv file for the samples after the end")
    p.add_argument("--probe", dest="kept", type=Path, help="a forecaster kept before")
    p.add_argument("--padding", type=int, help="samples of past in a window, by default 200")
    p.add_argument("-o", "--out", type=Path, help=".json file of a set's scores")
    p.set_defaults(run=_probe_forecast)

    p = commands.add_parser("data", help="the paper's data sets")
    whats = p.add_subparsers(dest="what", metavar="WHAT", required=True)
    for what, text in (("list", "what is there"), ("check", "whether it is right")):
        p = whats.add_parser(what, help=text)
        p.add_argument("--data-dir", type=Path, help="where sets lie; by default $PROGMEM_DATA")
        p.set_defaults(run=_data)
    p = whats.add_parser("convert", help="make a set's file of the archive its publisher gives out")
    p.add_argument("archive", type=Path, help="a zip, the folder it was unpacked to, or a file")
    p.add_argument("-o", "--out", type=Path, help="folder to write to; by default $PROGMEM_DATA")
    p.add_argument("--name", help="which set, where an archive has several")
    p.add_argument("--overwrite", action="store_true", help="replace a file that is there")
    p.set_defaults(run=_data_convert)

    p = commands.add_parser("results", help="tables of what was measured")
    p.add_argument("experiment", nargs="?", help="one experiment; by default all")
    p.add_argument("--results", type=Path, default=Path("results"), help="folder of the results")
    p.add_argument("--pooling", default="sequence", help="of classification tables")
    p.add_argument("--head", default="linear", help="of classification tables")
    p.set_defaults(run=_results)
    return parser


def _demo(chosen: Any) -> None:
    from progmem.demo import demo

    demo(chosen.out)


def _pretrain(chosen: Any) -> None:
    from progmem.config import read_config
    from progmem.training.pretrain import pretrain

    cfg = read_config(chosen.config, chosen.overrides)
    if chosen.print_config:
        print(yaml.safe_dump(cfg.to_dict(), sort_keys=False), end="")
        return
    pretrain(chosen.data, chosen.out, cfg, data_dir=chosen.data_dir, split=chosen.split)


def _finetune(chosen: Any) -> None:
    from progmem.config import read_finetune_config
    from progmem.training.finetune import finetune

    overrides = list(chosen.overrides)
    if chosen.label_share is not None:
        overrides.append(f"finetune.label_share={chosen.label_share}")
    if chosen.only_head:
        overrides.append("finetune.only_head=true")
    cfg = read_finetune_config(chosen.config, overrides)
    if chosen.print_config:
        print(yaml.safe_dump(cfg.to_dict(), sort_keys=False), end="")
        return
    finetune(
        chosen.data, chosen.out, cfg, y=chosen.labels, pretrained=chosen.pretrained,
        data_dir=chosen.data_dir, split=chosen.split, result=chosen.result,
    )  # fmt: skip


def _embed(chosen: Any) -> None:
    from progmem.embed import embed
    from progmem.training.run_folder import data_settings, read_as_trained, run_of

    model = progmem.load(chosen.model, device="auto")
    run, rate = run_of(chosen.model), chosen.sampling_rate
    if rate is None:
        rate = data_settings(run).sampling_rate
    elif not 0 < rate < float("inf"):
        raise InputError(f"--sampling-rate must be a number above 0, got {rate:g}")
    embed(model, read_as_trained(chosen.input, run), chosen.out, sampling_rate=rate)


def _probe_classify(chosen: Any) -> None:
    from progmem.commands import classify
    from progmem.config import parse_amount

    of_set = {"--data-dir": chosen.data_dir, "--split": chosen.split,
              "--label-share": chosen.label_share}  # fmt: skip
    of_own = {"--x": chosen.x, "--labels": chosen.labels, "--probe": chosen.kept,
              "--predict": chosen.predict, "--pooling": chosen.pooling}  # fmt: skip
    if chosen.set is None:
        _refuse(of_set, "goes with a data set's name")
        classify.label_series(
            chosen.model, x=chosen.x, y=chosen.labels, probe_file=chosen.kept, new=chosen.predict,
            out=chosen.out, pooling=chosen.pooling,
        )  # fmt: skip
        return
    _refuse(of_own, f"is for own series, not for {chosen.set}")
    classify.classify_set(
        chosen.model, chosen.set, chosen.out or Path("results/classify") / f"{chosen.set}.json",
        data_dir=chosen.data_dir, split=chosen.split or "official",
        labels=[parse_amount(text) for text in chosen.label_share or ("1%", "5%")],
    )  # fmt: skip


def _probe_cue(chosen: Any) -> None:
    from progmem.commands.cue import cue_set

    name = f"{chosen.set}-{chosen.model.resolve().parent.name}.json"
    cue_set(
        chosen.model, chosen.set, chosen.out or Path("results/cue") / name,
        data_dir=chosen.data_dir, split=chosen.split,
    )  # fmt: skip


def _probe_forecast(chosen: Any) -> None:
    from progmem.commands import forecast
    from progmem.data.forecast_sets import HORIZONS, VARIANTS

    if chosen.data in VARIANTS and chosen.predict is None:
        _refuse({"--probe": chosen.kept, "--padding": chosen.padding}, "goes with --predict")
        forecast.forecast_scores(
            chosen.model, chosen.data,
            chosen.out or Path("results/forecast") / f"{chosen.data}.json",
            data_dir=chosen.data_dir, horizons=chosen.horizon or HORIZONS,
        )  # fmt: skip
        return
    _refuse({"-o": chosen.out}, "is for the scores of a set; predictions go to --predict")
    if chosen.horizon is None or len(chosen.horizon) > 1:
        raise InputError("give one --horizon: how many samples ahead to predict")
    forecast.forecast_series(
        chosen.model, chosen.data, horizon=chosen.horizon[0], out=chosen.predict,
        kept=chosen.kept, data_dir=chosen.data_dir, padding=chosen.padding,
    )  # fmt: skip


def _refuse(options: dict[str, Any], why: str) -> None:
    for name, value in options.items():
        if value is not None:
            raise InputError(f"{name} {why}")


def _data(chosen: Any) -> None:
    from progmem.data.datasets import check_lines, list_lines

    if chosen.what == "list":
        print("\n".join(list_lines(chosen.data_dir)))
        return
    lines, good = check_lines(chosen.data_dir)
    print("\n".join(lines))
    if not good:
        raise InputError("some files are not what they should be, see above")


def _data_convert(chosen: Any) -> None:
    from progmem.data.convert import convert

    lines, good = convert(chosen.archive, chosen.out, name=chosen.name, overwrite=chosen.overwrite)
    print("\n".join(lines))
    if not good:
        raise InputError("the file is written, but is not the one that is known, see above")


def _results(chosen: Any) -> None:
    from progmem.report.tables import render, render_all

    options = {"pooling": chosen.pooling, "head": chosen.head}
    if chosen.experiment is None:
        print(render_all(chosen.results, **options))
    else:
        print(render(chosen.experiment, chosen.results, **options))
