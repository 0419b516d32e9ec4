"""Transformer-XL (Dai et al., 2019): a segment also attends to the one before, which is only read.

Segments of W tokens follow each other. At every layer a token attends to its own segment up to
itself and to the whole segment before it, whose rows at that layer are a cache: no gradient flows
through it. All segments of a layer are computed at once.

With sinusoids r of the distance between query i and key j, their map R, and two biases u and v
that all layers share, the score is

    ((q_i + u) k_j' + (q_i + v) (r_{i-j} R)') / sqrt(d)

Shapes: B series, K tokens, G segments, W tokens of a segment, D width, H heads, d = D / H.
"""

from functools import cache
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from progmem.baselines.encoder import last_row
from progmem.baselines.matched import LAYERS_PER_BLOCK, StackOutput
from progmem.config import ModelConfig
from progmem.geometry import WindowMasks
from progmem.model.layers import AttentionLayer
from progmem.ops.layers import merge_heads, split_heads


class TransformerXL(nn.Module):
    """Twice ``cfg.blocks`` layers with segments of ``cfg.window`` tokens and a cache of as many.

    Example:
        >>> import progmem
        >>> from progmem.baselines.transformer_xl import TransformerXL
        >>> len(TransformerXL(progmem.ModelConfig(channels=1, size="tiny")).layers)
        4
    """

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.cfg, layers = cfg, LAYERS_PER_BLOCK * cfg.blocks
        self.layers = nn.ModuleList(AttentionLayer(cfg.dim, cfg.dropout) for _ in range(layers))
        self.distances = nn.ModuleList(
            nn.Linear(cfg.dim, cfg.dim, bias=False) for _ in range(layers)
        )  # R of each layer
        heads = cfg.heads, 1, cfg.dim // cfg.heads
        self.content_bias = nn.Parameter(0.02 * torch.randn(heads))  # u
        self.distance_bias = nn.Parameter(0.02 * torch.randn(heads))  # v

    def forward(self, tokens: Tensor, masks: WindowMasks) -> StackOutput:
        K, W = tokens.shape[1], self.cfg.window
        short = -K % W
        rows = torch.unflatten(F.pad(tokens, (0, 0, 0, short)), 1, (-1, W))  # (B, G, W, D)
        seen = _seen(torch.unflatten(F.pad(masks.tokens, (0, short)), 1, (-1, W)))
        sinusoids = sinusoids_of_distances(W, tokens)
        for layer, distance in zip(self.layers, self.distances, strict=True):
            weight = cast(nn.Linear, distance).weight
            by_distance = split_heads(F.linear(sinusoids.to(weight.dtype), weight), self.cfg.heads)
            rows = self._attend(cast(AttentionLayer, layer), rows, by_distance, seen)
        out = rows.flatten(1, 2)[:, :K]
        return StackOutput(out, last_row(out, masks.tokens))

    def _attend(
        self, layer: AttentionLayer, rows: Tensor, by_distance: Tensor, seen: Tensor
    ) -> Tensor:
        """One layer for all segments (B, G, W, D), with r R by distance (H, 2W, d)."""
        rows, qkv = layer.project(rows)
        # the weights do learn from what they make of the cache
        cached = layer.project(rows.detach())[1] if torch.is_grad_enabled() else qkv
        q, *own = (split_heads(t, self.cfg.heads) for t in qkv.chunk(3, dim=-1))
        before = (split_heads(t, self.cfg.heads) for t in cached.chunk(3, dim=-1)[1:])
        k, v = (
            torch.cat([_segment_before(old), new], dim=-2)
            for old, new in zip(before, own, strict=True)
        )  # (B, G, H, 2W, d)
        content, position = (
            q + bias.to(q.dtype) for bias in (self.content_bias, self.distance_bias)
        )
        score = _by_key(position @ by_distance.mT) * q.shape[-1] ** -0.5  # (B, G, H, W, 2W)
        score = score.masked_fill(~seen[:, :, None], -torch.inf)
        q, k, v, score = (t.flatten(0, 1) for t in (content, k, v, score))
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=score)
        attended = torch.unflatten(merge_heads(attended), 0, rows.shape[:2])
        return layer.attention_output(rows, attended)


def sinusoids_of_distances(window: int, like: Tensor) -> Tensor:
    """r of the distances 2W-1 .. 0, as the keys of the last query have them: (2W, D)."""
    dtype = torch.promote_types(like.dtype, torch.float32)
    return _sinusoids(2 * window, like.shape[-1], like.device, dtype)


@cache
def _sinusoids(count: int, dim: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Cached for good: a captured graph keeps reading it."""
    with torch.inference_mode(False):  # a later call may need gradients
        distance = torch.arange(count - 1, -1, -1, device=device, dtype=torch.float64)
        exponent = torch.arange(0, dim, 2, device=device, dtype=torch.float64) / dim
        phase = distance[:, None] * 10000.0**-exponent  # (2W, D/2)
        return torch.cat([phase.sin(), phase.cos()], dim=1).to(dtype)


def _segment_before(x: Tensor) -> Tensor:
    """What each segment (B, G, ...) has before it; the first has zeros."""
    return torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], dim=1)


def _seen(valid: Tensor) -> Tensor:
    """Keys that queries see, (B, G, W, 2W), of tokens ``valid`` (B, G, W); each sees itself."""
    W = valid.shape[2]
    causal = torch.ones(W, W, dtype=torch.bool, device=valid.device).tril()
    own = (valid[:, :, None] & causal) | causal.triu()
    return torch.cat([_segment_before(valid)[:, :, None].expand(-1, -1, W, -1), own], dim=-1)


def _by_key(scores: Tensor) -> Tensor:
    """Scores (..., W, 2W) by distance, from 2W-1 to 0, as scores by key.

    Query i is W-1-i places before the last, for which the two are the same. A column of zeros at
    the left moves each row one place further than the row above when rows are cut anew.
    """
    W = scores.shape[-2]
    padded = F.pad(scores, (1, 0)).flatten(-2)
    return torch.unflatten(padded[..., W:], -1, (W, 2 * W))
