"""``progmem explore``: a page to see, search and label recordings."""

from argparse import Namespace
from pathlib import Path
from typing import Any

from progmem.cli import options

OUT, PORT = Path("progmem-explore"), 8050


def add_explore(commands: Any) -> None:
    parser = options.add_command(
        commands,
        "explore",
        _explore,
        summary="see, search and label recordings in the browser, on this machine alone",
        example="progmem explore run recordings/ --labels labels.csv",
    )
    parser.add_argument(
        "model",
        type=Path,
        nargs="?",
        metavar="RUN",
        help="folder of a run or of a saved model; without RUN and DATA the built-in sample is "
        "shown",
    )
    parser.add_argument("data", type=Path, nargs="?", metavar="DATA", help=options.RECORDINGS)
    options.add_labels(parser, "labels to begin with, where the page has none yet")
    options.add_out(
        parser,
        f"folder for the index, the labels and what the page writes; by default {OUT}",
        default=OUT,
    )
    parser.add_argument(
        "--port",
        type=int,
        default=PORT,
        help=f"where the page is served on this machine; by default {PORT}, 0 takes a free one",
    )
    options.add_quiet(parser)
    options.add_reading(parser)


def _explore(args: Namespace) -> None:
    options.begin(args, args.data or "the built-in sample")
    from progmem.explore.start import serve_page

    serve_page(
        args.model, args.data, args.out, labels=args.labels, port=args.port,
        options=options.reading(args), log=args.log,
    )  # fmt: skip
