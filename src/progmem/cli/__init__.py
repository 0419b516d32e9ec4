"""The command line: each command calls one library function; nothing is decided here."""

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

import progmem
from progmem.cli import data, own_data, probe, report, training
from progmem.errors import ConfigError, InputError, ModelFolderError, TrainingError


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"progmem: {message}; see {self.prog} --help\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Bad use gives one line and exit code 2, a run that fails exit code 1."""
    args, rest = _make_parser().parse_known_args(arguments)
    args.overrides = [text for text in rest if "=" in text and not text.startswith("-")]
    if len(args.overrides) < len(rest) or (rest and not args.takes_settings):
        args.parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        args.run(args)
    except (ConfigError, InputError, ModelFolderError) as error:
        print(f"progmem: {error}", file=sys.stderr)
        return 2
    except (TrainingError, OSError) as error:  # a full disk, a folder that may not be written
        print(f"progmem: {error}", file=sys.stderr)
        return 1
    return 0


def _make_parser() -> _Parser:
    parser = _Parser(prog="progmem", description=progmem.__doc__)
    parser.add_argument("--version", action="version", version=f"progmem {progmem.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    report.add_demo(commands)
    own_data.add_check(commands)
    training.add_pretrain(commands)
    training.add_finetune(commands)
    own_data.add_embed(commands)
    own_data.add_classify(commands)
    own_data.add_forecast(commands)
    probe.add_probe(commands)
    data.add_data(commands)
    report.add_results(commands)
    return parser
