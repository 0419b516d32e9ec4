"""Attention of windows with their memory scan, the only sequential part of PMT (Algorithm 1).

Inside a window the slots attend to everything; a token attends to the carry M_{w-1,b} and to the
tokens of its window up to itself, never to M-bar. Only the carry links windows: the slots are
scanned first, then all tokens attend at once. Keys and values that do not depend on the carry (of
the tokens and of the block below) are computed for all windows at once; a step of the scan is a
few small products over n slots.

Plain autograd through N steps would add up the gradient of every weight N times. Instead, each
step is run on its own, from a detached copy of the state. Then all steps are computed once more in
one batch from those states, and weights and keys get their gradients from this batch. It lacks the
effect of a state on later windows, which is added in the backward pass, from the last window to the
first, by

    a_w = dL/dM_w + J_{w+1}' (a_{w+1}, dL/dk_{w+1}, dL/dv_{w+1})

with J the derivative of a step by its state alone, and k, v the keys and values of the carry that
a window sees.

This is the plain form. `with_fused` names the form made of Triton kernels; it runs where the first
tensor is on a GPU and not float64, nothing compiles or exports the model, and the kernels' own
``supports`` takes the arguments (`progmem.ops`).

Shapes: B series, K tokens, N windows, W window, n slots, D width, H heads, d = D / H.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from progmem.config import ModelConfig
from progmem.geometry import WindowMasks, unfold_windows
from progmem.ops import compute_dtype, left_open, with_fused
from progmem.ops.layers import (
    FeedForwardWeights,
    NormWeights,
    attend,
    attention_output,
    gated_mix,
    layer_norm,
    merge_heads,
    rotate,
    rotation,
    split_heads,
)

EPS = torch.nn.LayerNorm(1).eps  # of every norm of a step
MATRICES = ("gate", "qkv", "out", "fc1", "fc2")  # of a step's products


class ScanWeights(NamedTuple):
    """The weights of a step of the scan."""

    gate_norm: Tensor  # LN of the memory gate, (D,)
    gate_norm_bias: Tensor
    gate: Tensor  # the gate's part for the memory, (D, D)
    reset: Tensor  # LN M_r, (n, D)
    reset_logit: Tensor  # the gate's part for the reset state, (n, D)
    norm: Tensor  # LN before the projections, (D,)
    norm_bias: Tensor
    segment: Tensor  # tells the carry from other rows, (D,)
    qkv: Tensor  # (3D, D)
    out: Tensor  # (D, D)
    out_bias: Tensor
    ff_norm: Tensor  # LN of the feed-forward layer, (D,)
    ff_norm_bias: Tensor
    fc1: Tensor  # (4D, D)
    fc1_bias: Tensor
    fc2: Tensor  # (D, 4D)
    fc2_bias: Tensor

    def gated(self, memory: Tensor) -> Tensor:
        """G_M(LN M, LN M_r) of memories (..., n, D)."""
        norm = NormWeights(self.gate_norm, self.gate_norm_bias, EPS)
        new = layer_norm(memory, norm, dtype=memory.dtype)
        z = F.linear(new.to(self.gate.dtype), self.gate)
        return gated_mix(z, self.reset_logit, new, self.reset)

    def cast_products(self) -> "ScanWeights":
        """The weights with those of the products dense and in the type that these compute in."""
        dtype = compute_dtype(self.qkv)
        return self._replace(**{n: getattr(self, n).to(dtype).contiguous() for n in MATRICES})

    @property
    def feed_forward(self) -> FeedForwardWeights:
        norm = NormWeights(self.ff_norm, self.ff_norm_bias, EPS)
        return FeedForwardWeights(norm, self.fc1, self.fc1_bias, self.fc2, self.fc2_bias)


class Below(NamedTuple):
    """M-bar_{w,b-1}, the gated memory of the block below.

    Axes B and N may be 1: then it is the same for all series or windows.
    """

    rows: Tensor  # (B, N, n, D)
    qkv: Tensor  # (B, N, n, 3D)


class Scanned(NamedTuple):
    """Result of the scan: memory after each window, keys and values of the carry that it saw.

    A step returns those of one window, without the axis N.
    """

    memory: Tensor  # (B, N, n, D), M_{w,b}
    carry_k: Tensor  # (B, N, H, n, d)
    carry_v: Tensor  # (B, N, H, n, d)


@with_fused("window_attention.window_attention", supports="supports")
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
    """Attention of all windows' tokens (B, N, W, D), and the memory (B, N, n, D).

    Args:
        qkv: projections of tokens, all of them in windows, (B, K, 3D); without gradients they may
            be overwritten.
        reset: the first memory M_r, (n, D); None, like ``below`` and ``weights``: no memory.
        training: dropout is on, and values must not depend on whether gradients are enabled.
    """
    B, N = masks.windows.shape
    q, k, v = (unfold_windows(t, cfg, N) for t in qkv.chunk(3, dim=-1))  # (B, N, W, D)
    k, v = window_keys(k, v, cfg=cfg)
    memory = carry = None
    if reset is not None and below is not None and weights is not None:
        memory, *carry_kv = memory_scan(
            reset.expand(B, -1, -1), below, weights, k, v,
            valid=masks.in_window, nonempty=masks.nonempty, cfg=cfg, training=training,
        )  # fmt: skip
        carry = carry_kv[0], carry_kv[1]
    valid = masks.in_window if masks.gaps else None
    return attend_windows(q, k, v, carry, valid, cfg=cfg), memory


def window_keys(k: Tensor, v: Tensor, *, cfg: ModelConfig) -> tuple[Tensor, Tensor]:
    """Keys, at their positions in the window, and values (..., T, D) as heads (..., H, T, d)."""
    k = split_heads(k, cfg.heads)
    return rotate(k, rotation(k)), split_heads(v, cfg.heads)


def attend_windows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    carry: tuple[Tensor, Tensor] | None,
    valid: Tensor | None,
    *,
    cfg: ModelConfig,
) -> Tensor:
    """Attention of the last P positions of each window: (B, N, P, D).

    Args:
        q: those positions' queries, (B, N, P, D).
        k, v: the window's keys and values up to there, (B, N, H, T, d), T >= P.
        carry: keys and values of the carry, (B, N, H, n, d) each; None: no memory.
        valid: which tokens are there, (B, N, T); None if none is missing before its row.
    """
    P, T = q.shape[2], k.shape[3]
    mask = None
    if valid is not None:
        mask = visible_mask(valid, P, slots=0 if carry is None else cfg.slots)[:, :, None]
    q = split_heads(q, cfg.heads)
    q = rotate(q, rotation(q, T - P))
    return merge_heads(attend(q, k, v, mask, first=carry, causal=True))


def visible_mask(valid: Tensor, last: int, *, slots: int) -> Tensor:
    """Keys visible to the ``last`` P tokens of windows: slots, and ``valid`` (B, N, T) tokens.

    (B, N, P, n+T); a missing token still sees itself, so no row is ever empty.
    """
    T = valid.shape[2]
    own = torch.ones(last, T, dtype=torch.bool, device=valid.device).tril(T - last)
    mask = valid[:, :, None] | own.triu(T - last)
    return F.pad(mask, (slots, 0), value=True)


@with_fused("memory_scan.memory_scan", supports="supports")
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
    """Carry the memory ``state`` (B, n, D) through N windows.

    Args:
        k: keys of each window's tokens at their positions, (B, N, H, W, d); ``v`` likewise.
        valid: which of those tokens are there, (B, N, W).
        nonempty: which windows write, (B, N); the others pass their carry on.
    """
    (B, N), n, H = nonempty.shape, cfg.slots, cfg.heads
    below_q, below_k, below_v = (
        split_heads(t, H).expand(B, N, -1, -1, -1) for t in below.qkv.chunk(3, dim=-1)
    )
    seen = _SlotContext(
        below.rows.expand(B, N, -1, -1), below_q,
        torch.cat([below_k, k], dim=3), torch.cat([below_v, v], dim=3),
        F.pad(valid, (2 * n, 0), value=True)[:, :, None, None], nonempty,
    )  # fmt: skip
    step = _Step(cfg, dropout=cfg.dropout if training else 0.0)
    if step.dropout or torch.compiler.is_compiling():  # a step cannot be computed twice
        return _scan(step, weights, state, seen)
    if torch.is_grad_enabled() and (state.requires_grad or seen.k.requires_grad):
        return _scan_with_adjoint(step, weights, state, seen)
    return _scan(step, weights, state, seen)


def read_carry(
    state: Tensor, weights: ScanWeights, *, cfg: ModelConfig
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The carry that a window attends to: rows (..., n, D), then q, k, v (..., H, n, d)."""
    carry = weights.gated(state) if cfg.gate_carry else state
    norm = NormWeights(weights.norm, weights.norm_bias, EPS)
    dtype = compute_dtype(weights.qkv)
    h = layer_norm(carry, norm, dtype=dtype, segment=weights.segment)
    q, k, v = (split_heads(t, cfg.heads) for t in F.linear(h, weights.qkv).chunk(3, dim=-1))
    return carry, q, k, v


