"""``progmem data``: the files of the paper's data sets."""

from argparse import Namespace
from pathlib import Path
from typing import Any

from progmem.cli import options
from progmem.errors import InputError


def add_data(commands: Any) -> None:
    actions = options.add_group(commands, "data", summary="list, check or make data set files")
    parser = options.add_command(
        actions,
        "list",
        _list,
        summary="list the data sets and whether their files are there",
        example="progmem data list --data-dir data",
    )
    options.add_data_dir(parser)
    parser = options.add_command(
        actions,
        "check",
        _check,
        summary="read the files that are there and compare their shapes and checksums",
        example="progmem data check --data-dir data",
    )
    options.add_data_dir(parser)
    parser = options.add_command(
        actions,
        "convert",
        _convert,
        summary="make the file of a data set from the archive that its publisher offers",
        example="progmem data convert 'UCI HAR Dataset.zip' -o data",
    )
    parser.add_argument(
        "archive",
        type=Path,
        metavar="ARCHIVE",
        help="a zip file, the folder it was unpacked to, or a single file",
    )
    options.add_out(parser, "folder to write to; by default that of $PROGMEM_DATA")
    parser.add_argument("--name", metavar="SET", help="which set, where an archive has several")
    parser.add_argument("--limit", metavar="LIMIT", help=options.READING["limit"])
    parser.add_argument("--overwrite", action="store_true", help="replace a file that exists")


def _list(args: Namespace) -> None:
    from progmem.data.datasets import list_lines

    print("\n".join(list_lines(args.data_dir)))


def _check(args: Namespace) -> None:
    print("reading the files that are there ...")
    from progmem.data.datasets import check_lines

    lines, good = check_lines(args.data_dir)
    print("\n".join(lines))
    if not good:
        raise InputError("some files differ from the reference, see above")


def _convert(args: Namespace) -> None:
    print(f"reading {args.archive} ...")
    from progmem.data.convert import convert

    lines, good = convert(
        args.archive, args.out, name=args.name, overwrite=args.overwrite, limit=args.limit,
        log=print,
    )  # fmt: skip
    print("\n".join(lines))
    if not good:
        raise InputError("converted, but the file differs from the reference, see above")
