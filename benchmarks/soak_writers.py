"""Two processes that write one place, and one of them killed: what is there afterwards is whole.

A race is two processes that begin to write the same path at once, each something else. In every
other race one of them is killed (kill -9) at a random moment. What was there before, if anything,
what is there at the end and whatever can be read meanwhile must be what one of them wrote, to the
bit, and the next writer must find nothing left lying about. Anything else is lost.
"""

import hashlib
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import progmem
from progmem.data.recordings import Recording
from progmem.embed import embed
from progmem.errors import InputError
from progmem.files import UNFINISHED, write_file
from progmem.report import record

FORK = multiprocessing.get_context("fork")
HANGS = 300  # seconds by the clock
DONE, REFUSED, FAILED = 0, 3, 4  # exit codes of a writer
Read = Callable[[Path], Any]


class Writers(NamedTuple):
    """What the two processes of a race write, and how it is read as a user reads it."""

    write: Sequence[Callable[[Path], Any]]  # of each, and then of who was there before
    read: Read  # refuses what is damaged, and what is not of one save
    replaces: bool = True  # or refuses a path that exists
    file: str = ""  # by which a folder is told from one that is being made


def made_writers() -> dict[str, Writers]:
    """Writers of every kind of file and folder that a user may have two commands write."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(12, 2, 48)).astype(np.float32)
    cfg = progmem.ModelConfig(channels=2, size="tiny")
    models = [progmem.PMT(cfg) for _ in range(3)]
    recordings = [Recording(str(i), x.T) for i, x in enumerate(X)]
    encoders = [progmem.PMTEncoder(size="tiny", steps=1, seed=s).fit(X) for s in range(3)]
    classifiers = [
        progmem.PMTClassifier(size="tiny", steps=1, seed=s).fit(X, np.arange(12) % 2)
        for s in range(3)
    ]
    by_sample = progmem.ModelConfig(channels=1, size="tiny", patch_stride=1)
    one = progmem.PMT(by_sample)
    forecasters = [progmem.PMTForecaster(one) for _ in range(3)]
    for forecaster in forecasters:  # of two series, so that there are several files
        forecaster.fit({name: rng.normal(size=300) for name in "ab"}).predict(2)
    return {
        "model.save": Writers([m.save for m in models], progmem.load, file="model.safetensors"),
        "PMTEncoder.save": Writers([e.save for e in encoders], progmem.PMTEncoder.load),
        "PMTClassifier.save": Writers([c.save for c in classifiers], progmem.PMTClassifier.load),
        "PMTForecaster.save": Writers(
            [f.save for f in forecasters], lambda path: progmem.PMTForecaster.load(path, one)
        ),
        "embed": Writers([_embedder(m, recordings) for m in models], _arrays, replaces=False),
        "a result": Writers([_result(i) for i in range(3)], record.read),
    }


def _embedder(model: progmem.PMT, recordings: Sequence[Recording]) -> Callable[[Path], Any]:
    return lambda path: embed(model, recordings, path, log=None)


def _result(number: int) -> Callable[[Path], Any]:
    return lambda path: record.write(path, {"rows": [{"score": [number] * 20_000}]})


def _arrays(folder: Path) -> None:
    for path in folder.glob("*.npy"):
        np.load(path)


def digest(path: Path) -> str:
    """Of a file, or of all that is in a folder."""
    found = hashlib.sha256()
    for one in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if one.is_file() and not one.name.startswith(UNFINISHED):
            found.update(str(one.relative_to(path)).encode() + one.read_bytes())
    return found.hexdigest()


def count_races(count: int, *, seed: int = 0) -> list[dict[str, Any]]:
    """For each kind of writer, how its races ended; the lost ones must be none."""
    rng = np.random.default_rng(seed)
    writers = made_writers()
    found = {name: {"whole": 0, "whole, one killed": 0, "lost": 0} for name in writers}
    for at, (name, kind) in enumerate(writers.items()):
        known, takes = _alone(kind)
        for race in range(len(range(at, count, len(writers)))):
            wait = float(rng.uniform(0, 1.5 * takes)) if race % 2 else None
            before = kind.replaces and race % 4 < 2
            lost = _race(kind, known, before=before, kill_after=wait)
            if lost is not None:
                print(f"lost: {name}: {lost}", file=sys.stderr)
            ending = "whole" if wait is None else "whole, one killed"
            found[name]["lost" if lost else ending] += 1
    return [{"part": "two writers", "what": n, "ended": ends} for n, ends in found.items()]


def _alone(kind: Writers) -> tuple[list[str], float]:
    """The digest of what each writes where nobody else does, and how long that takes."""
    known, began = [], time.perf_counter()
    for write in kind.write:
        with tempfile.TemporaryDirectory() as made:
            write(Path(made) / "path")
            known.append(digest(Path(made) / "path"))
    return known, (time.perf_counter() - began) / len(kind.write)


def _race(
    kind: Writers, known: Sequence[str], *, before: bool, kill_after: float | None
) -> str | None:
    """What was lost in a race, if anything was."""
    processes: list[Any] = []
    with tempfile.TemporaryDirectory() as made:
        try:
            return _lost(kind, known, Path(made), processes, before=before, kill_after=kill_after)
        finally:
            for process in processes:
                process.kill()
                process.join()


def _lost(
    kind: Writers,
    known: Sequence[str],
    made: Path,
    processes: list[Any],
    *,
    before: bool,
    kill_after: float | None,
) -> str | None:
    path = made / "path"
    whole = path / kind.file
    if before:
        kind.write[2](path)
    waits, start = os.pipe()  # an event has a lock, which a process that is killed may hold
    processes += [FORK.Process(target=_write, args=(w, path, waits, start)) for w in kind.write[:2]]
    for process in processes:
        process.start()
    os.close(start)
    began, there = time.perf_counter(), before
    while any(process.is_alive() for process in processes):
        if kill_after is not None and time.perf_counter() - began > kill_after:
            processes[0].kill()
            kill_after = None
        lost = _unread(kind.read, path) if whole.exists() else there and "it was gone"
        if lost:
            return f"meanwhile {lost}"
        there = there or whole.exists()
        if time.perf_counter() - began > HANGS:
            return "a writer hangs"
    os.close(waits)
    codes = [process.exitcode for process in processes]
    good = (DONE, -signal.SIGKILL, *(() if kind.replaces else (REFUSED,)))
    if any(code not in good for code in codes):
        return f"exit codes {codes}"
    allowed = [d for d, code in zip(known, codes, strict=False) if code == DONE]
    killed = [known[0]] if codes[0] == -signal.SIGKILL else []  # perhaps after it was done
    if whole.exists():
        lost = _unread(kind.read, path)
        if lost:
            return lost
        unchanged = [known[2]] if before and not allowed else []
        if digest(path) not in [*allowed, *killed, *unchanged]:
            return "it holds something else"
    elif allowed or before or -signal.SIGKILL not in codes:
        return "it is gone"
    write_file(made / "next", b"")
    if kind.replaces:
        kind.write[0](path)
    left = [one.name for one in made.rglob(f"{UNFINISHED}*")]
    return f"left lying about: {left}" if left else None


def _write(write: Callable[[Path], Any], path: Path, waits: int, start: int) -> None:
    os.close(start)
    os.read(waits, 1)  # which ends when nobody can write there any more
    try:
        write(path)
    except InputError:
        os._exit(REFUSED)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(FAILED)
    os._exit(DONE)


def _unread(read: Read, path: Path) -> str | None:
    """Why ``path`` cannot be read as its users read it."""
    try:
        read(path)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None
