"""The attentive overlap pool: one row per token again, out of its copies in the windows.

One query per token attends over the token's copies; the result is scaled by 1/sqrt(O),
normalised and scaled by gamma, then mixed with the plain mean of the copies by the SkipGate:
A_t = gamma LN(O^-1/2 sum_r alpha_r V_r), mixed with S_t = mean_r W_r.

Shapes: B series, K tokens, N windows, W window, O copies, D width, H heads, d = D / H.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from progmem.config import ModelConfig
from progmem.geometry import align_copies
from progmem.ops import with_fused
from progmem.ops.layers import linear, linear_gelu


class CopyAttention(NamedTuple):
    """Weights of the attention over a token's copies; not needed with O = 1."""

    key: Tensor  # (D, D)
    taps: Tensor  # (3, D), depthwise over copies
    fc1: Tensor  # of the query, (D/4, D)
    fc1_bias: Tensor
    fc2: Tensor  # (D, D/4)
    fc2_bias: Tensor
    bias: Tensor  # of the scores, (H, O)


class PoolWeights(NamedTuple):
    """The weights of the pool."""

    value: Tensor  # (D, D)
    value_bias: Tensor
    gamma: Tensor  # (D,)
    skip_gate: Tensor  # (D,)
    eps: float
    attention: CopyAttention | None


@with_fused("overlap_pool.overlap_pool", supports="supports")
def overlap_pool(rows: Tensor, exists: Tensor, weights: PoolWeights, *, cfg: ModelConfig) -> Tensor:
    """Merge windows (B, N, W, D) into tokens (B, K, D), whose copies ``exists`` (B, K, O)."""
    return pool_copies(align_copies(rows, cfg, exists.shape[1]), exists, weights)


def pool_copies(copies: Tensor, exists: Tensor, weights: PoolWeights) -> Tensor:
    """Merge ``copies`` (B, K, O, D), of which ``exists`` (B or 1, K, O) are there: (B, K, D).

    A token without any copy gives a finite row that means nothing.
    """
    O, D = copies.shape[2:]
    present = exists[..., None].to(copies.dtype)  # (B, K, O, 1)
    count = present.sum(2).clamp(min=1)  # (B, K, 1)
    copies = copies * present
    skip = copies.sum(2) / count  # S_t, (B, K, D)
    value = F.linear(copies, weights.value, weights.value_bias)  # (B, K, O, D)
    if weights.attention is None:
        attended = value.squeeze(2)
    else:
        alpha = _attention_weights(
            weights.attention, copies, present, count, exists
        )  # (B, K, O, H)
        value = torch.unflatten(value, -1, (alpha.shape[-1], -1))  # (B, K, O, H, d)
        attended = (alpha[..., None] * value).sum(2).flatten(-2)  # (B, K, D)
    attended = weights.gamma * F.layer_norm(attended * O**-0.5, (D,), eps=weights.eps)  # A_t
    return skip + torch.sigmoid(weights.skip_gate) * (attended - skip)


def _attention_weights(
    weights: CopyAttention, copies: Tensor, present: Tensor, count: Tensor, exists: Tensor
) -> Tensor:
    """alpha_{h,r} (B, K, O, H), from one query per token.

    The query is made of the mean over a token's copies of their depthwise convolution (3 taps,
    zeros outside). The mean is taken before the taps are applied, so that they act on K rows only.
    """
    before = (copies[:, :, :-1] * present[:, :, 1:]).sum(2)  # copy r-1, where r exists
    after = (copies[:, :, 1:] * present[:, :, :-1]).sum(2)  # copy r+1, where r exists
    first, middle, last = weights.taps
    mean = (first * before + middle * copies.sum(2) + last * after) / count
    query = linear_gelu(mean, weights.fc1, weights.fc1_bias)
    query = linear(query, weights.fc2, weights.fc2_bias)  # (B, K, D)
    heads = len(weights.bias)
    q = torch.unflatten(query, -1, (heads, -1))[:, :, None]  # (B, K, 1, H, d)
    k = torch.unflatten(F.linear(copies, weights.key), -1, (heads, -1))  # (B, K, O, H, d)
    score = (q * k).sum(-1) * k.shape[-1] ** -0.5 + weights.bias.mT  # (B, K, O, H)
    # the lowest number instead of -inf: a token without copies must not give NaN
    score = score.masked_fill(~exists[..., None], torch.finfo(score.dtype).min)
    return F.softmax(score, dim=2)
