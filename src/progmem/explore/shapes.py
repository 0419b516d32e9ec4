"""The shape of a stretch: its samples without their level and strength, from any place on.

A place is the beginning of a part of a window; shapes at all places tell a movement from the same
one in another phase. Each channel is taken without its mean over the stretch, and all together are
scaled to one strength. What is missing is as its channel is on average.

Shapes: n windows, P parts of one, C channels, m places, S = STRETCH * P * C numbers of a shape.
"""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from progmem.explore.stretches import STRETCH

FAINT = 0.05  # of the strength of a channel: what is fainter is not made as strong as the rest


def shapes(points: np.ndarray, places: np.ndarray, unit: np.ndarray) -> np.ndarray:
    """The shapes (m, S) of the stretches that begin at places, numbered over all parts of windows.

    Args:
        points: (n, P, C), means of the parts of windows, NaN where nothing is observed.
        places: (m,), at most (n - STRETCH) * P.
        unit: (C,), how much each channel varies.

    Example:
        >>> wave = np.tile([1.0, -1.0], 10).reshape(10, 2, 1)  # 10 windows of 2 parts
        >>> print(shapes(7 + 3 * wave, np.array([0, 1]), np.array([3.0]))[:, :4].round(1))
        [[ 0.3 -0.3  0.3 -0.3]
         [-0.3  0.3 -0.3  0.3]]
    """
    n, P, C = points.shape
    x = sliding_window_view(points.reshape(n * P, C), STRETCH * P, axis=0)[places]  # (m, C, S / C)
    there = ~np.isnan(x)
    mean = np.where(there, x, 0).sum(2) / there.sum(2).clip(1)
    apart = np.where(there, x - mean[:, :, None], 0) / unit[:, None]
    strength = np.sqrt(np.square(apart).mean((1, 2)) + FAINT**2)
    return (apart.reshape(len(x), -1) / (strength * apart[0].size ** 0.5)[:, None]).astype(
        np.float32
    )
