"""Few labels: the default recipe beside what a user would take instead, on the same label draws.

    python -m benchmarks.few_labels --data-dir DATA --encoders untrained trained    # wants a GPU
    python -m benchmarks.few_labels --data-dir DATA --encoders raw minirocket       # needs aeon
    git clone https://github.com/zhihanyue/ts2vec DIR    # their code stays outside this project
    python -m benchmarks.few_labels --data-dir DATA --encoders ts2vec --ts2vec DIR  # wants a GPU

Seven sets, 1 % and 5 % of the labels, five draws of them, official test rows, features standardised
by the training rows, classified by a logistic regression and a linear SVM. The encoders are a PMT
as `progmem pretrain SET` trains it, the same PMT untrained, the values of a series, MiniRocket with
10,000 kernels, and TS2Vec with its authors' defaults. Features of a PMT are all scales, and of
these the sequence vector; "unwhitened" are all without whitening, and of these the sequence vector
with the statistics of tokens ("levels") and the detail.
``--settings`` changes the recipe of the PMT and ``--name`` keeps the result apart;
``--validation`` scores training rows that are held out in place of test rows. Writes
results/few_labels/<name>.json, or results/few_labels_validation/.

Shapes: R series, L samples, C channels, D features.
"""

import argparse
import importlib.metadata
import json
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks import harness
from benchmarks.few_labels_tables import few_labels_table
from benchmarks.short_training import take_labelled_rows, untrained_model
from benchmarks.side_by_side import add_arguments, run_rows
from progmem.config import RunConfig, read_config
from progmem.data.datasets import LABELLED, load_labelled
from progmem.data.sets import LabelledSet
from progmem.model.saving import gpu_or_cpu
from progmem.pooling import feature_stats_for, pool
from progmem.probes.classify import SEEDS, probe_features
from progmem.report import record
from progmem.training.defaults import fill_defaults
from progmem.training.pretrain import pretrain

TRAINING_SEEDS = (0, 1, 2)
POOLINGS = ("all", "sequence")  # and parts of the first
HEADS = ("logistic", "linear")
KERNELS = 10_000  # of MiniRocket, its default

Features = dict[str, np.ndarray]  # (R, D) by pooling
Probe = Callable[[Features, Features, LabelledSet], dict[str, Any]]  # scores on test features


class Fitted(NamedTuple):
    """An encoder that is ready."""

    embed: Callable[[np.ndarray], Features]  # of series (R, C, L)
    config: dict[str, Any]


def fit_pmt(data: LabelledSet, seed: int, chosen: argparse.Namespace, *, train: bool) -> Fitted:
    """A PMT by the default recipe, or the one this training starts from."""
    cfg, recordings = run_settings(seed, chosen), data.training_recordings()
    cfg = fill_defaults(cfg, data.X_train.shape[2], device=chosen.device, begun={})
    if train:
        with tempfile.TemporaryDirectory() as parent:
            model = pretrain(recordings, Path(parent) / "run", cfg, log=None)
    else:
        model = untrained_model(recordings, cfg)
    model.to(chosen.device)
    stats = feature_stats_for(model, data.X_train.transpose(0, 2, 1))

    def embed(x: np.ndarray) -> Features:
        series = x.transpose(0, 2, 1)
        found = pool(model, series, POOLINGS, stats=stats.unwhitened)
        levels, detail = np.split(found["all"], [4 * model.cfg.dim], axis=1)
        whitened = stats.whitening.to(torch.device("cpu"))(torch.from_numpy(found["all"])).numpy()
        parts = {"unwhitened": found["all"], "levels": levels, "detail": detail}
        return {**found, "all": whitened, **parts}

    train_settings = {k: v for k, v in cfg.to_dict()["train"].items() if k != "seed"}
    return Fitted(embed, {"model": model.cfg.to_dict(), "train": train_settings})


def run_settings(seed: int, chosen: argparse.Namespace) -> RunConfig:
    given = [f"train.seed={seed}", f"train.device={chosen.device}"]
    return read_config(None, [*given, *chosen.settings])


def fit_raw(data: LabelledSet, seed: int, chosen: argparse.Namespace) -> Fitted:
    """The values of a series as its features."""
    return Fitted(lambda x: {"values": x.reshape(len(x), -1)}, {})


def fit_minirocket(data: LabelledSet, seed: int, chosen: argparse.Namespace) -> Fitted:
    """The share of positive values (PPV) after each of many convolutions."""
    from aeon.transformations.collection.convolution_based import MiniRocket

    rocket = MiniRocket(n_kernels=KERNELS, random_state=seed, n_jobs=torch.get_num_threads())
    rocket.fit(data.X_train)
    return Fitted(lambda x: {"PPV": rocket.transform(x)}, {"kernels": KERNELS})


def fit_ts2vec(data: LabelledSet, seed: int, chosen: argparse.Namespace) -> Fitted:
    """TS2Vec's features, their largest values over time."""
    sys.path.insert(0, str(chosen.ts2vec))
    moments = harness.channel_moments(data.X_train)
    model = harness.fit_ts2vec(
        harness.standardise(data.X_train, moments), seed=seed, device=chosen.device,
        iterations=chosen.iterations,
    )  # fmt: skip

    def embed(x: np.ndarray) -> Features:
        series = harness.standardise(x, moments)
        return {"max": model.encode(series, encoding_window="full_series")}

    facts = {"batch": harness.BATCH, "width": harness.WIDTH, "iterations": chosen.iterations}
    return Fitted(embed, facts)


