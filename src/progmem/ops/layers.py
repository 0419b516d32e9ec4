"""The parts of a transformer layer: norms, linear maps, feed-forward, gated mixture, attention,
and rows as windows of rows.

Attention has rotary positions (RoPE): scores of two rotated rows depend on their distance alone.
Windows, chunks of a band and streams count positions from their own left edge, so that nothing
loses precision on a long stream.

Shapes: R rows, T queries, J keys, D width, H heads, d = D / H, N windows, W window, S stride,
O = ceil(W / S) copies; "..." is any batch.
"""

from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from progmem.ops import compute_dtype, left_open, with_fused


class NormWeights(NamedTuple):
    """A layer norm."""

    weight: Tensor  # (D,)
    bias: Tensor  # (D,)
    eps: float


class FeedForwardWeights(NamedTuple):
    """A pre-norm feed-forward sub-layer."""

    norm: NormWeights
    fc1: Tensor  # (4D, D)
    fc1_bias: Tensor
    fc2: Tensor  # (D, 4D)
    fc2_bias: Tensor


@with_fused("norm.layer_norm")
def layer_norm(
    x: Tensor, norm: NormWeights, *, dtype: torch.dtype, segment: Tensor | None = None
) -> Tensor:
    """LN(x) + segment (D,), computed in the type of ``x`` (..., D) and returned in ``dtype``."""
    weight, bias = norm.weight.to(x.dtype), norm.bias.to(x.dtype)
    y = F.layer_norm(x, weight.shape, weight, bias, norm.eps)
    return (y if segment is None else y + segment).to(dtype)


