"""One level of an encoding as arrays: vectors, or series whose time points are tokens or windows.

Shapes: R series, C channels, L samples, K tokens, N windows, n slots, D width.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from progmem.errors import ConfigError
from progmem.model.geometry import count_tokens, count_windows
from progmem.model.pmt import PMT

LEVELS = ("sequence", "token", "memory")


def check_level(level: Any, *, slots: int) -> None:
    """Refuse a level that is none, or that a model with ``slots`` does not have."""
    if level not in LEVELS:
        raise ConfigError(f"level must be one of {', '.join(LEVELS)}, got {level!r}")
    if level == "memory" and slots == 0:
        raise ConfigError("level memory needs a model with memory, and model.slots is 0")


def at_level(model: PMT, series: Sequence[np.ndarray], level: str) -> list[np.ndarray]:
    """Each of the series (L_i, C) as (D,), (D, K_i) or (n D, N_i), float32, NaN for missing."""
    z = model.encode(list(series))
    if level == "sequence":
        return list(z.sequence.float().numpy())
    values, mask = z.tokens, z.token_mask
    counts = [count_tokens(model.cfg, len(one)) for one in series]
    if level == "memory":
        assert z.memory is not None and z.window_mask is not None
        values, mask = z.memory.flatten(2), z.window_mask  # (R, N, n D)
        counts = [count_windows(model.cfg, count) for count in counts]
    values = values.float().masked_fill(~mask[..., None], torch.nan).transpose(1, 2)
    return [one[:, :count].numpy() for one, count in zip(values, counts, strict=True)]
