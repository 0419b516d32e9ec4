"""The scan on a GPU by hand: few kernels a window, no autograd, weight gradients formed once.

Forward keeps what every step made, one buffer over all windows. Backward goes from the last window
to the first with the state's gradient alone and keeps what every step's products hand back; the
weights then get their gradients from all windows at once, each by one product.

Twin: `MemorySlots.stepper` under `scan`.

Shapes: B series, N windows, n slots, R = B n rows, D width, H heads, d = D / H, J keys seen beside
the carry.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from progmem.kernels import biased, few_keys, norm, slots
from progmem.kernels.norm import Normed
from progmem.model.attention import AttentionLayer
from progmem.model.gates import Reset
from progmem.model.recurrence import Seen, Stepped

if TYPE_CHECKING:
    from progmem.model.scan import MemorySlots

EPS = torch.nn.LayerNorm(1).eps  # of every norm here


class Weights(NamedTuple):
    """Everything of a step that learns; the products' weights in the precision they run in."""

    gate_w: Tensor  # LN of the memory gate, (D,)
    gate_b: Tensor
    left: Tensor  # the gate's part for the memory, (D, D)
    reset: Tensor  # LN M_r, (n, D)
    logit: Tensor  # the gate's part for the reset state, (n, D)
    norm_w: Tensor  # LN before the projections, (D,)
    norm_b: Tensor
    segment: Tensor  # (D,)
    qkv: Tensor  # (3D, D)
    out: Tensor  # (D, D)
    out_b: Tensor
    ahead_w: Tensor  # LN of the feed-forward layer, (D,)
    ahead_b: Tensor
    widen: Tensor  # (4D, D)
    widen_b: Tensor
    narrow: Tensor  # (D, 4D)
    narrow_b: Tensor


