"""``progmem pretrain`` and ``progmem finetune``."""

from argparse import ArgumentParser, Namespace
from dataclasses import fields
from pathlib import Path
from shlex import quote
from typing import Any

import yaml

from progmem.cli import options
from progmem.progress import silent


def add_pretrain(commands: Any) -> None:
    parser = options.add_command(
        commands,
        "pretrain",
        _pretrain,
        summary="train a model on recordings without labels",
        example="progmem pretrain recordings/ -o run train.steps=500",
        takes_settings=True,
    )
    parser.usage = "progmem pretrain DATA -o RUN [options] [section.key=value ...]"
    _add_data_and_out(parser)
    options.add_data_dir(parser)
    options.add_split(parser)
    options.add_config(parser)
    options.add_quiet(parser)
    options.add_reading(parser)


def _pretrain(args: Namespace) -> None:
    _begin(args)
    from progmem.config import read_config
    from progmem.training.distributed import world_and_rank
    from progmem.training.pretrain import pretrain

    cfg = read_config(args.config, _overrides(args))
    if args.print_config:
        _print_settings(cfg.to_dict())
        return
    log = args.log or silent
    pretrain(
        args.data, args.out, cfg, data_dir=args.data_dir, split=args.split,
        options=options.reading(args), log=log,
    )  # fmt: skip
    if world_and_rank()[1] == 0:
        model = args.out / "model"
        name, data = quote(str(model)), f"{quote(args.data)}{options.reading(args).flags()}"
        log(
            f"written: {model}; next: progmem embed {name} {data} -o embeddings, or progmem "
            f"classify {data} --labels labels.csv --model {name} -o predictions.csv"
        )


def add_finetune(commands: Any) -> None:
    parser = options.add_command(
        commands,
        "finetune",
        _finetune,
        summary="train a classifier on labels, from a pretrained run or from scratch",
        example="progmem finetune X.npy --labels labels.csv --from run -o tuned",
        takes_settings=True,
    )
    parser.usage = "progmem finetune DATA -o RUN [options] [section.key=value ...]"
    _add_data_and_out(parser)
    parser.add_argument(
        "--from",
        dest="pretrained",
        type=Path,
        metavar="RUN",
        help="folder of a pretrained run to start from; by default from scratch",
    )
    options.add_labels(parser, "labels of the recordings (a data set has its own)")
    options.add_allow_seen_labels(parser)
    parser.add_argument(
        "--label-share",
        metavar="SHARE",
        help="how many labels to train on: a share such as 5%%, a number per class, or all "
        "(default)",
    )
    parser.add_argument(
        "--only-head", action="store_true", help="train a linear head and keep the network frozen"
    )
    options.add_data_dir(parser)
    options.add_split(parser)
    parser.add_argument(
        "--result",
        type=Path,
        metavar="FILE",
        help=".json file for the scores, in addition to RUN/result.json",
    )
    options.add_config(parser)
    options.add_quiet(parser)
    options.add_reading(parser)


def _finetune(args: Namespace) -> None:
    _begin(args)
    from progmem.config import read_finetune_config
    from progmem.report.tables import finetune_table
    from progmem.training.finetune import finetune

    overrides = _overrides(args)
    if args.label_share is not None:
        overrides.append(f"finetune.label_share={args.label_share}")
    if args.only_head:
        overrides.append("finetune.only_head=true")
    cfg = read_finetune_config(args.config, overrides)
    if args.print_config:
        _print_settings(cfg.to_dict())
        return
    found = finetune(
        args.data, args.out, cfg, y=args.labels, pretrained=args.pretrained,
        data_dir=args.data_dir, split=args.split, result=args.result,
        allow_seen_labels=args.allow_seen_labels, options=options.reading(args),
        log=args.log or silent,
    )  # fmt: skip
    if found.result and args.log is not None:  # the first of several processes has it
        print(f"\n{finetune_table([found.result])}\n")
        if "comparison" in found.result:
            print("\n".join(found.result["comparison"]["printed"]) + "\n")
        print(
            f"written: {args.out} (the classifier), {args.result or args.out / 'result.json'} (its "
            f"scores); next: progmem classify NEW --probe {quote(str(args.out))} -o predictions.csv"
        )


def _begin(args: Namespace) -> None:
    """Refuse a command that lacks something, and say what is read."""
    if not args.print_config:
        _require_data_and_out(args)
        options.begin(args, args.data)


def _add_data_and_out(parser: ArgumentParser) -> None:
    """DATA and -o, which only --print-config does without."""
    parser.add_argument(
        "data", metavar="DATA", nargs="?", help=f"{options.RECORDINGS}, or the name of a data set"
    )
    options.add_out(parser, "folder of the run; the same command resumes it")


def _overrides(args: Namespace) -> list[str]:
    """The settings; with --print-config the first of them may stand where DATA would."""
    if args.print_config and args.data is not None and "=" in args.data:
        return [args.data, *args.overrides]
    return list(args.overrides)


def _require_data_and_out(args: Namespace) -> None:
    named = {"DATA": args.data, "-o/--out": args.out}
    missing = [name for name, value in named.items() if value is None]
    if missing:
        args.parser.error(f"the following arguments are required: {', '.join(missing)}")


def _print_settings(settings: dict[str, Any]) -> None:
    from progmem.config import ModelConfig, names

    if "model" in settings:
        model = {name: settings["model"].get(name) for name in names(ModelConfig)}
        settings = {**settings, "model": model}
        print("# null in model: follows from the data, or is the default of model.size")
    else:
        from progmem.baselines import method_of

        chosen = settings["encoder"]
        own = {field.name: field.default for field in fields(method_of(chosen["name"]).config)}
        settings = {**settings, "encoder": {"name": chosen["name"], **own, **chosen}}
        print("# null in encoder: follows from the data")
    print(yaml.safe_dump(settings, sort_keys=False), end="")
