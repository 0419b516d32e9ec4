"""Settings compared on training rows alone: a fifth of them is held out, test rows are never read.

    python -m benchmarks.tune FordA --data-dir DIR --base views.preset=gentle \
        --try loss.icl_temperature=0.2 loss.icl_temperature=0.5

Each of the tries (several settings go together with a comma) is trained on the remaining rows over
two seeds and probed with 1 % and 5 % of their labels on those held out, beside the untrained
encoder. Writes results/tune/<set>-<name>.json.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.short_training import (
    SETTINGS,
    STEPS,
    TRAINING_SEEDS,
    epochs_for,
    take_labelled_rows,
)
from benchmarks.side_by_side import add_arguments, run_rows
from progmem.config import read_config
from progmem.data.datasets import load_labelled
from progmem.model.saving import gpu_or_cpu
from progmem.probes.classify import SEEDS, probe_set, untrained_copy
from progmem.report import record
from progmem.report.tables import classification_table
from progmem.training.pretrain import pretrain


def measure(chosen: Any, number: int, seed: int) -> list[dict[str, Any]]:
    """Scores of one try at one seed; with the first, of the untrained encoder too."""
    data = load_labelled(chosen.set, chosen.data_dir, split="validation")
    epochs = epochs_for(chosen.steps, len(data.y_train))
    tried = chosen.tries[number].split(",")
    settings = [*SETTINGS, f"train.epochs={epochs}", f"train.seed={seed}", *chosen.base, *tried]
    with tempfile.TemporaryDirectory() as parent:
        run, cfg = Path(parent) / "run", read_config(None, settings)
        model = pretrain(data.training_recordings(), run, cfg, log=None)
    encoders: dict[str, Any] = {chosen.tries[number]: model}
    if number == 0:
        encoders["untrained"] = untrained_copy(model, seed)
    rows = []
    for name, encoder in encoders.items():
        scores = probe_set(encoder, data, poolings=["sequence", "max_tokens"])
        rows.append({"encoder": name, "seed": seed, "config": settings} | scores)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("set")
    parser.add_argument("--try", dest="tries", nargs="+", required=True)
    parser.add_argument("--base", nargs="*", default=[])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--name", default="tries", help="of the result")
    parser.add_argument("--data-dir", type=Path)
    add_arguments(parser, "tune")
    chosen = parser.parse_args()
    if chosen.row is not None:
        number, seed = (int(part) for part in chosen.row.split("-"))
        print(json.dumps({"rows": measure(chosen, number, seed)}), flush=True)
        return
    more = [
        chosen.set,
        "--steps",
        str(chosen.steps),
        "--base",
        *chosen.base,
        "--try",
        *chosen.tries,
    ]
    name = f"{chosen.set}-{chosen.name}"
    names = [f"{number}-{seed}" for number in range(len(chosen.tries)) for seed in TRAINING_SEEDS]
    found = run_rows("benchmarks.tune", names, chosen, more)
    rows = [row for part in found for row in part["rows"]]
    device = gpu_or_cpu()
    facts = {"steps": chosen.steps, "seeds": TRAINING_SEEDS, "label_seeds": SEEDS}
    labelled = take_labelled_rows(rows)
    result = {**facts, **record.environment(device, chosen.commit), "labelled_rows": labelled}
    path = record.save("tune", name, result | {"rows": rows}, folder=chosen.out)
    print(f"written: {path}\n\n{classification_table([result | {'rows': rows}])}")


if __name__ == "__main__":
    main()
