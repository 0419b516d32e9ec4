"""The memory scan of short windows: few kernels a window, weight gradients formed once.

The forward pass saves the activations of all steps. The backward pass goes from the last window to
the first and saves the gradients at the inputs and outputs of every step's products; each weight
then gets its gradient from all windows at once, by one product.

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
    saved = run_forward(weights.cast_products(), state, k, v, mask, nonempty.T.contiguous())
    return Scanned(saved.memory(B), *saved.carry_heads(B))


def supports(*_: Any, cfg: ModelConfig, training: bool, **__: Any) -> bool:
    """Gradients of the scan are computed by `window_attention`, with those of the tokens."""
    return not torch.is_grad_enabled() and supports_config(cfg, training=training)


def supports_config(cfg: ModelConfig, *, training: bool) -> bool:
    """Whether these kernels can scan the windows of such a model."""
    keys = 2 * cfg.slots + cfg.window
    return (
        cfg.slots > 0
        and cfg.gate_carry
        and cfg.readout == "carry"
        and not (training and cfg.dropout)
        and short_attention.supports_sizes(keys, keys, cfg.dim // cfg.heads)
    )


class Activations(NamedTuple):
    """Activations of all steps, (N, R, ...) each; `state` has one more, after the last window."""

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
    hidden: Tensor  # (N, R, 4D)
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
) -> Activations:
    """Carry ``state`` (B, n, D) through N windows.

    Args:
        weights: as `ScanWeights.cast_products` gives them.
        k, v: what the slots see beside the carry, (B, N, H, J, d).
        mask: which keys are there, the carry's first: (B, N, n+J).
        nonempty: which windows write, (N, B).
    """
    N, H, D = len(nonempty), k.shape[2], state.shape[-1]
    saved = _allocate(N, state.shape[0] * state.shape[1], D, H, like=weights.qkv)
    saved.state[0].view(state.shape).copy_(state)
    gate = NormWeights(weights.gate_norm, weights.gate_norm_bias, EPS)
    norm.run_forward(saved.state[0], gate, out=saved.normed[0], moments=saved.moments[0])
    for w in range(N):
        y = _step(saved, weights, _slot_inputs(saved, k, v, mask, w), w)
        scan_rows.update_memory(
            saved.total[w], y, weights.fc2_bias, saved.state[w], nonempty[w], gate=gate,
            out=saved.state[w + 1], normed=saved.normed[w + 1], moments=saved.moments[w + 1],
        )  # fmt: skip
    return saved


def _allocate(N: int, R: int, D: int, heads: int, *, like: Tensor) -> Activations:
    def full(*shape: int) -> Tensor:
        return like.new_empty(shape, dtype=torch.float32)

    def cast(*shape: int) -> Tensor:
        return like.new_empty(shape)

    return Activations(
        state=full(N + 1, R, D), moments=full(N + 1, 2, R), normed=cast(N + 1, R, D),
        z=cast(N, R, D), carry=full(N, R, D), carry_moments=full(N, 2, R), h=cast(N, R, D),
        qkv=cast(N, R, 3 * D), attended=cast(N, R, D), lse=full(N, R, heads),
        total=full(N, R, D), total_moments=full(N, 2, R), f=cast(N, R, D),
        hidden=cast(N, R, 4 * D), active=cast(N, R, 4 * D),
    )  # fmt: skip


def _slot_inputs(
    saved: Activations, k: Tensor, v: Tensor, mask: Tensor, w: int
) -> short_attention.Inputs:
    """Queries, keys and values of the slots of window ``w``."""
    B, _, H, _, d = k.shape
    rows = saved.qkv[w].view(B, 1, -1, 3, H, d)
    q, own_k, own_v = (rows[:, :, :, i].transpose(2, 3) for i in range(3))  # (B, 1, H, n, d)
    visible = mask[:, w, None, None].expand(-1, -1, q.shape[3], -1)  # (B, 1, n, n+J)
    return short_attention.Inputs(q, own_k, own_v, k[:, w, None], v[:, w, None], visible)


def _step(
    saved: Activations, weights: ScanWeights, inputs: short_attention.Inputs, w: int
) -> Tensor:
    """Window ``w`` up to the last product, (R, D)."""
    B, _, H, n, d = inputs.q.shape
    torch.mm(saved.normed[w], weights.gate.T, out=saved.z[w])
    scan_rows.gate_and_norm(
        saved.z[w], saved.state[w], saved.moments[w],
        gate=NormWeights(weights.gate_norm, weights.gate_norm_bias, EPS), reset=weights.reset,
        logit=weights.reset_logit, norm=NormWeights(weights.norm, weights.norm_bias, EPS),
        segment=weights.segment, carry=saved.carry[w], h=saved.h[w],
        carry_moments=saved.carry_moments[w],
    )  # fmt: skip
    torch.mm(saved.h[w], weights.qkv.T, out=saved.qkv[w])
    attention = slot_attention if n <= slot_attention.MAX_QUERIES else short_attention
    attention.run_forward(
        inputs, out=saved.attended[w].view(B, 1, n, H, d), lse=saved.lse[w].view(B, 1, n, H)
    )
    more = torch.mm(saved.attended[w], weights.out.T)
    norm.run_add_forward(
        saved.carry[w], more, weights.out_bias, weights.feed_forward.norm,
        total=saved.total[w], out=saved.f[w], moments=saved.total_moments[w],
    )  # fmt: skip
    linear.matmul_gelu(
        saved.f[w], weights.fc1, weights.fc1_bias, hidden=saved.hidden[w], out=saved.active[w]
    )
    return torch.mm(saved.active[w], weights.fc2.T)


class _Gradients(NamedTuple):
    """Gradients at the inputs and outputs of each step's products, (N, R, ...)."""

    masked: Tensor  # of the memory where it was written, float32
    cast: Tensor  # the same, in the products' type
    hidden: Tensor  # (N, R, 4D)
    f: Tensor
    total: Tensor  # float32
    more: Tensor  # the same, in the products' type
    qkv: Tensor  # (N, R, 3D)
    h: Tensor
    z: Tensor
    normed: Tensor  # float32
    reset: Tensor  # float32, before it is summed
    via_gate: Tensor  # gradient of the normalised state through z


