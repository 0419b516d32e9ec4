"""Rotary positions: scores of two turned rows depend on their distance alone.

Callers count from the left edge of a window, never from the start of the series, so that nothing
loses precision on a long stream.

Shapes: T rows, d width of a head; "..." is any batch.
"""

from functools import lru_cache
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
    dtype = torch.promote_types(x.dtype, torch.float32)
    facts = start, *x.shape[-2:], x.device, dtype
    passing = torch.compiler.is_compiling() or (
        x.is_cuda and torch.cuda.is_current_stream_capturing()
    )  # what is made while something is recorded may not be kept
    return _make(*facts) if passing else _kept(*facts)


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


def _make(start: int, T: int, d: int, device: torch.device, dtype: torch.dtype) -> Turn:
    position = torch.arange(start, start + T, device=device, dtype=torch.float64)
    exponent = torch.arange(0, d, 2, device=device, dtype=torch.float64) / d
    phase = position[:, None] * 10000.0**-exponent  # (T, d/2), float64 whatever the model is
    return Turn(phase.cos().to(dtype), phase.sin().to(dtype))


@lru_cache(maxsize=32)
def _kept(start: int, T: int, d: int, device: torch.device, dtype: torch.dtype) -> Turn:
    with torch.inference_mode(False):
        return _make(start, T, d, device, dtype)
