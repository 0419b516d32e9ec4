"""Attention of windows with their memory scan, the only sequential part of PMT (Algorithm 1).

Inside a window the slots see everything; a token sees the carry M_{w-1,b} and the tokens of its
window up to itself, never M-bar. Tokens of one window do not wait for each other and windows
wait only for their carry: the slots are scanned first, then all tokens attend at once. Whatever
does not depend on the carry (keys and values of the tokens and of the block below) is made for
all windows at once; a step of the scan is a few small products over n slots.

Plain autograd through N steps would add up the gradient of every weight N times. Instead, each
step is run on its own, from a copy of the state that is a leaf; then all steps are made once more
in one batch from those states, and it is this batch that the weights and the windows' keys get
their gradients from. What the batch cannot know is how a state acts on the windows after it: that
is added in backward, from the last window to the first, by

    a_w = dL/dM_w + J_{w+1}' (a_{w+1}, dL/dk_{w+1}, dL/dv_{w+1})

with J the derivative of a step by its state alone.

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
from progmem.ops import compute_dtype, with_fused
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
    """Everything of a step that learns."""

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
    """M-bar_{w,b-1}, the gated memory of the block below; one for all series and windows, or each.

    Axes B and N may be 1.
    """

    rows: Tensor  # (B, N, n, D)
    qkv: Tensor  # (B, N, n, 3D)


class Scanned(NamedTuple):
    """The memory after each window, and the keys and values of the carry each window saw.

    A step gives the same of one window, without the axis N.
    """

    memory: Tensor  # (B, N, n, D), M_{w,b}
    carry_k: Tensor  # (B, N, H, n, d)
    carry_v: Tensor  # (B, N, H, n, d)


@with_fused("window_attention.window_attention", supports="supports")
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
    """Attention of all windows' tokens (B, N, W, D), and the memory (B, N, n, D).

    Args:
        qkv: projections of tokens that windows cover to the last, (B, K, 3D); where no gradient
            is wanted they may be written over.
        start: the first memory M_r, (n, D); None, like ``below`` and ``weights``: no memory.
        training: dropout is at work, and values must not depend on whether a gradient is wanted.
    """
    B, N = masks.windows.shape
    q, k, v = (unfold_windows(t, cfg, N) for t in qkv.chunk(3, dim=-1))  # (B, N, W, D)
    k, v = window_keys(k, v, cfg=cfg)
    memory = carry = None
    if start is not None and below is not None and weights is not None:
        memory, *carry_kv = memory_scan(
            start.expand(B, -1, -1), below, weights, k, v,
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
        mask = may_see(valid, P, slots=0 if carry is None else cfg.slots)[:, :, None]
    q = split_heads(q, cfg.heads)
    q = rotate(q, rotation(q, T - P))
    return merge_heads(attend(q, k, v, mask, first=carry, causal=True))


def may_see(valid: Tensor, last: int, *, slots: int) -> Tensor:
    """What the ``last`` P tokens of windows may see: slots, and what is ``valid`` (B, N, T).

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
    seen = _Seen(
        below.rows.expand(B, N, -1, -1), below_q,
        torch.cat([below_k, k], dim=3), torch.cat([below_v, v], dim=3),
        F.pad(valid, (2 * n, 0), value=True)[:, :, None, None], nonempty,
    )  # fmt: skip
    step = _Step(cfg, dropout=cfg.dropout if training else 0.0)
    if step.dropout or torch.compiler.is_compiling():  # a step cannot be made twice
        return _scan(step, weights, state, seen)
    if torch.is_grad_enabled() and (state.requires_grad or seen.k.requires_grad):
        return _scan_with_adjoint(step, weights, state, seen)
    return _scan(step, weights, state, seen)


def read_carry(
    state: Tensor, weights: ScanWeights, *, cfg: ModelConfig
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The carry as a window sees it: rows (..., n, D), then q, k, v (..., H, n, d)."""
    carry = weights.gated(state) if cfg.gate_carry else state
    norm = NormWeights(weights.norm, weights.norm_bias, EPS)
    dtype = compute_dtype(weights.qkv)
    h = layer_norm(carry, norm, dtype=dtype, segment=weights.segment)
    q, k, v = (split_heads(t, cfg.heads) for t in F.linear(h, weights.qkv).chunk(3, dim=-1))
    return carry, q, k, v


class _Seen(NamedTuple):
    """What the slots of each window see beside the carry; a window's part drops the N."""

    below: Tensor  # (B, N, n, D), M-bar of the block below
    below_q: Tensor  # (B, N, H, n, d)
    k: Tensor  # (B, N, H, n+W, d), of the block below and of the window's tokens
    v: Tensor  # (B, N, H, n+W, d)
    mask: Tensor  # (B, N, 1, 1, 2n+W)
    nonempty: Tensor  # (B, N), windows that write

    def window(self, w: int) -> "_Seen":
        return _Seen(*[t[:, w] for t in self])


class _Step(NamedTuple):
    """One step of the scan, for one window of each series or for all windows at once."""

    cfg: ModelConfig
    dropout: float

    def __call__(self, weights: ScanWeights, state: Tensor, seen: _Seen) -> Scanned:
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


def _scan(step: _Step, weights: ScanWeights, state: Tensor, seen: _Seen) -> Scanned:
    """Carry ``state`` (B, n, D) through all windows, in order."""
    found = []
    for w in range(seen.nonempty.shape[1]):
        found.append(step(weights, state, seen.window(w)))
        state = found[-1].memory
    return Scanned(*[torch.stack(parts, dim=1) for parts in zip(*found, strict=True)])


def _scan_with_adjoint(step: _Step, weights: ScanWeights, state: Tensor, seen: _Seen) -> Scanned:
    """The same values and gradients as `_scan`, every weight's gradient formed once."""
    # cast here: autocast would cast weights without a gradient again at every step, and keep them
    fixed = ScanWeights(*[t.detach() for t in weights]).cast_products()
    apart = _Seen(*[t.detach() for t in seen])
    before, steps = [], []
    carried = state
    for w in range(seen.nonempty.shape[1]):
        before.append(carried.detach().requires_grad_())
        steps.append(step(fixed, before[-1], apart.window(w)))
        carried = steps[-1].memory
    together = step(weights, torch.stack([leaf.detach() for leaf in before], dim=1), seen)
    passed = _Adjoint.apply(before, steps, state, *together)  # type: ignore[no-untyped-call]
    return Scanned(*passed)


class _Adjoint(torch.autograd.Function):
    """Passes memory, keys and values on; in backward adds what a state does to later windows."""

    @staticmethod
    def forward(
        ctx: Any, before: Sequence[Tensor], steps: Sequence[Scanned], state: Tensor, *made: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.before, ctx.steps = before, steps
        return tuple(t.view_as(t) for t in made)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, memory: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor | None, ...]:
        adjoints = list(memory.unbind(1))  # dL/dM_w as the windows' own readers have it
        back = adjoints[-1]
        for w in reversed(range(len(ctx.steps))):
            adjoints[w] = back
            (back,) = torch.autograd.grad(
                ctx.steps[w], ctx.before[w], (back, k[:, w], v[:, w]), retain_graph=True
            )
            if w > 0:
                back = adjoints[w - 1] + back
        return None, None, back, torch.stack(adjoints, dim=1), k, v