def run_backward(
    saved: Activations, weights: ScanWeights, k: Tensor, v: Tensor, mask: Tensor, nonempty: Tensor,
    *, d_memory: Tensor, d_carry: tuple[Tensor, Tensor], d_keys_values: tuple[Tensor, Tensor],
) -> tuple[Tensor, tuple[Tensor, ...]]:  # fmt: skip
    """Gradients of the first state (B n, D) and of the weights; see `run_forward`.

    Args:
        d_memory: of the memory after each window, (B, N, n, D).
        d_carry: of the carry's keys and values from the windows' tokens, (B, N, n, H, d) each.
        d_keys_values: output, the gradients of ``k`` and ``v``, (B, N, J, H, d) each. Those of the
            first n rows, the memory below, are written; those of the tokens are added.
    """
    B, N, n, D = d_memory.shape
    R, H = B * n, k.shape[2]
    gate = NormWeights(weights.gate_norm, weights.gate_norm_bias, EPS)
    d_memory = d_memory.contiguous()
    d_state = saved.state.new_empty(N + 1, R, D)  # [w + 1]: of the memory after window w
    grads = _allocate_gradients(N, R, D, like=weights.qkv)

    def previous(w: int) -> scan_rows.PreviousStep:
        return scan_rows.PreviousStep(d_memory[:, w], nonempty[w], grads.masked[w], grads.cast[w])

    scan_rows.start_backward(previous(N - 1), out=d_state[N])
    attention = slot_attention if n <= slot_attention.MAX_QUERIES else short_attention
    for w in reversed(range(N)):
        linear.matmul_gelu_backward(
            grads.cast[w],
            weights.fc2,
            weights.fc1_bias,
            hidden=saved.hidden[w],
            out=grads.hidden[w],
        )
        torch.mm(grads.hidden[w], weights.fc1, out=grads.f[w])
        norm.run_add_backward(
            grads.f[w], grads.masked[w], saved.total[w], saved.total_moments[w],
            weights.feed_forward.norm, out=grads.total[w], cast=grads.more[w],
        )  # fmt: skip
        rows = grads.qkv[w].view(B, 1, n, 3, H, -1)
        attention.run_backward(
            _slot_inputs(saved, k, v, mask, w),
            out=saved.attended[w].view(B, 1, n, H, -1), lse=saved.lse[w].view(B, 1, n, H),
            d_out=torch.mm(grads.more[w], weights.out).view(B, 1, n, H, -1),
            grads=[*rows.unbind(3), *(t[:, w, None] for t in d_keys_values)],
            add_to_first=(d_carry[0][:, w, None], d_carry[1][:, w, None]), accumulate_from=n,
        )  # fmt: skip
        torch.mm(grads.qkv[w], weights.qkv, out=grads.h[w])
        scan_rows.gate_and_norm_backward(
            grads.h[w], grads.total[w], saved.carry[w], saved.carry_moments[w],
            saved.z[w], saved.state[w], saved.moments[w], gate=gate, reset=weights.reset,
            logit=weights.reset_logit, norm=NormWeights(weights.norm, weights.norm_bias, EPS),
            dz=grads.z[w], da=grads.normed[w], d_reset=grads.reset[w],
        )  # fmt: skip
        torch.mm(grads.z[w], weights.gate, out=grads.via_gate[w])
        scan_rows.update_memory_backward(
            grads.normed[w], grads.via_gate[w], saved.state[w], saved.moments[w], d_state[w + 1],
            nonempty[w], gate=gate, out=d_state[w], previous=previous(w - 1) if w else None,
        )  # fmt: skip
    return d_state[0], _weight_gradients(weights, saved, grads)


