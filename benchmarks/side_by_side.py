"""Rows of an experiment, each in a process of its own, several at once, none done twice."""

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from progmem.report import record


def add_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    """What every experiment of rows takes."""
    parser.add_argument("--commit", help="where there is no repository to ask")
    parser.add_argument("--out", type=Path, default=record.RESULTS)
    parser.add_argument("--work", type=Path, default=Path("runs") / name)
    parser.add_argument("--at-once", type=_count, default=1, help="trainings side by side")
    parser.add_argument("--row", help=argparse.SUPPRESS)


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 up, got {text}")
    return int(text)


def training_folder(work: Path, row: str, config: Mapping[str, Any], commit: str | None) -> Path:
    """Where a row is trained: other settings or another commit never go on with its weights."""
    same = json.dumps([config, commit or record.environment()["commit"]])
    return work / "runs" / f"{row}-{hashlib.sha256(same.encode()).hexdigest()[:8]}"


def run_rows(
    module: str, rows: Sequence[str], chosen: argparse.Namespace, arguments: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """What ``python -m module --row ROW *arguments`` prints as its last line, json, for each row.

    The commit and the data folder that were ``chosen`` are handed on. A row that is in the work
    folder already is taken from there, so a run that was broken off goes on; with other arguments
    or another commit it is another row.
    """
    work, at_once, arguments = chosen.work, chosen.at_once, [*arguments]
    for option, value in (
        ("--commit", chosen.commit),
        ("--data-dir", getattr(chosen, "data_dir", None)),
    ):
        if value is not None:
            arguments += [option, str(value)]
    work.mkdir(parents=True, exist_ok=True)
    environment = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // at_once))} | os.environ
    same = [module, *arguments, str(record.environment()["commit"])]
    key = hashlib.sha256("\n".join(same).encode()).hexdigest()[:8]

    def run(row: str) -> dict[str, Any]:
        kept = work / f"{row}-{key}.json"
        if not kept.exists():
            done = subprocess.run(
                [sys.executable, "-m", module, "--row", row, *arguments],
                stdout=subprocess.PIPE, text=True, env=environment,
            )  # fmt: skip
            if done.returncode:
                raise RuntimeError(f"row {row} of {module} failed")
            unfinished = kept.with_suffix(".unfinished")
            unfinished.write_text(done.stdout.splitlines()[-1])
            unfinished.rename(kept)
        found: dict[str, Any] = json.loads(kept.read_text())
        print(f"{row}: {found.get('seconds', 0):.0f} s", flush=True)
        return found

    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(run, rows))
