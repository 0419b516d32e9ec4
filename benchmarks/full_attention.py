"""What PMA is compared with: full attention with its scores written out, and on a stream.

Shapes: B series, L samples, K tokens, m new tokens, D width, H heads, d = D / H.
"""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

from progmem.baselines.vanilla import VanillaTransformer
from progmem.model.layers import AttentionLayer
from progmem.ops.layers import merge_heads, rotate, rotation, split_heads


def attend_written_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q k' / sqrt(d)) v over (B, H, K, d) with all scores of a series in memory.

    Series go one after the other: the scores of a batch of 32 would not fit into any GPU.
    """
    out = torch.empty_like(v)
    for i in range(len(q)):
        scores = (q[i] * q.shape[-1] ** -0.5) @ k[i].mT  # (H, K, K)
        out[i] = scores.softmax(-1).to(v.dtype) @ v[i]
    return out


def encode_written_out(model: VanillaTransformer, x: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens (B, K, D) and sequence vector (B, D) of ``model`` without a fused attention."""
    tokens, _ = model.tokenizer(x)
    rows = torch.cat([model.cls.expand(len(x), 1, -1), tokens], dim=1)  # (B, 1+K, D)
    for layer in layers_of(model):
        q, k, v = _project(layer, rows, model.cfg.heads)
        rows = layer.attention_output(rows, merge_heads(attend_written_out(q, k, v)))
    rows = model.norm(rows)
    return rows[:, 1:], rows[:, 0]


def _project(
    layer: AttentionLayer, rows: Tensor, heads: int, first: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys at their positions from ``first`` on, and values: (B, H, T, d) each."""
    q, k, v = (split_heads(t, heads) for t in layer.project(rows)[1].chunk(3, dim=-1))
    position = rotation(q, first)
    return rotate(q, position), rotate(k, position), v


def layers_of(model: VanillaTransformer) -> list[AttentionLayer]:
    return [cast(AttentionLayer, layer) for layer in model.layers]


@torch.no_grad()
def encode_causally(model: VanillaTransformer, x: Tensor) -> Tensor:
    """Tokens (B, K, D) of ``model`` where each sees itself and those before, and no CLS."""
    rows, _ = model.tokenizer(x)
    for layer in layers_of(model):
        q, k, v = _project(layer, rows, model.cfg.heads)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        rows = layer.attention_output(rows, merge_heads(seen))
    return model.norm(rows)


class CachedAttention:
    """`encode_causally` on a stream: keys and values of all the past are kept.

    ``push`` takes the samples of m more tokens and gives their rows (B, m, D). Each push attends
    over everything so far, so its time and the cache grow with the stream.
    """

    def __init__(self, model: VanillaTransformer, batch: int, longest: int) -> None:
        self.model, self.seen = model, 0
        weight = model.tokenizer.conv.weight
        heads, D = model.cfg.heads, model.cfg.dim
        shape = (2, batch, heads, longest, D // heads)
        self.cache = [weight.new_zeros(shape) for _ in model.layers]  # keys and values

    @torch.no_grad()
    def push(self, x: Tensor) -> Tensor:
        """``x`` (B, L, C) holds whole patches: (m-1) patch strides and one patch."""
        rows, _ = self.model.tokenizer(x)  # (B, m, D)
        m, first = rows.shape[1], self.seen
        self.seen += m
        lower = causal_lower_right(m, self.seen)  # flash attention knows this mask
        for layer, kept in zip(layers_of(self.model), self.cache, strict=True):
            q, k, v = _project(layer, rows, self.model.cfg.heads, first)
            kept[0, :, :, first : self.seen] = k
            kept[1, :, :, first : self.seen] = v
            past = kept[..., : self.seen, :]
            seen = F.scaled_dot_product_attention(q, past[0], past[1], lower)
            rows = layer.attention_output(rows, merge_heads(seen))
        return self.model.norm(rows)
