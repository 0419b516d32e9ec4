"""How a column is predicted: by a ridge on its own values, with or without the encoder's token.

The parts of a series are, in order: the training part, the part that chooses, and the last part,
on which nothing is chosen.

Shapes: T samples, P samples of past, H horizon, D width, n moments, K values a ridge uses.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from progmem.probes.forecast import (
    ALPHAS,
    Origins,
    Ridge,
    choose_ridge,
    errors,
    ridge_path,
    sliding_windows,
)

PENALTIES = (*ALPHAS, 1e4, 1e5, 1e6)  # the last leave little but a mean or the newest value
WITH_ENCODER, VALUES_ALONE = "encoder + values", "values alone"
BLOCKS = 8  # of the part that chooses, to see whether a gain is more than chance
SURE = 1.415  # standard errors: 90 % by Student's t for the mean of so many blocks, one-sided


class Column(NamedTuple):
    """How a column is predicted."""

    gaps: str  # of GAPS
    ridge: Ridge  # of the whole series; its weights on the token are 0 where that is not used


def newest_before(values: Tensor) -> Tensor:
    """Values (1, T, 1) with the newest one before it in place of each that is missing."""
    place = torch.arange(values.shape[1], device=values.device)[:, None]
    seen = torch.where(values[0].isnan(), 0, place).cummax(0).values  # (T, 1)
    return values.gather(1, seen[None])


# what stands for a missing value: the newest one before it, or 0, which is the column's mean
GAPS: dict[str, Callable[[Tensor], Tensor]] = {"newest": newest_before, "mean": Tensor.nan_to_num}


def knowledge(token: Tensor, values: Tensor, origins: Origins, context: int) -> Tensor:
    """What a column is predicted from, (n, D+P+1): tokens (n, D), and its own values.

    These are ``values`` (1, T, 1) in the windows that end at ``origins``, 0 where missing.
    """
    instance, time = (torch.from_numpy(index).to(values.device) for index in origins)
    own = sliding_windows(values, context)[instance, time, :, 0]  # (n, P+1)
    return torch.cat([token, own.nan_to_num(0.0)], dim=1)


def to_the_mean(x: Tensor, y: Tensor, alphas: Sequence[float], _: int) -> list[Ridge]:
    """Ridges of futures y (n, H) on `knowledge`: a penalty draws predictions to the mean."""
    return ridge_path(x, y, alphas)


def to_the_newest(x: Tensor, y: Tensor, alphas: Sequence[float], context: int) -> list[Ridge]:
    """The same linear functions, but drawn to the newest value: for series without a level."""
    now, past = x[:, -1:], slice(-1 - context, -1)
    x = x.clone()
    x[:, past] -= now
    found = []
    for alpha, weight, bias in ridge_path(x, y - now, alphas):
        weight[-1] += 1 - weight[past].sum(0)  # in terms of the values themselves
        found.append(Ridge(alpha, weight, bias))
    return found


class Trial(NamedTuple):
    """A way to predict a column, and how far off it was where it had not looked."""

    column: Column
    choosing: Tensor  # (n, H), on the part that chooses, by a ridge of the training part
    last: Tensor  # (n, H), on the last part, by a ridge of both parts before it
    thirds: tuple[float, ...]  # MSE of each third of the training part, by a ridge of the others


def fit_column(x: Sequence[Tensor], y: Sequence[Tensor], context: int, *, gaps: str) -> Trial:
    """The ridge of a column from the `knowledge` of three parts and what followed, (n, H) each.

    The second part chooses the penalty and what it draws predictions to. The ridge that predicts
    is then fitted on all three.
    """
    candidates = [
        (draw, ridge) for draw in (to_the_mean, to_the_newest)
        for ridge in draw(x[0], y[0], PENALTIES, context)
    ]  # fmt: skip
    ridge = choose_ridge([ridge for _, ridge in candidates], x[1], y[1])
    draw = next(draw for draw, one in candidates if one is ridge)
    before, whole = (
        draw(torch.cat(list(x[:parts])), torch.cat(list(y[:parts])), [ridge.alpha], context)[0]
        for parts in (2, 3)
    )
    thirds = []
    for third in np.array_split(np.arange(len(x[0])), 3):
        others = np.delete(np.arange(len(x[0])), third)
        (other,) = draw(x[0][others], y[0][others], [ridge.alpha], context)
        thirds.append(errors(other.predict(x[0][third]), y[0][third]).mse)
    choosing, last = y[1] - ridge.predict(x[1]), y[2] - before.predict(x[2])
    return Trial(Column(gaps, whole), choosing, last, tuple(thirds))


def without_token(trial: Trial, width: int) -> Trial:
    """A trial on values alone as one whose weights on a token of ``width`` features are 0."""
    alpha, weight, bias = trial.column.ridge
    weight = torch.cat([weight.new_zeros(width, weight.shape[1]), weight])
    return trial._replace(column=trial.column._replace(ridge=Ridge(alpha, weight, bias)))


class Gain(NamedTuple):
    """By which share the encoder lowers the MSE of values alone, on the part that chooses."""

    share: float
    error: float  # its standard error, from blocks of that part
    seasons: bool = True  # whether it is also one in each third of the training part, left out

    @property
    def sure(self) -> bool:
        return self.seasons and self.share > SURE * self.error

    def __str__(self) -> str:
        if self.error == float("inf"):
            return "too little to tell what the encoder is worth"
        way = "lower" if self.share >= 0 else "higher"
        told = f"error {abs(100 * self.share):.1f} ± {100 * self.error:.1f} % {way} by the encoder"
        if self.sure or self.share < 0:
            return told
        return f"{told}: {'not so in other seasons' if not self.seasons else 'may be chance'}"


def gain_of_encoder(trial: Trial, values_alone: Trial) -> Gain:
    """What the encoder is worth on the part that chooses, whose blocks are a sample of it.

    They are all of one season, and a level that is new to an encoder bends its tokens: so it must
    also help in each third of the training part, predicted from the others.
    """
    ours, theirs = (
        [part.square().nanmean().item() for part in residual.tensor_split(BLOCKS)]
        for residual in (trial.choosing, values_alone.choosing)
    )
    gains = np.subtract(theirs, ours)
    there = np.isfinite(gains)
    whole = np.sum(np.array(theirs)[there]) / max(1, there.sum())
    if there.sum() < 2 or not whole > 0:
        return Gain(0.0, float("inf"))
    gains = gains[there]
    seasons = all(a <= b for a, b in zip(trial.thirds, values_alone.thirds, strict=True))
    return Gain(gains.mean() / whole, gains.std(ddof=1) / np.sqrt(len(gains)) / whole, seasons)