def scan_by_hand(
    memory: "MemorySlots",
    layer: AttentionLayer,
    state: Tensor,
    seen: Seen,
    reset: Reset,
    dtype: torch.dtype,
) -> Stepped:
    """`scan` of slots whose carry is gated and read out, products in ``dtype``."""
    assert memory.gate.mix is not None
    ahead = layer.feed_forward
    left, _ = memory.gate.mix.weight.chunk(2, dim=1)
    left, qkv, out, widen, narrow = (
        w.to(dtype).contiguous()
        for w in (left, layer.qkv.weight, layer.out.weight, ahead.widen.weight, ahead.narrow.weight)
    )
    weights = Weights(
        memory.gate.norm.weight, memory.gate.norm.bias, left, reset.rows, reset.logit,
        layer.norm.weight, layer.norm.bias, memory.segments[0], qkv, out, layer.out.bias,
        ahead.norm.weight, ahead.norm.bias, widen, ahead.widen.bias, narrow, ahead.narrow.bias,
    )  # fmt: skip
    made = _Scan.apply(memory.heads, seen.mask, seen.alive, state, seen.k, seen.v, *weights)  # type: ignore[no-untyped-call]
    return Stepped(*made)


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


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, heads: int, mask: Tensor, alive: Tensor, state: Tensor, k: Tensor, v: Tensor,
        *learnt: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        weights = Weights(*learnt)
        B, N = alive.shape
        n, D = state.shape[1:]
        kept = _room(N, B * n, D, heads, like=weights.qkv)
        alive = alive.T.contiguous()  # (N, B)
        kept.state[0] = state.reshape(-1, D)
        gate = Normed(weights.gate_w, weights.gate_b, EPS)
        norm.run_forward(kept.state[0], gate, out=kept.normed[0], moments=kept.moments[0])
        for w in range(N):
            y = _step(kept, weights, _given(kept, k, v, mask, heads, w), w)
            slots.settle(
                kept.total[w], y, weights.narrow_b, kept.state[w], alive[w], gate=gate,
                out=kept.state[w + 1], normed=kept.normed[w + 1], moments=kept.moments[w + 1],
            )  # fmt: skip
        ctx.heads = heads
        ctx.save_for_backward(mask, alive, k, v, *learnt, *kept)
        memory = kept.state[1:].view(N, B, n, D).transpose(0, 1)
        rows = kept.qkv.view(N, B, n, 3, heads, -1)
        own_k, own_v = (rows[:, :, :, i].permute(1, 0, 3, 2, 4).contiguous() for i in (1, 2))
        return memory.contiguous(), own_k, own_v

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_memory: Tensor, dk: Tensor, dv: Tensor) -> tuple[Tensor | None, ...]:
        mask, alive, k, v, *others = ctx.saved_tensors
        weights, kept = (
            Weights(*others[: len(Weights._fields)]),
            Kept(*others[len(Weights._fields) :]),
        )
        B, N, n, D = d_memory.shape
        R, H, wide = B * n, ctx.heads, weights.qkv.dtype
        gate, project, ahead = (
            Normed(w, b, EPS)
            for w, b in (
                (weights.gate_w, weights.gate_b),
                (weights.norm_w, weights.norm_b),
                (weights.ahead_w, weights.ahead_b),
            )
        )
        own = d_memory.transpose(0, 1).reshape(N, R, D).to(torch.float32)
        dk, dv = (t if t.stride(-1) == 1 else t.contiguous() for t in (dk, dv))
        d_k, d_v = (t.new_empty(B, N, t.shape[3], H, D // H) for t in (k, v))
        d_state = own.new_zeros(N + 1, R, D)  # [w + 1]: of the memory after window w
        d_state[N] = own[N - 1]
        masked, da, d_carry, d_total = own.new_empty(4, N, R, D).unbind(0)  # float32
        cast, dz, dh, df, d_more, through = own.new_empty(6, N, R, D, dtype=wide).unbind(0)
        d_wide = own.new_empty(N, R, 4 * D, dtype=wide)
        d_qkv = own.new_empty(N, R, 3 * D, dtype=wide)
        masked[N - 1] = torch.where(
            alive[N - 1, :, None, None], own[N - 1].view(B, n, D), 0.0
        ).view(R, D)
        cast[N - 1] = masked[N - 1]
        for w in reversed(range(N)):
            d_active = torch.mm(cast[w], weights.narrow)
            biased.run_gelu_backward(kept.wide[w], weights.widen_b, d_active, out=d_wide[w])
            torch.mm(d_wide[w], weights.widen, out=df[w])
            norm.run_add_backward(
                df[w], masked[w], kept.total[w], kept.total_moments[w], ahead,
                out=d_total[w], cast=d_more[w],
            )  # fmt: skip
            back = torch.mm(d_more[w], weights.out).view(B, 1, n, H, -1)
            rows = d_qkv[w].view(B, 1, n, 3, H, -1)
            few_keys.run_backward(
                _given(kept, k, v, mask, H, w),
                out=kept.attended[w].view(B, 1, n, H, -1), lse=kept.lse[w].view(B, 1, n, H),
                back=back, made=[*rows.unbind(3), d_k[:, w, None], d_v[:, w, None]], keys=True,
                more=(dk[:, w, None].transpose(2, 3), dv[:, w, None].transpose(2, 3)),
            )  # fmt: skip
            torch.mm(d_qkv[w], weights.qkv, out=dh[w])
            slots.gate_and_norm_backward(
                dh[w], d_total[w], kept.carry[w], kept.carry_moments[w],
                kept.z[w], kept.state[w], kept.moments[w], gate=gate, reset=weights.reset,
                logit=weights.logit, norm=project, dz=dz[w], da=da[w], d_carry=d_carry[w],
            )  # fmt: skip
            torch.mm(dz[w], weights.left, out=through[w])
            before = max(w - 1, 0)
            slots.settle_backward(
                da[w], through[w], kept.state[w], kept.moments[w], d_state[w + 1], alive[w],
                gate=gate, earlier=own[w - 1] if w else d_state[0], earlier_alive=alive[before],
                out=d_state[w], masked=masked[before] if w else None, cast=cast[before],
            )  # fmt: skip
        gradients = _of_weights(
            weights, kept, masked=masked, cast=cast, d_wide=d_wide, df=df, d_more=d_more,
            d_total=d_total, d_qkv=d_qkv, dh=dh, dz=dz, da=da.add_(through), d_carry=d_carry,
        )  # fmt: skip
        d_k, d_v = (t.transpose(2, 3) for t in (d_k, d_v))
        return None, None, None, d_state[0].view(B, n, D), d_k, d_v, *gradients


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


def _given(kept: Kept, k: Tensor, v: Tensor, mask: Tensor, heads: int, w: int) -> few_keys.Given:
    """What the slots of window ``w`` attend to."""
    B = k.shape[0]
    rows = kept.qkv[w].view(B, 1, -1, 3, heads, k.shape[-1])
    q, own_k, own_v = (rows[:, :, :, i].transpose(2, 3) for i in range(3))  # (B, 1, H, n, d)
    seen = mask[:, w].expand(-1, -1, q.shape[3], -1)  # (B, 1, n, J)
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
    few_keys.run_forward(
        given, out=kept.attended[w].view(B, 1, n, H, d), lse=kept.lse[w].view(B, 1, n, H)
    )
    more = torch.mm(kept.attended[w], weights.out.T)
    norm.run_add_forward(
        kept.carry[w], more, weights.out_b, Normed(weights.ahead_w, weights.ahead_b, EPS),
        total=kept.total[w], out=kept.f[w], moments=kept.total_moments[w],
    )  # fmt: skip
    torch.mm(kept.f[w], weights.widen.T, out=kept.wide[w])
    biased.run_gelu_forward(kept.wide[w], weights.widen_b, out=kept.active[w])
    return torch.mm(kept.active[w], weights.narrow.T)


def _of_weights(
    weights: Weights, kept: Kept, *, masked: Tensor, cast: Tensor, d_wide: Tensor, df: Tensor,
    d_more: Tensor, d_total: Tensor, d_qkv: Tensor, dh: Tensor, dz: Tensor, da: Tensor,
    d_carry: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gradients of the weights, from what all steps handed back."""
    N, _, D = da.shape
    n = len(weights.reset)

    def product(back: Tensor, given: Tensor) -> Tensor:
        return back.flatten(0, 1).T @ given[:N].flatten(0, 1)

    def of_norm(back: Tensor, x: Tensor, moments: Tensor) -> tuple[Tensor, Tensor]:
        return norm.weight_gradients(back, x[:N], moments[:N])

    gate_w, gate_b = of_norm(da, kept.state, kept.moments)
    norm_w, norm_b = of_norm(dh, kept.carry, kept.carry_moments)
    ahead_w, ahead_b = of_norm(df, kept.total, kept.total_moments)
    reset = slots.reset_gradient(d_carry, kept.z, weights.logit)
    per_slot = dz.view(-1, n, D)
    found = Weights(
        gate_w, gate_b, product(dz, kept.normed), reset, per_slot.sum(0, dtype=torch.float32),
        norm_w, norm_b, norm_b, product(d_qkv, kept.h),
        product(d_more, kept.attended), biased.column_sums(d_total), ahead_w, ahead_b,
        product(d_wide, kept.f), biased.column_sums(d_wide),
        product(cast, kept.active), biased.column_sums(masked),
    )  # fmt: skip
    return tuple(g.to(w.dtype) for g, w in zip(found, weights, strict=True))