class _SlotContext(NamedTuple):
    """What the slots of each window attend to beside the carry; `window` drops the axis N."""

    below: Tensor  # (B, N, n, D), M-bar of the block below
    below_q: Tensor  # (B, N, H, n, d)
    k: Tensor  # (B, N, H, n+W, d), of the block below and of the window's tokens
    v: Tensor  # (B, N, H, n+W, d)
    mask: Tensor  # (B, N, 1, 1, 2n+W)
    nonempty: Tensor  # (B, N), windows that write

    def window(self, w: int) -> "_SlotContext":
        return _SlotContext(*[t[:, w] for t in self])


class _Step(NamedTuple):
    """One step of the scan, for one window of each series or for all windows at once."""

    cfg: ModelConfig
    dropout: float

    def __call__(self, weights: ScanWeights, state: Tensor, seen: _SlotContext) -> Scanned:
        """``state`` (..., n, D) after a window."""
        rows, q, own_k, own_v = read_carry(state, weights, cfg=self.cfg)
        if self.cfg.readout == "block":
            rows, q = seen.below, seen.below_q
        attended = merge_heads(attend(q, seen.k, seen.v, seen.mask, first=(own_k, own_v)))
        written = attention_output(
            rows, attended, weights.out, weights.out_bias, weights.feed_forward,
            dropout=self.dropout,
        )  # fmt: skip
        return Scanned(torch.where(seen.nonempty[..., None, None], written, state), own_k, own_v)