ENCODERS: dict[str, Callable[[LabelledSet, int, argparse.Namespace], Fitted]] = {
    "untrained": partial(fit_pmt, train=False),
    "trained": partial(fit_pmt, train=True),
    "raw": fit_raw,
    "minirocket": fit_minirocket,
    "ts2vec": fit_ts2vec,
}
SEEDLESS = ("raw",)
PACKAGES = {"minirocket": ("aeon", "numba")}  # beside those every result names


def measure(row: str, chosen: argparse.Namespace) -> dict[str, Any]:
    """Scores of one encoder on one set."""
    name, encoder, seed = row.split("-")
    split = "validation" if chosen.validation else "official"
    data = load_labelled(name, chosen.data_dir, split=split)
    return measure_on(data, encoder, int(seed), chosen, probe=partial(probe_features, heads=HEADS))


def measure_on(
    data: LabelledSet, encoder: str, seed: int, chosen: argparse.Namespace, *, probe: Probe
) -> dict[str, Any]:
    """Scores of one encoder on ``data``; compiling on the way counts as training or embedding."""
    threads, began = torch.get_num_threads(), time.perf_counter()
    fitted = ENCODERS[encoder](data, seed, chosen)
    trained = time.perf_counter()
    train, test = fitted.embed(data.X_train), fitted.embed(data.X_test)
    embedded = time.perf_counter()
    torch.set_num_threads(threads)  # numba, in which MiniRocket is written, changes their number
    result = probe(train, test, data)
    now = time.perf_counter()
    facts = {"encoder": encoder, "seed": seed, "threads": threads}
    seconds = {
        "seconds": now - began, "seconds_training": trained - began,
        "seconds_embedding": embedded - trained, "seconds_probe": now - embedded,
    }  # fmt: skip
    return {**facts, **seconds, **result, "config": fitted.config}


def row_arguments(chosen: argparse.Namespace) -> list[str]:
    """What a row's process is told beside its name."""
    given = ["--device", chosen.device, "--iterations", str(chosen.iterations)]
    if chosen.ts2vec is not None:
        given += ["--ts2vec", str(chosen.ts2vec)]
    if chosen.validation:
        given.append("--validation")
    return [*given, "--settings", *chosen.settings]


def config_of(rows: list[dict[str, Any]], chosen: argparse.Namespace) -> dict[str, Any]:
    """The settings of each encoder by set, out of its ``rows``; those of a run stand once."""
    config: dict[str, Any] = {}
    for row in rows:
        config.setdefault(row["encoder"], {})[row["set"]] = row.pop("config")
    if not config.keys() & {"trained", "untrained"}:
        return config
    run = run_settings(0, chosen).to_dict()
    del run["train"]["seed"]  # a row has it
    return {"settings": chosen.settings, "run": run, **config}


def add_options(parser: argparse.ArgumentParser) -> None:
    """What experiments with all encoders take."""
    add_pmt_options(parser)
    parser.add_argument("--ts2vec", type=Path, help="a checkout of TS2Vec's code")
    parser.add_argument("--iterations", type=int, default=harness.ITERATIONS, help="of TS2Vec")


def add_pmt_options(parser: argparse.ArgumentParser) -> None:
    """What experiments with a PMT take."""
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--seeds", nargs="+", type=int, default=list(TRAINING_SEEDS))
    parser.add_argument("--settings", nargs="*", default=[], metavar="section.key=value")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser)
    parser.add_argument("--sets", nargs="+", default=list(LABELLED), choices=LABELLED)
    parser.add_argument("--encoders", nargs="+", default=["untrained", "trained"], choices=ENCODERS)
    parser.add_argument("--device", choices=("cpu", "cuda"), default=gpu_or_cpu())
    parser.add_argument("--validation", action="store_true", help="score held-out training rows")
    parser.add_argument("--name", help="of the result; by default those of its encoders")
    add_arguments(parser, "few_labels")
    chosen = parser.parse_args()
    if chosen.row is not None:
        print(json.dumps(measure(chosen.row, chosen)), flush=True)
        return
    if "ts2vec" in chosen.encoders and chosen.ts2vec is None:
        parser.error("--encoders ts2vec needs --ts2vec DIR, a checkout of their code")
    seeds = {e: chosen.seeds[:1] if e in SEEDLESS else chosen.seeds for e in chosen.encoders}
    names = [f"{n}-{e}-{s}" for n in chosen.sets for e in chosen.encoders for s in seeds[e]]
    rows = run_rows("benchmarks.few_labels", names, chosen, row_arguments(chosen))
    found = record.environment(chosen.device, chosen.commit)
    for package in (p for e in chosen.encoders for p in PACKAGES.get(e, ())):
        found["versions"][package] = importlib.metadata.version(package)
    labelled = {n: take_labelled_rows([r for r in rows if r["set"] == n]) for n in chosen.sets}
    result = {
        "config": config_of(rows, chosen), "seeds": sorted({row["seed"] for row in rows}),
        "label_seeds": SEEDS, **found, "at_once": chosen.at_once, "labelled_rows": labelled,
        "rows": rows,
    }  # fmt: skip
    experiment = "few_labels_validation" if chosen.validation else "few_labels"
    name = chosen.name or "-".join(chosen.encoders)
    print(f"written: {record.save(experiment, name, result, folder=chosen.out)}\n")
    print(few_labels_table([result | {"name": name}]))


if __name__ == "__main__":
    main()
