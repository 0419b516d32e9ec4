"""Cue retention of the variants in experiments/cue: with and without PCL, both read-outs, default.

    python -m benchmarks.cue --data-dir DIR      # wants a GPU; writes results/cue/FordA-<row>.json

Each row is a variant and a training seed: pretrained on FordA's training rows, probed on its test
rows beside its untrained copy. A training that was broken off goes on.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.results import render
from benchmarks.side_by_side import add_arguments, run_rows, training_folder
from progmem.config import read_config
from progmem.probes.protocols import evaluate_cue
from progmem.report import record
from progmem.training.pretrain import pretrain

SET = "FordA"
EXPERIMENTS = Path(__file__).parent.parent / "experiments/cue"
VARIANTS = tuple(sorted(path.stem for path in EXPERIMENTS.glob("*.yaml")))


def measure(row: str, chosen: Any) -> dict[str, Any]:
    """Train one row, or go on with it, and probe it."""
    variant, seed = row.rsplit("-", 1)
    cfg = read_config(EXPERIMENTS / f"{variant}.yaml", [f"train.seed={seed}", *chosen.settings])
    run = training_folder(chosen.work, row, cfg.to_dict(), chosen.commit)
    out = chosen.out / "cue" / f"{SET}-{row}.json"
    pretrain(SET, run, cfg, data_dir=chosen.data_dir, log=None)
    result = evaluate_cue(run / "model", SET, out, data_dir=chosen.data_dir, log=lambda _: None)
    if chosen.commit is not None:
        record.write(out, result | {"commit": chosen.commit, "dirty": None})
    return {"seconds": result["seconds"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--settings", nargs="*", default=[], metavar="section.key=value")
    add_arguments(parser, "cue")
    chosen = parser.parse_args()
    if chosen.row is not None:
        print(json.dumps(measure(chosen.row, chosen)), flush=True)
        return
    more = ["--work", str(chosen.work), "--out", str(chosen.out), "--settings", *chosen.settings]
    rows = [f"{variant}-{seed}" for variant in chosen.variants for seed in chosen.seeds]
    run_rows("benchmarks.cue", rows, chosen, more)
    print(render("cue", chosen.out))


if __name__ == "__main__":
    main()
