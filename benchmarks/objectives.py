"""Does each objective teach its scale? The gap between positive and negative cosines, by subset.

    python -m benchmarks.objectives            # writes results/objectives/sample.json

Trains `tiny` on the built-in sample for 200 steps with each of the seven subsets of objectives.
A gap is the mean cosine with the positive minus the mean cosine with the negatives, at the scale
of the objective, averaged over ten steps at the start and at the end.
"""

import argparse
import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.side_by_side import add_arguments, run_rows
from progmem.config import read_config
from progmem.data.sample import TEST_SUBJECTS, load_sample
from progmem.model.saving import gpu_or_cpu
from progmem.report import record
from progmem.training.pretrain import pretrain

STEPS = 200
OBJECTIVES = ("icl", "pcl", "hgcl")
SUBSETS = [c for c in itertools.product([1, 0], repeat=3) if any(c)]
SETTINGS = [
    "data.longest=200", "data.window=200", "data.hop=100", "model.size=tiny",
    "views.preset=strong", "train.batch_size=64", "train.lr=1e-3", "train.epochs=8",
]  # fmt: skip


def measure(subset: tuple[int, ...], seed: int) -> dict[str, Any]:
    """Gaps of one training at its start and end."""
    sample = load_sample()
    chosen = np.flatnonzero(~np.isin(sample.subject, TEST_SUBJECTS))
    weights = [f"loss.{name}={on}" for name, on in zip(OBJECTIVES, subset, strict=True)]
    cfg = read_config(None, [*SETTINGS, *weights, f"train.seed={seed}"])
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "run"
        pretrain([sample.recordings[i] for i in chosen], folder, cfg, log=lambda _: None)
        lines = (folder / "metrics.jsonl").read_text().splitlines()
    metrics = [json.loads(line) for line in lines][:STEPS]
    row: dict[str, Any] = {"subset": list(subset), "seed": seed, "steps": len(metrics)}
    for name, on in zip(OBJECTIVES, subset, strict=True):
        if on:
            gaps = [m[f"{name}_gap"] for m in metrics]
            row[name] = [float(np.mean(gaps[:10])), float(np.mean(gaps[-10:]))]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser, "objectives")
    chosen = parser.parse_args()
    if chosen.row is not None:
        numbers = [int(c) for c in chosen.row]
        print(json.dumps(measure(tuple(numbers[:3]), numbers[3])), flush=True)
        return
    names = [f"{''.join(map(str, s))}{seed}" for s in SUBSETS for seed in (0, 1)]
    rows = run_rows("benchmarks.objectives", names, chosen)
    device = gpu_or_cpu()
    result = {"config": SETTINGS, "seeds": [0, 1], **record.environment(device, chosen.commit)}
    path = record.save("objectives", "sample", result | {"rows": rows}, folder=chosen.out)
    print(f"written: {path}")
    print("\n| objectives | " + " | ".join(OBJECTIVES) + " |\n|---|---|---|---|")
    for subset in SUBSETS:
        shown = " + ".join(n for n, on in zip(OBJECTIVES, subset, strict=True) if on)
        cells = [
            _cell([r[n] for r in rows if tuple(r["subset"]) == subset and n in r])
            for n in OBJECTIVES
        ]
        print(f"| {shown} | " + " | ".join(cells) + " |")


def _cell(gaps: list[list[float]]) -> str:
    if not gaps:
        return "-"
    start, end = np.mean(gaps, axis=0)
    return f"{start:.2f} → {end:.2f}"


if __name__ == "__main__":
    main()
