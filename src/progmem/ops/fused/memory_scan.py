"""The memory scan of short windows: few kernels a window, weight gradients formed once.

Forward, what the steps made is kept. Backward, only the state's gradient goes from the last window
to the first; what every step's products hand back is kept too, and the weights then get their
gradients from all windows at once, each by one product.

Shapes: B series, N windows, n slots, R = B n rows, D width, H heads, d = D / H, J keys seen beside
the carry.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from progmem.config import ModelConfig
from progmem.ops.fused import linear, norm, scan_rows, short_attention, slot_attention
from progmem.ops.fused.scan_rows import NormGradient, scan_sums
from progmem.ops.layers import NormWeights, split_heads
from progmem.ops.window_attention import EPS, Below, Scanned, ScanWeights


def memory_scan(
    state: Tensor,
    below: Below,
    weights: ScanWeights,
    k: Tensor,
    v: Tensor,
    *,
    valid: Tensor,
    nonempty: Tensor,
    cfg: ModelConfig,
    training: bool,
) -> Scanned:
    """`progmem.ops.window_attention.memory_scan`, without a gradient."""
    B, N = nonempty.shape
    _, below_k, below_v = (
        split_heads(t, cfg.heads).expand(B, N, -1, -1, -1) for t in below.qkv.chunk(3, dim=-1)
    )
    k, v = torch.cat([below_k, k], dim=3), torch.cat([below_v, v], dim=3)
    mask = torch.nn.functional.pad(valid, (2 * cfg.slots, 0), value=True)
    kept = run_forward(weights.cast_products(), state, k, v, mask, nonempty.T.contiguous())
    return Scanned(kept.memory(B), *kept.carry_heads(B))


def supports(*_: Any, cfg: ModelConfig, training: bool, **__: Any) -> bool:
    """Gradients of the scan are made by `window_attention`, with those of the tokens."""
    return not torch.is_grad_enabled() and scans(cfg, training=training)


def scans(cfg: ModelConfig, *, training: bool) -> bool:
    """Whether these kernels can scan such windows."""
    keys = 2 * cfg.slots + cfg.window
    return (
        cfg.slots > 0
        and cfg.gate_carry
        and cfg.readout == "carry"
        and not (training and cfg.dropout)
        and short_attention.takes(keys, keys, cfg.dim // cfg.heads)
    )


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


def run_forward(
    weights: ScanWeights, state: Tensor, k: Tensor, v: Tensor, mask: Tensor, nonempty: Tensor
) -> Kept:
    """Carry ``state`` (B, n, D) through N windows.

    Args:
        weights: as `ScanWeights.cast_products` gives them.
        k, v: what the slots see beside the carry, (B, N, H, J, d).
        mask: which keys are there, the carry's first: (B, N, n+J).
        nonempty: which windows write, (N, B).
    """
    N, H, D = len(nonempty), k.shape[2], state.shape[-1]
    kept = _room(N, state.shape[0] * state.shape[1], D, H, like=weights.qkv)
    kept.state[0].view(state.shape).copy_(state)
    gate = NormWeights(weights.gate_norm, weights.gate_norm_bias, EPS)
    norm.run_forward(kept.state[0], gate, out=kept.normed[0], moments=kept.moments[0])
    for w in range(N):
        y = _step(kept, weights, _seen_by_slots(kept, k, v, mask, w), w)
        scan_rows.settle(
            kept.total[w], y, weights.fc2_bias, kept.state[w], nonempty[w], gate=gate,
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


def _seen_by_slots(kept: Kept, k: Tensor, v: Tensor, mask: Tensor, w: int) -> short_attention.Given:
    """What the slots of window ``w`` attend to."""
    B, _, H, _, d = k.shape
    rows = kept.qkv[w].view(B, 1, -1, 3, H, d)
    q, own_k, own_v = (rows[:, :, :, i].transpose(2, 3) for i in range(3))  # (B, 1, H, n, d)
    seen = mask[:, w, None, None].expand(-1, -1, q.shape[3], -1)  # (B, 1, n, n+J)
    return short_attention.Given(q, own_k, own_v, k[:, w, None], v[:, w, None], seen)


def _step(kept: Kept, weights: ScanWeights, given: short_attention.Given, w: int) -> Tensor:
    """Window ``w`` up to the last product, (R, D)."""
    B, _, H, n, d = given.q.shape
    torch.mm(kept.normed[w], weights.gate.T, out=kept.z[w])
    scan_rows.gate_and_norm(
        kept.z[w], kept.state[w], kept.moments[w],
        gate=NormWeights(weights.gate_norm, weights.gate_norm_bias, EPS), reset=weights.reset,
        logit=weights.reset_logit, norm=NormWeights(weights.norm, weights.norm_bias, EPS),
        segment=weights.segment, carry=kept.carry[w], h=kept.h[w], made=kept.carry_moments[w],
    )  # fmt: skip
    torch.mm(kept.h[w], weights.qkv.T, out=kept.qkv[w])
    attention = slot_attention if n <= slot_attention.MOST else short_attention
    attention.run_forward(
        given, out=kept.attended[w].view(B, 1, n, H, d), lse=kept.lse[w].view(B, 1, n, H)
    )
    more = torch.mm(kept.attended[w], weights.out.T)
    norm.run_add_forward(
        kept.carry[w], more, weights.out_bias, weights.feed_forward.norm,
        total=kept.total[w], out=kept.f[w], moments=kept.total_moments[w],
    )  # fmt: skip
    linear.gelu_of_product(
        kept.f[w], weights.fc1, weights.fc1_bias, wide=kept.wide[w], out=kept.active[w]
    )
    return torch.mm(kept.active[w], weights.fc2.T)


class _Back(NamedTuple):
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
    kept: Kept, weights: ScanWeights, k: Tensor, v: Tensor, mask: Tensor, nonempty: Tensor,
    *, d_memory: Tensor, d_carry: tuple[Tensor, Tensor], into: tuple[Tensor, Tensor],
) -> tuple[Tensor, tuple[Tensor, ...]]:  # fmt: skip
    """Gradients of the first state (B n, D) and of the weights; `run_forward` tells the rest.

    Args:
        d_memory: of the memory after each window, (B, N, n, D).
        d_carry: what the windows' tokens hand back to the carry's keys and values,
            (B, N, n, H, d) each.
        into: where the gradients of ``k`` and ``v`` go, (B, N, J, H, d) each. Those of the first
            n rows, the memory below, are written; those of the tokens are added.
    """
    B, N, n, D = d_memory.shape
    R, H = B * n, k.shape[2]
    gate = NormWeights(weights.gate_norm, weights.gate_norm_bias, EPS)
    d_memory = d_memory.contiguous()
    d_state = kept.state.new_empty(N + 1, R, D)  # [w + 1]: of the memory after window w
    back = _room_back(N, R, D, like=weights.qkv)

    def before(w: int) -> scan_rows.Before:
        return scan_rows.Before(d_memory[:, w], nonempty[w], back.masked[w], back.cast[w])

    scan_rows.begin_backward(before(N - 1), out=d_state[N])
    attention = slot_attention if n <= slot_attention.MOST else short_attention
    for w in reversed(range(N)):
        linear.gelu_backward_of_product(
            back.cast[w], weights.fc2, weights.fc1_bias, wide=kept.wide[w], out=back.wide[w]
        )
        torch.mm(back.wide[w], weights.fc1, out=back.f[w])
        norm.run_add_backward(
            back.f[w], back.masked[w], kept.total[w], kept.total_moments[w],
            weights.feed_forward.norm, out=back.total[w], cast=back.more[w],
        )  # fmt: skip
        rows = back.qkv[w].view(B, 1, n, 3, H, -1)
        attention.run_backward(
            _seen_by_slots(kept, k, v, mask, w),
            out=kept.attended[w].view(B, 1, n, H, -1), lse=kept.lse[w].view(B, 1, n, H),
            back=torch.mm(back.more[w], weights.out).view(B, 1, n, H, -1),
            made=[*rows.unbind(3), *(t[:, w, None] for t in into)],
            more=(d_carry[0][:, w, None], d_carry[1][:, w, None]), onto=n,
        )  # fmt: skip
        torch.mm(back.qkv[w], weights.qkv, out=back.h[w])
        scan_rows.gate_and_norm_backward(
            back.h[w], back.total[w], kept.carry[w], kept.carry_moments[w],
            kept.z[w], kept.state[w], kept.moments[w], gate=gate, reset=weights.reset,
            logit=weights.reset_logit, norm=NormWeights(weights.norm, weights.norm_bias, EPS),
            dz=back.z[w], da=back.normed[w], d_reset=back.reset[w],
        )  # fmt: skip
        torch.mm(back.z[w], weights.gate, out=back.through[w])
        scan_rows.settle_backward(
            back.normed[w], back.through[w], kept.state[w], kept.moments[w], d_state[w + 1],
            nonempty[w], gate=gate, out=d_state[w], before=before(w - 1) if w else None,
        )  # fmt: skip
    return d_state[0], _weight_gradients(weights, kept, back)


def _room_back(N: int, R: int, D: int, *, like: Tensor) -> _Back:
    full = like.new_empty(4, N, R, D, dtype=torch.float32)
    cast = like.new_empty(6, N, R, D)
    masked, total, normed, reset = full
    first, f, more, h, z, through = cast
    wide, qkv = like.new_empty(N, R, 4 * D), like.new_empty(N, R, 3 * D)
    return _Back(masked, first, wide, f, total, more, qkv, h, z, normed, reset, through)


def _weight_gradients(weights: ScanWeights, kept: Kept, back: _Back) -> tuple[Tensor, ...]:
    """Gradients of the weights, from what all steps handed back."""
    N = len(back.z)

    def product(pull: Tensor, given: Tensor) -> Tensor:
        return pull.flatten(0, 1).T @ given[:N].flatten(0, 1)

    norms, (reset, logit), (out_bias, fc2_bias), fc1_bias = scan_sums(
        (
            NormGradient(back.normed, kept.state, kept.moments),
            NormGradient(back.h, kept.carry, kept.carry_moments),
            NormGradient(back.f, kept.total, kept.total_moments),
        ),
        (back.reset, back.z), (back.total, back.masked), back.wide, slots=len(weights.reset),
    )  # fmt: skip
    gate_norm, gate_norm_bias, own_norm, own_bias, ff_norm, ff_bias = norms
    found = ScanWeights(
        gate_norm, gate_norm_bias, product(back.z, kept.normed), reset, logit,
        own_norm, own_bias, own_bias, product(back.qkv, kept.h),
        product(back.more, kept.attended), out_bias, ff_norm, ff_bias,
        product(back.wide, kept.f), fc1_bias, product(back.cast, kept.active), fc2_bias,
    )  # fmt: skip
    return tuple(g.to(w.dtype) for g, w in zip(found, weights, strict=True))
