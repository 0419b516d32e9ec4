"""How a column of a series is predicted from what is known at a moment: by a ridge.

Shapes: T samples, F columns, P samples of past, H horizon, D width, n moments.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from progmem.probes.ridge import ALPHAS, Ridge, choose, ridge_path
from progmem.probes.sliding import Places, windows

PENALTIES = (*ALPHAS, 1e4, 1e5, 1e6)  # the last leave little but a mean or the newest value


class Column(NamedTuple):
    """How a column is predicted."""

    gaps: str  # of GAPS
    ridge: Ridge


def newest_before(values: Tensor) -> Tensor:
    """Values (1, T, 1) with the newest one before it in place of each that is missing."""
    place = torch.arange(values.shape[1], device=values.device)[:, None]
    seen = torch.where(values[0].isnan(), 0, place).cummax(0).values  # (T, 1)
    return values.gather(1, seen[None])


# what stands for a missing value: the newest one before it, or 0, which is the column's mean
GAPS: dict[str, Callable[[Tensor], Tensor]] = {"newest": newest_before, "mean": Tensor.nan_to_num}


def knowledge(token: Tensor, values: Tensor, places: Places, padding: int) -> Tensor:
    """What a column is predicted from, (n, D+P+1): tokens (n, D), and its own values.

    These are ``values`` (1, T, 1) in the windows that end at ``places``, 0 where missing.
    """
    instance, time = (torch.from_numpy(index).to(values.device) for index in places)
    own = windows(values, padding)[instance, time, :, 0]  # (n, P+1)
    return torch.cat([token, own.nan_to_num(0.0)], dim=1)


def fit_column(x: Sequence[Tensor], y: Sequence[Tensor], padding: int) -> tuple[Ridge, Tensor]:
    """The ridge of a column, and (n, H) how far off one without the validation part was on it.

    ``x`` is the `knowledge` of two parts, training and validation, ``y`` (n, H) what followed. The
    second part chooses the penalty and what it draws predictions to; then both are learnt from.
    """
    candidates = [
        (draw, ridge) for draw in (to_the_mean, to_the_newest)
        for ridge in draw(x[0], y[0], PENALTIES, padding)
    ]  # fmt: skip
    ridge = choose([ridge for _, ridge in candidates], x[1], y[1])
    draw = next(draw for draw, one in candidates if one is ridge)
    (whole,) = draw(torch.cat(list(x)), torch.cat(list(y)), [ridge.alpha], padding)
    return whole, y[1] - ridge.predict(x[1])


def to_the_mean(x: Tensor, y: Tensor, alphas: Sequence[float], _: int) -> list[Ridge]:
    """Ridges of futures y (n, H) on `knowledge`: a penalty draws predictions to the mean."""
    return ridge_path(x, y, alphas)


def to_the_newest(x: Tensor, y: Tensor, alphas: Sequence[float], padding: int) -> list[Ridge]:
    """The same linear functions, but drawn to the newest value: for series without a level."""
    now, past = x[:, -1:], slice(-1 - padding, -1)
    x = x.clone()
    x[:, past] -= now
    found = []
    for alpha, weight, bias in ridge_path(x, y - now, alphas):
        weight[-1] += 1 - weight[past].sum(0)  # in terms of the values themselves
        found.append(Ridge(alpha, weight, bias))
    return found
