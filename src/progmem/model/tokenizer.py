"""Samples to tokens: one convolution, patches of their own length and stride, no padding.

Shapes: B series, L samples, C channels, K tokens, D width.
"""

import torch
from torch import Tensor, nn

from progmem.config import ModelConfig


class Tokenizer(nn.Module):
    """Conv1d(C -> D); token t is made of samples t*stride .. t*stride+patch-1."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.patch, self.stride = cfg.patch, cfg.patch_stride
        self.conv = nn.Conv1d(cfg.channels, cfg.dim, cfg.patch, cfg.patch_stride)

    def forward(self, x: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens (B, K, D) and whether each has any observed value (B, K).

        ``x`` and ``observed`` are (B, L, C); unobserved values count as 0.
        """
        x = torch.where(observed, x, 0.0)
        valid = observed.any(2).unfold(1, self.patch, self.stride).any(2)  # (B, K)
        tokens = self.conv(x.mT).mT  # (B, K, D)
        return torch.where(valid[..., None], tokens, 0.0), valid
