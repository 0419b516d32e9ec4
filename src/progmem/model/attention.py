"""Attention and the pre-norm layer around it, shared by windows, slots, neighbourhoods and CLS.

Shapes: T queries, J keys, D width, H heads, d = D / H; "..." is any batch.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from progmem import kernels
from progmem.model.rotary import Turn, turned


def split_heads(x: Tensor, heads: int) -> Tensor:
    return torch.unflatten(x, -1, (heads, -1)).transpose(-3, -2)  # (..., T, D) -> (..., H, T, d)


def merge_heads(x: Tensor) -> Tensor:
    return x.transpose(-3, -2).flatten(-2)  # (..., H, T, d) -> (..., T, D)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    first: tuple[Tensor, Tensor] | None = None,
    q_turn: Turn | None = None,
    k_turn: Turn | None = None,
    causal: bool = False,
) -> Tensor:
    """softmax(q k' / sqrt(d)) v over heads (..., H, T, d) and (..., H, J, d).

    Args:
        mask: True where a query may look: (T, F+J), or (..., 1, T or 1, F+J) with the batch of
            ``q``. No row of it may be all False.
        first: F keys and values before the others, which are never turned, (..., H, F, d) each.
        q_turn, k_turn: positions of the queries and of ``k``.
        causal: the last query sees all of ``k``, each one before it one key less.
    """
    q, k = turned(q, q_turn), turned(k, k_turn)
    if kernels.fit(q) and q.dim() in (4, 5):
        from progmem.kernels import few_keys

        keys = k.shape[-2] + (0 if first is None else first[0].shape[-2])
        if few_keys.takes(q.shape[-2], keys, q.shape[-1]):
            return _attend_at_once(q, k, v, mask, first, causal)
    return attend_plainly(q, k, v, mask, first=first, causal=causal)


def _attend_at_once(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    first: tuple[Tensor, Tensor] | None,
    causal: bool,
) -> Tensor:
    """`attend` by the kernel for few keys, which takes series, windows and heads."""
    from progmem.kernels.attend import attend as by_kernel

    k, v = k.to(q.dtype), v.to(q.dtype)
    if mask is not None:
        mask = mask.expand(*q.shape[:-3], 1, q.shape[-2], -1).squeeze(-3)
    if q.dim() == 5:
        return by_kernel(q, first, k, v, mask, causal=causal)
    q, k, v = (t.unsqueeze(1) for t in (q, k, v))
    mask = None if mask is None else mask.unsqueeze(1)
    first = None if first is None else (first[0].unsqueeze(1), first[1].unsqueeze(1))
    return by_kernel(q, first, k, v, mask, causal=causal).squeeze(1)


def attend_plainly(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    *,
    first: tuple[Tensor, Tensor] | None,
    causal: bool,
) -> Tensor:
    """`attend` of rows that are turned already, through torch's own kernels."""
    batch, T, J = q.shape[:-3], q.shape[-2], k.shape[-2]
    if first is not None:
        k, v = (torch.cat(pair, dim=-2) for pair in zip(first, (k, v), strict=True))
    extra = k.shape[-2] - J
    triangle = causal and mask is None and T == J  # torch's kernels know squares only
    if triangle:
        q = F.pad(q, (0, 0, extra, 0))  # queries for the first keys, thrown away again
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


def precision_of(layer: nn.Linear | nn.Conv1d) -> torch.dtype:
    """What ``layer`` computes in: the type of its weights, or autocast's."""
    kind = layer.weight.device.type
    if torch.is_autocast_enabled(kind) and layer.weight.dtype != torch.float64:
        return torch.get_autocast_dtype(kind)
    return layer.weight.dtype


class Norm(nn.LayerNorm):
    """LayerNorm in the precision of its input: the memory stays float32 in a bf16 model."""

    def forward(self, x: Tensor) -> Tensor:
        return self.before(x, dtype=x.dtype)

    def before(self, x: Tensor, *, dtype: torch.dtype, segment: Tensor | None = None) -> Tensor:
        """LN(x) + segment (D,) in ``dtype``, that of the layer which takes it."""
        if kernels.fit(x):
            from progmem.kernels import norm

            return norm.norm(x, self.weight, self.bias, eps=self.eps, segment=segment, dtype=dtype)
        weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
        y = F.layer_norm(x, self.normalized_shape, weight, bias, self.eps)
        return (y if segment is None else y + segment).to(dtype)

    def through(
        self, x: Tensor, *, dtype: torch.dtype, segment: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """``x`` to go on with, and `before` of it."""
        if kernels.fit(x):
            from progmem.kernels import norm

            return norm.through(
                x, self.weight, self.bias, eps=self.eps, segment=segment, dtype=dtype
            )
        return x, self.before(x, dtype=dtype, segment=segment)


class FeedForward(nn.Module):
    """Pre-norm feed-forward sub-layer with its skip: x + W2 gelu(W1 LN x), four times as wide."""

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__()
        self.norm = Norm(dim)
        self.widen = nn.Linear(dim, 4 * dim)
        self.narrow = nn.Linear(4 * dim, dim)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, h: Tensor | None = None, *, valid: Tensor | None = None) -> Tensor:
        """Rows (..., D) after the sub-layer, 0 where not ``valid``; ``h`` is LN x, if known."""
        if h is None:
            x, h = self.norm.through(x, dtype=precision_of(self.widen))
        if kernels.fit(x) and not drops(self.drop):
            from progmem.kernels import biased

            wide = biased.gelu(F.linear(h, self.widen.weight), self.widen.bias)
            return biased.add(x, F.linear(wide, self.narrow.weight), self.narrow.bias, valid)
        x = x + self.drop(self.narrow(F.gelu(self.widen(h))))
        return x if valid is None else torch.where(valid[..., None], x, 0.0)


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
        q, k, v = self.project_at_once(x, segment)[1].chunk(3, dim=-1)
        return q, k, v

    def project_at_once(self, x: Tensor, segment: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """``x`` to go on with, and `project` in one tensor, (..., T, 3D)."""
        x, h = self.norm.through(x, dtype=precision_of(self.qkv), segment=segment)
        return x, self.qkv(h)

    def complete(self, x: Tensor, attended: Tensor) -> Tensor:
        """The rows (..., T, D) after both sub-layers, from attention (..., H, T, d)."""
        attended, ahead = merge_heads(attended), self.feed_forward
        if kernels.fit(x) and not drops(self.drop):
            from progmem.kernels import norm

            x, h = norm.add_norm(
                x, F.linear(attended, self.out.weight), self.out.bias,
                ahead.norm.weight, ahead.norm.bias,
                eps=ahead.norm.eps, dtype=precision_of(ahead.widen),
            )  # fmt: skip
            return ahead(x, h)
        return ahead(x + self.drop(self.out(attended)))


def drops(layer: nn.Dropout) -> bool:
    return layer.training and layer.p > 0
