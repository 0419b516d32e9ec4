"""Which token or window of the other view shows the same stretch of the recording.

Shapes: B sequences, T tokens or windows.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from progmem.losses.bounded import in_pieces


class Match(NamedTuple):
    """For each position of one view, the position of the other."""

    place: Tensor  # (B, T)
    found: Tensor  # (B, T)


@torch.no_grad()
def match(
    time: Tensor | None,
    valid: Tensor,
    other_time: Tensor | None,
    other_valid: Tensor,
    *,
    tolerance: float,
) -> Match:
    """The nearest position in input time, if it is within ``tolerance`` samples.

    Times are (B, T); None takes positions by number, as the paper does.
    """
    B, T = valid.shape
    if time is None or other_time is None:
        place = torch.arange(T, device=valid.device).expand(B, T)
        return Match(place, valid & other_valid)

    def nearest(rows: slice) -> tuple[Tensor, ...]:
        apart = (time[rows, :, None] - other_time[rows, None]).abs()  # (b, T, T)
        return tuple(apart.masked_fill(~other_valid[rows, None], float("inf")).min(dim=2))

    distance, place = in_pieces(nearest, B, cost=T * T)
    return Match(place, valid & (distance <= tolerance))
