"""Which form of HGCL, and which alignment of positives, serves a few-label probe better?

    python -m benchmarks.hgcl_form --data-dir DIR      # DIR holds HAR.npz and POC's; wants a GPU

Chosen on training rows alone: the model is trained on four fifths of them (HAR: whole subjects) and
probed with 1 % and 5 % of those as labels on the remaining fifth. Test rows are never read.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

import progmem
from benchmarks import record
from progmem.data.collection import Recording
from progmem.probes.classify import classify
from progmem.settings import read_config
from progmem.training.pretrain import pretrain

SETS = {"HAR": ("HAR.npz", "strong", 12), "POC": ("PhalangesOutlinesCorrect.npz", "gentle", 40)}
VARIANTS = {
    "printed, time": ("printed", "time"),
    "soft_positive, time": ("soft_positive", "time"),
    "printed, index": ("printed", "index"),
}
SETTINGS = ["model.size=small", "train.lr=3e-4", "train.batch_size=256"]
SEEDS = (0, 1)


def load(name: str, folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Training series, labels, and which rows are held out."""
    with np.load(folder / SETS[name][0], allow_pickle=False) as archive:
        x, y = archive["X_train"], archive["y_train"]
        if "subject_train" in archive.files:
            subjects = np.unique(archive["subject_train"])
            held = np.isin(archive["subject_train"], subjects[::5])
        else:
            held = np.random.default_rng(0).random(len(y)) < 0.2
    return x, y, held


def measure(name: str, variant: str, seed: int, folder: Path) -> dict[str, Any]:
    """Accuracy of one training, and of the untrained encoder, at both label rates."""
    x, y, held = load(name, folder)
    form, align = VARIANTS[variant]
    _, preset, epochs = SETS[name]
    more = [f"loss.hgcl_form={form}", f"views.align={align}", f"views.preset={preset}"]
    cfg = read_config(None, [*SETTINGS, *more, f"train.epochs={epochs}", f"train.seed={seed}"])
    with tempfile.TemporaryDirectory() as parent:
        rows = [Recording(str(i), series) for i, series in enumerate(x[~held])]
        model = pretrain(rows, Path(parent) / "run", cfg, say=lambda _: None)
    torch.manual_seed(seed)
    untrained = progmem.PMT(model.cfg).to(next(model.parameters()).device)
    untrained.stats.load_state_dict(model.stats.state_dict())
    row: dict[str, Any] = {"set": name, "variant": variant, "seed": seed}
    for kind, encoder in (("trained", model), ("untrained", untrained)):
        ours, theirs = (encoder.encode(part).sequence.numpy() for part in (x[~held], x[held]))
        for rate in (0.01, 0.05):
            count = max(1, round(rate * len(ours) / len(np.unique(y))))
            scores = classify(ours, y[~held], theirs, y[held], per_class=count, seeds=range(5))
            row[f"{kind} {rate:.0%}"] = scores.accuracy.tolist()
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--commit", help="where there is no repository to ask")
    parser.add_argument("--out", type=Path, default=record.RESULTS)
    parser.add_argument("--at-once", type=int, default=1, help="trainings side by side")
    parser.add_argument("--row", nargs=3, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.row is not None:
        name, variant, seed = chosen.row
        print(json.dumps(measure(name, variant, int(seed), chosen.data_dir)), flush=True)
        return
    waiting = [(s, v, str(seed)) for s in SETS for v in VARIANTS for seed in SEEDS]
    rows: list[dict[str, Any]] = []
    while waiting:
        batch, waiting = waiting[: chosen.at_once], waiting[chosen.at_once :]
        command = [sys.executable, "-m", "benchmarks.hgcl_form", "--data-dir", str(chosen.data_dir)]
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        running = [
            subprocess.Popen([*command, "--row", *row], stdout=subprocess.PIPE, text=True, env=env)
            for row in batch
        ]
        rows += [json.loads(p.communicate()[0].splitlines()[-1]) for p in running]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    record.RESULTS = chosen.out
    facts = {"config": SETTINGS, "sets": SETS, "seeds": SEEDS}
    result = {**facts, **record.environment(device, chosen.commit), "rows": rows}
    print(f"written: {record.save('hgcl_form', 'har_poc', result)}\n")
    columns = [f"{kind} {rate}" for rate in ("1%", "5%") for kind in ("trained", "untrained")]
    print("| set | variant | " + " | ".join(columns) + " |\n|---|---|" + "---|" * len(columns))
    for name in SETS:
        for variant in VARIANTS:
            mine = [r for r in rows if (r["set"], r["variant"]) == (name, variant)]
            cells = [100 * np.array([r[c] for r in mine]) for c in columns]
            text = " | ".join(f"{c.mean():.1f} ± {c.std(ddof=1):.1f}" for c in cells)
            print(f"| {name} | {variant} | {text} |")


if __name__ == "__main__":
    main()
