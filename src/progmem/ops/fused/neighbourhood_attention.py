"""Attention of the neighbourhood encoder by kernels: band and CLS.

CLS is row 0 of a series, its tokens the rows after it. Short bands are one function for autograd,
long ones have no way back: tokens are turned by their place in the series.

Shapes: B series, K tokens, n neighbourhood, P pieces of c queries and n + c keys, D width, H heads,
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
    band = _Fixed(
        window_layout.Places(keys, c, P, before=keys - c),
        rotation(torch.empty(keys, rows.shape[-1], device=valid.device)), mask,
        F.pad(valid, (1, 0), value=True)[:, None, None],
    )  # fmt: skip
    out: Tensor = apply(_Band, band, rows)
    return out.flatten(-2)


def supports(
    qkv: Tensor, valid: Tensor, *, reach: int, heads: int, gaps: bool, training: bool
) -> bool:
    """Whether kernels can take these tokens whole."""
    if _is_short(qkv, reach, heads):
        return True
    width = qkv.shape[-1] // 3 // heads
    return not short_attention.takes(reach, 2 * reach, width) and long_attention.supports(
        qkv, heads, tokens=valid.shape[1], gaps=gaps, training=training
    )


def _is_short(qkv: Tensor, reach: int, heads: int) -> bool:
    keys = max(2 * reach, qkv.shape[1])
    return short_attention.takes(reach, keys, qkv.shape[-1] // 3 // heads)


def _long_band(qkv: Tensor, valid: Tensor, *, reach: int, heads: int) -> Tensor:
    q, k, v = (split_heads(t, heads) for t in qkv.chunk(3, dim=-1))
    seen = F.pad(valid, (1, 0), value=True)[:, None, None]
    cls = F.scaled_dot_product_attention(q[:, :, :1], k, v, seen)  # before any row is turned
    long_attention.rotate_rows(qkv[:, 1:], heads=heads)
    q, k, v = qkv[:, None, 1:].chunk(3, dim=-1)  # (B, 1, K, D)
    tokens = long_attention.attend(q, k, v, heads=heads, reach=reach).squeeze(1)
    return torch.cat([merge_heads(cls), tokens], dim=1)


class _Fixed(NamedTuple):
    """What has no gradient."""

    places: window_layout.Places  # of a piece's keys
    turn: Rotation
    mask: Tensor  # (B, P, c, n+c)
    cls_mask: Tensor  # (B, 1, 1, 1+K)


class _Band(torch.autograd.Function):
    """Attention of CLS and tokens, (B, 1+K, H, d), from projections (B, 1+K, 3, H, d)."""

    @staticmethod
    def forward(ctx: Any, band: _Fixed, qkv: Tensor) -> Tensor:
        B, rows, _, H, d = qkv.shape
        P, c = band.mask.shape[1:3]
        laid = window_layout.lay(qkv[:, 1:], None, *band.turn, band.places)
        tokens, cls = qkv.new_empty(B, P, c, H, d), qkv.new_empty(B, 1, 1, H, d)
        lse, cls_lse = (t.new_empty(t.shape[:-1], dtype=torch.float32) for t in (tokens, cls))
        short_attention.run_forward(_seen_by_tokens(band, laid), out=tokens, lse=lse)
        short_attention.run_forward(_seen_by_cls(band, qkv), out=cls, lse=cls_lse)
        ctx.band = band
        ctx.save_for_backward(qkv, laid, tokens, lse, cls, cls_lse)
        return torch.cat([cls[:, 0], tokens.flatten(1, 2)[:, : rows - 1]], dim=1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, back: Tensor) -> tuple[None, Tensor]:
        band: _Fixed = ctx.band
        qkv, laid, tokens, lse, cls, cls_lse = ctx.saved_tensors
        P, c = band.mask.shape[1:3]
        short = P * c - (qkv.shape[1] - 1)
        pulls = torch.unflatten(F.pad(back[:, 1:], (0, 0, 0, 0, 0, short)), 1, (P, c))
        made, first = torch.empty_like(laid), laid[:, :, :0, 0]
        short_attention.run_backward(
            _seen_by_tokens(band, laid), out=tokens, lse=lse, back=pulls,
            made=[made[:, :, -c:, 0], first, first, made[:, :, :, 1], made[:, :, :, 2]], keys=True,
        )  # fmt: skip
        d_qkv = torch.empty_like(qkv)
        d_qkv[:, 0] = 0.0
        window_layout.gather(
            made,
            band.turn.cos,
            band.turn.sin,
            band.places,
            out=d_qkv[:, 1:],
            silent=band.places.before,
        )
        q, k, v = d_qkv[:, None].unbind(3)  # (B, 1, 1+K, H, d)
        first = q[:, :, :0]
        short_attention.run_backward(
            _seen_by_cls(band, qkv), out=cls, lse=cls_lse, back=back[:, None, :1],
            made=[q[:, :, :1], first, first, k, v], keys=True, onto=0,
        )  # fmt: skip
        return None, d_qkv


def _seen_by_tokens(band: _Fixed, laid: Tensor) -> short_attention.Given:
    q, k, v = (t.transpose(2, 3) for t in laid.unbind(3))  # (B, P, H, n+c, d)
    none = k[:, :, :, :0]
    return short_attention.Given(q[:, :, :, band.places.before :], none, none, k, v, band.mask)


def _seen_by_cls(band: _Fixed, qkv: Tensor) -> short_attention.Given:
    q, k, v = (t.transpose(1, 2)[:, None] for t in qkv.unbind(2))  # (B, 1, H, 1+K, d)
    none = k[:, :, :, :0]
    return short_attention.Given(q[:, :, :, :1], none, none, k, v, band.cls_mask)
