"""The PMA block (eq. 1, Algorithm 1): gates, memory slots and windows, overlap pool, feed-forward.

The memory gate mixes a memory with the reset state, g * a + (1 - g) * b with
g = sigmoid(Linear([a; b])), both normalised (Algorithm 1), which keeps the carried memory bounded
and the gate unsaturated. What windows and their memory do is `progmem.ops.window_attention`; how
the copies of a token are merged is `progmem.ops.overlap_pool`.

Shapes: B series, K tokens, N windows, W window, O copies, n slots, D width, H heads.
"""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from progmem.config import ModelConfig
from progmem.geometry import WindowMasks, unfold_windows
from progmem.model.layers import AttentionLayer, FeedForward, Norm
from progmem.ops import compute_dtype
from progmem.ops.layers import gated_mix, layer_norm
from progmem.ops.overlap_pool import CopyAttention, PoolWeights, overlap_pool, pool_copies
from progmem.ops.window_attention import Below, ScanWeights, window_attention


class MemoryGate(nn.Module):
    """G_M: a memory against the reset state, both normalised.

    The gate of a block that is only given the reset state itself (the first, when the carry is not
    gated) would mix two equal states: it is built without the linear map.
    """

    def __init__(self, dim: int, *, mixes: bool) -> None:
        super().__init__()
        self.norm = Norm(dim)
        self.mix = make_gate_linear(dim) if mixes else None


class MemorySlots(nn.Module):
    """The memory of one block: reset state M_r, gate G_M."""

    def __init__(self, cfg: ModelConfig, block: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(cfg.reset_seed)
        resets = torch.randn(cfg.blocks, cfg.slots, cfg.dim, generator=generator)
        self.reset = nn.Parameter(0.02 * resets[block])  # M_r; equal slots would stay equal
        self.gate = MemoryGate(cfg.dim, mixes=block > 0 or cfg.gate_carry)
        self.segments = nn.Parameter(0.02 * torch.randn(2, cfg.dim))  # carry, block below

    def reset_state(self) -> Tensor:
        """M_r (n, D), at least float32: bf16 would round small updates away."""
        return self.reset.to(torch.promote_types(self.reset.dtype, torch.float32))

    def initial_memory(self, batch: int) -> Tensor:
        """M_{0,b} = M_r, (B, n, D)."""
        return self.reset_state().expand(batch, -1, -1)

    def scan_weights(self, layer: AttentionLayer) -> ScanWeights:
        """The weights of a step of the scan; the gate's part for the reset state is precomputed."""
        gate, feed_forward = self.gate, layer.feed_forward
        reset = gate.norm(self.reset_state())  # LN M_r, (n, D)
        if gate.mix is None:
            left, logit = reset.new_empty(0), torch.zeros_like(reset)
        else:
            left, right = gate.mix.weight.chunk(2, dim=1)
            logit = F.linear(reset.to(right.dtype), right, gate.mix.bias)
        return ScanWeights(
            gate.norm.weight, gate.norm.bias, left, reset, logit,
            layer.norm.weight, layer.norm.bias, self.segments[0], layer.qkv.weight,
            layer.out.weight, layer.out.bias, feed_forward.norm.weight, feed_forward.norm.bias,
            feed_forward.fc1.weight, feed_forward.fc1.bias, feed_forward.fc2.weight,
            feed_forward.fc2.bias,
        )  # fmt: skip

    def gate_below(self, layer: AttentionLayer, weights: ScanWeights, memory: Tensor) -> Below:
        """M-bar = G_M(LN M, LN M_r) of the block below's memory (B or 1, N or 1, n, D)."""
        mixes = self.gate.mix is not None
        return Below(*layer.project(
            weights.gated(memory) if mixes else self.gate.norm(memory), self.segments[1]
        ))  # fmt: skip


def make_gate_linear(dim: int) -> nn.Linear:
    """The linear map of a gate between two sides of width ``dim``."""
    mix = nn.Linear(2 * dim, dim)
    nn.init.ones_(mix.bias)  # start by keeping most of the first side, as a forget bias does
    return mix


class OverlapAggregator(nn.Module):
    """One row per token out of its copies in the windows, by attention and by their mean.

    With O = 1 a token has one copy, so no keys and no query are built.
    """

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.cfg, dim = cfg, cfg.dim
        self.value = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim, elementwise_affine=False)  # gamma is its scale
        self.gamma = nn.Parameter(torch.ones(dim))
        self.skip_gate = nn.Parameter(torch.full((dim,), -2.0))
        if cfg.overlap > 1:
            self.key = nn.Linear(dim, dim, bias=False)
            self.taps = nn.Parameter(torch.randn(3, dim) * 3**-0.5)  # depthwise over copies
            hidden = max(1, dim // 4)
            self.query = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))
            self.bias = nn.Parameter(torch.zeros(cfg.heads, cfg.overlap))

    def forward(self, rows: Tensor, exists: Tensor) -> Tensor:
        """Merge windows (B, N, W, D) into tokens (B, K, D), whose copies ``exists`` (B, K, O)."""
        return overlap_pool(rows, exists, self.weights, cfg=self.cfg)

    def of_copies(self, copies: Tensor, exists: Tensor) -> Tensor:
        """Merge ``copies`` (B, K, O, D), of which ``exists`` (B or 1, K, O), into (B, K, D)."""
        return pool_copies(copies, exists, self.weights)

    @property
    def weights(self) -> PoolWeights:
        attention = None
        if self.cfg.overlap > 1:
            first, last = cast(nn.Linear, self.query[0]), cast(nn.Linear, self.query[2])
            attention = CopyAttention(
                self.key.weight, self.taps, first.weight, first.bias, last.weight, last.bias,
                self.bias,
            )  # fmt: skip
        value, eps = self.value, self.norm.eps
        return PoolWeights(value.weight, value.bias, self.gamma, self.skip_gate, eps, attention)


