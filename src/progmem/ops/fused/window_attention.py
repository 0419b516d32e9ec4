"""Attention of windows by kernels: slots, then all tokens.

Short windows are one function for autograd: projections are laid out as windows once and read by
slots and tokens; what both hand back meets in one buffer, which is summed to tokens once. Long
windows have no way back: tokens are turned by their place in the series, so that windows are views.

Shapes: B series, K tokens, N windows, W window, n slots, D width, H heads, d = D / H.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from progmem.config import ModelConfig
from progmem.geometry import WindowMasks, unfold_windows
from progmem.ops.fused import (
    long_attention,
    long_scan,
    memory_scan,
    short_attention,
    window_layout,
)
from progmem.ops.fused.tiles import apply, column_sums
from progmem.ops.layers import Rotation, rotation
from progmem.ops.window_attention import Below, ScanWeights, may_see


def window_attention(
    qkv: Tensor,
    start: Tensor | None,
    below: Below | None,
    weights: ScanWeights | None,
    masks: WindowMasks,
    *,
    cfg: ModelConfig,
    training: bool,
) -> tuple[Tensor, Tensor | None]:
    """`progmem.ops.window_attention.window_attention`."""
    weights = None if weights is None else weights.cast_products()
    if not memory_scan.scans(cfg, training=training):
        return _long_windows(qkv, start, below, weights, masks, cfg)
    assert start is not None and below is not None and weights is not None
    N, W, H = masks.windows.shape[1], cfg.window, cfg.heads
    rows, under = (torch.unflatten(t, -1, (3, H, -1)) for t in (qkv, below.qkv))
    fixed = _Fixed(
        window_layout.Places(W, cfg.stride, N), rotation(rows.new_empty(W, rows.shape[-1])),
        masks.slot_mask, masks.nonempty,
        may_see(masks.in_window, W, slots=cfg.slots) if masks.gaps else None,
    )  # fmt: skip
    attended, memory = apply(_Windows, fixed, start, rows, under, *weights)
    return attended.flatten(-2), memory


def supports(
    qkv: Tensor,
    start: Tensor | None,
    below: Below | None,
    weights: ScanWeights | None,
    masks: WindowMasks,
    *,
    cfg: ModelConfig,
    training: bool,
) -> bool:
    """Whether kernels can take these windows whole."""
    if memory_scan.scans(cfg, training=training):
        return True
    keys = 2 * cfg.slots + cfg.window
    return (
        long_attention.supports(
            qkv, cfg.heads, tokens=qkv.shape[1], gaps=masks.gaps, training=training
        )
        and not short_attention.takes(keys, keys, cfg.dim // cfg.heads)
        and (cfg.slots == 0 or (cfg.gate_carry and cfg.readout == "carry"))
        and cfg.slots <= long_scan.MOST_SLOTS
        and cfg.dim <= long_scan.WIDEST
    )


def _long_windows(
    qkv: Tensor,
    start: Tensor | None,
    below: Below | None,
    weights: ScanWeights | None,
    masks: WindowMasks,
    cfg: ModelConfig,
) -> tuple[Tensor, Tensor | None]:
    B, N = masks.windows.shape
    place = long_attention.rotate_rows(qkv, heads=cfg.heads)
    q, k, v = (unfold_windows(t, cfg, N) for t in qkv.chunk(3, dim=-1))  # (B, N, W, D)
    memory = carry = None
    if start is not None and below is not None and weights is not None:
        _, below_k, below_v = (t.expand(B, N, -1, -1) for t in below.qkv.chunk(3, dim=-1))
        seen = long_scan.Seen(below_k, below_v, k, v, masks.in_window, *place)
        memory, *carry_kv = long_scan.scan(
            weights, start.expand(B, -1, -1), seen, masks.nonempty,
            heads=cfg.heads, stride=cfg.stride,
        )  # fmt: skip
        carry = carry_kv[0], carry_kv[1]
    return long_attention.attend(q, k, v, carry, heads=cfg.heads), memory


class _Fixed(NamedTuple):
    """What has no gradient."""

    places: window_layout.Places
    turn: Rotation  # of a window's tokens
    seen: Tensor  # (B, N, 2n+W), what the slots see: carry, memory below, tokens
    nonempty: Tensor  # (B, N), windows that write
    mask: Tensor | None  # (B, N, W, n+W), what tokens may see beyond the order of time


class _Windows(torch.autograd.Function):
    """Attention of all windows' tokens (B, N, W, H, d), and the memory (B, N, n, D).

    ``start`` is the first memory (n, D), ``qkv`` the projections of the tokens (B, K, 3, H, d),
    ``below`` those of the block below's memory, (B or 1, N or 1, n, 3, H, d).
    """

    @staticmethod
    def forward(
        ctx: Any, fixed: _Fixed, start: Tensor, qkv: Tensor, below: Tensor, *learnt: Tensor
    ) -> tuple[Tensor, Tensor]:
        places, turn, seen, nonempty, _ = fixed
        B = len(qkv)
        N, W = places.windows, places.window
        H, d = qkv.shape[-2:]
        laid = window_layout.lay(qkv.contiguous(), below, *turn, places)  # (B, N, n+W, 3, H, d)
        _, k, v = _heads(laid)
        nonempty = nonempty.T.contiguous()
        weights = ScanWeights(*learnt)
        kept = memory_scan.run_forward(weights, start.expand(B, -1, -1), k, v, seen, nonempty)
        out = laid.new_empty(B, N, W, H, d)
        lse = laid.new_empty(B, N, W, H, dtype=torch.float32)
        short_attention.run_forward(_seen_by_tokens(laid, kept, fixed), out=out, lse=lse)
        ctx.fixed, ctx.sizes = fixed, (qkv.shape[1], below.shape)
        ctx.save_for_backward(nonempty, laid, out, lse, *learnt, *kept)
        return out, kept.memory(B)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor, d_memory: Tensor) -> tuple[Tensor | None, ...]:
        nonempty, laid, out, lse, *others = ctx.saved_tensors
        learnt = len(ScanWeights._fields)
        weights, kept = ScanWeights(*others[:learnt]), memory_scan.Kept(*others[learnt:])
        fixed, (K, below) = ctx.fixed, ctx.sizes
        B, N, n, _ = d_memory.shape
        H, d = laid.shape[-2:]
        back = torch.empty_like(laid)
        d_carry = laid.new_empty(2, B, N, n, H, d)
        short_attention.run_backward(
            _seen_by_tokens(laid, kept, fixed), out=out, lse=lse, back=d_out,
            made=[back[:, :, n:, 0], *d_carry, back[:, :, n:, 1], back[:, :, n:, 2]], keys=True,
        )  # fmt: skip
        _, k, v = _heads(laid)
        d_state, gradients = memory_scan.run_backward(
            kept, weights, k, v, fixed.seen, nonempty, d_memory=d_memory,
            d_carry=(d_carry[0], d_carry[1]), into=(back[:, :, :, 1], back[:, :, :, 2]),
        )  # fmt: skip
        d_below = back.new_zeros(B, N, n, 3, H, d)  # nothing asked with the memory below
        d_below[:, :, :, 1:] = back[:, :, :n, 1:]
        if below[:2] == (1, 1):
            d_below = column_sums(d_below.flatten(0, 1)).to(back.dtype)[None, None]
        d_qkv = back.new_empty(B, K, 3, H, d)
        window_layout.gather(back, fixed.turn.cos, fixed.turn.sin, fixed.places, out=d_qkv)
        d_start = column_sums(d_state.view(B, n, -1))
        return None, d_start, d_qkv, d_below, *gradients


def _heads(laid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of laid rows, (B, N, H, rows, d)."""
    q, k, v = laid.transpose(3, 4).transpose(2, 3).unbind(4)
    return q, k, v


def _seen_by_tokens(laid: Tensor, kept: memory_scan.Kept, fixed: _Fixed) -> short_attention.Given:
    q, k, v = _heads(laid[:, :, -fixed.places.window :])
    return short_attention.Given(q, *kept.carry_heads(len(laid)), k, v, fixed.mask, causal=True)
