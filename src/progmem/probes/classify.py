"""Few-label classification: a linear SVM on frozen features, over several draws of the labels.

Shapes: R series, D features, n labelled series.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from sklearn.metrics import f1_score
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from progmem.errors import InputError

LINEAR_C = 0.01  # fixed: with a label or two a class there is nothing to choose it on


class Scores(NamedTuple):
    """One value a draw of labels."""

    accuracy: np.ndarray  # (draws,)
    macro_f1: np.ndarray  # (draws,)


def draw_labels(y: np.ndarray, per_class: int, seed: int) -> np.ndarray:
    """Rows to be labelled: ``per_class`` of each class, in random order; fewer are in more.

    The same seed with a larger ``per_class`` gives a superset, whoever the encoder is.
    """
    rng = np.random.default_rng(seed)
    chosen = []
    for label in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == label))
        if len(rows) < per_class:
            raise InputError(f"class {label} has {len(rows)} series, {per_class} labels were asked")
        chosen.append(rows[:per_class])
    return np.concatenate(chosen)


def classify(
    features: np.ndarray,
    y: np.ndarray,
    test_features: np.ndarray,
    test_y: np.ndarray,
    *,
    per_class: int,
    seeds: Sequence[int],
) -> Scores:
    """Scores on the test series of SVMs trained on a few labelled ones.

    Features are standardised by all training series: that needs no labels.
    """
    if len(np.unique(y)) < 2:
        raise InputError("classification needs at least two classes in y")
    scaler = StandardScaler().fit(features)
    train, test = scaler.transform(features), scaler.transform(test_features)
    accuracy, macro_f1 = [], []
    for seed in seeds:
        rows = draw_labels(y, per_class, seed)
        svm = SVC(kernel="linear", C=LINEAR_C).fit(train[rows], y[rows])
        predicted = svm.predict(test)
        accuracy.append(float((predicted == test_y).mean()))
        macro_f1.append(float(f1_score(test_y, predicted, average="macro")))
    return Scores(np.array(accuracy), np.array(macro_f1))
