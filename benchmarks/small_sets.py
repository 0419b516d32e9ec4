"""Small sets: trained by the default recipe on 20 or 100 rows, is an encoder better than untrained?

    python -m benchmarks.small_sets --data-dir DATA    # wants a GPU

Of each of the seven sets so many training rows are kept, of each class in proportion and at least
one, drawn from the training seed. A PMT is trained on them without labels and without a setting,
and scored on the official test rows with the labels of all kept rows and with one label a class,
five draws; so is the PMT that the training starts from. Features and head are the default ones.
Writes results/small_sets/<device>.json.

Shapes: R training rows of a set, n kept rows.
"""

import argparse
import json
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.few_labels import Features, add_pmt_options, config_of, measure_on
from benchmarks.few_labels_tables import HEAD, POOLING, small_sets_table
from benchmarks.short_training import take_labelled_rows
from benchmarks.side_by_side import add_arguments, run_rows
from progmem.config import Amount
from progmem.data.datasets import LABELLED, load_labelled
from progmem.data.labels import draw_labels
from progmem.data.sets import LabelledSet
from progmem.errors import InputError
from progmem.model.saving import gpu_or_cpu
from progmem.probes.classify import SEEDS, probe_features
from progmem.report import record

ROWS = (20, 100)
ENCODERS = ("untrained", "trained")
LABEL_DRAWS: tuple[tuple[Amount, tuple[int, ...]], ...] = (
    (1.0, (0,)),  # all labels: nothing is drawn
    (1, SEEDS),  # a class
)


def draw_rows(y: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Rows (n,) in order: of each class in proportion, at least one; a larger draw has them too."""
    if not len(np.unique(y)) <= count <= len(y):
        classes = len(np.unique(y))
        raise InputError(f"rows must be in {classes}..{len(y)}, one of each class, got {count}")
    rows = draw_labels(y, 1.0, seed)  # (R,), class by class, each in an order of its own
    sizes = np.unique(y, return_counts=True)[1]
    shares = np.concatenate([(np.arange(size) + 0.5) / size for size in sizes])  # of their class
    shares[np.cumsum(sizes) - sizes] = 0  # the first of a class comes before all second ones
    return np.sort(rows[np.argsort(shares, kind="stable")[:count]])


def keep_rows(data: LabelledSet, rows: np.ndarray) -> LabelledSet:
    """``data`` with some of its training rows."""
    recording, start = (
        None if known is None else known[rows] for known in (data.recording_train, data.start_train)
    )
    return replace(
        data, X_train=data.X_train[rows], y_train=data.y_train[rows],
        recording_train=recording, start_train=start,
    )  # fmt: skip


def probe(train: Features, test: Features, data: LabelledSet) -> dict[str, Any]:
    """Scores of the default features and head, with all labels and with one a class."""
    found: dict[str, Any] = {"labelled_rows": {}, "scores": {POOLING: {}}}
    for amount, seeds in LABEL_DRAWS:
        one = probe_features(
            {POOLING: train[POOLING]}, {POOLING: test[POOLING]}, data,
            label_shares=[amount], seeds=seeds, heads=[HEAD],
        )  # fmt: skip
        found["labelled_rows"] |= one["labelled_rows"]
        found["scores"][POOLING] |= one["scores"][POOLING]
    return {"set": data.name, "split": data.split, **found}


def measure(row: str, chosen: argparse.Namespace) -> dict[str, Any]:
    """Scores of one encoder on some rows of one set; labelled rows are numbered as in the set."""
    name, count, encoder, seed = row.split("-")
    data = load_labelled(name, chosen.data_dir)
    kept = draw_rows(data.y_train, int(count), int(seed))
    found = measure_on(keep_rows(data, kept), encoder, int(seed), chosen, probe=probe)
    labelled = {
        amount: [kept[drawn].tolist() for drawn in draws]
        for amount, draws in found["labelled_rows"].items()
    }
    return {"row_count": int(count), **found, "labelled_rows": labelled}


def labelled_rows(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The labelled rows by set, number of rows and seed, out of ``rows``: both encoders' same."""
    groups: dict[tuple[str, int, int], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["set"], row["row_count"], row["seed"]), []).append(row)
    found: dict[str, Any] = {}
    for (name, count, seed), group in groups.items():
        found.setdefault(name, {}).setdefault(count, {})[seed] = take_labelled_rows(group)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_pmt_options(parser)
    parser.add_argument("--rows", nargs="+", type=int, default=list(ROWS), help="that are kept")
    parser.add_argument("--sets", nargs="+", default=list(LABELLED), choices=LABELLED)
    parser.add_argument("--device", choices=("cpu", "cuda"), default=gpu_or_cpu())
    add_arguments(parser, "small_sets")
    chosen = parser.parse_args()
    if chosen.row is not None:
        print(json.dumps(measure(chosen.row, chosen)), flush=True)
        return
    for name in chosen.sets:  # before anything is trained
        try:
            y = load_labelled(name, chosen.data_dir).y_train
            for count in chosen.rows:
                draw_rows(y, count, seed=0)
        except InputError as error:
            parser.error(f"{name}: {error}")
    names = [
        f"{name}-{count}-{encoder}-{seed}"
        for name in chosen.sets for count in chosen.rows for encoder in ENCODERS
        for seed in chosen.seeds
    ]  # fmt: skip
    more = ["--device", chosen.device, "--settings", *chosen.settings]
    rows = run_rows("benchmarks.small_sets", names, chosen, more)
    result = {
        "config": config_of(rows, chosen), "seeds": chosen.seeds, "label_seeds": SEEDS,
        **record.environment(chosen.device, chosen.commit), "at_once": chosen.at_once,
        "labelled_rows": labelled_rows(rows), "rows": rows,
    }  # fmt: skip
    print(f"written: {record.save('small_sets', chosen.device, result, folder=chosen.out)}\n")
    print(small_sets_table([result]))


if __name__ == "__main__":
    main()
