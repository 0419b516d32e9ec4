"""Means of vectors over neighbouring windows, by which stretches are compared.

Shapes: n windows, V numbers of a vector.
"""

import numpy as np

from progmem.explore.folder import Index

STRETCH = 5  # windows around one that show what is going on: half of a row the model was trained on


def sums(x: np.ndarray, m: int) -> np.ndarray:
    """Sums of m rows of x (n, V) from each row on, for as many as there are: (n - m + 1, V)."""
    if m == 1:
        return x
    n, h = len(x), m // 2
    half = sums(x, h)
    both = half[: n - 2 * h + 1] + half[h:]
    return both[: n - m + 1] + x[m - 1 :] if m % 2 else both


def means_around(idx: Index, recording: str, m: int = STRETCH) -> np.ndarray:
    """Mean vector of the observed ones of m windows around each of a recording, (n, V).

    At the ends of the recording and beside gaps it is of fewer windows, without any it is 0.
    """
    return moving_means(idx.vectors(recording), idx.observed(recording), m)


def moving_means(x: np.ndarray, observed: np.ndarray, m: int) -> np.ndarray:
    """`means_around` of any numbers of windows (n, V), which are 0 where nothing is observed."""
    row = np.arange(len(x))
    first, end = (row - (m - 1) // 2).clip(0), (row + m // 2 + 1).clip(max=len(x))
    total = np.concatenate([np.zeros((1, x.shape[1])), np.cumsum(x, 0, np.float64)])
    count = np.append(0, np.cumsum(observed))
    number = (count[end] - count[first]).clip(1)
    return ((total[end] - total[first]) / number[:, None]).astype(np.float32)
