"""Is the probe right? TS2Vec's public code through it, against what is known of TS2Vec.

    git clone https://github.com/zhihanyue/ts2vec DIR    # their code stays outside this project
    python -m benchmarks.harness --ts2vec DIR --data-dir DATA    # results/harness/ts2vec.json

TS2Vec with its authors' defaults (320-d, 600 iterations, batch 8, max-pooled over time), on series
standardised by the training rows, through our label draws and SVMs.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from progmem.data.registry import load_labelled
from progmem.probes.classify import LABELS, SEEDS, classify
from progmem.probes.labels import amount_name, draw_labels
from progmem.probes.svm import HEADS
from progmem.report import record

KNOWN = {  # accuracy in %, linear SVM of C 0.01, and how far off it may be
    ("HAR", "1%"): (88.8, 1.5), ("HAR", "5%"): (90.9, 1.5),
    ("FordA", "1%"): (87.1, 3.0), ("FordA", "5%"): (89.1, 2.0),
}  # fmt: skip


def measure(name: str, data_dir: Path | None, iterations: int, device: str) -> dict[str, Any]:
    """TS2Vec's scores on one set."""
    from ts2vec import TS2Vec  # the checkout's

    data = load_labelled(name, data_dir)
    train, test = (x.transpose(0, 2, 1).astype(np.float64) for x in (data.X_train, data.X_test))
    mean, scale = train.mean((0, 1)), train.std((0, 1))
    train, test = (train - mean) / scale, (test - mean) / scale
    began = time.perf_counter()
    torch.manual_seed(0)
    np.random.seed(0)
    model = TS2Vec(input_dims=train.shape[2], output_dims=320, batch_size=8, device=device)
    model.fit(train, n_iters=iterations)
    features = [model.encode(x, encoding_window="full_series") for x in (train, test)]
    scores = {
        amount_name(amount): {
            head: {
                key: value.tolist()
                for key, value in classify(
                    features[0], data.y_train, features[1], data.y_test, labels=amount, head=head
                )._asdict().items()
            }
            for head in HEADS
        }
        for amount in LABELS
    }  # fmt: skip
    rows = {
        amount_name(a): [draw_labels(data.y_train, a, seed).tolist() for seed in SEEDS]
        for a in LABELS
    }
    took = time.perf_counter() - began
    return {"set": name, "seconds": took, "labelled_rows": rows, "scores": scores}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ts2vec", type=Path, required=True, help="a checkout of their code")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--iterations", type=int, default=600)
    parser.add_argument("--commit", help="where there is no repository to ask")
    parser.add_argument("--out", type=Path, default=record.RESULTS)
    chosen = parser.parse_args()
    sys.path.insert(0, str(chosen.ts2vec))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows = [measure(n, chosen.data_dir, chosen.iterations, device) for n in ("HAR", "FordA")]
    facts = {"config": {"iterations": chosen.iterations, "batch": 8, "width": 320}, "seeds": [0]}
    result = {**facts, **record.environment(device, chosen.commit), "rows": rows}
    print(f"written: {record.save('harness', 'ts2vec', result, folder=chosen.out)}\n")
    print("| set | labels | TS2Vec here | known |\n|---|---|---|---|")
    for row in rows:
        for amount in map(amount_name, LABELS):
            accuracy = 100 * np.array(row["scores"][amount]["linear, fixed C"]["accuracy"])
            known, within = KNOWN[row["set"], amount]
            here = f"{accuracy.mean():.1f} ± {accuracy.std(ddof=1):.1f}"
            print(f"| {row['set']} | {amount} | {here} | {known} ± {within} |")


if __name__ == "__main__":
    main()
