"""Every method of the library on the same label draws: the table of baselines.

    python -m benchmarks.baselines --data-dir DATA    # wants a GPU; needs aeon and xlstm
    python -m benchmarks.baselines --data-dir DATA --methods ts2vec --sets HAR --seeds 0

Each method is trained without labels on the training rows of a set with its published settings, as
`progmem pretrain SET encoder.name=METHOD` trains it, and classifies the official test rows with 1 %
and 5 % of the labels, five draws of them. It does so by its published features and an SVM, linear
as the paper's or RBF as that of TS2Vec and SoftCLT, and by the features and the head that this
library has for every encoder, with and without whitening. Published features are the sequence
vector or, of a CNN, all tokens in a row. Values and MiniRocket have one kind of features. PMT is
trained by the default recipe, of which the size depends on the device. The encoders in PMT's frame,
PMT among them, are also compared with each other: all `small`, trained by the default recipe but
for 400 steps of 64 rows, which is what many such trainings can be given.

A row is a set, a method and a training seed. Its process writes results/baselines/<row>.json, and a
training that was broken off goes on. ``--steps`` trains all methods for so many updates, and
writes to results/baselines_short/ in place of it.

Shapes: R series, L samples, C channels, D features.
"""

import argparse
import importlib.metadata
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks import few_labels
from benchmarks.baselines_tables import METHODS, baselines_table, draws_sha256
from benchmarks.short_training import untrained_model
from benchmarks.side_by_side import add_arguments, run_rows, training_folder
from progmem import baselines
from progmem.baselines.cnn import CNN
from progmem.config import RunConfig, read_config
from progmem.data.datasets import LABELLED, load_labelled
from progmem.data.sets import LabelledSet
from progmem.features import all_scales
from progmem.model.saving import gpu_or_cpu
from progmem.pooling import encode_batches, feature_stats_for, padded
from progmem.probes.classify import SEEDS, probe_features
from progmem.report import record
from progmem.training import run_folder
from progmem.training.pretrain import pretrain

TRAINING_SEEDS = (0, 1)
SEEDLESS = ("raw",)
HEADS = {
    "published": ("linear", "linear, fixed C", "rbf", "logistic"),
    "unwhitened": ("logistic", "linear"),
    "ours": ("logistic", "linear"),
}
WITHOUT_NETWORK = {"raw": few_labels.fit_raw, "minirocket": few_labels.fit_minirocket}
WEAK_VIEWS = ("encoder.scale=1e-3", "encoder.jitter=1e-3", "encoder.ahead=10")
BY_SET = {  # where the settings that TS-TCC and SoftCLT on it publish are not those of HAR
    "Epilepsy": (*WEAK_VIEWS, "encoder.segments=4"),
    **dict.fromkeys(
        ("Wafer", "FordA", "FordB", "PhalangesOutlinesCorrect", "ElectricDevices"),
        (*WEAK_VIEWS, "encoder.segments=9"),
    ),
}

Features = dict[str, np.ndarray]  # (R, D), by the kinds of `HEADS`


class Fitted(NamedTuple):
    """A method that is ready, and what there is to know of it."""

    embed: Callable[[np.ndarray], tuple[Features, float]]  # of series (R, C, L), and its seconds
    config: dict[str, Any]
    parameters: int | None = None
    resumed: bool = False  # its training was broken off, so that its time is not known


def settings(method: str, name: str) -> tuple[str, ...]:
    """What a method is set to on a set, beside its defaults."""
    chosen = METHODS[method]
    by_set = BY_SET.get(name, ()) if chosen.encoder in ("tstcc", "soft_tstcc") else ()
    return (f"encoder.name={chosen.encoder}", *chosen.settings, *by_set)


def run_settings(method: str, name: str, seed: int, chosen: argparse.Namespace) -> RunConfig:
    given = [f"train.seed={seed}", f"train.device={chosen.device}"]
    if chosen.steps is not None:
        given.append(f"train.steps={chosen.steps}")
    return read_config(None, [*settings(method, name), *given])


