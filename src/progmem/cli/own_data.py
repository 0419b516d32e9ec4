"""``progmem check``, ``embed``, ``classify``, ``forecast``, ``export``: what a model is for."""

import sys
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any

from progmem.cli import options


def add_check(commands: Any) -> None:
    parser = options.add_command(
        commands,
        "check",
        _check,
        summary="say what was read as what, what looks odd, and what training would take",
        example="progmem check recordings/",
    )
    parser.add_argument(
        "data", metavar="DATA", help=f"{options.RECORDINGS}, or the name of a data set"
    )
    parser.add_argument("--json", action="store_true", help="print all that was found as json")
    options.add_data_dir(parser)
    options.add_reading(parser)


def _check(args: Namespace) -> None:
    args.log = partial(print, file=sys.stderr) if args.json else print
    options.begin(args, args.data)
    from progmem.check import check, check_lines
    from progmem.files import to_json

    found = check(args.data, options.reading(args), data_dir=args.data_dir, log=args.log)
    print(to_json(found).decode() if args.json else "\n".join(check_lines(found)))


def add_embed(commands: Any) -> None:
    parser = options.add_command(
        commands,
        "embed",
        _embed,
        summary="write the tokens, memory and sequence vectors of recordings to a folder",
        example="progmem embed run/model recordings/ -o embeddings",
    )
    options.add_model(parser)
    parser.add_argument("data", type=Path, metavar="DATA", help=options.RECORDINGS)
    options.add_out(parser, "new folder to write", required=True)
    parser.add_argument(
        "--sampling-rate",
        type=float,
        metavar="HZ",
        help="samples per second, to write the spans in seconds too; by default that of the run",
    )
    options.add_quiet(parser)
    options.add_reading(parser)


def _embed(args: Namespace) -> None:
    options.begin(args, args.data)
    from progmem.embed import embed_files

    embed_files(
        args.model, args.data, args.out, sampling_rate=args.sampling_rate,
        options=options.reading(args), log=args.log,
    )  # fmt: skip


def add_classify(commands: Any) -> None:
    parser = options.add_command(
        commands,
        "classify",
        _classify,
        summary="predict the classes of your own recordings from a few labels",
        example="progmem classify X.npy --labels labels.csv -o predictions.csv",
    )
    parser.add_argument("data", type=Path, metavar="DATA", help=options.RECORDINGS)
    options.add_model(parser, "--model")
    source = parser.add_mutually_exclusive_group()
    options.add_labels(
        source, "labels of some of the recordings, by default those that DATA itself holds"
    )
    options.add_fitted_probe(
        source,
        "classify with what an earlier call fitted, in place of --labels: the .safetensors file "
        "beside its predictions, or the folder of a finetuned run",
    )
    options.add_allow_seen_labels(parser)
    parser.add_argument(
        "--predict",
        type=Path,
        metavar="NEW",
        help="recordings to classify, in place of those of DATA",
    )
    parser.add_argument(
        "--pooling",
        help="which features of a recording are used: all (default: one vector from all scales), "
        "sequence, mean_tokens, max_tokens or mean_memory",
    )
    options.add_quiet(parser)
    options.add_out(
        parser,
        ".csv file for the predictions; the fitted probe is kept beside it as .safetensors and, "
        "without --model, so is the model; without -o only the accuracy is estimated",
    )
    options.add_reading(parser)


def _classify(args: Namespace) -> None:
    options.begin(args, args.data)
    from progmem.probes.own_labels import classify_files

    classify_files(
        args.data, args.out, model=args.model, labels=args.labels, probe=args.probe,
        predict=args.predict, pooling=args.pooling, log=args.log,
        options=options.reading(args), allow_seen_labels=args.allow_seen_labels,
    )  # fmt: skip


def add_forecast(commands: Any) -> None:
    parser = options.add_command(
        commands,
        "forecast",
        _forecast,
        summary="predict the next samples of recordings, with intervals and their coverage",
        example="progmem forecast load.csv --horizon 24 96 -o next.csv --plot next.png",
    )
    parser.add_argument(
        "data",
        metavar="DATA",
        help=f"{options.RECORDINGS}, or the name of a data set with dates",
    )
    parser.add_argument(
        "--horizon",
        type=int,
        nargs="+",
        required=True,
        metavar="H",
        help="how many samples to predict; several are predicted one by one",
    )
    options.add_model(parser, "--model")
    options.add_fitted_probe(
        parser, "predict with what an earlier call kept beside its predictions; nothing is fitted"
    )
    parser.add_argument(
        "--context",
        type=int,
        metavar="SAMPLES",
        help="how many samples before the newest one a forecast uses; by default what suits the "
        "series, mostly 200",
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="picture of the predictions: .png, .pdf or .svg"
    )
    options.add_data_dir(parser)
    options.add_quiet(parser)
    options.add_out(
        parser,
        ".csv file for the predictions; the fitted forecaster is kept beside it; without -o only "
        "the errors are estimated",
    )
    options.add_reading(parser)


def _forecast(args: Namespace) -> None:
    options.begin(args, args.data)
    from progmem.probes.own_forecast import forecast_files

    forecast_files(
        args.data, args.out, horizons=args.horizon, model=args.model, probe=args.probe,
        plot=args.plot, context=args.context, data_dir=args.data_dir,
        options=options.reading(args), log=args.log,
    )  # fmt: skip


def add_export(commands: Any) -> None:
    parser = options.add_command(
        commands,
        "export",
        _export,
        summary="write a model as a file that other software runs: ONNX, or a torch.export program",
        example="progmem export run/model -o model.onnx",
    )
    options.add_model(parser)
    options.add_out(parser, ".onnx or .pt2 file to write", required=True)
    options.add_quiet(parser)


def _export(args: Namespace) -> None:
    options.begin(args, args.model)
    from progmem.model.export import export_file

    export_file(args.model, args.out, log=args.log)
