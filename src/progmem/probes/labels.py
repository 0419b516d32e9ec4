"""Which series are labelled: drawn by class, the same for every encoder."""

from collections.abc import Sequence

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
