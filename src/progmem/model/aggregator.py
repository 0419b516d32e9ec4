"""The weights of the attentive overlap aggregator; `progmem.ops.overlap_pool` is its equation.

Shapes: B series, K tokens, N windows, W window, O copies, D width, H heads.
"""

from typing import cast

import torch
from torch import Tensor, nn

from progmem.config import ModelConfig
from progmem.ops.overlap_pool import Attentive, PoolWeights, overlap_pool, pool_copies


class OverlapAggregator(nn.Module):
    """One row per token out of its copies in the windows, by attention and by their mean.

    With O = 1 there is nothing to choose between, so no keys and no query are built.
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
            narrow = max(1, dim // 4)
            self.query = nn.Sequential(nn.Linear(dim, narrow), nn.GELU(), nn.Linear(narrow, dim))
            self.bias = nn.Parameter(torch.zeros(cfg.heads, cfg.overlap))

    def forward(self, rows: Tensor, exists: Tensor) -> Tensor:
        """Merge windows (B, N, W, D) into tokens (B, K, D), whose copies ``exists`` (B, K, O)."""
        return overlap_pool(rows, exists, self.weights, cfg=self.cfg)

    def of_copies(self, copies: Tensor, exists: Tensor) -> Tensor:
        """Merge ``copies`` (B, K, O, D), of which ``exists`` (B or 1, K, O), into (B, K, D)."""
        return pool_copies(copies, exists, self.weights)

    @property
    def weights(self) -> PoolWeights:
        attentive = None
        if self.cfg.overlap > 1:
            first, last = cast(nn.Linear, self.query[0]), cast(nn.Linear, self.query[2])
            attentive = Attentive(
                self.key.weight, self.taps, first.weight, first.bias, last.weight, last.bias,
                self.bias,
            )  # fmt: skip
        value, eps = self.value, self.norm.eps
        return PoolWeights(value.weight, value.bias, self.gamma, self.skip_gate, eps, attentive)
