"""The command line: each command is one library function; nothing is decided here."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml

import progmem
from progmem.errors import ConfigError, InputError, ModelFolderError, TrainingError


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"progmem: {message}; see progmem --help\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Bad use gives one line and exit code 2."""
    parser = _Parser(prog="progmem", description=progmem.__doc__)
    parser.add_argument("--version", action="version", version=f"progmem {progmem.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    p = commands.add_parser("demo", help="pretrain on the built-in sample, probe, write a report")
    p.add_argument("-o", "--out", type=Path, default=Path("progmem-demo"), help="folder to write")
    p.set_defaults(run=_demo)

    p = commands.add_parser("pretrain", help="train a model on recordings without labels")
    p.add_argument("data", type=Path, help=".npy, .npz or .csv file, or a folder of them")
    p.add_argument("-o", "--out", type=Path, required=True, help="folder of the run")
    p.add_argument("-c", "--config", type=Path, help="yaml file of settings")
    p.add_argument("--print-config", action="store_true", help="show all settings and stop")
    p.usage = "progmem pretrain DATA -o RUN [-c CONFIG.yaml] [section.key=value ...]"
    p.set_defaults(run=_pretrain)

    p = commands.add_parser("embed", help="write the three levels of recordings to a folder")
    p.add_argument("model", type=Path, help="folder of a model, e.g. RUN/model")
    p.add_argument("input", type=Path, help=".npy, .npz or .csv file, or a folder of them")
    p.add_argument("-o", "--out", type=Path, required=True, help="new folder to write")
    p.add_argument(
        "--sampling-rate",
        type=float,
        help="samples a second: spans as times too; by default the run's",
    )
    p.set_defaults(run=_embed)

    chosen, rest = parser.parse_known_args(arguments)
    chosen.overrides = [text for text in rest if "=" in text and not text.startswith("-")]
    if len(chosen.overrides) < len(rest) or (rest and chosen.command != "pretrain"):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        chosen.run(chosen)
    except (ConfigError, InputError, ModelFolderError) as error:
        print(f"progmem: {error}", file=sys.stderr)
        return 2
    except TrainingError as error:
        print(f"progmem: {error}", file=sys.stderr)
        return 1
    return 0


def _demo(chosen: Any) -> None:
    from progmem.demo import demo

    demo(chosen.out)


def _pretrain(chosen: Any) -> None:
    from progmem.settings import read_config
    from progmem.training.pretrain import pretrain

    cfg = read_config(chosen.config, chosen.overrides)
    if chosen.print_config:
        print(yaml.safe_dump(cfg.to_dict(), sort_keys=False), end="")
        return
    pretrain(chosen.data, chosen.out, cfg)


def _embed(chosen: Any) -> None:
    from progmem.data.recordings import read_recordings
    from progmem.embed import embed, run_sampling_rate

    model = progmem.load(chosen.model)
    rate = chosen.sampling_rate or run_sampling_rate(chosen.model)
    embed(model, read_recordings(chosen.input), chosen.out, sampling_rate=rate)
