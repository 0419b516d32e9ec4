"""Attention over heads, and the rotary positions that its rows are turned by.

Scores of two turned rows depend on their distance alone. Windows, pieces of a band and streams
count positions from their own left edge, so that nothing loses precision on a long stream.

Shapes: T queries, J keys, D width, H heads, d = D / H; "..." is any batch.
"""

from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from progmem.ops import with_fused


class Rotation(NamedTuple):
    """Cosines and sines of T positions, (T, d/2) each."""

    cos: Tensor
    sin: Tensor


def rotation(x: Tensor, start: int = 0) -> Rotation:
    """Positions start, start+1, ... for the rows of ``x`` (..., T, d), float32 at least."""
    T, d = x.shape[-2:]
    dtype = torch.promote_types(x.dtype, torch.float32)
    if torch.compiler.is_compiling():  # sizes may be symbols, and nothing may outlive the trace
        return _make_rotation(start, start + T, d, x.device, dtype)
    rows = 1 << (start + T - 1).bit_length()  # few tables, each used by many lengths
    cos, sin = _kept_rotation(rows, d, x.device, dtype)
    return Rotation(cos[start : start + T], sin[start : start + T])


def rotate(x: Tensor, by: Rotation) -> Tensor:
    """``x`` (..., T, d) with its rows turned to their positions."""
    a, b = x.chunk(2, dim=-1)
    made = torch.cat([a * by.cos - b * by.sin, a * by.sin + b * by.cos], dim=-1)
    return made.to(x.dtype)


def _make_rotation(
    start: int, stop: int, d: int, device: torch.device, dtype: torch.dtype
) -> Rotation:
    position = torch.arange(start, stop, device=device, dtype=torch.float64)
    exponent = torch.arange(0, d, 2, device=device, dtype=torch.float64) / d
    phase = position[:, None] * 10000.0**-exponent  # (T, d/2), float64 whatever the model is
    return Rotation(phase.cos().to(dtype), phase.sin().to(dtype))


@cache
def _kept_rotation(rows: int, d: int, device: torch.device, dtype: torch.dtype) -> Rotation:
    """The first ``rows`` positions, kept for good: a CUDA graph goes on reading them."""
    with torch.inference_mode(False):  # a gradient may want them later
        return _make_rotation(0, rows, d, device, dtype)


def split_heads(x: Tensor, heads: int) -> Tensor:
    return torch.unflatten(x, -1, (heads, -1)).transpose(-3, -2)  # (..., T, D) -> (..., H, T, d)


def merge_heads(x: Tensor) -> Tensor:
    return x.transpose(-3, -2).flatten(-2)  # (..., H, T, d) -> (..., T, D)


@with_fused("short_attention.attend", supports="supports")
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    first: tuple[Tensor, Tensor] | None = None,
    causal: bool = False,
) -> Tensor:
    """softmax(q k' / sqrt(d)) v over heads (..., H, T, d) and (..., H, J, d).

    Args:
        mask: True where a query may look: (T, F+J), or (..., 1, T or 1, F+J) with the batch of
            ``q``. No row of it may be all False.
        first: F keys and values before the others, (..., H, F, d) each.
        causal: the last query sees all of ``k``, each one before it one key less.
    """
    batch, T, J = q.shape[:-3], q.shape[-2], k.shape[-2]
    if first is not None:
        k, v = (torch.cat(pair, dim=-2) for pair in zip(first, (k, v), strict=True))
    extra = k.shape[-2] - J
    triangle = causal and mask is None and T == J  # torch's kernels know squares only
    if triangle:
        q = F.pad(q, (0, 0, extra, 0))  # queries for the first keys, thrown away again
    elif causal:
        order = torch.ones(T, extra + J, dtype=torch.bool, device=q.device).tril(extra + J - T)
        mask = order if mask is None else mask & order
    q, k, v = (t.flatten(0, -4) for t in (q, k, v))  # fused kernels want one batch axis
    if mask is not None and mask.dim() > 2:
        mask = mask.flatten(0, -4)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=triangle)
    if triangle:
        out = out[:, :, extra:]
    return torch.unflatten(out, 0, batch)
