"""The command line: each command is one library function; nothing is decided here."""

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

import progmem
from progmem.demo import demo
from progmem.errors import ConfigError, InputError, ModelFolderError


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"progmem: {message}; see progmem --help\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Bad use gives one line and exit code 2."""
    parser = _Parser(prog="progmem", description=progmem.__doc__)
    parser.add_argument("--version", action="version", version=f"progmem {progmem.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    show = commands.add_parser("demo", help="encode a made series at three scales and stream it")
    show.set_defaults(run=lambda _: demo())
    chosen = parser.parse_args(arguments)
    try:
        chosen.run(chosen)
    except (ConfigError, InputError, ModelFolderError) as error:
        print(f"progmem: {error}", file=sys.stderr)
        return 2
    return 0
