"""The scan on a GPU by hand: few kernels a window, and what its steps made kept for backward.

Twin: `MemorySlots.stepper` under `scan`.

Shapes: B series, N windows, n slots, R = B n rows, D width, H heads, d = D / H, J keys seen beside
the carry.
"""

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from progmem.kernels import few_keys, few_queries, norm_rows, slots, widen
from progmem.kernels.norm_rows import Normed
from progmem.kernels.slots import Weights
from progmem.model.attention import AttentionLayer
from progmem.model.gates import Reset

if TYPE_CHECKING:
    from progmem.model.scan import MemorySlots

EPS = torch.nn.LayerNorm(1).eps  # of every norm here


def weights_of(
    memory: "MemorySlots", layer: AttentionLayer, reset: Reset, segment: Tensor, dtype: torch.dtype
) -> Weights:
    """What a step learns, its products in ``dtype``; ``segment`` (D,) is the carry's."""
    ahead = layer.feed_forward
    left, qkv, out, widen, narrow = (
        w.to(dtype).contiguous()
        for w in (
            reset.left,
            layer.qkv.weight,
            layer.out.weight,
            ahead.widen.weight,
            ahead.narrow.weight,
        )
    )
    return Weights(
        memory.gate.norm.weight, memory.gate.norm.bias, left, reset.rows, reset.logit,
        layer.norm.weight, layer.norm.bias, segment, qkv, out, layer.out.bias,
        ahead.norm.weight, ahead.norm.bias, widen, ahead.widen.bias, narrow, ahead.narrow.bias,
    )  # fmt: skip


class Kept(NamedTuple):
    """What the steps made, (N, R, ...) each; `state` has one more, the memory after the last."""

    state: Tensor  # (N+1, R, D) float32
    moments: Tensor  # (N+1, 2, R) of state
    normed: Tensor  # (N+1, R, D), LN state
    z: Tensor  # (N, R, D)
    carry: Tensor  # (N, R, D) float32
    carry_moments: Tensor  # (N, 2, R)
    h: Tensor  # (N, R, D)
    qkv: Tensor  # (N, R, 3D)
    attended: Tensor  # (N, R, D)
    lse: Tensor  # (N, R, H)
    total: Tensor  # (N, R, D) float32
    total_moments: Tensor
    f: Tensor  # (N, R, D)
    wide: Tensor  # (N, R, 4D)
    active: Tensor  # (N, R, 4D)

    def memory(self, batch: int) -> Tensor:
        """The memory after each window, (B, N, n, D)."""
        N, D = len(self.z), self.z.shape[-1]
        return self.state[1:].view(N, batch, -1, D).transpose(0, 1).contiguous()

    def carry_heads(self, batch: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the carry that each window saw, (B, N, H, n, d), as views."""
        N, H = len(self.z), self.lse.shape[-1]
        rows = self.qkv.view(N, batch, -1, 3, H, self.z.shape[-1] // H)
        k, v = (rows[:, :, :, i].permute(1, 0, 3, 2, 4) for i in (1, 2))
        return k, v


def run(weights: Weights, state: Tensor, k: Tensor, v: Tensor, mask: Tensor, alive: Tensor) -> Kept:
    """Carry ``state`` (B, n, D) through N windows.

    Args:
        k, v: what the slots see beside the carry, (B, N, H, J, d).
        mask: which keys are there, the carry's first: (B, N, n+J).
        alive: which windows write, (N, B).
    """
    N, H, D = len(alive), k.shape[2], state.shape[-1]
    kept = _room(N, state.shape[0] * state.shape[1], D, H, like=weights.qkv)
    kept.state[0].view(state.shape).copy_(state)
    gate = Normed(weights.gate_w, weights.gate_b, EPS)
    norm_rows.run_forward(kept.state[0], gate, out=kept.normed[0], moments=kept.moments[0])
    for w in range(N):
        y = _step(kept, weights, seen_by_slots(kept, k, v, mask, w), w)
        slots.settle(
            kept.total[w], y, weights.narrow_b, kept.state[w], alive[w], gate=gate,
            out=kept.state[w + 1], normed=kept.normed[w + 1], moments=kept.moments[w + 1],
        )  # fmt: skip
    return kept


def _room(N: int, R: int, D: int, heads: int, *, like: Tensor) -> Kept:
    def full(*shape: int) -> Tensor:
        return like.new_empty(shape, dtype=torch.float32)

    def cast(*shape: int) -> Tensor:
        return like.new_empty(shape)

    return Kept(
        state=full(N + 1, R, D), moments=full(N + 1, 2, R), normed=cast(N + 1, R, D),
        z=cast(N, R, D), carry=full(N, R, D), carry_moments=full(N, 2, R), h=cast(N, R, D),
        qkv=cast(N, R, 3 * D), attended=cast(N, R, D), lse=full(N, R, heads),
        total=full(N, R, D), total_moments=full(N, 2, R), f=cast(N, R, D),
        wide=cast(N, R, 4 * D), active=cast(N, R, 4 * D),
    )  # fmt: skip


def seen_by_slots(kept: Kept, k: Tensor, v: Tensor, mask: Tensor, w: int) -> few_keys.Given:
    """What the slots of window ``w`` attend to."""
    B, _, H, _, d = k.shape
    rows = kept.qkv[w].view(B, 1, -1, 3, H, d)
    q, own_k, own_v = (rows[:, :, :, i].transpose(2, 3) for i in range(3))  # (B, 1, H, n, d)
    seen = mask[:, w, None, None].expand(-1, -1, q.shape[3], -1)  # (B, 1, n, n+J)
    return few_keys.Given(q, own_k, own_v, k[:, w, None], v[:, w, None], seen)


def _step(kept: Kept, weights: Weights, given: few_keys.Given, w: int) -> Tensor:
    """Window ``w`` up to the last product, (R, D)."""
    B, _, H, n, d = given.q.shape
    torch.mm(kept.normed[w], weights.left.T, out=kept.z[w])
    slots.gate_and_norm(
        kept.z[w], kept.state[w], kept.moments[w],
        gate=Normed(weights.gate_w, weights.gate_b, EPS), reset=weights.reset,
        logit=weights.logit, norm=Normed(weights.norm_w, weights.norm_b, EPS),
        segment=weights.segment, carry=kept.carry[w], h=kept.h[w], made=kept.carry_moments[w],
    )  # fmt: skip
    torch.mm(kept.h[w], weights.qkv.T, out=kept.qkv[w])
    attend = few_queries if n <= few_queries.MOST else few_keys
    attend.run_forward(
        given, out=kept.attended[w].view(B, 1, n, H, d), lse=kept.lse[w].view(B, 1, n, H)
    )
    more = torch.mm(kept.attended[w], weights.out.T)
    norm_rows.run_add_forward(
        kept.carry[w], more, weights.out_b, Normed(weights.ahead_w, weights.ahead_b, EPS),
        total=kept.total[w], out=kept.f[w], moments=kept.total_moments[w],
    )  # fmt: skip
    widen.gelu_of_product(
        kept.f[w], weights.widen, weights.widen_b, wide=kept.wide[w], out=kept.active[w]
    )
    return torch.mm(kept.active[w], weights.narrow.T)
