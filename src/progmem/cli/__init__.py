"""The command line: each command calls one library function; nothing is decided here."""

import argparse
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, cast

import progmem
from progmem.cli import data, explore, options, own_data, probe, report, training
from progmem.errors import (
    ArtifactError,
    ConfigError,
    InputError,
    ModelFolderError,
    TrainingError,
)
from progmem.names import printable

MISUSE = (ArtifactError, ConfigError, InputError, ModelFolderError)
TOO_MUCH = (MemoryError, RecursionError, OverflowError, UnicodeError)  # for Python, of some input

LONGEST = 2000  # characters of a message, which may hold a name out of a file


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"progmem: {message}; see {self.prog} --help\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Whatever goes wrong is told in one line; ``--debug`` shows where.

    Bad use and input that is too much give exit code 2, a run that fails and a bug exit code 1,
    Ctrl-C 130.
    """
    args, rest = _make_parser().parse_known_args(arguments)
    args.overrides = [text for text in rest if "=" in text and not text.startswith("-")]
    if len(args.overrides) < len(rest) or (rest and not args.takes_settings):
        args.parser.error(f"unrecognized arguments: {' '.join(rest)}")
    with _plain_output():
        try:
            args.run(args)
        except (Exception, KeyboardInterrupt) as error:
            if args.debug:
                traceback.print_exc()
            text, code = _told(error)
            text = printable(text if len(text) < LONGEST else f"{text[:LONGEST]} …")
            print(f"progmem: {text}", file=sys.stderr)
            return code
    return 0


def _told(error: BaseException) -> tuple[str, int]:
    """What a person is told of an error, in one line, and the exit code."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, MISUSE):
        return str(error), 2
    if isinstance(error, KeyboardInterrupt):
        return "interrupted; of what was being written nothing is left", 130
    if isinstance(error, BrokenPipeError):  # as where | head has read enough
        return "what this prints is no longer read, so it stopped", 1
    if isinstance(error, TrainingError | OSError):  # a full disk, a folder that may not be written
        return str(error), 1
    if isinstance(error, MemoryError) or "allocate memory" in text or "out of memory" in text:
        return f"there is not enough memory: {text}; --debug shows where", 2
    if isinstance(error, TOO_MUCH):
        return f"the input is too much: {type(error).__name__}: {text}; --debug shows where", 2
    return (
        f"this is a bug of progmem: {type(error).__name__}: {text}; please report it with what the "
        "same command shows with --debug",
        1,
    )


@contextmanager
def _plain_output() -> Iterator[None]:
    """Lines are out at once, also into a pipe; odd names are escaped; a warning is one line."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace", line_buffering=True)
    before: Any = warnings.formatwarning

    def in_one_line(message: Any, category: Any, *place: Any) -> str:
        if not issubclass(category, UserWarning):
            return before(message, category, *place)
        return f"progmem: warning: {printable(str(message))}\n"

    warnings.formatwarning = cast(Any, in_one_line)
    try:
        yield
    finally:
        warnings.formatwarning = before


def _make_parser() -> _Parser:
    parser = _Parser(prog="progmem", description=progmem.__doc__)
    parser.add_argument("--version", action="version", version=f"progmem {progmem.__version__}")
    options.add_debug(parser, default=False)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    report.add_demo(commands)
    own_data.add_check(commands)
    training.add_pretrain(commands)
    training.add_finetune(commands)
    own_data.add_embed(commands)
    own_data.add_classify(commands)
    own_data.add_forecast(commands)
    explore.add_explore(commands)
    explore.add_questions(commands)
    own_data.add_export(commands)
    probe.add_probe(commands)
    data.add_data(commands)
    report.add_results(commands)
    return parser
