"""Which form of HGCL, and which alignment of positives, serves a few-label probe better?

    python -m benchmarks.hgcl_form --data-dir DIR      # wants a GPU

Chosen on training rows alone: the model is trained on four fifths of them (HAR: whole subjects) and
probed with 1 % and 5 % of those as labels on the remaining fifth. Test rows are never read.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.side_by_side import run_rows
from progmem.data.registry import load_labelled
from progmem.probes.classify import LABELS, classify
from progmem.probes.labels import amount_name
from progmem.probes.pooling import pool
from progmem.probes.untrained import untrained_twin
from progmem.report import record
from progmem.settings import read_config
from progmem.training.pretrain import pretrain

SETS = {"HAR": ("strong", 12), "PhalangesOutlinesCorrect": ("gentle", 40)}
VARIANTS = (("printed", "time"), ("soft_positive", "time"), ("printed", "index"))
SETTINGS = ["model.size=small", "train.lr=3e-4", "train.batch_size=256"]
SEEDS = (0, 1)


def measure(name: str, form: str, align: str, seed: int, data_dir: Path | None) -> dict[str, Any]:
    """Accuracy of one training, and of the untrained encoder, at both label rates."""
    data = load_labelled(name, data_dir, split="validation")
    preset, epochs = SETS[name]
    more = [f"loss.hgcl_form={form}", f"views.align={align}", f"views.preset={preset}"]
    cfg = read_config(None, [*SETTINGS, *more, f"train.epochs={epochs}", f"train.seed={seed}"])
    with tempfile.TemporaryDirectory() as parent:
        run = Path(parent) / "run"
        model = pretrain(data.training_recordings(), run, cfg, say=lambda _: None)
    row: dict[str, Any] = {"set": name, "form": form, "align": align, "seed": seed}
    for kind, encoder in (("trained", model), ("untrained", untrained_twin(model, seed))):
        ours, theirs = (
            pool(encoder, x.transpose(0, 2, 1), ["sequence"])["sequence"]
            for x in (data.X_train, data.X_test)
        )
        for amount in LABELS:
            scores = classify(
                ours, data.y_train, theirs, data.y_test, labels=amount, head="linear, fixed C"
            )
            row[f"{kind} {amount_name(amount)}"] = scores.accuracy.tolist()
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--commit", help="where there is no repository to ask")
    parser.add_argument("--out", type=Path, default=record.RESULTS)
    parser.add_argument("--work", type=Path, default=Path("runs/hgcl_form"))
    parser.add_argument("--at-once", type=int, default=1, help="trainings side by side")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.row is not None:
        name, form, align, seed = chosen.row.split("-")
        print(json.dumps(measure(name, form, align, int(seed), chosen.data_dir)), flush=True)
        return
    more = [] if chosen.data_dir is None else ["--data-dir", str(chosen.data_dir)]
    names = [f"{n}-{form}-{align}-{s}" for n in SETS for form, align in VARIANTS for s in SEEDS]
    rows = run_rows(
        "benchmarks.hgcl_form", names, work=chosen.work, at_once=chosen.at_once, arguments=more
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    facts = {"config": SETTINGS, "sets": SETS, "seeds": SEEDS}
    result = {**facts, **record.environment(device, chosen.commit), "rows": rows}
    path = record.save("hgcl_form", "har_poc", result, folder=chosen.out)
    print(f"written: {path}\n")
    columns = [f"{kind} {rate}" for rate in ("1%", "5%") for kind in ("trained", "untrained")]
    print("| set | form | align | " + " | ".join(columns) + " |\n|" + "---|" * (3 + len(columns)))
    for name in SETS:
        for form, align in VARIANTS:
            mine = [r for r in rows if (r["set"], r["form"], r["align"]) == (name, form, align)]
            cells = [100 * np.array([r[c] for r in mine]) for c in columns]
            text = " | ".join(f"{c.mean():.1f} ± {c.std(ddof=1):.1f}" for c in cells)
            print(f"| {name} | {form} | {align} | {text} |")


if __name__ == "__main__":
    main()
