"""Own data larger than one would hold in memory: what `check`, `pretrain` and `embed` need.

    python -m benchmarks.large_data    # results/large_data; 5 GB of disk for a while

Folders of recordings of mixed lengths with gaps, half of them .npy files and half .csv, and one
long recording as a .npy file: of each a small and a large one. Every command is a process of its
own. Its memory is what it holds beside pages of mapped files, which the system takes back when it
needs them.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from progmem.report import record
from progmem.report.tables import markdown

CHANNELS, LONGEST = 128, 3000  # of the long recording; samples of one in a folder
COUNTS, BYTES = (20, 2000), (20 * 10**6, 2 * 10**9)
STEPS, EVERY = 10, 0.01  # of the training; seconds between two looks at the memory
SETTINGS = ["model.size=tiny", "model.patch=64", "model.patch_stride=64", f"train.steps={STEPS}",
            "train.device=cpu"]  # fmt: skip
COMMANDS = {  # of a folder or file X
    "check": ["check", "X"],
    "pretrain": ["pretrain", "X", "-o", "run", *SETTINGS],
    "embed": ["embed", "run/model", "X", "-o", "out"],
}


def make_folder(path: Path, count: int) -> None:
    """``count`` recordings of three channels, each with a gap."""
    path.mkdir()
    for i in range(count):
        rng = np.random.default_rng(i)
        length = int(rng.integers(LONGEST // 10, LONGEST))
        x = rng.normal(size=(length, 3)).astype(np.float32)
        gap = int(rng.integers(length // 2))
        x[gap : gap + length // 10] = np.nan
        if i % 2:
            np.save(path / f"{i:05}.npy", x)
        else:
            np.savetxt(path / f"{i:05}.csv", x, delimiter=",", fmt="%.5g", header="x,y,z",
                       comments="")  # fmt: skip


def make_file(path: Path, size: int) -> None:
    """A .npy file of about ``size`` bytes that holds one recording."""
    length = size // (4 * CHANNELS)
    x: Any = np.lib.format.open_memmap(  # type: ignore[no-untyped-call]
        path, "w+", "float32", (length, CHANNELS)
    )
    for start in range(0, length, 100_000):
        stop = min(start + 100_000, length)
        x[start:stop] = np.random.default_rng(start).normal(size=(stop - start, CHANNELS))


def run(arguments: list[str], folder: Path) -> dict[str, float]:
    """Processor seconds and the most megabytes of one command, which must end well."""
    command = [sys.executable, "-m", "progmem", *arguments]
    paths = {"PYTHONPATH": str(Path(record.__file__).parents[2])}
    began, most = _processor_seconds(), 0.0
    with (folder / "printed").open("w+") as printed:
        process = subprocess.Popen(
            command, cwd=folder, stdout=printed, stderr=subprocess.STDOUT, env=os.environ | paths
        )
        while process.poll() is None:
            most = max(most, _held(process.pid))
            time.sleep(EVERY)
        printed.seek(0)
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)}: {printed.read()[-1000:]}")
    return {"seconds": _processor_seconds() - began, "mb": most}


def _processor_seconds() -> float:
    """Of all processes that were begun here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _held(pid: int) -> float:
    """Megabytes of a process that are no pages of files."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1000


MAKE: dict[str, Callable[[Path, int], None]] = {"folder": make_folder, "file": make_file}


def measure(kind: str, size: int) -> dict[str, Any]:
    """One row: what each command needs for data of one kind and size."""
    with tempfile.TemporaryDirectory(prefix="progmem-large-") as name:
        folder = Path(name)
        source = folder / ("X" if kind == "folder" else "X.npy")
        MAKE[kind](source, size)
        files = list(source.iterdir()) if source.is_dir() else [source]
        found = {
            command: run([str(source) if a == "X" else a for a in arguments], folder)
            for command, arguments in COMMANDS.items()
        }
        megabytes = sum(file.stat().st_size for file in files) / 10**6
        return {"kind": kind, "size": size, "files": len(files), "mb": megabytes, **found}


def large_data_table(results: list[dict[str, Any]]) -> str:
    """Memory and processor time of each command, one line for each folder or file."""
    lines = []
    found = (row for result in results for row in result["rows"])
    for row in sorted(found, key=lambda row: (row["kind"] == "file", row["size"])):
        what = f"{row['files']:,} recordings" if row["kind"] == "folder" else "one `.npy` file"
        cells = [f"{row[command]['mb']:.0f} MB, {row[command]['seconds']:.0f} s"
                 for command in COMMANDS]  # fmt: skip
        lines.append([what, f"{row['mb']:,.0f} MB", *cells])
    return markdown(["data", "on disk", "`check`", f"`pretrain`, {STEPS} steps", "`embed`"], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", type=int, nargs="*", default=list(COUNTS), help="of a folder")
    parser.add_argument("--bytes", type=int, nargs="*", default=list(BYTES), help="of a file")
    parser.add_argument("--out", type=Path, default=record.RESULTS)
    chosen = parser.parse_args()
    asked = [("folder", count) for count in chosen.counts]
    config = {"channels": CHANNELS, "longest": LONGEST, "settings": SETTINGS}
    results = []
    for kind, size in [*asked, *(("file", size) for size in chosen.bytes)]:
        rows = [measure(kind, size)]
        results.append({"config": config, "seeds": [0], **record.environment(), "rows": rows})
        path = record.save("large_data", f"{kind}-{size}", results[-1], folder=chosen.out)
        print(f"written: {path}", flush=True)
    print(large_data_table(results))


if __name__ == "__main__":
    main()