def _scan(step: _Step, weights: ScanWeights, state: Tensor, seen: _SlotContext) -> Scanned:
    """Carry ``state`` (B, n, D) through all windows, in order."""
    if left_open(seen.nonempty.shape[1]):
        return _scan_any(step, weights, state, seen)
    found = []
    for w in range(seen.nonempty.shape[1]):
        found.append(step(weights, state, seen.window(w)))
        state = found[-1].memory
    return Scanned(*[torch.stack(parts, dim=1) for parts in zip(*found, strict=True)])


def _scan_any(step: _Step, weights: ScanWeights, state: Tensor, seen: _SlotContext) -> Scanned:
    """`_scan` of a number of windows that an export leaves open: one loop of the exported model."""
    from torch._higher_order_ops.scan import scan  # it takes no view of an input for an output

    def next_window(state: Tensor, window: tuple[Tensor, ...]) -> tuple[Tensor, list[Tensor]]:
        found = step(weights, state, _SlotContext(*window))
        return found.memory, [t.clone() for t in found]

    windows = tuple(t.transpose(0, 1) for t in seen)
    first = state.clone(memory_format=torch.contiguous_format)
    _, found = scan(next_window, first, windows)
    return Scanned(*[t.transpose(0, 1) for t in found])


def _scan_with_adjoint(
    step: _Step, weights: ScanWeights, state: Tensor, seen: _SlotContext
) -> Scanned:
    """The same values and gradients as `_scan`, every weight's gradient formed once."""
    # cast here: autocast would cast weights without a gradient again at every step, and keep them
    fixed = ScanWeights(*[t.detach() for t in weights]).cast_products()
    detached = _SlotContext(*[t.detach() for t in seen])
    before, steps = [], []
    carried = state
    for w in range(seen.nonempty.shape[1]):
        before.append(carried.detach().requires_grad_())
        steps.append(step(fixed, before[-1], detached.window(w)))
        carried = steps[-1].memory
    batched = step(weights, torch.stack([leaf.detach() for leaf in before], dim=1), seen)
    outputs = _Adjoint.apply(before, steps, state, *batched)  # type: ignore[no-untyped-call]
    return Scanned(*outputs)


class _Adjoint(torch.autograd.Function):
    """Identity on memory, keys and values; its backward adds the effect on later windows."""

    @staticmethod
    def forward(
        ctx: Any,
        before: Sequence[Tensor],
        steps: Sequence[Scanned],
        state: Tensor,
        *outputs: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.before, ctx.steps = before, steps
        return tuple(t.view_as(t) for t in outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, memory: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor | None, ...]:
        adjoints = list(memory.unbind(1))  # dL/dM_w through outputs, without later windows
        back = adjoints[-1]
        for w in reversed(range(len(ctx.steps))):
            adjoints[w] = back
            (back,) = torch.autograd.grad(
                ctx.steps[w], ctx.before[w], (back, k[:, w], v[:, w]), retain_graph=True
            )
            if w > 0:
                back = adjoints[w - 1] + back
        return None, None, back, torch.stack(adjoints, dim=1), k, v
