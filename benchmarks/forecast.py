"""Forecasting in full: three series, encoders trained and untrained as experiments/forecast/ says:
one token a sample with the time covariates beside it, the same without them, tokens of one to four
days of 24 samples, without them, and the best of these tokens trained by the default recipe; TS2Vec
and SoftCLT; and what the ridges make of the last values themselves.

    python -m benchmarks.forecast --data-dir DIR  # writes results/forecast/<set>.json; wants a GPU

Each model is pretrained on the training part of its series, with the settings of its yaml file, and
scored on the test part at all horizons. What breaks off goes on with the same command. Each row
says where it was made; rows of other encoders and seeds that a file holds are kept.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

from benchmarks.results import render
from benchmarks.side_by_side import add_arguments, run_rows, training_folder
from progmem.baselines import sections
from progmem.baselines.values import Values
from progmem.config import RunConfig, read_config
from progmem.data.dates import COVARIATES
from progmem.data.forecast_sets import forecast_set
from progmem.data.recordings import without_covariates
from progmem.data.windows import TrainingWindows
from progmem.model.pmt import PMT
from progmem.model.saving import gpu_or_cpu
from progmem.probes.forecast import probe_forecast
from progmem.report import record
from progmem.series import ChannelStats
from progmem.training.defaults import fill_defaults
from progmem.training.distributed import choose_device
from progmem.training.pretrain import initial_model, model_for, pretrain

SETS = ("ETTh1-uni", "ETTh1", "Electricity-uni")
ENCODERS = {"trained": "trained", "untrained": "untrained", "values": "values",
            "trained_bare": "trained, no covariates",
            "untrained_bare": "untrained, no covariates",
            "trained_day": "trained, day tokens",
            "untrained_day": "untrained, day tokens",
            "trained_default": "trained, default recipe",
            "untrained_default": "untrained, default recipe",
            "ts2vec": "TS2Vec", "softclt": "SoftCLT"}  # fmt: skip
METHODS = ("ts2vec", "softclt")  # with a file of settings of their own
SEEDS = (0, 1, 2)
EXPERIMENTS = Path(__file__).parent.parent / "experiments/forecast"


def settings(
    name: str, encoder: str, seed: int, overrides: list[str], *, device: str | None = None
) -> RunConfig:
    """The settings of a yaml file, with everything decided that it leaves open, for ``device``.

    By default that is the device of a run with these settings.
    """
    kind = encoder if encoder in METHODS else encoder.partition("_")[2]
    path = EXPERIMENTS / f"{name}-{kind}.yaml" if kind else EXPERIMENTS / f"{name}.yaml"
    cfg = read_config(path, [*overrides, f"train.seed={seed}"])
    return fill_defaults(cfg, cfg.data.window, device=device or choose_device(cfg), begun={})


def measure(
    name: str, encoder: str, cfg: RunConfig, data_dir: Path | None, run: Path
) -> dict[str, Any]:
    """Errors of one encoder on one series."""
    began = time.perf_counter()
    data = forecast_set(name, data_dir)
    probed = _encoder(encoder, name, cfg, data_dir, run)
    trained = time.perf_counter()
    facts: dict[str, Any] = {"run": cfg.to_dict()}
    del facts["run"]["train"]["seed"]  # a row has it
    if isinstance(probed, PMT):
        facts["model"] = probed.cfg.to_dict()
    elif not isinstance(probed, Values):
        facts |= sections(probed.name, probed.cfg)
    if not isinstance(probed, Values):
        data = data.with_channels(probed.cfg.channels)
    result = {"encoder": ENCODERS[encoder], "seed": cfg.train.seed} | probe_forecast(probed, data)
    now = time.perf_counter()
    return result | {"seconds": now - began, "seconds_probe": now - trained, "config": facts}


def _encoder(encoder: str, name: str, cfg: RunConfig, data_dir: Path | None, run: Path) -> Any:
    device = gpu_or_cpu()
    if encoder.startswith("trained") or encoder in METHODS:
        return pretrain(name, run, cfg, data_dir=data_dir, log=lambda _: None).to(device)
    recordings = forecast_set(name, data_dir).training_recordings()
    rows = TrainingWindows(
        without_covariates(recordings) if cfg.data.covariates is False else recordings, cfg.data
    )
    stats = ChannelStats(rows.channels)
    rows.set_statistics(stats)
    if encoder == "values":
        return Values(stats, first=len(COVARIATES))
    return initial_model(model_for(rows, cfg), stats, cfg.train.seed).to(device)


def with_rows_before(rows: list[dict[str, Any]], path: Path) -> dict[str, Any]:
    """A result of ``rows`` and of those in ``path`` whose settings are still the same.

    Settings stand once an encoder.
    """
    before = record.read(path) if path.exists() else {"config": {}, "rows": []}
    config = before["config"] | {row["encoder"]: row.pop("config") for row in rows}
    new = {(row["encoder"], row["seed"]) for row in rows}
    kept = [
        row
        for row in before["rows"]
        if (row["encoder"], row["seed"]) not in new
        and before["config"][row["encoder"]] == config[row["encoder"]]
    ]
    order = list(ENCODERS.values())
    rows = sorted([*kept, *rows], key=lambda row: (order.index(row["encoder"]), row["seed"]))
    return {"config": config, "seeds": sorted({row["seed"] for row in rows}), "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--sets", nargs="+", default=SETS, choices=SETS)
    parser.add_argument("--encoders", nargs="+", default=ENCODERS, choices=ENCODERS)
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--override", nargs="+", default=[], help="section.key=value ...")
    add_arguments(parser, "forecast")
    chosen = parser.parse_args()
    if chosen.row is not None:
        name, encoder, seed = chosen.row.rsplit("-", 2)
        cfg = settings(name, encoder, int(seed), chosen.override)
        run = training_folder(chosen.work, chosen.row, cfg.to_dict(), chosen.commit)
        row = measure(name, encoder, cfg, chosen.data_dir, run)
        device = gpu_or_cpu()
        print(json.dumps(row | record.environment(device, chosen.commit)), flush=True)
        return
    more = ["--work", str(chosen.work)]
    if chosen.override:
        more += ["--override", *chosen.override]
    seeds = {e: chosen.seeds[:1] if e == "values" else chosen.seeds for e in chosen.encoders}
    rows = [f"{n}-{e}-{s}" for n in chosen.sets for e in chosen.encoders for s in seeds[e]]
    found = run_rows("benchmarks.forecast", rows, chosen, more)
    for name in chosen.sets:
        rows_of_set = [row for row in found if row["set"] == name]
        result = with_rows_before(rows_of_set, chosen.out / "forecast" / f"{name}.json")
        print(f"written: {record.save('forecast', name, result, folder=chosen.out)}")
    print(render("forecast", chosen.out))


if __name__ == "__main__":
    main()
