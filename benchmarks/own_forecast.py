"""Forecasts as `progmem forecast` makes them without a setting: how good, and how well covered?

    python -m benchmarks.own_forecast --data-dir DATA    # results/own_forecast/default.json

ETTh1 with all columns and its column OT alone, cut where the usual protocol ends, so that the last
part is its test part; and made series whose true intervals are known: white noise, an
autoregression and a random walk, each continued many times.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed

from progmem import PMTForecaster
from progmem.data.own_series import read_series
from progmem.report import record
from progmem.report.tables import markdown

SETS, LENGTH, HORIZONS = ("ETTh1", "ETTh1-uni"), 14_400, (24, 96)  # 20 months of 30 days
SEEDS = (0, 1, 2)
MADE = {"white noise": 0.0, "AR(1), 0.9": 0.9, "random walk": 1.0}  # what is kept of each value
MADE_SEEDS, MADE_LENGTH, MADE_HORIZON, CONTINUATIONS = range(25), 1000, 24, 200
WAYS = ("forecast", "encoder + values", "values alone", "repeat last", "seasonal 24",
        "seasonal 168")  # fmt: skip


def made_series(
    kept: float, count: int, rng: np.random.Generator, start: float = 0.0
) -> np.ndarray:
    """``count`` samples after ``start``: each is ``kept`` times the one before, and a new draw."""
    found, value = np.empty(count), start
    for i, draw in enumerate(rng.normal(size=count)):
        value = kept * value + draw
        found[i] = value
    return found


def measure_set(name: str, seed: int, data_dir: Path | None) -> list[dict[str, Any]]:
    """Errors and coverage of the last part, means over columns, one row a horizon."""
    table = read_series(name, data_dir)[""].iloc[:LENGTH]
    estimate = PMTForecaster(seed=seed).fit(table).estimate(list(HORIZONS))
    rows = []
    for horizon in HORIZONS:
        found = estimate.loc[horizon]
        used = found["used"].value_counts().to_dict()
        scores = {way: float(found[way].mean()) for way in WAYS}
        covered = float(found["coverage"].mean())
        rows.append({"set": name, "seed": seed, "horizon": horizon, "used": used,
                     "mse": scores, "coverage": covered})  # fmt: skip
    return rows


def measure_made(name: str, seed: int) -> list[dict[str, Any]]:
    """How many values of many continuations of a made series its 80 % interval holds."""
    kept = MADE[name]
    series = made_series(kept, MADE_LENGTH, np.random.default_rng(seed))
    forecaster = PMTForecaster().fit(series)
    found = forecaster.predict(MADE_HORIZON)
    future = np.stack([
        made_series(kept, MADE_HORIZON, np.random.default_rng([seed, i]), series[-1])
        for i in range(CONTINUATIONS)
    ])  # fmt: skip
    low, high = (found[f"value {q}%"].to_numpy() for q in (10, 90))
    inside = (future >= low) & (future <= high)
    estimate = forecaster.estimate(MADE_HORIZON).iloc[0]
    row = {"set": name, "seed": seed, "horizon": MADE_HORIZON, "used": {estimate["used"]: 1},
           "coverage": float(inside.mean()), "coverage_last": estimate["coverage"]}  # fmt: skip
    return [row]


def own_forecast_table(results: list[dict[str, Any]]) -> str:
    """Means over seeds: errors beside those anyone can make, and what the intervals hold."""
    rows = results[0]["rows"]
    lines = []
    for name, horizon in dict.fromkeys((row["set"], row["horizon"]) for row in rows):
        some = [row for row in rows if (row["set"], row["horizon"]) == (name, horizon)]
        errors = [
            f"{np.mean([row['mse'][way] for row in some]):.3f}" if "mse" in some[0] else "-"
            for way in WAYS
        ]
        counts = np.array([[row["used"].get("encoder + values", 0), sum(row["used"].values())]
                           for row in some]).sum(0)  # fmt: skip
        used = f"{counts[0]} of {counts[1]}"
        covered = f"{100 * np.mean([row['coverage'] for row in some]):.1f}"
        lines.append([name, str(horizon), *errors, used, covered])
    header = ["series", "H", *WAYS, "columns with the encoder", "80 % interval covers, %"]
    return markdown(header, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--at-once", type=int, default=1, help="processes side by side")
    chosen = parser.parse_args()
    jobs = [delayed(measure_set)(name, seed, chosen.data_dir) for name in SETS for seed in SEEDS]
    jobs += [delayed(measure_made)(name, seed) for name in MADE for seed in MADE_SEEDS]
    rows: list[dict[str, Any]] = []
    for found in Parallel(n_jobs=chosen.at_once, return_as="generator")(jobs):
        rows += found
        print(found, flush=True)
    config = {"length": LENGTH, "made_length": MADE_LENGTH, "continuations": CONTINUATIONS}
    result = {"config": config, "seeds": list(SEEDS), **record.environment(), "rows": rows}
    print(f"written: {record.save('own_forecast', 'default', result)}\n")
    print(own_forecast_table([result]))


if __name__ == "__main__":
    main()