@with_fused("norm.norm_residual")
def norm_residual(
    x: Tensor, norm: NormWeights, *, dtype: torch.dtype, segment: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """``x`` for the residual path, and `layer_norm` of it; backward adds their gradients."""
    return x, layer_norm(x, norm, dtype=dtype, segment=segment)


@with_fused("linear.linear_add_norm")
def linear_add_norm(
    x: Tensor, h: Tensor, weight: Tensor, bias: Tensor, norm: NormWeights, *, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """x + h weight' + bias, and the norm of it in ``dtype``."""
    total = x + F.linear(h, weight, bias)
    return total, layer_norm(total, norm, dtype=dtype)


@with_fused("linear.linear_gelu")
def linear_gelu(h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """gelu(h weight' + bias)."""
    return F.gelu(F.linear(h, weight, bias))


@with_fused("linear.linear_add")
def linear_add(
    x: Tensor, h: Tensor, weight: Tensor, bias: Tensor, *, valid: Tensor | None = None
) -> Tensor:
    """x + h weight' + bias, 0 where not ``valid`` (...)."""
    x = x + F.linear(h, weight, bias)
    return x if valid is None else torch.where(valid[..., None], x, 0.0)


@with_fused("linear.linear")
def linear(h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """h weight' + bias."""
    return F.linear(h, weight, bias)


@with_fused("linear.patch_linear")
def patch_linear(x: Tensor, weight: Tensor, bias: Tensor, *, stride: int) -> Tensor:
    """Every patch of samples (B, L, C) as a row (B, K, D), by ``weight`` (D, C, patch)."""
    return F.conv1d(x.mT, weight, bias, stride).mT


def feed_forward(
    x: Tensor,
    weights: FeedForwardWeights,
    *,
    h: Tensor | None = None,
    dropout: float = 0.0,
    valid: Tensor | None = None,
) -> Tensor:
    """x + fc2 gelu(fc1 LN x), 0 where not ``valid`` (...); ``h`` is LN x, if given."""
    if h is None:
        x, h = norm_residual(x, weights.norm, dtype=compute_dtype(weights.fc1))
    wide = linear_gelu(h, weights.fc1, weights.fc1_bias)
    if not dropout:
        return linear_add(x, wide, weights.fc2, weights.fc2_bias, valid=valid)
    x = x + F.dropout(F.linear(wide, weights.fc2, weights.fc2_bias), dropout)
    return x if valid is None else torch.where(valid[..., None], x, 0.0)


def attention_output(
    x: Tensor,
    attended: Tensor,
    weight: Tensor,
    bias: Tensor,
    weights: FeedForwardWeights,
    *,
    dropout: float = 0.0,
) -> Tensor:
    """The rest of a transformer layer: ``attended`` (..., D) joins ``x``, then feed-forward."""
    if dropout:
        x = x + F.dropout(F.linear(attended, weight, bias), dropout)
        return feed_forward(x, weights, dropout=dropout)
    dtype = compute_dtype(weights.fc1)
    x, h = linear_add_norm(x, attended, weight, bias, weights.norm, dtype=dtype)
    return feed_forward(x, weights, h=h)


@with_fused("gated_mix.gated_mix")
def gated_mix(z: Tensor, bias_z: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """g a + (1 - g) b with g = sigmoid(z + bias_z).

    ``z`` and ``a`` are (..., D), ``bias_z`` is (n, D), ``b`` like ``a`` or (n, D): rows repeated.
    """
    g = torch.sigmoid(z + bias_z)
    return g * a + (1 - g) * b


class Rotation(NamedTuple):
    """Cosines and sines of T positions, (T, d/2) each."""

    cos: Tensor
    sin: Tensor


def rotation(x: Tensor, start: int = 0) -> Rotation:
    """Positions start, start+1, ... for the rows of ``x`` (..., T, d), float32 at least."""
    T, d = x.shape[-2:]
    dtype = torch.promote_types(x.dtype, torch.float32)
    if torch.compiler.is_compiling():  # sizes may be symbols, and nothing may outlive the trace
        return _make_rotation(start, start + T, d, x.device, dtype)
    rows = 1 << (start + T - 1).bit_length()  # few tables, each for many lengths
    cos, sin = _cached_rotation(rows, d, x.device, dtype)
    return Rotation(cos[start : start + T], sin[start : start + T])


def rotate(x: Tensor, by: Rotation) -> Tensor:
    """``x`` (..., T, d) with its rows rotated to their positions."""
    a, b = x.chunk(2, dim=-1)
    rotated = torch.cat([a * by.cos - b * by.sin, a * by.sin + b * by.cos], dim=-1)
    return rotated.to(x.dtype)


def _make_rotation(
    start: int, stop: int, d: int, device: torch.device, dtype: torch.dtype
) -> Rotation:
    position = torch.arange(start, stop, device=device, dtype=torch.float64)
    exponent = torch.arange(0, d, 2, device=device, dtype=torch.float64) / d
    phase = position[:, None] * 10000.0**-exponent  # (T, d/2), float64 whatever the model is
    return Rotation(phase.cos().to(dtype), phase.sin().to(dtype))


@cache
def _cached_rotation(rows: int, d: int, device: torch.device, dtype: torch.dtype) -> Rotation:
    """The first ``rows`` positions, cached for good: a captured graph keeps reading them."""
    with torch.inference_mode(False):  # a later call may need gradients
        return _make_rotation(0, rows, d, device, dtype)


def split_heads(x: Tensor, heads: int) -> Tensor:
    return torch.unflatten(x, -1, (heads, -1)).transpose(-3, -2)  # (..., T, D) -> (..., H, T, d)


def merge_heads(x: Tensor) -> Tensor:
    return x.transpose(-3, -2).flatten(-2)  # (..., H, T, d) -> (..., T, D)


@with_fused("short_attention.attend", supports="supports")
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    first: tuple[Tensor, Tensor] | None = None,
    causal: bool = False,
) -> Tensor:
    """softmax(q k' / sqrt(d)) v over heads (..., H, T, d) and (..., H, J, d).

    Args:
        mask: True where a query may look: (T, F+J), or (..., 1, T or 1, F+J) with the batch of
            ``q``. No row of it may be all False.
        first: F keys and values before the others, (..., H, F, d) each.
        causal: the last query sees all of ``k``, each one before it one key less.
    """
    batch, T, J = q.shape[:-3], q.shape[-2], k.shape[-2]
    if first is not None:
        k, v = (torch.cat(pair, dim=-2) for pair in zip(first, (k, v), strict=True))
    extra = k.shape[-2] - J
    triangle = causal and mask is None and T == J  # torch's kernels are causal for squares only
    if triangle:
        q = F.pad(q, (0, 0, extra, 0))  # dummy queries for the first keys, dropped below
    elif causal:
        order = torch.ones(T, extra + J, dtype=torch.bool, device=q.device).tril(extra + J - T)
        mask = order if mask is None else mask & order
    q, k, v = (t.flatten(0, -4) for t in (q, k, v))  # fused kernels want one batch axis
    if mask is not None and mask.dim() > 2:
        mask = mask.flatten(0, -4)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=triangle)
    if triangle:
        out = out[:, :, extra:]
    return torch.unflatten(out, 0, batch)


@with_fused("window_layout.unfold", supports="unfold_supports")
def unfold(x: Tensor, window: int, stride: int) -> Tensor:
    """Rows (B, R, ...) as windows (B, N, W, ...), a view; windows must cover all rows."""
    if torch.is_grad_enabled() and x.requires_grad and not torch.compiler.is_compiling():
        windows: Tensor = _Unfold.apply(x, window, stride)  # type: ignore[no-untyped-call]
        return windows
    return plain_unfold(x, window, stride)


def plain_unfold(x: Tensor, window: int, stride: int) -> Tensor:
    """`unfold` of rows (B, R, ...) by torch alone; windows need not cover all rows."""
    if left_open(x.shape[1]):  # ONNX has no views
        first = stride * torch.arange((x.shape[1] - window) // stride + 1, device=x.device)
        return x[:, first[:, None] + torch.arange(window, device=x.device)]
    return x.unfold(1, window, stride).movedim(-1, 2)


class _Unfold(torch.autograd.Function):
    """Torch's own backward adds up copies element by element, and takes several times longer."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, window: int, stride: int) -> Tensor:
        ctx.stride = stride
        return plain_unfold(x, window, stride)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_windows: Tensor) -> tuple[Tensor, None, None]:
        B, N, W, *rest = d_windows.shape
        S, O = ctx.stride, -(-W // ctx.stride)
        d_rows = d_windows.new_zeros(B, N - 1 + O, S, *rest)
        for r in range(O):  # copy r of a row is r strides behind the start of its window
            some = d_windows[:, :, r * S : (r + 1) * S]
            d_rows[:, r : r + N, : some.shape[2]] += some
        return d_rows.flatten(1, 2)[:, : (N - 1) * S + W], None, None
