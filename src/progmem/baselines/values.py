"""No encoder at all: what a linear read-out makes of a series' own values.

Shapes: B series, L samples, C channels.
"""

from typing import Any

import torch

from progmem.encoding import Encoding
from progmem.series import ChannelStats, default_names, normalise


class Values:
    """A series, normalised and 0 where missing, as its only token; channels from ``first`` on."""

    def __init__(self, stats: ChannelStats, first: int = 0) -> None:
        self.stats, self.first = stats, first

    def encode(self, x: Any) -> Encoding:
        series = torch.as_tensor(x, dtype=torch.float64)  # (B, L, C)
        B, L, _ = series.shape
        like = torch.empty(0, device=series.device)
        values, observed = normalise(
            series, self.stats.moments, like, names=default_names(B), start=0
        )
        tokens = values[..., self.first :].flatten(1)[:, None]  # (B, 1, LC)
        return Encoding(
            tokens=tokens,
            memory=None,
            sequence=tokens[:, 0],
            eos=None,
            token_mask=observed[..., self.first :].flatten(1).any(1, keepdim=True),
            window_mask=None,
            token_spans=torch.tensor([[0, L]]),
            window_spans=None,
        )
