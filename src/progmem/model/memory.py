"""Writable memory: the slots of a block, their reset state and their gate.

The gate mixes a memory with the reset state, g * a + (1 - g) * b with g = sigmoid(Linear([a; b])),
both normalised (Algorithm 1), which keeps the carried memory bounded and the gate unsaturated.

Shapes: B series, N windows, n slots, D width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from progmem.config import ModelConfig
from progmem.model.layers import AttentionLayer, Norm
from progmem.ops.window_attention import Below, ScanWeights


class MemoryGate(nn.Module):
    """G_M: a memory against the reset state, both normalised.

    A block whose gate only ever meets the reset state itself (the first, when the carry is not
    gated) has nothing to decide: it is built without the mixing weights.
    """

    def __init__(self, dim: int, *, mixes: bool) -> None:
        super().__init__()
        self.norm = Norm(dim)
        self.mix = make_mixer(dim) if mixes else None


class MemorySlots(nn.Module):
    """The memory of one block: reset state M_r, gate G_M."""

    def __init__(self, cfg: ModelConfig, block: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(cfg.reset_seed)
        resets = torch.randn(cfg.blocks, cfg.slots, cfg.dim, generator=generator)
        self.reset = nn.Parameter(0.02 * resets[block])  # M_r; slots differ, or would stay equal
        self.gate = MemoryGate(cfg.dim, mixes=block > 0 or cfg.gate_carry)
        self.segments = nn.Parameter(0.02 * torch.randn(2, cfg.dim))  # carry, block below

    def first(self) -> Tensor:
        """M_r (n, D), at least float32: bf16 would swallow small updates."""
        return self.reset.to(torch.promote_types(self.reset.dtype, torch.float32))

    def start(self, batch: int) -> Tensor:
        """M_{0,b} = M_r, (B, n, D)."""
        return self.first().expand(batch, -1, -1)

    def weights(self, layer: AttentionLayer) -> ScanWeights:
        """What a step of the scan learns, with the reset state as the gate takes it."""
        gate, ahead = self.gate, layer.feed_forward
        reset = gate.norm(self.first())  # LN M_r, (n, D)
        if gate.mix is None:
            left, logit = reset.new_empty(0), torch.zeros_like(reset)
        else:
            left, right = gate.mix.weight.chunk(2, dim=1)
            logit = F.linear(reset.to(right.dtype), right, gate.mix.bias)
        return ScanWeights(
            gate.norm.weight, gate.norm.bias, left, reset, logit,
            layer.norm.weight, layer.norm.bias, self.segments[0], layer.qkv.weight,
            layer.out.weight, layer.out.bias, ahead.norm.weight, ahead.norm.bias,
            ahead.widen.weight, ahead.widen.bias, ahead.narrow.weight, ahead.narrow.bias,
        )  # fmt: skip

    def gate_below(self, layer: AttentionLayer, weights: ScanWeights, memory: Tensor) -> Below:
        """M-bar = G_M(LN M, LN M_r) of the block below's memory (B or 1, N or 1, n, D)."""
        mixes = self.gate.mix is not None
        return Below(*layer.project(
            weights.gated(memory) if mixes else self.gate.norm(memory), self.segments[1]
        ))  # fmt: skip


def make_mixer(dim: int) -> nn.Linear:
    """The linear map of a gate between two sides of width ``dim``."""
    mix = nn.Linear(2 * dim, dim)
    nn.init.ones_(mix.bias)  # start by keeping most of the new side, as a forget bias does
    return mix
