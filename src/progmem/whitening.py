"""Within-series whitening: what two stretches of one series differ by says little of the series.

Features of neighbouring stretches of a recording differ by where a motif is cut, by noise, by all
that goes on while the recording stays what it is. The directions in which they differ most are
scaled down, so that few labels need not tell what matters from what does not. Speaker recognition
does the same with recordings of one speaker (within-class covariance normalisation, Hatch et al.,
2006); here no label says what belongs together, the recording does.

With e_j the variance of the differences, over the square root of 2, along their j-th principal
axis u_j, each feature in units of its spread, and e the mean of such variances over all features:

    z' = z - sum_j (1 - 1 / sqrt(1 + e_j / e)) u_j (u_j' z)

Shapes: P pairs of stretches, F features, J axes.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

AXES = 64  # J
STRETCH = 2 / 3  # of a series
LONGEST = 2048  # samples of a stretch
LEAST_SPREAD = 1e-3  # of a feature that counts, in units of its largest value


class Whitening(NamedTuple):
    """A linear map of features; zeros leave them as they are."""

    centre: Tensor  # (F,) float64
    measure: Tensor  # (F, J) float32, from features to their places on the axes
    remove: Tensor  # (J, F) float32, what is taken from the features for it

    def to(self, device: torch.device) -> "Whitening":
        return Whitening(*(t.to(device) for t in self))

    def __call__(self, features: Tensor) -> Tensor:
        """Features (B, F) with what varies within a series scaled down."""
        centre, measure, remove = (t.double() for t in self)
        found = features.double()  # in float32 sums would depend on the size of the batch
        return (found - (found - centre) @ measure @ remove).to(features.dtype)


def no_whitening(features: int) -> Whitening:
    """One that changes nothing, for so many features."""
    return Whitening(
        torch.zeros(features, dtype=torch.float64),
        torch.zeros(features, AXES, dtype=torch.float32),
        torch.zeros(AXES, features, dtype=torch.float32),
    )  # fmt: skip


def draw_stretches(series: Sequence[Any], *, shortest: int) -> list[tuple[Any, Any]]:
    """Two stretches of each series (L_i, C), at drawn places that are the same in every call.

    A series that is not longer than ``shortest`` samples has none.
    """
    source = torch.Generator().manual_seed(0)
    pairs = []
    for one in series:
        length = min(LONGEST, max(shortest, round(STRETCH * len(one))))
        # stretches of a long series are no further apart than those of one of 3,072 samples
        room = min(len(one) - length, round((1 / STRETCH - 1) * length))
        places = torch.rand(3, generator=source, dtype=torch.float64).tolist()
        if room <= 0:
            continue
        begin = int(places[0] * (len(one) - length - room + 1))
        start, other = (begin + int(place * (room + 1)) for place in places[1:])
        pairs.append((one[start : start + length], one[other : other + length]))
    return pairs


def fit_whitening(first: Tensor, second: Tensor) -> Whitening:
    """The map for which features ``first`` and ``second`` (P, F) of the same series differ less."""
    first, second = first.double(), second.double()
    both = torch.cat([first, second])
    found = no_whitening(both.shape[1])
    if not len(both):
        return found
    centre, spread = both.mean(0), both.std(0, correction=0)
    # where nothing but rounding varies, it must not be made large
    spread = torch.where(spread > LEAST_SPREAD * both.abs().amax(0), spread, torch.inf)
    apart = (first - second) / spread / (2 * len(first)) ** 0.5
    mean = apart.square().sum() / both.shape[1]  # e
    if mean == 0:
        return found
    _, size, axes = torch.linalg.svd(apart, full_matrices=False)
    axes = axes[:AXES].T  # (F, J)
    taken = 1 - (1 + size[:AXES].square() / mean).rsqrt()
    found.centre.copy_(centre)
    found.measure[:, : len(taken)] = (axes / spread[:, None]).float()
    varying = torch.where(spread.isfinite(), spread, 0.0)
    found.remove[: len(taken)] = (taken[:, None] * axes.T * varying).float()
    return found
