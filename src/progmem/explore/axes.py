"""The vector of a window: its description on principal axes of many descriptions.

Numbers are scaled by their spread, groups of them count the same, and what is far out is clipped.
Each coordinate is then divided by the fourth root of its variance, which lies between leaving the
variances as they are and making them equal; both were worse (docs/LOG.md, 2026-11-18).

Shapes: n windows, F numbers of a description, V numbers of a vector.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

MOST_AXES = 128
FARTHEST = 8.0  # standard deviations
LEAST_VARIANCE = 1e-6  # of an axis, as a share of that of the first


class Axes(NamedTuple):
    """How a description becomes a vector."""

    mean: Tensor  # (F,) float64
    scale: Tensor  # (F,) float64, above 0
    axes: Tensor  # (F, V) float64
    size: Tensor  # () float64: root mean square of the vectors' lengths

    @classmethod
    def fit(cls, groups: Sequence[np.ndarray]) -> "Axes":
        """Axes of descriptions, which are groups (n, f) of numbers, NaN where not known."""
        x = np.concatenate(groups, axis=1)
        there = ~np.isnan(x)
        count, known = there.sum(0).clip(1), np.where(there, x, 0)
        mean = known.sum(0, dtype=np.float64) / count
        apart = np.where(there, x - mean.astype(x.dtype), 0)
        spread = np.sqrt(np.square(apart).sum(0, dtype=np.float64) / count)
        # equal values have a mean with a rounding error, which is not a spread
        varies = spread > 1e-6 * np.abs(known).max(0, initial=0.0)
        scale = np.where(varies, spread, 1.0)
        weight = np.concatenate([np.full(g.shape[1], g.shape[1] ** -0.5) for g in groups])
        z = _scaled(x, mean, scale) * weight.astype(x.dtype)
        variance, axes = np.linalg.eigh((z.T @ z).astype(np.float64) / len(z))
        variance, axes = variance[::-1][:MOST_AXES], axes[:, ::-1][:, :MOST_AXES]
        kept = variance > LEAST_VARIANCE * variance[0]
        kept[0] = True  # also where all descriptions are the same
        variance, axes = variance[kept], axes[:, kept]
        stretch = np.where(variance > 0, variance, 1.0) ** -0.25
        # an axis may as well point the other way; its largest number is positive
        sign = np.sign(axes[np.abs(axes).argmax(0), np.arange(axes.shape[1])])
        axes = weight[:, None] * axes * (sign * stretch)
        size = np.sqrt((variance * stretch**2).sum())
        return cls(*map(torch.from_numpy, (mean, scale, axes, np.asarray(size))))

    @classmethod
    def of_tensors(cls, held: Mapping[str, Tensor]) -> "Axes":
        return cls(*(held[name] for name in cls._fields))

    def vectors(self, groups: Sequence[np.ndarray]) -> np.ndarray:
        """The vectors (n, V) float32 of descriptions."""
        z = _scaled(np.concatenate(groups, axis=1), self.mean.numpy(), self.scale.numpy())
        return z @ self.axes.numpy().astype(z.dtype)


def _scaled(x: np.ndarray, mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Numbers in units of their spread; what is not known is as usual."""
    apart = (x - mean.astype(x.dtype)) / scale.astype(x.dtype)
    return np.nan_to_num(np.clip(apart, -FARTHEST, FARTHEST))
