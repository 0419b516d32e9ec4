"""Ridge regressions on frozen features, the penalty chosen by validation.

Shapes: n samples, D features, M outputs, A penalties, q quantiles.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from progmem.errors import InputError

ALPHAS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)  # TS2Vec's


class Ridge(NamedTuple):
    """A fitted regression."""

    alpha: float
    weight: Tensor  # (D, M) float64
    bias: Tensor  # (M,) float64

    def predict(self, x: Tensor) -> Tensor:
        return x.to(self.weight.dtype) @ self.weight + self.bias  # (n, M)


class Errors(NamedTuple):
    """Mean squared and mean absolute error over what is observed."""

    mse: float
    mae: float


def ridge_path(
    x: Tensor, y: Tensor, alphas: Sequence[float] = ALPHAS, *, standardise: bool = False
) -> list[Ridge]:
    """Regressions of y (n, M) on x (n, D), one a penalty; the intercept is not penalised.

    With ``standardise`` the penalty is on features of standard deviation 1. NaN in y is missing:
    an output is fitted on the samples that have it. Outputs that have the same ones share one
    eigendecomposition.
    """
    x, y = x.double(), y.double()
    unit = torch.ones_like(x[0])
    if standardise:
        sd = x.std(0, correction=0)
        unit = torch.where(sd > 0, sd, unit)
    x = x / unit
    D, M = x.shape[1], y.shape[1]
    weight, bias = x.new_empty(len(alphas), D, M), x.new_empty(len(alphas), M)
    observed = ~y.isnan()  # (n, M)
    if bool(observed.all()):
        groups = [(slice(None), slice(None))]
    else:
        patterns, group = torch.unique(observed.T, dim=0, return_inverse=True)  # (g, n), (M,)
        groups = [(rows, group == g) for g, rows in enumerate(patterns)]
    for rows, outputs in groups:
        some, wanted = x[rows], y[:, outputs][rows]
        if not len(some):
            raise InputError("nothing to learn from: a value is missing in all of the samples")
        x_mean, y_mean = some.mean(0), wanted.mean(0)
        some, wanted = some - x_mean, wanted - y_mean
        values, vectors = torch.linalg.eigh(some.T @ some)
        turned = vectors.T @ (some.T @ wanted)  # (D, m)
        for a, alpha in enumerate(alphas):
            found = vectors @ (turned / (values.clamp(min=0) + alpha)[:, None])
            weight[a][:, outputs] = found / unit[:, None]
            bias[a][outputs] = y_mean - x_mean @ found
    return [Ridge(*one) for one in zip(alphas, weight, bias, strict=True)]


def choose(path: Sequence[Ridge], x: Tensor, y: Tensor) -> Ridge:
    """The regression of least RMSE + MAE on validation samples; of equally good ones the first."""
    return min(path, key=lambda ridge: distance(ridge.predict(x) - y))


def errors(predicted: Tensor, y: Tensor) -> Errors:
    difference = predicted - y
    return Errors(float(difference.square().nanmean()), float(difference.abs().nanmean()))


def distance(difference: Tensor) -> float:
    """RMSE + MAE over what is observed, by which TS2Vec's protocol chooses."""
    return float(difference.square().nanmean().sqrt() + difference.abs().nanmean())


class Totals:
    """Errors over what is observed of several tables of differences."""

    def __init__(self) -> None:
        self.sums = torch.zeros(3, dtype=torch.float64)

    def add(self, difference: Tensor) -> None:
        square, size = difference.square().nansum(), difference.abs().nansum()
        self.sums += torch.stack([square, size, (~difference.isnan()).sum()]).cpu()

    def errors(self) -> Errors:
        square, size, count = self.sums.tolist()
        return Errors(square / count, size / count)


def residual_quantiles(residual: Tensor, quantiles: Sequence[float]) -> Tensor:
    """Quantiles (q, M) of what is observed of (n, M); NaN where nothing is."""
    q = torch.tensor(quantiles, dtype=residual.dtype, device=residual.device)
    size = max(1, 2**23 // len(residual))  # torch takes 2**24 numbers at a time
    return torch.cat(
        [part.nanquantile(q, dim=0) for part in torch.split(residual, size, dim=1)], dim=1
    )
