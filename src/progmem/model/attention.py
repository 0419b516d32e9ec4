"""Attention and the pre-norm layer around it, shared by windows, slots, neighbourhoods and CLS.

Shapes: T queries, J keys, D width, H heads, d = D / H; "..." is any batch.
"""

import functools

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def split_heads(x: Tensor, heads: int) -> Tensor:
    return torch.unflatten(x, -1, (heads, -1)).transpose(-3, -2)  # (..., T, D) -> (..., H, T, d)


def merge_heads(x: Tensor) -> Tensor:
    return x.transpose(-3, -2).flatten(-2)  # (..., H, T, d) -> (..., T, D)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """softmax(q k' / sqrt(d)) v over heads (..., H, T, d) and (..., H, J, d).

    ``mask`` is True where a query may look: (T, J), or (..., 1, T, J) with the batch of ``q``.
    No row of it may be all False.
    """
    batch = q.shape[:-3]
    q, k, v = (t.flatten(0, -4) for t in (q, k, v))  # fused kernels want one batch axis
    if mask is not None and mask.dim() > 2:
        mask = mask.flatten(0, -4)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return torch.unflatten(out, 0, batch)


def rotate(x: Tensor, start: int = 0) -> Tensor:
    """Rotary positions start, start+1, ... along the rows of ``x`` (..., T, d).

    Scores then depend on the distance of two rows alone. Callers count from the left edge of a
    window, never from the start of the series, so that nothing loses precision on a long stream.
    """
    T, d = x.shape[-2:]
    if torch.compiler.is_compiling():  # sizes may be symbols, and nothing may outlive the trace
        cos, sin = _turns(start, start + T, d, x.dtype, x.device)
    else:
        rows = 1 << (start + T - 1).bit_length()  # few tables, each used by many lengths
        cos, sin = (t[start : start + T] for t in _kept_turns(rows, d, x.dtype, x.device))
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat([b, a], dim=-1) * sin  # (a, b) -> (a cos - b sin, b cos + a sin)


def _turns(
    start: int, stop: int, d: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """What `rotate` multiplies positions ``start`` to ``stop`` by, (T, d) each.

    The phases are float64 whatever the model is.
    """
    position = torch.arange(start, stop, device=device, dtype=torch.float64)
    exponent = torch.arange(0, d, 2, device=device, dtype=torch.float64) / d
    phase = position[:, None] * 10000.0**-exponent
    cos, sin = phase.cos().to(dtype), phase.sin().to(dtype)  # (T, d/2)
    return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)


@functools.cache
def _kept_turns(
    rows: int, d: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The first ``rows`` turns, kept for good: a recorded graph goes on reading them."""
    with torch.inference_mode(False):  # a gradient may want them later
        return _turns(0, rows, d, dtype, device)


class Norm(nn.LayerNorm):
    """LayerNorm in the precision of its input: the memory stays float32 in a bf16 model."""

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
        return F.layer_norm(x, self.normalized_shape, weight, bias, self.eps)


def linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """``layer`` in its own precision, whatever the precision of ``x``."""
    return layer(x.to(layer.weight.dtype))


class FeedForward(nn.Module):
    """Pre-norm feed-forward sub-layer with its skip: x + W2 gelu(W1 LN x), four times as wide."""

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__()
        self.norm = Norm(dim)
        self.widen = nn.Linear(dim, 4 * dim)
        self.narrow = nn.Linear(4 * dim, dim)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(self.narrow(F.gelu(linear(self.widen, self.norm(x)))))


class AttentionLayer(nn.Module):
    """The weights of one transformer layer; who looks at whom is the caller's business.

    ``project`` makes queries, keys and values; the caller attends; ``complete`` adds the result
    to the stream and runs the feed-forward sub-layer.
    """

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__()
        self.norm = Norm(dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim)
        self.drop = nn.Dropout(dropout)
        self.feed_forward = FeedForward(dim, dropout)

    def project(self, x: Tensor, segment: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v of rows (..., T, D), heads not yet split; ``segment`` (D,) says what they are."""
        h = self.norm(x)
        if segment is not None:
            h = h + segment
        q, k, v = linear(self.qkv, h).chunk(3, dim=-1)
        return q, k, v

    def complete(self, x: Tensor, attended: Tensor) -> Tensor:
        """The rows (..., T, D) after both sub-layers, from attention (..., H, T, d)."""
        return self.feed_forward(x + self.drop(self.out(merge_heads(attended))))
