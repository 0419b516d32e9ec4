"""Is the probe right? TS2Vec's public code through it, against what is known of TS2Vec.

    git clone https://github.com/zhihanyue/ts2vec DIR    # their code stays outside this project
    python -m benchmarks.harness --ts2vec DIR --data-dir DATA    # results/harness/ts2vec.json

TS2Vec with its authors' defaults (320-d, 600 iterations, batch 8, max-pooled over time), on series
standardised by the training rows, through our label draws and SVMs.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.side_by_side import add_arguments, run_rows
from progmem.data.datasets import load_labelled
from progmem.model.saving import gpu_or_cpu
from progmem.probes.classify import SEEDS, probe_features
from progmem.report import record

# accuracy in %, linear SVM of C 0.01, of an earlier run through another implementation of the
# protocol with other label draws, and how far draws and seeds may take it
KNOWN = {
    ("HAR", "1%"): (88.8, 1.5), ("HAR", "5%"): (90.9, 1.5),
    ("FordA", "1%"): (87.1, 3.0), ("FordA", "5%"): (89.1, 2.0),
}  # fmt: skip


SEEDS_TS2VEC = (0, 1, 2)
ITERATIONS, BATCH, WIDTH = 600, 8, 320
DRAWS = 50


def channel_moments(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sd (C,) of each channel of series (R, C, L)."""
    series = x.transpose(0, 2, 1).astype(np.float64)
    return series.mean((0, 1)), series.std((0, 1))


def standardise(x: np.ndarray, moments: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Series (R, C, L) as TS2Vec takes them, (R, L, C)."""
    mean, scale = moments
    return (x.transpose(0, 2, 1).astype(np.float64) - mean) / scale


def fit_ts2vec(train: np.ndarray, *, seed: int, device: str, iterations: int = ITERATIONS) -> Any:
    """TS2Vec with its authors' defaults, trained on series (R, L, C)."""
    from ts2vec import TS2Vec  # the checkout's

    torch.manual_seed(seed)
    np.random.seed(seed)
    model = TS2Vec(input_dims=train.shape[2], output_dims=WIDTH, batch_size=BATCH, device=device)
    model.fit(train, n_iters=iterations)
    return model


def measure(name: str, seed: int, data_dir: Path | None, device: str) -> dict[str, Any]:
    """Scores of one TS2Vec on one set."""
    data = load_labelled(name, data_dir)
    moments = channel_moments(data.X_train)
    train, test = (standardise(x, moments) for x in (data.X_train, data.X_test))
    began = time.perf_counter()
    model = fit_ts2vec(train, seed=seed, device=device)
    features = [model.encode(x, encoding_window="full_series") for x in (train, test)]
    train_features, test_features = ({"sequence": f} for f in features)
    result = probe_features(train_features, test_features, data)
    many = probe_features(  # how lucky the first draws are
        train_features, test_features, data, seeds=range(DRAWS), heads=["linear, fixed C"]
    )["scores"]
    took = time.perf_counter() - began
    return {"seed": seed, "seconds": took, **result, "scores_of_many_draws": many}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ts2vec", type=Path, required=True, help="a checkout of their code")
    parser.add_argument("--data-dir", type=Path)
    add_arguments(parser, "harness")
    chosen = parser.parse_args()
    device = gpu_or_cpu()
    if chosen.row is not None:
        sys.path.insert(0, str(chosen.ts2vec))
        name, seed = chosen.row.split("-")
        print(json.dumps(measure(name, int(seed), chosen.data_dir, device)), flush=True)
        return
    more = ["--ts2vec", str(chosen.ts2vec)]
    names = [f"{name}-{seed}" for name in ("HAR", "FordA") for seed in SEEDS_TS2VEC]
    rows = run_rows("benchmarks.harness", names, chosen, more)
    config = {"iterations": ITERATIONS, "batch": BATCH, "width": WIDTH}
    facts = {"config": config, "seeds": SEEDS_TS2VEC, "label_seeds": SEEDS}
    result = {**facts, **record.environment(device, chosen.commit), "rows": rows}
    print(f"written: {record.save('harness', 'ts2vec', result, folder=chosen.out)}\n")
    print("| set | labels | TS2Vec here | over 50 draws | known |\n|---|---|---|---|---|")
    for (name, amount), (known, within) in KNOWN.items():
        found, many = (
            100 * np.array([
                row[key]["sequence"][amount]["linear, fixed C"]["accuracy"]
                for row in rows if row["set"] == name
            ])
            for key in ("scores", "scores_of_many_draws")
        )  # (seeds, draws)  # fmt: skip
        by_seed = ", ".join(f"{a:.1f}" for a in found.mean(1))
        here = f"{found.mean():.1f} ± {found.std(ddof=1):.1f} (seeds: {by_seed})"
        print(f"| {name} | {amount} | {here} | {many.mean():.1f} | {known} ± {within} |")


if __name__ == "__main__":
    main()
