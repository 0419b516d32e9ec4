"""The way back through the scan: weight gradients formed once.

From the last window to the first goes the state's gradient alone; what every step's products hand
back is kept, and the weights then get their gradients from all windows at once, each by one
product.

Shapes: B series, N windows, n slots, R = B n rows, D width, H heads, d = D / H, J keys seen beside
the carry.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from progmem.kernels import few_keys, few_queries, norm_rows, slots, widen
from progmem.kernels.norm_rows import Normed
from progmem.kernels.scan_sums import OfNorm, scan_sums
from progmem.kernels.slots import Weights
from progmem.model.tape import EPS, Kept, seen_by_slots


class HandedBack(NamedTuple):
    """Gradients at each product's ends, (N, R, ...)."""

    masked: Tensor  # of the memory where it was written, float32
    cast: Tensor  # the same, in the products' type
    wide: Tensor  # (N, R, 4D)
    f: Tensor
    total: Tensor  # float32
    more: Tensor  # the same, in the products' type
    qkv: Tensor  # (N, R, 3D)
    h: Tensor
    z: Tensor
    normed: Tensor  # float32
    reset: Tensor  # float32, before it is summed
    through: Tensor  # what comes through z


def run_backward(
    kept: Kept, weights: Weights, k: Tensor, v: Tensor, mask: Tensor, alive: Tensor,
    *, d_memory: Tensor, d_carry: tuple[Tensor, Tensor], into: tuple[Tensor, Tensor],
) -> tuple[Tensor, tuple[Tensor, ...]]:  # fmt: skip
    """Gradients of the first state (B n, D) and of the weights; `tape.run` tells the rest.

    Args:
        d_memory: of the memory after each window, (B, N, n, D).
        d_carry: what the windows' tokens hand back to the carry's keys and values,
            (B, N, n, H, d) each.
        into: where the gradients of ``k`` and ``v`` go, (B, N, J, H, d) each. Those of the first
            n rows, the memory below, are written; those of the tokens are added.
    """
    B, N, n, D = d_memory.shape
    R, H = B * n, k.shape[2]
    gate = Normed(weights.gate_w, weights.gate_b, EPS)
    project = Normed(weights.norm_w, weights.norm_b, EPS)
    ahead = Normed(weights.ahead_w, weights.ahead_b, EPS)
    d_memory = d_memory.contiguous()
    d_state = kept.state.new_empty(N + 1, R, D)  # [w + 1]: of the memory after window w
    back = _room(N, R, D, like=weights.qkv)

    def before(w: int) -> slots.Before:
        return slots.Before(d_memory[:, w], alive[w], back.masked[w], back.cast[w])

    slots.begin_backward(before(N - 1), out=d_state[N])
    attend = few_queries if n <= few_queries.MOST else few_keys
    for w in reversed(range(N)):
        widen.gelu_backward_of_product(
            back.cast[w], weights.narrow, weights.widen_b, wide=kept.wide[w], out=back.wide[w]
        )
        torch.mm(back.wide[w], weights.widen, out=back.f[w])
        norm_rows.run_add_backward(
            back.f[w], back.masked[w], kept.total[w], kept.total_moments[w], ahead,
            out=back.total[w], cast=back.more[w],
        )  # fmt: skip
        rows = back.qkv[w].view(B, 1, n, 3, H, -1)
        attend.run_backward(
            seen_by_slots(kept, k, v, mask, w),
            out=kept.attended[w].view(B, 1, n, H, -1), lse=kept.lse[w].view(B, 1, n, H),
            back=torch.mm(back.more[w], weights.out).view(B, 1, n, H, -1),
            made=[*rows.unbind(3), *(t[:, w, None] for t in into)],
            more=(d_carry[0][:, w, None], d_carry[1][:, w, None]), onto=n,
        )  # fmt: skip
        torch.mm(back.qkv[w], weights.qkv, out=back.h[w])
        slots.gate_and_norm_backward(
            back.h[w], back.total[w], kept.carry[w], kept.carry_moments[w],
            kept.z[w], kept.state[w], kept.moments[w], gate=gate, reset=weights.reset,
            logit=weights.logit, norm=project, dz=back.z[w], da=back.normed[w],
            d_reset=back.reset[w],
        )  # fmt: skip
        torch.mm(back.z[w], weights.left, out=back.through[w])
        slots.settle_backward(
            back.normed[w], back.through[w], kept.state[w], kept.moments[w], d_state[w + 1],
            alive[w], gate=gate, out=d_state[w], before=before(w - 1) if w else None,
        )  # fmt: skip
    return d_state[0], _of_weights(weights, kept, back)


def _room(N: int, R: int, D: int, *, like: Tensor) -> HandedBack:
    full = like.new_empty(4, N, R, D, dtype=torch.float32)
    cast = like.new_empty(6, N, R, D)
    masked, total, normed, reset = full
    first, f, more, h, z, through = cast
    wide, qkv = like.new_empty(N, R, 4 * D), like.new_empty(N, R, 3 * D)
    return HandedBack(masked, first, wide, f, total, more, qkv, h, z, normed, reset, through)


def _of_weights(weights: Weights, kept: Kept, back: HandedBack) -> tuple[Tensor, ...]:
    """Gradients of the weights, from what all steps handed back."""
    N = len(back.z)

    def product(pull: Tensor, given: Tensor) -> Tensor:
        return pull.flatten(0, 1).T @ given[:N].flatten(0, 1)

    norms, (reset, logit), (out_b, narrow_b), widen_b = scan_sums(
        (
            OfNorm(back.normed, kept.state, kept.moments),
            OfNorm(back.h, kept.carry, kept.carry_moments),
            OfNorm(back.f, kept.total, kept.total_moments),
        ),
        (back.reset, back.z), (back.total, back.masked), back.wide, slots=len(weights.reset),
    )  # fmt: skip
    gate_w, gate_b, norm_w, norm_b, ahead_w, ahead_b = norms
    found = Weights(
        gate_w, gate_b, product(back.z, kept.normed), reset, logit,
        norm_w, norm_b, norm_b, product(back.qkv, kept.h),
        product(back.more, kept.attended), out_b, ahead_w, ahead_b,
        product(back.wide, kept.f), widen_b, product(back.cast, kept.active), narrow_b,
    )  # fmt: skip
    return tuple(g.to(w.dtype) for g, w in zip(found, weights, strict=True))
