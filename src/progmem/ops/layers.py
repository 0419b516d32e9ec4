"""What is done to rows one by one: norms, linear maps, the feed-forward layer, the gates' mixture.

Shapes: R rows, D width; "..." is any batch of rows.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from progmem.ops import compute_dtype, with_fused


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
    """LN(x) + segment (D,), worked out in the type of ``x`` (..., D) and given in ``dtype``."""
    weight, bias = norm.weight.to(x.dtype), norm.bias.to(x.dtype)
    y = F.layer_norm(x, weight.shape, weight, bias, norm.eps)
    return (y if segment is None else y + segment).to(dtype)


@with_fused("norm.norm_residual")
def norm_residual(
    x: Tensor, norm: NormWeights, *, dtype: torch.dtype, segment: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """``x`` for the residual path and `layer_norm` of it: their gradients are added on the way."""
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
    """x + fc2 gelu(fc1 LN x), 0 where not ``valid`` (...); ``h`` is LN x, if that is known."""
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
def gated_mix(z: Tensor, more: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """g a + (1 - g) b with g = sigmoid(z + more).

    ``z`` and ``a`` are (..., D), ``more`` (n, D), and ``b`` like ``a`` or (n, D): n rows repeated.
    """
    g = torch.sigmoid(z + more)
    return g * a + (1 - g) * b
