"""The pilot: how far short trainings get on the seven sets, by strength of views.

    python -m benchmarks.pilot --data-dir DIR      # writes results/pilot/<set>.json; wants a GPU

`small`, 400 steps on the training rows of each set, three presets of views, two seeds, beside the
untrained encoder; probed with 1 % and 5 % of the labels on the official test rows. Nothing is
chosen by these numbers.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.results import render
from benchmarks.short_training import (
    SETTINGS,
    STEPS,
    TRAINING_SEEDS,
    epochs_for,
    take_labelled_rows,
    untrained_model,
)
from benchmarks.side_by_side import add_arguments, run_rows
from progmem.config import PRESETS, read_config
from progmem.data.datasets import LABELLED, load_labelled
from progmem.model.saving import gpu_or_cpu
from progmem.probes.classify import SEEDS, probe_set
from progmem.report import record
from progmem.training.pretrain import pretrain

ENCODERS = ("untrained", *PRESETS)


def measure(name: str, encoder: str, seed: int, data_dir: Path, steps: int) -> dict[str, Any]:
    """Scores of one encoder on one set."""
    data = load_labelled(name, data_dir)
    began = time.perf_counter()
    epochs = epochs_for(steps, len(data.y_train))
    settings = [*SETTINGS, f"train.seed={seed}", f"train.epochs={epochs}"]
    if encoder != "untrained":
        settings.append(f"views.preset={encoder}")
    cfg, recordings = read_config(None, settings), data.training_recordings()
    if encoder == "untrained":
        model = untrained_model(recordings, cfg).to(gpu_or_cpu())
    else:
        with tempfile.TemporaryDirectory() as parent:
            model = pretrain(recordings, Path(parent) / "run", cfg, log=lambda _: None)
    trained = time.perf_counter()
    result = {"encoder": encoder, "seed": seed, "config": settings} | probe_set(model, data)
    now = time.perf_counter()
    return result | {"seconds": now - began, "seconds_probe": now - trained}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path)
    add_arguments(parser, "pilot")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--sets", nargs="+", default=list(LABELLED))
    chosen = parser.parse_args()
    if chosen.row is not None:
        name, encoder, seed = chosen.row.split("-")
        row = measure(name, encoder, int(seed), chosen.data_dir, chosen.steps)
        print(json.dumps(row), flush=True)
        return
    more = ["--steps", str(chosen.steps)]
    rows = [f"{n}-{e}-{s}" for n in chosen.sets for e in ENCODERS for s in TRAINING_SEEDS]
    found = run_rows("benchmarks.pilot", rows, chosen, more)
    device = gpu_or_cpu()
    facts = {"steps": chosen.steps, "seeds": TRAINING_SEEDS, "label_seeds": SEEDS}
    for name in chosen.sets:
        mine = [row for row in found if row["set"] == name]
        labelled = take_labelled_rows(mine)
        result = {**facts, **record.environment(device, chosen.commit), "labelled_rows": labelled}
        path = record.save("pilot", name, result | {"rows": mine}, folder=chosen.out)
        print(f"written: {path}")
    print(render("pilot", chosen.out))


if __name__ == "__main__":
    main()
