"""Few-label classification: SVMs on frozen features, over several draws of the labels.

Shapes: R series, D features.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from joblib import Parallel, delayed
from sklearn import config_context
from sklearn.metrics import f1_score
from sklearn.preprocessing import StandardScaler

from progmem.data.labels import Amount, amount_name, check_labels, draw_labels
from progmem.data.sets import LabelledSet
from progmem.encoding import Encoder
from progmem.pooling import POOLINGS, pool
from progmem.probes.svm import HEADS, fit_svm

LABELS: tuple[Amount, ...] = (0.01, 0.05)
SEEDS = tuple(range(5))


class Scores(NamedTuple):
    """One value a draw of labels."""

    accuracy: np.ndarray  # (draws,)
    macro_f1: np.ndarray  # (draws,)
    weighted_f1: np.ndarray  # (draws,)
    c: np.ndarray  # (draws,), the C that was used


def classify(
    train: np.ndarray,
    y: np.ndarray,
    test: np.ndarray,
    test_y: np.ndarray,
    *,
    labels: Amount,
    seeds: Sequence[int] = SEEDS,
    head: str = "linear",
) -> Scores:
    """Scores on all test features (R, D) of machines that saw some labels of the training ones.

    Features are standardised by all training series: that needs no labels.
    """
    check_labels(y, len(train))
    check_labels(test_y, len(test), classes=1)
    scaler = StandardScaler().fit(train)  # refuses what is not finite
    train, test = scaler.transform(train), scaler.transform(test)
    found = []
    for seed in seeds:
        rows = draw_labels(y, labels, seed)
        # hundreds of fits of a millisecond: their own checks would take half the time
        with config_context(assume_finite=True, skip_parameter_validation=True):
            machine = fit_svm(train[rows], y[rows], HEADS[head])
            predicted = machine.predict(test)
        macro, weighted = (
            float(f1_score(test_y, predicted, average=kind)) for kind in ("macro", "weighted")
        )
        found.append((float((predicted == test_y).mean()), macro, weighted, machine.C))
    return Scores(*np.array(found).T)


def probe_set(
    encoder: Encoder,
    data: LabelledSet,
    *,
    labels: Sequence[Amount] = LABELS,
    seeds: Sequence[int] = SEEDS,
    poolings: Sequence[str] = tuple(POOLINGS),
    heads: Sequence[str] = tuple(HEADS),
) -> dict[str, Any]:
    """Every score of an encoder on a set, and the labelled rows of every draw, for a json file.

    Test series meet the frozen encoder and the fitted machines, nothing else.
    """
    train, test = (
        pool(encoder, x.transpose(0, 2, 1), poolings) for x in (data.X_train, data.X_test)
    )
    return probe_features(train, test, data, labels=labels, seeds=seeds, heads=heads)


def probe_features(
    train: Mapping[str, np.ndarray],
    test: Mapping[str, np.ndarray],
    data: LabelledSet,
    *,
    labels: Sequence[Amount] = LABELS,
    seeds: Sequence[int] = SEEDS,
    heads: Sequence[str] = tuple(HEADS),
) -> dict[str, Any]:
    """`probe_set` for features (R, D) that are there already, by the name of their pooling."""
    cells = [(pooling, amount, head) for pooling in train for amount in labels for head in heads]
    found = Parallel(n_jobs=torch.get_num_threads(), prefer="threads")(
        delayed(classify)(
            train[pooling], data.y_train, test[pooling], data.y_test,
            labels=amount, seeds=seeds, head=head,
        )
        for pooling, amount, head in cells
    )  # fmt: skip
    scores: dict[str, Any] = {}
    for (pooling, amount, head), one in zip(cells, found, strict=True):
        place = scores.setdefault(pooling, {}).setdefault(amount_name(amount), {})
        place[head] = {key: values.tolist() for key, values in one._asdict().items()}
    rows = {
        amount_name(amount): [draw_labels(data.y_train, amount, seed).tolist() for seed in seeds]
        for amount in labels
    }
    facts = {"set": data.name, "split": data.split, "label_seeds": list(seeds)}
    return {**facts, "labelled_rows": rows, "scores": scores}
