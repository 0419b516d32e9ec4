"""Whole experiments by the clock: from a set's file to what its probes say.

    python -m benchmarks.end_to_end HAR-250 --data-dir DIR --sets HAR --epochs 250
    python -m benchmarks.end_to_end sets-100 --data-dir DIR --epochs 100 --at-once 3

`base`, batches of 256, one seed, probed with 1 % and 5 % of the labels on the official test rows;
wants a GPU. Windows of HAR and Epilepsy are those of the paper's figures, W = 6 and S = 3; for the
other sets `ModelConfig.for_length` chooses. Writes results/end_to_end/<name>.json. Seconds of a set
go from its file to the last score, kernels that are made on the way included; seconds of all are
those of this command, in which the untrained encoder is probed too. Nothing is chosen by these
numbers.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.short_training import take_labelled_rows
from benchmarks.side_by_side import add_arguments, run_rows
from progmem.config import read_config
from progmem.data.datasets import LABELLED, load_labelled
from progmem.model.saving import gpu_or_cpu
from progmem.probes.classify import SEEDS, probe_set, untrained_copy
from progmem.report import record
from progmem.report.tables import classification_table
from progmem.training.pretrain import pretrain
from progmem.training.randomness import steps_per_epoch

BATCH, SEED = 256, 0
POOLINGS = ("sequence", "max_tokens")
FIGURES = ("model.window=6", "model.stride=3", "model.slots=2")
GEOMETRY = {"HAR": ("model.patch=8", "model.patch_stride=4", *FIGURES),
            "Epilepsy": ("model.patch=16", "model.patch_stride=5", *FIGURES)}  # fmt: skip
SETTINGS = ("model.size=base", f"train.batch_size={BATCH}", f"train.seed={SEED}", "train.lr=1e-4",
            "views.preset=medium", "train.checkpoint_every=1000")  # fmt: skip


def measure(chosen: argparse.Namespace) -> dict[str, Any]:
    """Train on one set and probe it; the row's seconds, by their parts."""
    began = time.time()
    data = load_labelled(chosen.row, chosen.data_dir)
    geometry = GEOMETRY.get(chosen.row, ())
    settings = [*SETTINGS, *geometry, f"train.epochs={chosen.epochs}", *chosen.settings]
    with tempfile.TemporaryDirectory() as parent:
        cfg = read_config(None, settings)
        model = pretrain(data.training_recordings(), Path(parent) / "run", cfg, log=None)
    trained = time.time()
    rows = [{"encoder": "pmt"} | probe_set(model, data, poolings=POOLINGS)]
    done = time.time()
    untrained = untrained_copy(model, SEED)
    rows.append({"encoder": "untrained"} | probe_set(untrained, data, poolings=POOLINGS))
    for row in rows:
        row |= {"seed": SEED, "config": settings}
    steps = chosen.epochs * steps_per_epoch(len(data.y_train), BATCH)
    parts = {"training": trained - began, "probes": done - trained}
    return {"rows": rows, "steps": steps, "seconds": done - began, "parts": parts}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", help="of the result")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--sets", nargs="+", default=list(LABELLED), choices=LABELLED)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--settings", nargs="*", default=[], metavar="section.key=value")
    add_arguments(parser, "end_to_end")
    chosen = parser.parse_args()
    if chosen.row is not None:
        print(json.dumps(measure(chosen)), flush=True)
        return
    began = time.time()
    more = [chosen.name, "--epochs", str(chosen.epochs), "--settings", *chosen.settings]
    found = run_rows("benchmarks.end_to_end", chosen.sets, chosen, more)
    device = gpu_or_cpu()
    rows = [row for part in found for row in part.pop("rows")]
    labelled = {name: take_labelled_rows([r for r in rows if r["set"] == name])
                for name in chosen.sets}  # fmt: skip
    times = dict(zip(chosen.sets, found, strict=True))
    result = {
        **record.environment(device, chosen.commit), "epochs": chosen.epochs, "seeds": [SEED],
        "label_seeds": SEEDS, "at_once": chosen.at_once, "seconds": time.time() - began,
        "times": times, "labelled_rows": labelled, "rows": rows,
    }  # fmt: skip
    path = record.save("end_to_end", chosen.name, result, folder=chosen.out)
    for name, row in times.items():
        print(f"{name}: {row['steps']} steps, {row['seconds']:.0f} s", row["parts"])
    print(f"all: {result['seconds']:.0f} s\nwritten: {path}\n\n{classification_table([result])}")


if __name__ == "__main__":
    main()
