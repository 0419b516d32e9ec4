"""Attention of the neighbourhood encoder by kernels: band and CLS.

CLS is row 0 of a series, its tokens the rows after it. A short band is one autograd function. A
long one has no backward: its tokens are rotated by their position in the series, in place.

Shapes: B series, K tokens, n neighbourhood, P chunks of c queries and n + c keys, D width, H heads,
d = D / H.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from progmem.ops.fused import long_attention, short_attention, window_layout
from progmem.ops.fused.tiles import apply
from progmem.ops.layers import Rotation, merge_heads, rotation, split_heads
from progmem.ops.neighbourhood_attention import band_mask


def neighbourhood_attention(
    qkv: Tensor, valid: Tensor, *, reach: int, heads: int, gaps: bool, training: bool
) -> Tensor:
    """`progmem.ops.neighbourhood_attention.neighbourhood_attention`."""
    if not _is_short(qkv, reach, heads):
        return _long_band(qkv, valid, reach=reach, heads=heads)
    rows = torch.unflatten(qkv, -1, (3, heads, -1))  # (B, 1+K, 3, H, d)
    mask = band_mask(F.pad(valid, (reach, 0)), reach)  # (B, P, c, n+c)
    _, P, c, keys = mask.shape
    constants = _Constants(
        window_layout.WindowGeometry(keys, c, P, pad_left=keys - c),
        rotation(torch.empty(keys, rows.shape[-1], device=valid.device)), mask,
        F.pad(valid, (1, 0), value=True)[:, None, None],
    )  # fmt: skip
    out: Tensor = apply(_BandAttention, constants, rows)
    return out.flatten(-2)


def supports(
    qkv: Tensor, valid: Tensor, *, reach: int, heads: int, gaps: bool, training: bool
) -> bool:
    """Whether the kernels can compute this band."""
    if _is_short(qkv, reach, heads):
        return True
    width = qkv.shape[-1] // 3 // heads
    return not short_attention.supports_sizes(reach, 2 * reach, width) and long_attention.supports(
        qkv, heads, tokens=valid.shape[1], gaps=gaps, training=training
    )


def _is_short(qkv: Tensor, reach: int, heads: int) -> bool:
    keys = max(2 * reach, qkv.shape[1])
    return short_attention.supports_sizes(reach, keys, qkv.shape[-1] // 3 // heads)


def _long_band(qkv: Tensor, valid: Tensor, *, reach: int, heads: int) -> Tensor:
    q, k, v = (split_heads(t, heads) for t in qkv.chunk(3, dim=-1))
    seen = F.pad(valid, (1, 0), value=True)[:, None, None]
    cls = F.scaled_dot_product_attention(q[:, :, :1], k, v, seen)  # before any row is rotated
    long_attention.rotate_rows(qkv[:, 1:], heads=heads)
    q, k, v = qkv[:, None, 1:].chunk(3, dim=-1)  # (B, 1, K, D)
    tokens = long_attention.attend(q, k, v, heads=heads, reach=reach).squeeze(1)
    return torch.cat([merge_heads(cls), tokens], dim=1)


class _Constants(NamedTuple):
    """Inputs without a gradient."""

    geometry: window_layout.WindowGeometry  # of a chunk's keys
    rope: Rotation
    mask: Tensor  # (B, P, c, n+c)
    cls_mask: Tensor  # (B, 1, 1, 1+K)


class _BandAttention(torch.autograd.Function):
    """Attention of CLS and tokens, (B, 1+K, H, d), from projections (B, 1+K, 3, H, d)."""

    @staticmethod
    def forward(ctx: Any, constants: _Constants, qkv: Tensor) -> Tensor:
        B, rows, _, H, d = qkv.shape
        P, c = constants.mask.shape[1:3]
        unfolded = window_layout.unfold_rotate(
            qkv[:, 1:], None, *constants.rope, constants.geometry
        )
        tokens, cls = qkv.new_empty(B, P, c, H, d), qkv.new_empty(B, 1, 1, H, d)
        lse, cls_lse = (t.new_empty(t.shape[:-1], dtype=torch.float32) for t in (tokens, cls))
        short_attention.run_forward(_token_inputs(constants, unfolded), out=tokens, lse=lse)
        short_attention.run_forward(_cls_inputs(constants, qkv), out=cls, lse=cls_lse)
        ctx.constants = constants
        ctx.save_for_backward(qkv, unfolded, tokens, lse, cls, cls_lse)
        return torch.cat([cls[:, 0], tokens.flatten(1, 2)[:, : rows - 1]], dim=1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[None, Tensor]:
        constants: _Constants = ctx.constants
        qkv, unfolded, tokens, lse, cls, cls_lse = ctx.saved_tensors
        P, c = constants.mask.shape[1:3]
        padding = P * c - (qkv.shape[1] - 1)
        d_tokens = torch.unflatten(F.pad(d_out[:, 1:], (0, 0, 0, 0, 0, padding)), 1, (P, c))
        d_unfolded, none = torch.empty_like(unfolded), unfolded[:, :, :0, 0]
        dq, dk, dv = d_unfolded.unbind(3)  # (B, P, n+c, H, d)
        short_attention.run_backward(
            _token_inputs(constants, unfolded), out=tokens, lse=lse, d_out=d_tokens,
            grads=[dq[:, :, -c:], none, none, dk, dv], keys=True,
        )  # fmt: skip
        d_qkv = torch.empty_like(qkv)
        d_qkv[:, 0] = 0.0
        window_layout.unfold_rotate_backward(
            d_unfolded,
            constants.rope.cos,
            constants.rope.sin,
            constants.geometry,
            out=d_qkv[:, 1:],
            key_only=constants.geometry.pad_left,
        )
        q, k, v = d_qkv[:, None].unbind(3)  # (B, 1, 1+K, H, d)
        none = q[:, :, :0]
        short_attention.run_backward(
            _cls_inputs(constants, qkv), out=cls, lse=cls_lse, d_out=d_out[:, None, :1],
            grads=[q[:, :, :1], none, none, k, v], keys=True, accumulate_from=0,
        )  # fmt: skip
        return None, d_qkv


def _token_inputs(constants: _Constants, unfolded: Tensor) -> short_attention.Inputs:
    q, k, v = (t.transpose(2, 3) for t in unfolded.unbind(3))  # (B, P, H, n+c, d)
    none = k[:, :, :, :0]
    return short_attention.Inputs(
        q[:, :, :, constants.geometry.pad_left :], none, none, k, v, constants.mask
    )


def _cls_inputs(constants: _Constants, qkv: Tensor) -> short_attention.Inputs:
    q, k, v = (t.transpose(1, 2)[:, None] for t in qkv.unbind(2))  # (B, 1, H, 1+K, d)
    none = k[:, :, :, :0]
    return short_attention.Inputs(q[:, :, :, :1], none, none, k, v, constants.cls_mask)
