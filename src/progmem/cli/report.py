"""``progmem demo`` and ``progmem results``."""

from argparse import Namespace
from pathlib import Path
from typing import Any

from progmem.cli import options


def add_demo(commands: Any) -> None:
    parser = options.add_command(
        commands,
        "demo",
        _demo,
        summary="pretrain on the built-in sample, classify with few labels and write a report",
        example="progmem demo -o progmem-demo",
    )
    options.add_out(
        parser, "folder to write; by default progmem-demo", default=Path("progmem-demo")
    )


def _demo(args: Namespace) -> None:
    print("reading the built-in sample ...")
    from progmem.demo import demo

    demo(args.out)


def add_results(commands: Any) -> None:
    parser = options.add_command(
        commands,
        "results",
        _results,
        summary="print tables of the scores in results/, with the paper's figures beside them",
        example="progmem results classify",
    )
    parser.add_argument(
        "experiment",
        nargs="?",
        metavar="EXPERIMENT",
        help="classify, forecast, cue or finetune; by default all",
    )
    parser.add_argument(
        "--results",
        type=Path,
        default=Path("results"),
        metavar="DIR",
        help="folder of the result files; by default results",
    )
    parser.add_argument(
        "--pooling",
        default="sequence",
        help="which features the classification table shows; by default sequence",
    )
    parser.add_argument(
        "--head",
        default="linear",
        help="which classifier the classification table shows; by default linear",
    )


def _results(args: Namespace) -> None:
    from progmem.report.tables import render, render_all

    choice = {"pooling": args.pooling, "head": args.head}
    if args.experiment is None:
        print(render_all(args.results, **choice))
    else:
        print(render(args.experiment, args.results, **choice))