def _allocate_gradients(N: int, R: int, D: int, *, like: Tensor) -> _Gradients:
    full = like.new_empty(4, N, R, D, dtype=torch.float32)
    cast = like.new_empty(6, N, R, D)
    masked, total, normed, reset = full
    first, f, more, h, z, via_gate = cast
    hidden, qkv = like.new_empty(N, R, 4 * D), like.new_empty(N, R, 3 * D)
    return _Gradients(masked, first, hidden, f, total, more, qkv, h, z, normed, reset, via_gate)


def _weight_gradients(
    weights: ScanWeights, saved: Activations, grads: _Gradients
) -> tuple[Tensor, ...]:
    """Gradients of the weights, from the saved gradients of all steps."""
    N = len(grads.z)

    def weight_gradient(grad: Tensor, inputs: Tensor) -> Tensor:
        return grad.flatten(0, 1).T @ inputs[:N].flatten(0, 1)

    norms, (reset, logit), (out_bias, fc2_bias), fc1_bias = scan_sums(
        (
            NormGradient(grads.normed, saved.state, saved.moments),
            NormGradient(grads.h, saved.carry, saved.carry_moments),
            NormGradient(grads.f, saved.total, saved.total_moments),
        ),
        (grads.reset, grads.z), (grads.total, grads.masked), grads.hidden, slots=len(weights.reset),
    )  # fmt: skip
    gate_norm, gate_norm_bias, own_norm, own_bias, ff_norm, ff_bias = norms
    gradients = ScanWeights(
        gate_norm, gate_norm_bias, weight_gradient(grads.z, saved.normed), reset, logit,
        own_norm, own_bias, own_bias, weight_gradient(grads.qkv, saved.h),
        weight_gradient(grads.more, saved.attended), out_bias, ff_norm, ff_bias,
        weight_gradient(grads.hidden, saved.f), fc1_bias,
        weight_gradient(grads.cast, saved.active), fc2_bias,
    )  # fmt: skip
    return tuple(g.to(w.dtype) for g, w in zip(gradients, weights, strict=True))
