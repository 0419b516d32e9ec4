"""A block's attention on a GPU by hand: slots, then all tokens, one function for autograd.

Projections are laid out as windows once and read by both; what both hand back meets in one buffer,
which is summed to tokens once. Twin: `PMABlock.attend_windows`.

Shapes: B series, K tokens, N windows, W window, n slots, D width, H heads, d = D / H.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from progmem.kernels import few_keys, lay
from progmem.kernels.slots import Weights
from progmem.kernels.sums import column_sums
from progmem.model import tape, tape_backward
from progmem.model.rotary import Turn


class Fixed(NamedTuple):
    """What has no gradient."""

    places: lay.Places
    turn: Turn  # of a window's tokens
    seen: Tensor  # (B, N, 2n+W), what the slots see: carry, memory below, tokens
    alive: Tensor  # (B, N), windows that write
    mask: Tensor | None  # (B, N, W, n+W), what tokens may see beyond the order of time


def attend_by_hand(
    fixed: Fixed, start: Tensor, qkv: Tensor, below: Tensor, weights: Weights
) -> tuple[Tensor, Tensor]:
    """Attention of all windows' tokens (B, N, W, H, d), and the memory (B, N, n, D).

    Args:
        start: the first memory, (n, D).
        qkv: projections of the tokens, (B, K, 3, H, d).
        below: projections of the block below's memory, (B or 1, N or 1, n, 3, H, d).
    """
    both: tuple[Tensor, Tensor] = _Windows.apply(fixed, start, qkv, below, *weights)  # type: ignore[no-untyped-call]
    return both


class _Windows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, fixed: Fixed, start: Tensor, qkv: Tensor, below: Tensor, *learnt: Tensor
    ) -> tuple[Tensor, Tensor]:
        places, turn, seen, alive, _ = fixed
        B = len(qkv)
        N, W = places.windows, places.window
        H, d = qkv.shape[-2:]
        laid = lay.lay(qkv.contiguous(), below, *turn, places)  # (B, N, n+W, 3, H, d)
        _, k, v = _heads(laid)
        alive = alive.T.contiguous()
        kept = tape.run(Weights(*learnt), start.expand(B, -1, -1), k, v, seen, alive)
        out = laid.new_empty(B, N, W, H, d)
        lse = laid.new_empty(B, N, W, H, dtype=torch.float32)
        few_keys.run_forward(_seen_by_tokens(laid, kept, fixed), out=out, lse=lse)
        ctx.fixed, ctx.sizes = fixed, (qkv.shape[1], below.shape)
        ctx.save_for_backward(alive, laid, out, lse, *learnt, *kept)
        return out, kept.memory(B)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor, d_memory: Tensor) -> tuple[Tensor | None, ...]:
        alive, laid, out, lse, *others = ctx.saved_tensors
        learnt = len(Weights._fields)
        weights, kept = Weights(*others[:learnt]), tape.Kept(*others[learnt:])
        fixed, (K, below) = ctx.fixed, ctx.sizes
        B, N, n, _ = d_memory.shape
        H, d = laid.shape[-2:]
        back = torch.empty_like(laid)
        d_carry = laid.new_empty(2, B, N, n, H, d)
        few_keys.run_backward(
            _seen_by_tokens(laid, kept, fixed), out=out, lse=lse, back=d_out,
            made=[back[:, :, n:, 0], *d_carry, back[:, :, n:, 1], back[:, :, n:, 2]], keys=True,
        )  # fmt: skip
        _, k, v = _heads(laid)
        d_state, gradients = tape_backward.run_backward(
            kept, weights, k, v, fixed.seen, alive, d_memory=d_memory,
            d_carry=(d_carry[0], d_carry[1]), into=(back[:, :, :, 1], back[:, :, :, 2]),
        )  # fmt: skip
        d_below = back.new_zeros(B, N, n, 3, H, d)  # nothing asked with the memory below
        d_below[:, :, :, 1:] = back[:, :, :n, 1:]
        if below[:2] == (1, 1):
            d_below = column_sums(d_below.flatten(0, 1)).to(back.dtype)[None, None]
        d_qkv = back.new_empty(B, K, 3, H, d)
        lay.gather(back, fixed.turn.cos, fixed.turn.sin, fixed.places, out=d_qkv)
        d_start = column_sums(d_state.view(B, n, -1))
        return None, d_start, d_qkv, d_below, *gradients


def _heads(laid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of laid rows, (B, N, H, rows, d)."""
    q, k, v = laid.transpose(3, 4).transpose(2, 3).unbind(4)
    return q, k, v


def _seen_by_tokens(laid: Tensor, kept: tape.Kept, fixed: Fixed) -> few_keys.Given:
    q, k, v = _heads(laid[:, :, -fixed.places.window :])
    return few_keys.Given(q, *kept.carry_heads(len(laid)), k, v, fixed.mask, causal=True)
