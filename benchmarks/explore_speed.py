"""How long a page waits: a search, a refit and a suggestion over 100,000 windows.

    python -m benchmarks.explore_speed          # a minute

The index is on disk and has as many windows as are asked for, whose vectors are drawn from those of
the built-in sample by an untrained `tiny` model. Every question is asked several times; told are
the least and the median of the seconds that a clock shows, and the least of the seconds of the
processor, which other programs on the machine do not change much. Writes
results/explore_speed/<name>.json.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.short_training import untrained_model
from progmem import explore
from progmem.config import read_config
from progmem.data.sample import load_sample
from progmem.demo import SETTINGS
from progmem.report import record
from progmem.report.tables import markdown

WINDOWS, RECORDINGS = 100_000, 100
CLASSES, LABELS = 7, 50
WIDTH = 10  # windows of a stretch
TIMES = 9
BOUNDS = {"search": 0.2, "classify": 1.0}  # seconds


def large_index(folder: Path) -> explore.Index:
    """As many windows as are asked for, in recordings of equal length."""
    recordings = load_sample().recordings[:20]
    cfg = read_config(None, [*SETTINGS, "model.size=tiny", "train.device=cpu"])
    small = explore.index(untrained_model(recordings, cfg), recordings, folder / "small", log=None)
    rows = np.random.default_rng(0).integers(len(small), size=WINDOWS)
    found = {}
    for name in ("all_vectors", "channel_values", "all_points"):
        np.save(folder / f"{name}.npy", getattr(small, name)[rows])
        found[name] = np.load(folder / f"{name}.npy", mmap_mode="r")
    each = WINDOWS // RECORDINGS
    return replace(
        small, names=[f"recording {i}" for i in range(RECORDINGS)],
        lengths=[each * small.window] * RECORDINGS, starts=np.arange(RECORDINGS + 1) * each,
        calendars=[None] * RECORDINGS, **found,
    )  # fmt: skip


def measure(ask: Callable[[], Any]) -> dict[str, Any]:
    wall, processor = [], []
    for _ in range(TIMES):
        began, used = time.perf_counter(), time.process_time()
        ask()
        wall.append(time.perf_counter() - began)
        processor.append(time.process_time() - used)
    return {
        "seconds": min(wall), "median_seconds": float(np.median(wall)),
        "processor_seconds": min(processor),
    }  # fmt: skip


def explore_speed_table(results: list[dict[str, Any]]) -> str:
    """Seconds of each question, and whether the bounds are kept."""
    lines = []
    for row in results[0]["rows"]:
        bound = "-" if row["bound"] is None else f"{row['bound']:g}"
        if row["bound"] is not None:
            bound += ", kept" if row["seconds"] <= row["bound"] else ", missed"
        cells = [f"{row[key]:.2f}" for key in ("seconds", "median_seconds", "processor_seconds")]
        lines.append([row["question"], *cells, bound])
    return markdown(["question", "least, s", "median, s", "processor, s", "bound, s"], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", default="cpu")
    parser.add_argument("--out", type=Path, default=record.RESULTS)
    chosen = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        idx = large_index(Path(folder))
        length = WIDTH * idx.window
        labels = [
            (f"recording {i}", 100 * length // 10, 100 * length // 10 + length, str(i % CLASSES))
            for i in range(LABELS)
        ]
        questions: dict[str, Callable[[], Any]] = {
            "search": lambda: explore.search(idx, "recording 7", 0, length, k=10),
            "classify": lambda: explore.classify(idx, labels),
            "suggest": lambda: explore.suggest(idx, labels),
            "segment": lambda: explore.segment(idx, "recording 7"),
            "surprise": lambda: explore.surprise(idx, "recording 7"),
        }
        for name, ask in questions.items():
            rows.append({"question": name, **measure(ask), "bound": BOUNDS.get(name)})
            print(rows[-1], flush=True)
    config = {
        "windows": WINDOWS, "recordings": RECORDINGS, "vector": idx.all_vectors.shape[1],
        "labels": LABELS, "classes": CLASSES, "stretch": WIDTH, "times": TIMES,
        "cores": os.cpu_count(), "load": os.getloadavg()[0],
    }  # fmt: skip
    result = {"config": config, "seeds": [0], **record.environment(), "rows": rows}
    print(f"written: {record.save('explore_speed', chosen.name, result, folder=chosen.out)}\n")
    print(explore_speed_table([result]))


if __name__ == "__main__":
    main()
