"""An index with vectors at random, without a model."""

import numpy as np
import torch

from progmem.data.recordings import ChannelInfo
from progmem.explore import Index
from progmem.explore.axes import Axes
from progmem.explore.windows import window_starts


def made_index(folder, lengths, *, window=10, width=4, channels=2, seed=0):
    """Recordings r0, r1, … of these lengths; the windows 30 to 33 of the third are a gap."""
    rng = np.random.default_rng(seed)
    counts = [len(window_starts(length, window)) for length in lengths]
    starts = np.cumsum([0, *counts])
    vectors = rng.normal(size=(starts[-1], width)).astype(np.float32)
    values = rng.normal(size=(starts[-1], 2, channels)).astype(np.float32)
    if len(lengths) > 2:
        gap = slice(starts[2] + 30, starts[2] + 34)
        vectors[gap], values[gap] = 0, np.nan
    points = values[:, :1] + rng.normal(size=(starts[-1], 5, channels)).astype(np.float32)
    size = torch.tensor(float(width) ** 0.5)
    axes = Axes(torch.zeros(2 * channels), torch.ones(2 * channels), torch.ones(1, width), size)
    return Index(
        folder=folder, names=[f"r{i}" for i in range(len(lengths))], lengths=list(lengths),
        window=window, starts=starts, all_vectors=vectors, channel_values=values, all_points=points,
        channels=ChannelInfo(), calendars=[None] * len(lengths), axes=axes, sha256="",
    )  # fmt: skip