def fit(row: str, data: LabelledSet, chosen: argparse.Namespace) -> Fitted:
    """The method of a row, trained on the training rows of its set."""
    name, method, seed = row.split("-")
    if method in WITHOUT_NETWORK:
        found = WITHOUT_NETWORK[method](data, int(seed), chosen)
        return Fitted(lambda x: _same_features(found.embed, x), found.config)
    cfg, recordings = run_settings(method, name, int(seed), chosen), data.training_recordings()
    resumed = False
    if METHODS[method].trained:
        run = training_folder(chosen.work, row, cfg.to_dict(), chosen.commit)
        resumed = run.exists()
        encoder = pretrain(recordings, run, cfg, log=None)
        config = run_folder.read_settings(run)
    else:
        encoder = untrained_model(recordings, cfg)
        config = {**cfg.to_dict(), **baselines.sections("pmt", encoder.cfg)}
    encoder.to(chosen.device)
    stats = feature_stats_for(encoder, data.X_train.transpose(0, 2, 1))

    def embed(x: np.ndarray) -> tuple[Features, float]:
        published, plain, seconds, began = [], [], 0.0, time.perf_counter()
        for z, series in encode_batches(encoder, x.transpose(0, 2, 1)):
            of_cnn = isinstance(getattr(encoder, "network", None), CNN)
            published.append((z.tokens.flatten(1) if of_cnn else z.sequence).float().cpu().numpy())
            seconds += time.perf_counter() - began
            plain.append(all_scales(z, padded(series), stats.unwhitened).float().cpu())
            began = time.perf_counter()
        unwhitened = torch.cat(plain)
        ours = stats.whitening.to(torch.device("cpu"))(unwhitened)
        found = {"unwhitened": unwhitened.numpy(), "ours": ours.numpy()}
        return {"published": np.concatenate(published), **found}, seconds

    count = sum(p.numel() for p in encoder.parameters())
    return Fitted(embed, config, count, resumed)


def _same_features(
    embed: Callable[[np.ndarray], dict[str, np.ndarray]], x: np.ndarray
) -> tuple[Features, float]:
    began = time.perf_counter()
    (features,) = embed(x).values()
    return dict.fromkeys(HEADS, features), time.perf_counter() - began


def measure(row: str, chosen: argparse.Namespace) -> dict[str, Any]:
    """Train, embed and score one row, and write what was found."""
    name, method, seed = row.split("-")
    data = load_labelled(name, chosen.data_dir)
    threads, began = torch.get_num_threads(), time.perf_counter()
    fitted = fit(row, data, chosen)
    trained = time.perf_counter()
    (train, train_took), (test, test_took) = (fitted.embed(x) for x in (data.X_train, data.X_test))
    torch.set_num_threads(threads)  # numba, in which MiniRocket is written, changes their number
    scores: dict[str, Any] = {}
    for kind, heads in HEADS.items():
        found = probe_features({kind: train[kind]}, {kind: test[kind]}, data, heads=heads)
        scores |= found["scores"]
    facts = {
        "set": name, "split": data.split, "encoder": method, "seed": int(seed),
        "parameters": fitted.parameters,
        "seconds_training": None if fitted.resumed else trained - began,
        "seconds_embedding": train_took + test_took, "scores": scores,
    }  # fmt: skip
    environment = record.environment(chosen.device, chosen.commit)
    for package in few_labels.PACKAGES.get(method, ()):
        environment["versions"][package] = importlib.metadata.version(package)
    result = {
        "config": fitted.config, "seeds": [int(seed)], "label_seeds": SEEDS,
        "labelled_rows_sha256": draws_sha256(found["labelled_rows"]), **environment,
        "rows": [facts],
    }  # fmt: skip
    experiment = "baselines" if chosen.steps is None else "baselines_short"
    path = record.save(experiment, row, result, folder=chosen.out)
    return {"file": str(path), "seconds": time.perf_counter() - began}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--sets", nargs="+", default=list(LABELLED), choices=LABELLED)
    parser.add_argument("--seeds", nargs="+", type=int, default=list(TRAINING_SEEDS))
    parser.add_argument("--steps", type=int, help="updates of every training; by default its own")
    parser.add_argument("--device", choices=("cpu", "cuda"), default=gpu_or_cpu())
    add_arguments(parser, "baselines")
    chosen = parser.parse_args()
    if chosen.row is not None:
        print(json.dumps(measure(chosen.row, chosen)), flush=True)
        return
    more = ["--device", chosen.device, "--work", str(chosen.work), "--out", str(chosen.out)]
    if chosen.steps is not None:
        more += ["--steps", str(chosen.steps)]
    names = [
        f"{name}-{method}-{seed}"
        for name in chosen.sets
        for method in chosen.methods
        for seed in (chosen.seeds[:1] if method in SEEDLESS else chosen.seeds)
    ]
    rows = run_rows("benchmarks.baselines", names, chosen, more)
    print(baselines_table([record.read(Path(row["file"])) for row in rows]))


if __name__ == "__main__":
    main()
