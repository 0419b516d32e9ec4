"""``progmem explore``: a page to see, search and label recordings; each question as a command."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
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
    parser.add_argument(
        "--follow",
        type=Path,
        metavar="FILE",
        help="a file that grows, or - for standard input: lines of samples, which the page shows "
        "as they come, beside the recordings",
    )
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
        args.model, args.data, args.out, labels=args.labels, follow=args.follow, port=args.port,
        options=options.reading(args), log=args.log,
    )  # fmt: skip


def add_questions(commands: Any) -> None:
    """The functions of `progmem.explore`, each as a command that writes a table."""
    parser = options.add_command(
        commands,
        "index",
        _index,
        summary="describe every window of recordings in a folder, for the questions below",
        example="progmem index run recordings/ -o index",
    )
    parser.add_argument(
        "model", type=Path, metavar="RUN", help="folder of a run or of a saved model"
    )
    parser.add_argument("data", type=Path, metavar="DATA", help=options.RECORDINGS)
    options.add_out(
        parser,
        "folder of the index; one that is there is used if it fits, else replaced",
        required=True,
    )
    parser.add_argument(
        "--windows", type=Path, metavar="FILE", help=".csv file that says what each row is of"
    )
    options.add_quiet(parser)
    options.add_reading(parser)

    parser = _question(
        commands, "search", _search, "find the stretches that are most like one",
        "progmem search index monday 2024-05-06T10:00 2024-05-06T10:05 -o alike.csv",
    )  # fmt: skip
    parser.add_argument("series", metavar="SERIES", help="name of the recording it is in")
    parser.add_argument("start", metavar="START", help="its first sample, as a number or a date")
    parser.add_argument("end", metavar="END", help="the sample behind its last one")
    parser.add_argument("-k", type=int, default=10, help="how many to find; by default 10")

    parser = _question(
        commands, "segment", _segment, "divide recordings into regimes at their boundaries",
        "progmem segment index -o segments.csv",
    )  # fmt: skip
    _add_one(parser)
    parser.add_argument("--count", type=int, help="how many parts each has, if that is known")
    parser.add_argument(
        "--penalty", type=float, default=1.0, help="above 1 gives fewer parts, below 1 more"
    )

    parser = _question(
        commands, "states", _states, "group the windows of all recordings into states",
        "progmem states index -o states.csv --profile profile.csv",
    )  # fmt: skip
    parser.add_argument("-k", type=int, help="how many states; by default what suits the windows")
    parser.add_argument(
        "--profile",
        type=Path,
        metavar="FILE",
        help=".csv file that says how the signals of each state are, in their units",
    )

    parser = _question(
        commands, "surprise", _surprise, "say how unlike everything before it each window is",
        "progmem surprise index -o surprise.csv",
    )  # fmt: skip
    _add_one(parser)

    parser = _question(
        commands, "suggest", _suggest, "say which stretches to label next",
        "progmem suggest index --labels labels.csv --count 5 -o to_label.csv",
    )  # fmt: skip
    options.add_labels(parser, "what is labelled already")
    parser.add_argument("--count", type=int, default=1, help="how many stretches; by default 1")


def _question(
    commands: Any, name: str, run: Callable[[Namespace], None], summary: str, example: str
) -> ArgumentParser:
    parser = options.add_command(commands, name, run, summary=summary, example=example)
    parser.add_argument(
        "index", type=Path, metavar="INDEX", help="folder that `progmem index` wrote"
    )
    options.add_out(parser, ".csv file to write", required=True)
    options.add_quiet(parser)
    return parser


def _add_one(parser: ArgumentParser) -> None:
    parser.add_argument("--series", metavar="NAME", help="one recording; by default all")


def _index(args: Namespace) -> None:
    options.begin(args, args.data)
    from progmem.explore.answers import index_files

    index_files(
        args.model, args.data, args.out, windows=args.windows, options=options.reading(args),
        log=args.log,
    )  # fmt: skip


def _search(args: Namespace) -> None:
    options.begin(args, args.index)
    from progmem.explore.answers import search_file

    search_file(args.index, args.series, args.start, args.end, args.out, k=args.k, log=args.log)


def _segment(args: Namespace) -> None:
    options.begin(args, args.index)
    from progmem.explore.answers import segment_file

    segment_file(
        args.index, args.out, recording=args.series, count=args.count, penalty=args.penalty,
        log=args.log,
    )  # fmt: skip


def _states(args: Namespace) -> None:
    options.begin(args, args.index)
    from progmem.explore.answers import states_file

    states_file(args.index, args.out, k=args.k, profile=args.profile, log=args.log)


def _surprise(args: Namespace) -> None:
    options.begin(args, args.index)
    from progmem.explore.answers import surprise_file

    surprise_file(args.index, args.out, recording=args.series, log=args.log)


def _suggest(args: Namespace) -> None:
    options.begin(args, args.index)
    from progmem.explore.answers import suggest_file

    suggest_file(args.index, args.out, labels=args.labels, count=args.count, log=args.log)
