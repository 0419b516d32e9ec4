"""``progmem embed``, ``progmem classify`` and ``progmem forecast``: a model on a user's files."""

from argparse import Namespace
from pathlib import Path
from typing import Any

from progmem.cli import options


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


def _embed(args: Namespace) -> None:
    from progmem.embed import embed_files

    embed_files(args.model, args.data, args.out, sampling_rate=args.sampling_rate)


def add_classify(commands: Any) -> None:
    parser = options.add_command(
        commands,
        "classify",
        _classify,
        summary="predict the classes of your own recordings from a few labels",
        example="progmem classify X.npy --labels labels.csv --model run/model -o predictions.csv",
    )
    parser.add_argument("data", type=Path, metavar="DATA", help=options.RECORDINGS)
    options.add_model(parser, "--model", required=True)
    source = parser.add_mutually_exclusive_group(required=True)
    options.add_labels(source, "labels of some of the recordings")
    options.add_fitted_probe(
        source,
        "classify with what an earlier call fitted, in place of --labels: the .safetensors file "
        "beside its predictions, or the folder of a finetuned run",
    )
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
    options.add_out(
        parser,
        ".csv file for the predictions; the fitted probe is kept beside it as .safetensors; "
        "without -o only the accuracy is estimated",
    )


def _classify(args: Namespace) -> None:
    from progmem.probes.own_data import classify_files

    classify_files(
        args.model, args.data, args.out, labels=args.labels, probe=args.probe,
        predict=args.predict, pooling=args.pooling,
    )  # fmt: skip


def add_forecast(commands: Any) -> None:
    parser = options.add_command(
        commands,
        "forecast",
        _forecast,
        summary="predict the next samples of a dated series, with quantiles",
        example="progmem forecast load.csv --horizon 24 --model run/model -o next.csv",
    )
    parser.add_argument(
        "data",
        metavar="DATA",
        help=".csv file with a column date, or the name of a data set with dates",
    )
    options.add_model(parser, "--model", required=True)
    parser.add_argument(
        "--horizon", type=int, required=True, metavar="H", help="how many samples to predict"
    )
    options.add_fitted_probe(
        parser, "predict with the .safetensors file that an earlier call wrote; nothing is fitted"
    )
    parser.add_argument(
        "--context",
        type=int,
        metavar="SAMPLES",
        help="how many samples before the newest one the model sees; by default 200",
    )
    options.add_data_dir(parser)
    options.add_out(
        parser,
        ".csv file for the predictions; the fitted probe is kept beside it as .safetensors; "
        "without -o only the errors are estimated",
    )


def _forecast(args: Namespace) -> None:
    from progmem.probes.own_forecast import forecast_file

    forecast_file(
        args.model, args.data, args.out, horizon=args.horizon, probe=args.probe,
        context=args.context, data_dir=args.data_dir,
    )  # fmt: skip
