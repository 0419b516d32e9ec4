"""Is the forecasting probe right? TS2Vec's public code through it, against published figures.

    git clone https://github.com/zhihanyue/ts2vec DIR    # their code stays outside this project
    python -m benchmarks.forecast_harness --ts2vec DIR --data-dir DATA    # wants a GPU

TS2Vec with its authors' defaults (320-d, batch 8, crops of 3,000, 200 or 600 iterations by the size
of the series), its features through our windows, samples and ridges. Written to
results/forecast_harness/ts2vec.json.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.results import render
from benchmarks.side_by_side import add_arguments, run_rows
from progmem.data.forecast_sets import HORIZONS, ForecastData, forecast_set
from progmem.encoding import Encoding
from progmem.model.saving import gpu_or_cpu
from progmem.probes.forecast import probe_forecast
from progmem.report import record
from progmem.series import Moments

SETS = ("ETTh1-uni", "ETTh1", "Electricity-uni")
EXPECTED = {"ETTh1-uni": (0.035, 0.05), "ETTh1": (0.55, 0.66), "Electricity-uni": (0.25, 0.27)}
FIRST = min(HORIZONS)
SEEDS = (0, 1, 2)


class TS2VecEncoder:
    """Their model as a `progmem.Encoder`: one token a sample, no levels above."""

    def __init__(self, data: ForecastData, seed: int, device: str) -> None:
        from ts2vec import TS2Vec  # the checkout's

        start, end = data.bounds["train"]
        train = torch.as_tensor(data.x[:, start:end])  # (I, L, C)
        flat = train.flatten(0, 1)
        scale = flat.std(0, correction=0)
        self.moments = Moments(flat.mean(0), torch.where(scale > 0, scale, 1.0))
        torch.manual_seed(seed)
        np.random.seed(seed)
        self.model = TS2Vec(
            input_dims=data.x.shape[2], output_dims=320, batch_size=8, max_train_length=3000,
            device=device,
        )  # fmt: skip
        self.model.fit(self._normalised(train))

    def _normalised(self, x: Any) -> np.ndarray:
        mean, scale = self.moments
        return ((x - mean) / scale).float().numpy()

    def encode(self, x: Any) -> Encoding:
        tokens = torch.from_numpy(self.model.encode(self._normalised(x), batch_size=256))
        start = torch.arange(x.shape[1])
        return Encoding(
            tokens=tokens, memory=None, sequence=tokens.amax(1), eos=None,
            token_mask=~x.isnan().all(2), window_mask=None,
            token_spans=torch.stack([start, start + 1], dim=1), window_spans=None,
        )  # fmt: skip


def measure(
    name: str, seed: int, data_dir: Path | None, device: str, horizons: list[int]
) -> dict[str, Any]:
    """Errors of one TS2Vec on one series."""
    data = forecast_set(name, data_dir)
    began = time.perf_counter()
    encoder = TS2VecEncoder(data, seed, device)
    trained = time.perf_counter()
    result = {"encoder": "TS2Vec", "seed": seed} | probe_forecast(encoder, data, horizons=horizons)
    now = time.perf_counter()
    return result | {"seconds": now - began, "seconds_probe": now - trained}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ts2vec", type=Path, required=True, help="a checkout of their code")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--sets", nargs="+", default=SETS, choices=SETS)
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--horizons", nargs="+", type=int, default=HORIZONS)
    add_arguments(parser, "forecast_harness")
    chosen = parser.parse_args()
    device = gpu_or_cpu()
    horizons = list(chosen.horizons)
    if chosen.row is not None:
        sys.path.insert(0, str(chosen.ts2vec))
        name, seed = chosen.row.rsplit("-", 1)
        row = measure(name, int(seed), chosen.data_dir, device, horizons)
        print(json.dumps(row), flush=True)
        return
    more = ["--ts2vec", str(chosen.ts2vec), "--horizons", *map(str, horizons)]
    names = [f"{n}-{s}" for n in chosen.sets for s in chosen.seeds]
    rows = run_rows("benchmarks.forecast_harness", names, chosen, more)
    facts = {"config": {"batch": 8, "width": 320, "crop": 3000}, "seeds": list(chosen.seeds)}
    result = {**facts, **record.environment(device, chosen.commit), "rows": rows}
    print(f"written: {record.save('forecast_harness', 'ts2vec', result, folder=chosen.out)}\n")
    print(render("forecast_harness", chosen.out))
    for row in rows if FIRST in horizons else []:
        found = row["scores"][str(FIRST)]["ridge"]["test"]["mse"]
        low, high = EXPECTED[row["set"]]
        row_name = f"{row['set']}, {FIRST} ahead, seed {row['seed']}"
        print(f"{row_name}: {found:.3f}, {low} to {high} expected")


if __name__ == "__main__":
    main()
