"""Rotary positions: scores of two turned rows depend on their distance alone.

Windows, pieces of a band and streams count from their own left edge, so that nothing loses
precision on a long stream. `lean`, for no more than 131,072 tokens, and full attention count from
the start of the series.

Shapes: T rows, d width of a head; "..." is any batch.
"""

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from progmem import kernels


class Turn(NamedTuple):
    """Cosines and sines of T positions, (T, d/2) each."""

    cos: Tensor
    sin: Tensor


def turns(x: Tensor, start: int = 0) -> Turn:
    """Positions start, start+1, ... for the rows of ``x`` (..., T, d), float32 at least."""
    T, d = x.shape[-2:]
    dtype = torch.promote_types(x.dtype, torch.float32)
    if torch.compiler.is_compiling():  # sizes may be symbols, and nothing may outlive the trace
        return _make(start, start + T, d, x.device, dtype)
    rows = 1 << (start + T - 1).bit_length()  # few tables, each used by many lengths
    cos, sin = _kept(rows, d, x.device, dtype)
    return Turn(cos[start : start + T], sin[start : start + T])


def turned(x: Tensor, turn: Turn | None) -> Tensor:
    """``x`` (..., T, d) with its rows turned."""
    if turn is None:
        return x
    if kernels.fit(x) and x.dim() == 5:
        from progmem.kernels.turn import turned as turned_at_once

        return turned_at_once(x, *turn)
    a, b = x.chunk(2, dim=-1)
    made = torch.cat([a * turn.cos - b * turn.sin, a * turn.sin + b * turn.cos], dim=-1)
    return made.to(x.dtype)


def _make(start: int, stop: int, d: int, device: torch.device, dtype: torch.dtype) -> Turn:
    position = torch.arange(start, stop, device=device, dtype=torch.float64)
    exponent = torch.arange(0, d, 2, device=device, dtype=torch.float64) / d
    phase = position[:, None] * 10000.0**-exponent  # (T, d/2), float64 whatever the model is
    return Turn(phase.cos().to(dtype), phase.sin().to(dtype))


@cache
def _kept(rows: int, d: int, device: torch.device, dtype: torch.dtype) -> Turn:
    """The first ``rows`` positions, kept for good: a recorded graph goes on reading them."""
    with torch.inference_mode(False):  # a gradient may want them later
        return _make(0, rows, d, device, dtype)
