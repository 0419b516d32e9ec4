"""Crafted files are read, each by a process of its own: what it did, and what that took.

Nothing in a file may be run, nothing may be written beside what a command is asked for, and the
process must end by itself, with exit code 0 or with code 2 and one line. Memory is the most that
is resident in the process, less what was resident when it began with all of progmem loaded.
Seconds are the processor's, so that they do not depend on what else the machine does.
"""

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.crafted_files import Crafted, crafted_files
from progmem.cli import main

MOST_MB, MOST_SECONDS = 300, 5
PRETRAIN = ("pretrain", "x.npy", "-o", "run", "train.device=cpu")
RESULTS = ("results", "classify", "--results")
HANGS = 900  # seconds by the clock: also on a busy machine it waits for something then
OURS = ("out", "out.csv", "run", "results", "began", "said")  # what commands may write


class Ended(NamedTuple):
    """How the process ended that read a file."""

    how: str  # "refused", "read", or what it did that it must not
    mb: float
    seconds: float
    said: str


def count_crafted(count: int, *, seed: int = 0) -> list[dict[str, Any]]:
    """For each kind of crafted file, how its reading ended, and the most that it took.

    Of all files, ``count`` that lie evenly apart are read; ``seed`` says which is the first.
    """
    every = crafted_files()
    chosen = every[seed % len(every) :: max(1, len(every) // count)][:count]
    found: dict[str, list[Ended]] = {}
    with tempfile.TemporaryDirectory() as made:
        kept = Path(made) / "kept"
        _prepare(kept)
        for file in chosen:
            ended = read_crafted(file, kept, Path(made) / "a/b")
            if ended.how not in ("refused", "read"):
                text = f"{ended.how}: {file.name} by {' '.join(file.command)}: {ended.said[:500]}"
                print(text, file=sys.stderr, flush=True)
            found.setdefault(file.kind, []).append(ended)
    return [
        {
            "part": "crafted files", "what": kind,
            "ended": {how: sum(one.how == how for one in ends) for how in HOW},
            "most_mb": round(max(one.mb for one in ends), 1),
            "most_seconds": round(max(one.seconds for one in ends), 2),
        }
        for kind, ends in found.items()
    ]  # fmt: skip


HOW = ("refused", "read", "executed", "crashed", "large", "slow")


def _prepare(folder: Path) -> None:
    """What commands need beside a crafted file; all that they load is loaded before they begin."""
    folder.mkdir()
    np.save(folder / "x.npy", np.random.default_rng(0).normal(size=(12, 48, 2)).astype("f4"))
    (folder / "y.csv").write_text("label\n" + "a\nb\n" * 6)
    (folder / "t.csv").write_text(
        "date,a\n" + "".join(f"2024-01-{i:02},{i}\n" for i in range(1, 31))
    )
    import aeon.datasets
    import edfio
    import obspy
    import pyarrow.parquet
    import wfdb

    assert all((aeon.datasets, edfio, obspy.read, pyarrow.parquet, wfdb))  # they are loaded
    fitted = ["classify", "x.npy", "--labels", "y.csv", "--model", "run/model", "-o", "p.csv"]
    before = Path.cwd()
    os.chdir(folder)
    try:
        with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
            assert main([*PRETRAIN, "model.size=tiny", "train.steps=1"]) == 0
            assert main(fitted) == 0
            assert main(["embed", "run/model", "x.npy", "-o", "out"]) == 0
            shutil.rmtree("out")
            for command in (["check", "t.csv"], ["check", "x.npy"]):
                main(command)
    finally:
        os.chdir(before)


def read_crafted(file: Crafted, kept: Path, folder: Path) -> Ended:
    """Read ``file`` in the new ``folder``, which has what is in ``kept`` beside it."""
    shutil.copytree(kept, folder)
    try:
        path = folder / file.name.replace("FILE", "crafted")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.content().replace(b"HERE", path.stem.encode()))
        top = folder.parents[1]
        before = {*top.rglob("*")}
        command = [path.name if part == "FILE" else part for part in file.command]
        ended = _run(command, folder)
        may = {folder / name for name in OURS}
        new = {*top.rglob("*")} - before
        odd = sorted(str(p) for p in new if not may & {p, *p.parents})
        return ended._replace(how="executed", said=f"it made {', '.join(odd)}") if odd else ended
    finally:
        shutil.rmtree(folder.parents[0])


def _run(command: Sequence[str], folder: Path) -> Ended:
    """Run a command in a child, and say how it ended."""
    child = os.fork()
    if not child:
        code = 70
        try:
            os.chdir(folder)
            Path("began").write_text(str(_resident_kb()))
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(os.open("said", os.O_WRONLY | os.O_CREAT), 2)
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
            torch.set_num_threads(1)
            code = main(command)
        except SystemExit as error:
            code = int(error.code or 0)
        finally:
            sys.stderr.flush()
            os._exit(code)
    began, killed = time.monotonic(), False
    while True:
        done, status, usage = os.wait4(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() - began > HANGS and not killed:
            os.kill(child, signal.SIGKILL)
            killed = True
        time.sleep(0.002)
    said = (folder / "said").read_text(errors="replace")
    began_kb = int((folder / "began").read_text())
    mb, seconds = (usage.ru_maxrss - began_kb) / 1024, usage.ru_utime + usage.ru_stime
    code = os.waitstatus_to_exitcode(status)
    lines = [line for line in said.splitlines() if not line.startswith("progmem: warning: ")]
    if killed or seconds > MOST_SECONDS:
        how = "slow"
    elif mb > MOST_MB:
        how = "large"
    elif code == 0:
        how = "read"
    elif code == 2 and len(lines) == 1 and lines[0].startswith("progmem: "):
        how = "refused"
    else:
        how = "crashed"
    return Ended(how, mb, seconds, f"exit code {code}, {mb:.0f} MB, {seconds:.1f} s: {said}")


def _resident_kb() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1])
