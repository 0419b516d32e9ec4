"""What commands share: how one is declared, and options with one name and meaning everywhere."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from progmem.progress import is_first_process

RECORDINGS = "file of recordings (.npy, .csv, .parquet, .edf, … ) or a folder of such files"


def add_command(
    commands: Any,
    name: str,
    run: Callable[[argparse.Namespace], None],
    *,
    summary: str,
    example: str,
    takes_settings: bool = False,
) -> argparse.ArgumentParser:
    """A command with a sentence and an example in its help.

    Args:
        takes_settings: whether section.key=value may follow, which argparse leaves over.
    """
    epilog = f"example:\n  {example}"
    if takes_settings:
        epilog = (
            "section.key=value changes a setting, such as train.epochs=20; --print-config shows all"
            f" settings.\n\n{epilog}"
        )
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_debug(parser)
    parser.set_defaults(run=run, parser=parser, takes_settings=takes_settings)
    return parser


def add_group(commands: Any, name: str, *, summary: str) -> Any:
    """A command that has commands of its own; returns where they are added."""
    parser = commands.add_parser(
        name, help=summary, description=f"{summary[0].upper()}{summary[1:]}."
    )
    return parser.add_subparsers(dest="subcommand", metavar="COMMAND", required=True)


def add_debug(parser: argparse.ArgumentParser, default: Any = argparse.SUPPRESS) -> None:
    """--debug, before the command or behind it."""
    parser.add_argument(
        "--debug",
        action="store_true",
        default=default,
        help="where something goes wrong, show Python's traceback too",
    )


def add_out(parser: argparse.ArgumentParser, what: str, **options: Any) -> None:
    parser.add_argument("-o", "--out", type=Path, help=what, **options)


def add_model(parser: argparse.ArgumentParser, *names: str, **options: Any) -> None:
    """MODEL as a positional argument, or by the names that are given."""
    parser.add_argument(
        *(names or ("model",)),
        type=Path,
        metavar="MODEL",
        help="folder of a saved model, such as RUN/model",
        **options,
    )


def add_quiet(parser: argparse.ArgumentParser) -> None:
    """--quiet, by which ``args.log`` is None; otherwise it is `print`."""
    parser.set_defaults(log=print)
    parser.add_argument(
        "--quiet",
        dest="log",
        action="store_const",
        const=None,
        help="print nothing but errors",
    )


def begin(args: argparse.Namespace, source: Any) -> None:
    """Say what is read, before what a command needs is loaded, which takes seconds."""
    if args.log is not None and is_first_process():
        args.log(f"reading {source} ...")


def add_set(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "set", metavar="SET", help="name of a data set; `progmem data list` shows them"
    )


def add_data_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data-dir",
        type=Path,
        metavar="DIR",
        help="folder with the files of the data sets; by default that of $PROGMEM_DATA",
    )


def add_split(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--split",
        default="official",
        help="how a data set is divided into training and test rows: official (default), "
        "validation, or another that the set has",
    )


def add_labels(parser: Any, what: str, **options: Any) -> None:
    parser.add_argument(
        "--labels",
        type=Path,
        metavar="FILE",
        help=f"{what}: a .csv file with a column label (an empty cell is no label) and, for a "
        "folder of recordings, a column series; columns start and end (samples or dates) name "
        "pieces of recordings; or a .npy or .npz array with one label per series, "
        "in order",
        **options,
    )


def add_allow_seen_labels(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--allow-seen-labels",
        action="store_true",
        help="score a model on labels it was trained with, and mark these scores; by default it is "
        "refused",
    )


READING = {  # what `progmem.read` takes, as options of every command that reads own files
    "layout": "what the axes of arrays and tables are, such as series,channels,time",
    "case": "column that names the case, in a long table",
    "time": "column of dates or times",
    "channel": "column that names the channel, in a table of one value a row",
    "value": "column of the values, in a table of one value a row",
    "label": "column of the labels, in a table",
    "sep": "what separates the cells of text files; by default a comma, in a .tsv file a tab",
    "decimal": "decimal sign of the numbers in text files, such as ,",
    "date_column": "the same as --time",
    "date_format": "how dates are written if not year first, such as '%%d.%%m.%%Y %%H:%%M'",
    "missing": "number or text that stands for a missing value, such as --missing=-9999; may be "
    "repeated",
    "fill_gaps": "put missing samples where dates or times leave some out",
    "drop_duplicates": "keep the first of several rows of one time",
    "limit": "how much memory the content of a file may take, such as 4GB",
}


def add_reading(parser: argparse.ArgumentParser) -> None:
    """The options that say how files are read."""
    group = parser.add_argument_group("how files are read (docs/own_files.md)")
    for name, what in READING.items():
        flag = f"--{name.replace('_', '-')}"
        if name in ("fill_gaps", "drop_duplicates"):
            group.add_argument(flag, action="store_true", help=what)
        elif name == "missing":
            group.add_argument(flag, action="append", metavar="VALUE", help=what)
        else:
            group.add_argument(flag, metavar=name.split("_")[-1].upper(), help=what)


def reading(args: argparse.Namespace) -> Any:
    """The options of `add_reading`, as the library takes them."""
    from progmem.data.options import ReadOptions

    return ReadOptions(**{name: getattr(args, name) for name in READING})


def add_fitted_probe(parser: Any, what: str) -> None:
    parser.add_argument("--probe", type=Path, metavar="FILE", help=what)


def add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-c", "--config", type=Path, metavar="FILE", help="yaml file of settings")
    parser.add_argument(
        "--print-config", action="store_true", help="print all settings as yaml and stop"
    )
