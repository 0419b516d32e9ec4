"""Attention of the neighbourhood encoder: token t sees t-n .. t, CLS sees every token and itself.

The band is cut into chunks of c queries that attend to n + c keys each: no K x K mask or score ever
exists. CLS has no position, and attends to tokens without positions.

Shapes: B series, K tokens, n neighbourhood, P chunks, c queries of a chunk, D width, H heads,
d = D / H.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from progmem.ops import left_open, with_fused
from progmem.ops.layers import (
    attend,
    merge_heads,
    plain_unfold,
    rotate,
    rotation,
    split_heads,
    unfold,
)


class Keys(NamedTuple):
    """Keys and values of tokens, and which of them are valid."""

    k: Tensor  # (B, K, D)
    v: Tensor  # (B, K, D)
    valid: Tensor  # (B, K)

    def concat(self, other: "Keys") -> "Keys":
        return Keys(*[torch.cat(pair, dim=1) for pair in zip(self, other, strict=True)])

    def shifted_by(self, other: "Keys") -> "Keys":
        """The last of these and ``other`` together, as many as these; copied, not views."""
        count, new = self.k.shape[1], other.k.shape[1]
        drop = max(0, new - count)
        pairs = zip(self, other, strict=True)
        return Keys(*[torch.cat([old[:, new:], more[:, drop:]], dim=1) for old, more in pairs])


def no_keys(like: Tensor, count: int) -> Keys:
    """``count`` masked keys, those before a series' first token, for ``like`` (B, K, D)."""
    k, v = like.new_zeros(2, like.shape[0], count, like.shape[2])
    return Keys(k, v, torch.zeros(k.shape[:2], dtype=torch.bool, device=like.device))


@with_fused("neighbourhood_attention.neighbourhood_attention", supports="supports")
def neighbourhood_attention(
    qkv: Tensor, valid: Tensor, *, reach: int, heads: int, gaps: bool, training: bool
) -> Tensor:
    """Attention of CLS and tokens, (B, 1+K, D), from projections of CLS, then tokens.

    Args:
        qkv: (B, 1+K, 3D); without gradients they may be overwritten.
        valid: tokens that are not missing, (B, K).
        reach: n.
        gaps: tokens may be missing before a series' end.
        training: values must not depend on whether gradients are enabled.
    """
    q, k, v = qkv.chunk(3, dim=-1)
    keys = no_keys(k, reach).concat(Keys(k[:, 1:], v[:, 1:], valid))
    tokens = band_attention(q[:, 1:], keys, reach=reach, heads=heads)
    cls = attend_cls(q[:, :1], k, v, F.pad(valid, (1, 0), value=True), heads=heads)
    return torch.cat([cls, tokens], dim=1)


def attend_cls(q: Tensor, k: Tensor, v: Tensor, valid: Tensor, *, heads: int) -> Tensor:
    """CLS (B, 1, D) over keys and values (B, J, D); those not ``valid`` (B, J) are masked."""
    q, k, v = (split_heads(t, heads) for t in (q, k, v))
    return merge_heads(attend(q, k, v, valid[:, None, None]))


def band_attention(q: Tensor, keys: Keys, *, reach: int, heads: int) -> Tensor:
    """Query i of (B, T, D) sees keys i .. i+reach of (B, reach+T, D): (B, T, D)."""
    T = q.shape[1]
    k, v, valid = keys
    mask = band_mask(valid, reach)
    chunks, chunk = mask.shape[1:3]
    padding = chunks * chunk - T
    if left_open(T) or padding:
        q, k, v = (F.pad(t, (0, 0, 0, padding)) for t in (q, k, v))
    k, v = (unfold(t, reach + chunk, chunk) for t in (k, v))  # (B, P, n+c, D)
    query, key, value = (
        split_heads(t, heads) for t in (torch.unflatten(q, 1, (chunks, chunk)), k, v)
    )
    query, key = rotate(query, rotation(query, reach)), rotate(key, rotation(key))
    out = merge_heads(attend(query, key, value, mask[:, :, None]))  # (B, P, c, D)
    return out.flatten(1, 2)[:, :T]


def band_mask(valid: Tensor, reach: int) -> Tensor:
    """Which keys the queries of each chunk see, (B, P, c, n+c), of ``valid`` (B, reach+T)."""
    T = valid.shape[1] - reach
    chunk = reach if left_open(T) else max(1, min(reach, T))  # c
    chunks = (T + chunk - 1) // chunk
    valid = plain_unfold(F.pad(valid, (0, chunks * chunk - T)), reach + chunk, chunk)
    band = torch.ones(chunk, reach + chunk, dtype=torch.bool, device=valid.device)
    band = band.tril(reach).triu()
    return band & valid[:, :, None] | band.triu(reach)  # a missing token sees itself
