"""Attention of windows by kernels: slots, then all tokens.

Short windows are one autograd function: projections are unfolded into windows once and read by
slots and tokens; the gradients of both are added in one buffer, which is folded to tokens once.
Long windows have no backward: tokens are rotated by their position in the series, so that windows
are views of them.

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
from progmem.ops.window_attention import Below, ScanWeights, visible_mask


def window_attention(
    qkv: Tensor,
    reset: Tensor | None,
    below: Below | None,
    weights: ScanWeights | None,
    masks: WindowMasks,
    *,
    cfg: ModelConfig,
    training: bool,
) -> tuple[Tensor, Tensor | None]:
    """`progmem.ops.window_attention.window_attention`."""
    weights = None if weights is None else weights.cast_products()
    if not memory_scan.supports_config(cfg, training=training):
        return _long_windows(qkv, reset, below, weights, masks, cfg)
    assert reset is not None and below is not None and weights is not None
    N, W, H = masks.windows.shape[1], cfg.window, cfg.heads
    rows, below_rows = (torch.unflatten(t, -1, (3, H, -1)) for t in (qkv, below.qkv))
    constants = _Constants(
        window_layout.WindowGeometry(W, cfg.stride, N), rotation(rows.new_empty(W, rows.shape[-1])),
        masks.slot_mask, masks.nonempty,
        visible_mask(masks.in_window, W, slots=cfg.slots) if masks.gaps else None,
    )  # fmt: skip
    attended, memory = apply(_Windows, constants, reset, rows, below_rows, *weights)
    return attended.flatten(-2), memory


def supports(
    qkv: Tensor,
    reset: Tensor | None,
    below: Below | None,
    weights: ScanWeights | None,
    masks: WindowMasks,
    *,
    cfg: ModelConfig,
    training: bool,
) -> bool:
    """Whether the kernels can compute these windows."""
    if memory_scan.supports_config(cfg, training=training):
        return True
    keys = 2 * cfg.slots + cfg.window
    return (
        long_attention.supports(
            qkv, cfg.heads, tokens=qkv.shape[1], gaps=masks.gaps, training=training
        )
        and not short_attention.supports_sizes(keys, keys, cfg.dim // cfg.heads)
        and (cfg.slots == 0 or (cfg.gate_carry and cfg.readout == "carry"))
        and cfg.slots <= long_scan.MAX_SLOTS
        and cfg.dim <= long_scan.MAX_DIM
    )


def _long_windows(
    qkv: Tensor,
    reset: Tensor | None,
    below: Below | None,
    weights: ScanWeights | None,
    masks: WindowMasks,
    cfg: ModelConfig,
) -> tuple[Tensor, Tensor | None]:
    B, N = masks.windows.shape
    rope = long_attention.rotate_rows(qkv, heads=cfg.heads)
    q, k, v = (unfold_windows(t, cfg, N) for t in qkv.chunk(3, dim=-1))  # (B, N, W, D)
    memory = carry = None
    if reset is not None and below is not None and weights is not None:
        _, below_k, below_v = (t.expand(B, N, -1, -1) for t in below.qkv.chunk(3, dim=-1))
        slot_keys = long_scan.SlotKeys(below_k, below_v, k, v, masks.in_window, *rope)
        memory, *carry_kv = long_scan.scan(
            weights, reset.expand(B, -1, -1), slot_keys, masks.nonempty,
            heads=cfg.heads, stride=cfg.stride,
        )  # fmt: skip
        carry = carry_kv[0], carry_kv[1]
    return long_attention.attend(q, k, v, carry, heads=cfg.heads), memory


class _Constants(NamedTuple):
    """Inputs without a gradient."""

    geometry: window_layout.WindowGeometry
    rope: Rotation  # of a window's tokens
    slot_mask: Tensor  # (B, N, 2n+W), keys that slots attend to: carry, memory below, tokens
    nonempty: Tensor  # (B, N), windows that write
    mask: Tensor | None  # (B, N, W, n+W), keys visible to tokens, causality apart


class _Windows(torch.autograd.Function):
    """Attention of all windows' tokens (B, N, W, H, d), and the memory (B, N, n, D).

    ``reset`` is the first memory (n, D), ``qkv`` the projections of the tokens (B, K, 3, H, d),
    ``below`` those of the block below's memory, (B or 1, N or 1, n, 3, H, d).
    """

    @staticmethod
    def forward(
        ctx: Any, constants: _Constants, reset: Tensor, qkv: Tensor, below: Tensor, *learnt: Tensor
    ) -> tuple[Tensor, Tensor]:
        geometry, rope, slot_mask, nonempty, _ = constants
        B = len(qkv)
        N, W = geometry.windows, geometry.window
        H, d = qkv.shape[-2:]
        unfolded = window_layout.unfold_rotate(
            qkv.contiguous(), below, *rope, geometry
        )  # (B, N, n+W, 3, H, d)
        _, k, v = _heads(unfolded)
        nonempty = nonempty.T.contiguous()
        weights = ScanWeights(*learnt)
        saved = memory_scan.run_forward(weights, reset.expand(B, -1, -1), k, v, slot_mask, nonempty)
        out = unfolded.new_empty(B, N, W, H, d)
        lse = unfolded.new_empty(B, N, W, H, dtype=torch.float32)
        short_attention.run_forward(_token_inputs(unfolded, saved, constants), out=out, lse=lse)
        ctx.constants, ctx.sizes = constants, (qkv.shape[1], below.shape)
        ctx.save_for_backward(nonempty, unfolded, out, lse, *learnt, *saved)
        return out, saved.memory(B)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor, d_memory: Tensor) -> tuple[Tensor | None, ...]:
        nonempty, unfolded, out, lse, *others = ctx.saved_tensors
        learnt = len(ScanWeights._fields)
        weights, saved = ScanWeights(*others[:learnt]), memory_scan.Activations(*others[learnt:])
        constants, (K, below) = ctx.constants, ctx.sizes
        B, N, n, _ = d_memory.shape
        H, d = unfolded.shape[-2:]
        d_unfolded = torch.empty_like(unfolded)
        dq, dk, dv = d_unfolded.unbind(3)  # (B, N, n+W, H, d)
        d_carry = unfolded.new_empty(2, B, N, n, H, d)
        short_attention.run_backward(
            _token_inputs(unfolded, saved, constants), out=out, lse=lse, d_out=d_out,
            grads=[dq[:, :, n:], *d_carry, dk[:, :, n:], dv[:, :, n:]], keys=True,
        )  # fmt: skip
        _, k, v = _heads(unfolded)
        d_state, gradients = memory_scan.run_backward(
            saved, weights, k, v, constants.slot_mask, nonempty, d_memory=d_memory,
            d_carry=(d_carry[0], d_carry[1]), d_keys_values=(dk, dv),
        )  # fmt: skip
        d_below = d_unfolded.new_zeros(B, N, n, 3, H, d)  # the memory below has no queries
        d_below[:, :, :, 1:] = d_unfolded[:, :, :n, 1:]
        if below[:2] == (1, 1):
            d_below = column_sums(d_below.flatten(0, 1)).to(d_unfolded.dtype)[None, None]
        d_qkv = d_unfolded.new_empty(B, K, 3, H, d)
        window_layout.unfold_rotate_backward(
            d_unfolded, constants.rope.cos, constants.rope.sin, constants.geometry, out=d_qkv
        )
        d_reset = column_sums(d_state.view(B, n, -1))
        return None, d_reset, d_qkv, d_below, *gradients


def _heads(unfolded: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of unfolded rows, (B, N, H, rows, d)."""
    q, k, v = unfolded.transpose(3, 4).transpose(2, 3).unbind(4)
    return q, k, v


def _token_inputs(
    unfolded: Tensor, saved: memory_scan.Activations, constants: _Constants
) -> short_attention.Inputs:
    q, k, v = _heads(unfolded[:, :, -constants.geometry.window :])
    return short_attention.Inputs(
        q, *saved.carry_heads(len(unfolded)), k, v, constants.mask, causal=True
    )
