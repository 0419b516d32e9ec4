"""Labels of series: which there are, and which of them are drawn, the same for every encoder.

Shapes: B series.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from progmem.errors import InputError

Amount = int | float


def draw_labels(
    y: np.ndarray, amount: Amount, seed: int, *, classes: Sequence[str] = ()
) -> np.ndarray:
    """Rows to be labelled, class by class.

    ``amount`` is a share of each class (a float up to 1.0), at least one series, or a number a
    class (an int). One seed gives nested draws: fewer are in more. ``classes`` are what users call
    the numbers in ``y``.
    """
    rng = np.random.default_rng(seed)
    chosen = []
    for label in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == label))
        count = amount if isinstance(amount, int) else max(1, round(amount * len(rows)))
        if not 1 <= count <= len(rows):
            name = classes[label] if classes else label
            raise InputError(f"class {name} has {len(rows)} series, {count} labels were asked")
        chosen.append(rows[:count])
    return np.concatenate(chosen)


def parse_amount(text: str) -> Amount:
    """``"5%"`` is a share of each class, ``"10"`` a number a class."""
    try:
        amount = float(text[:-1]) / 100 if text.endswith("%") else int(text)
    except ValueError:
        amount = 0
    if not amount > 0 or (text.endswith("%") and amount > 1):
        raise InputError(f"labels must be a share such as 5% or a number a class, got {text!r}")
    return amount


def amount_name(amount: Amount) -> str:
    return f"{amount} a class" if isinstance(amount, int) else f"{100 * amount:g}%"


def check_labels(y: np.ndarray, count: int, *, classes: int = 2) -> None:
    """Refuse labels that do not fit their series or have nothing to tell apart."""
    if y.shape != (count,):
        raise InputError(f"y must have one label for each of the {count} series, got {y.shape}")
    if len(np.unique(y)) < classes:
        there = ", ".join(map(str, np.unique(y))) or "none"
        raise InputError(f"classification needs at least two classes in y, got {there}")
    if len(np.unique(y)) == count and any(map(_fraction, y)):
        raise InputError(
            f"each of the {count} labels is there once, as {y[0]}: numbers that were measured are "
            "no classes"
        )


def known_labels(y: Any) -> tuple[np.ndarray, np.ndarray]:
    """Which series have a label (B,), and those labels: whole numbers, numbers or texts."""
    # of a list with texts numpy would make texts, also of its NaN
    y = np.asarray(y) if hasattr(y, "dtype") else np.array(y, dtype=object)
    if y.ndim != 1:
        raise InputError(f"y must be one label a series, got shape {y.shape}")
    known = np.array([not _missing(value) for value in y.tolist()], dtype=bool)
    labels = y[known]
    if y.dtype.kind == "O":
        labels = np.asarray(labels.tolist())
    if labels.dtype.kind == "O":
        labels = np.array([str(value) for value in labels])
    if labels.dtype.kind not in "biufU":
        raise InputError(f"labels must be numbers or texts, got dtype {y.dtype}")
    if labels.dtype.kind == "U":
        return known, labels
    if np.isinf(labels).any():
        raise InputError("a label is infinite; mark a series without a label by NaN")
    return known, labels.astype(np.int64) if (labels == np.round(labels)).all() else labels


def _fraction(label: Any) -> bool:
    try:
        return not float(label).is_integer()
    except ValueError:
        return False


def _missing(label: Any) -> bool:
    """Whether ``label`` says that there is none: None, NaN, pandas' NA or an empty text."""
    import pandas as pd

    return label is None or label is pd.NA or label != label or label == ""
