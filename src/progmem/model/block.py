"""The PMA block (eq. 2, Algorithm 1): gates, slots and windows, overlap pool, feed-forward.

Shapes: B series, K tokens, N windows, W window, O copies, n slots, D width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from progmem.config import ModelConfig
from progmem.model.aggregator import OverlapAggregator
from progmem.model.geometry import Layout, unfold_windows
from progmem.model.layers import AttentionLayer, FeedForward, Norm
from progmem.model.memory import MemorySlots, make_mixer
from progmem.ops import compute_dtype
from progmem.ops.layers import gated_mix, layer_norm
from progmem.ops.window_attention import window_attention


class TokenGate(nn.Module):
    """G_W: processed tokens against the signal they came from, by their normalised values."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = Norm(dim)
        self.mix = make_mixer(dim)

    def forward(self, tokens: Tensor, signal: Tensor) -> Tensor:
        dtype = compute_dtype(self.mix.weight)
        seen = [layer_norm(x, self.norm.weights, dtype=dtype) for x in (tokens, signal)]
        z = F.linear(torch.cat(seen, dim=-1), self.mix.weight)
        return gated_mix(z, self.mix.bias[None], tokens, signal)


class PMABlock(nn.Module):
    """W_b, M_b = PMA(carry, M-bar_{b-1}, W-bar_{b-1}) for all windows of a batch."""

    def __init__(self, cfg: ModelConfig, block: int) -> None:
        super().__init__()
        self.cfg = cfg
        self.token_gate = TokenGate(cfg.dim) if block > 0 else None  # at block 1 both sides agree
        self.layer = AttentionLayer(cfg.dim, cfg.dropout)
        self.slots = MemorySlots(cfg, block) if cfg.slots else None
        self.segment = nn.Parameter(0.02 * torch.randn(cfg.dim)) if cfg.slots else None
        self.aggregator = OverlapAggregator(cfg)
        self.feed_forward = FeedForward(cfg.dim, cfg.dropout)

    def forward(
        self, tokens: Tensor, signal: Tensor, below: Tensor | None, layout: Layout
    ) -> tuple[Tensor, Tensor | None]:
        """Tokens (B, K, D) and memory (B, N, n, D) of this block.

        Args:
            tokens: W_{b-1}, (B, K, D).
            signal: W_0, (B, K, D).
            below: M_{b-1}, (B, N, n, D); for the first block its reset state (1, 1, n, D). None:
                no memory.
        """
        rows, qkv = self.project(tokens, signal)
        start = known = weights = None
        if self.slots is not None and below is not None:
            start, weights = self.slots.first(), self.slots.weights(self.layer)
            known = self.slots.gate_below(self.layer, weights, below)
        attended, memory = window_attention(
            qkv, start, known, weights, layout, cfg=self.cfg, training=self.training
        )
        del qkv
        windows = unfold_windows(rows, self.cfg, layout.windows.shape[1])
        made = self.layer.complete_windows(windows, attended)  # W^out, (B, N, W, D)
        del attended
        merged = self.aggregator(made, layout.copies)  # (B, K, D)
        return self.complete(merged, layout.copies, rows, layout.tokens), memory

    def project(self, tokens: Tensor, signal: Tensor) -> tuple[Tensor, Tensor]:
        """W-bar (B, K, D) and its projections (B, K, 3D), made once per token for all windows."""
        rows = tokens if self.token_gate is None else self.token_gate(tokens, signal)
        return self.layer.project(rows, self.segment)

    def complete(self, merged: Tensor, exists: Tensor, rows: Tensor, valid: Tensor) -> Tensor:
        """The block's tokens (B, K, D): feed-forward, 0 where nothing is there."""
        if self.cfg.windows == "floor":  # tokens after the last window pass through
            merged = torch.where(exists.any(2, keepdim=True), merged, rows)
        made: Tensor = self.feed_forward(merged, valid=valid)
        return made
