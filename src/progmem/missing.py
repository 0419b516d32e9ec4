"""Series and channels without an observed value: whoever gives them is told of them by name.

They are no error, as a sensor may fail, and disturb no other series; but what is made of them says
nothing. Whoever takes series from a user tells; the encoder that it then calls does not again.

Shapes: R series, L samples, C channels.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from torch import Tensor

from progmem.data.dates import COVARIATES, has_calendar
from progmem.names import SHOWN, first_few, printable

PIECE = 2**20  # samples looked at together
_TOLD: ContextVar[bool] = ContextVar("told", default=False)


@contextmanager
def already_told() -> Iterator[None]:
    """Inside, encoders do not tell what their caller has told by better names."""
    before = _TOLD.set(True)
    try:
        yield
    finally:
        _TOLD.reset(before)


def tell_of_missing(
    x: Any,
    names: Sequence[str],
    columns: Sequence[str] = (),
    *,
    lengths: Sequence[int] | None = None,
) -> None:
    """Warn of series (R, L, C), or a list of (L_i, C), and channels in which nothing is observed.

    Example:
        >>> import numpy as np, warnings
        >>> from progmem.missing import tell_of_missing
        >>> x = np.zeros((3, 100, 2))
        >>> x[0], x[2, :, 1] = np.nan, np.nan
        >>> with warnings.catch_warnings(record=True) as found:
        ...     tell_of_missing(x, ["pump", "fan", "saw"], ["x", "y"])
        >>> print(found[0].message)
        no value is observed of pump; of y in saw: what is made of it says nothing
    """
    if _TOLD.get():
        return
    # what is never observed is missing in the first sample: mostly there is nothing to look for
    if isinstance(x, Tensor | np.ndarray):
        missing = _is_missing(x[:, 0]).copy()
    else:
        missing = np.stack([_is_missing(one[0]) for one in x])  # (R, C)
    for i in np.flatnonzero(missing.any(1)):
        length = len(x[i]) if lengths is None else lengths[i]
        for start in range(0, length, PIECE):
            missing[i] &= _is_missing(x[i][start : min(start + PIECE, length)]).all(0)
            if not missing[i].any():
                break
    warn_of_missing(missing, names, columns)


def _is_missing(values: Any) -> np.ndarray:
    if isinstance(values, Tensor):
        return torch.isnan(values).cpu().numpy()
    return np.asarray(np.isnan(np.asarray(values)))


class Watch:
    """Which channels of series that come in pieces have had no value yet: told of once."""

    def __init__(self, names: Sequence[str], columns: Sequence[str], *, samples: int) -> None:
        self.names, self.columns = names, columns
        self.left = samples  # until a channel without a value is told of
        self.missing: np.ndarray | None = None  # (R, C) so far; None: nothing looked at
        self.seen = 0

    def add(self, values: Tensor, *, ended: bool) -> None:
        """Look at the next samples (R, L, C), of which the last may have been ``ended`` by."""
        if self.left <= 0 or _TOLD.get():
            return
        missing = values.isnan().all(1).cpu().numpy()
        self.missing = missing if self.missing is None else self.missing & missing
        self.seen += values.shape[1]
        self.left -= values.shape[1]
        if (self.left <= 0 or ended) and self.seen:
            self.left = 0
            so_far = f" in {self.seen} samples"
            warn_of_missing(self.missing, self.names, self.columns, so_far=so_far)


def warn_of_missing(
    missing: np.ndarray, names: Sequence[str], columns: Sequence[str], *, so_far: str = ""
) -> None:
    """Warn of the channels of series that are ``missing`` (R, C) throughout, or ``so_far``."""
    if has_calendar(columns):  # what is known of every date was not observed
        missing, columns = missing[:, len(COVARIATES) :], columns[len(COVARIATES) :]
    if not missing.any():
        return
    whole = missing.all(1)
    parts = [first_few([names[i] for i in np.flatnonzero(whole)])] if whole.any() else []
    channels = [printable(str(c)) for c in columns] or [
        f"channel {c}" for c in range(missing.shape[1])
    ]
    lacking: dict[bytes, list[str]] = {}  # series that lack the same channels
    for i in np.flatnonzero(missing.any(1) & ~whole):
        lacking.setdefault(missing[i].tobytes(), []).append(names[i])
    for key, series in list(lacking.items())[:SHOWN]:
        there = np.frombuffer(key, dtype=bool)
        parts.append(
            f"{first_few([channels[c] for c in np.flatnonzero(there)])} in {first_few(series)}"
        )
    if len(lacking) > SHOWN:
        others = sum(map(len, list(lacking.values())[SHOWN:]))
        parts.append(f"other channels in {others} more")
    text = f"no value is observed of {'; of '.join(parts)}{so_far}: what is made of it says nothing"
    warnings.warn(text, stacklevel=4)
