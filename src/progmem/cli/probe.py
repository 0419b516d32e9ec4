"""``progmem probe``: the paper's protocols on its data sets."""

from argparse import Namespace
from typing import Any

from progmem.cli import options
from progmem.progress import silent


def add_probe(commands: Any) -> None:
    probes = options.add_group(
        commands,
        "probe",
        summary="score a frozen model by the paper's protocols, beside the untrained model",
    )
    parser = options.add_command(
        probes,
        "classify",
        _classify,
        summary="score classification from few labels of a data set",
        example="progmem probe classify run/model HAR --label-share 1% 5%",
    )
    options.add_model(parser)
    options.add_set(parser)
    parser.add_argument(
        "--label-share",
        nargs="+",
        default=["1%", "5%"],
        metavar="SHARE",
        help="how many labels to train on: shares such as 5%%, or numbers per class; by default "
        "1%% 5%%",
    )
    options.add_allow_seen_labels(parser)
    options.add_data_dir(parser)
    options.add_split(parser)
    options.add_quiet(parser)
    options.add_out(parser, ".json file for the scores; by default results/classify/SET.json")

    parser = options.add_command(
        probes,
        "cue",
        _cue,
        summary="score how well the end-of-sequence state retains a cue from long before",
        example="progmem probe cue run/model FordA",
    )
    options.add_model(parser)
    options.add_set(parser)
    options.add_data_dir(parser)
    options.add_split(parser)
    options.add_quiet(parser)
    options.add_out(parser, ".json file for the scores; by default results/cue/SET-RUN.json")

    parser = options.add_command(
        probes,
        "forecast",
        _forecast,
        summary="score forecasts of a data set by ridge regressions on the last token",
        example="progmem probe forecast run/model ETTh1-uni",
    )
    options.add_model(parser)
    options.add_set(parser)
    parser.add_argument(
        "--horizons",
        nargs="+",
        type=int,
        metavar="H",
        help="how many samples to predict; by default all five of the paper",
    )
    options.add_data_dir(parser)
    options.add_quiet(parser)
    options.add_out(parser, ".json file for the scores; by default results/forecast/SET.json")


def _classify(args: Namespace) -> None:
    options.begin(args, args.set)
    from progmem.config import parse_amount
    from progmem.probes.protocols import evaluate_classification

    shares = [parse_amount(text) for text in args.label_share]
    evaluate_classification(
        args.model, args.set, args.out, data_dir=args.data_dir, split=args.split,
        label_shares=shares, allow_seen_labels=args.allow_seen_labels, log=args.log or silent,
    )  # fmt: skip


def _cue(args: Namespace) -> None:
    options.begin(args, args.set)
    from progmem.probes.protocols import evaluate_cue

    evaluate_cue(
        args.model, args.set, args.out, data_dir=args.data_dir, split=args.split,
        log=args.log or silent,
    )  # fmt: skip


def _forecast(args: Namespace) -> None:
    options.begin(args, args.set)
    from progmem.data.forecast_sets import HORIZONS
    from progmem.probes.protocols import evaluate_forecast

    evaluate_forecast(
        args.model, args.set, args.out, data_dir=args.data_dir,
        horizons=args.horizons or HORIZONS, log=args.log or silent,
    )  # fmt: skip