class TokenGate(nn.Module):
    """G_W: processed tokens against the signal they came from, by their normalised values."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = Norm(dim)
        self.mix = make_gate_linear(dim)

    def forward(self, tokens: Tensor, signal: Tensor) -> Tensor:
        dtype = compute_dtype(self.mix.weight)
        both = [layer_norm(x, self.norm.weights, dtype=dtype) for x in (tokens, signal)]
        z = F.linear(torch.cat(both, dim=-1), self.mix.weight)
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
        self, tokens: Tensor, signal: Tensor, below: Tensor | None, masks: WindowMasks
    ) -> tuple[Tensor, Tensor | None]:
        """Tokens (B, K, D) and memory (B, N, n, D) of this block.

        Args:
            tokens: W_{b-1}, (B, K, D).
            signal: W_0, (B, K, D).
            below: M_{b-1}, (B, N, n, D); for the first block its reset state (1, 1, n, D). None:
                no memory.
        """
        rows, qkv = self.project(tokens, signal)
        reset = gated_below = weights = None
        if self.slots is not None and below is not None:
            reset, weights = self.slots.reset_state(), self.slots.scan_weights(self.layer)
            gated_below = self.slots.gate_below(self.layer, weights, below)
        attended, memory = window_attention(
            qkv, reset, gated_below, weights, masks, cfg=self.cfg, training=self.training
        )
        del qkv
        windows = unfold_windows(rows, self.cfg, masks.windows.shape[1])
        outputs = self.layer.attention_output_windows(windows, attended)  # W^out, (B, N, W, D)
        del attended
        merged = self.aggregator(outputs, masks.copies)  # (B, K, D)
        return self.output_tokens(merged, masks.copies, rows, masks.tokens), memory

    def project(self, tokens: Tensor, signal: Tensor) -> tuple[Tensor, Tensor]:
        """W-bar (B, K, D) and its projections (B, K, 3D), made once per token for all windows."""
        rows = tokens if self.token_gate is None else self.token_gate(tokens, signal)
        return self.layer.project(rows, self.segment)

    def output_tokens(self, merged: Tensor, exists: Tensor, rows: Tensor, valid: Tensor) -> Tensor:
        """The block's tokens (B, K, D) after the outer feed-forward, 0 where not ``valid``."""
        if self.cfg.windows == "floor":  # tokens after the last window pass through
            merged = torch.where(exists.any(2, keepdim=True), merged, rows)
        tokens: Tensor = self.feed_forward(merged, valid=valid)
        return tokens
