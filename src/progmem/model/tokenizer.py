"""Samples to tokens: one convolution, patches of their own length and stride, no padding.

A model that is trained to predict hidden samples also has a mask vector: a token gets as much of it
as its patch has hidden samples.

Shapes: B series, L samples, C channels, K tokens, D width.
"""

import torch
from torch import Tensor, nn

from progmem.config import ModelConfig
from progmem.ops.layers import patch_linear, plain_unfold


class Tokenizer(nn.Module):
    """Conv1d(C -> D); token t is made of samples t*stride .. t*stride+patch-1."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.patch, self.stride = cfg.patch, cfg.patch_stride
        self.conv = nn.Conv1d(cfg.channels, cfg.dim, cfg.patch, cfg.patch_stride)
        self.mask_vector = nn.Parameter(torch.zeros(cfg.dim)) if cfg.mask_vector else None

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        lengths: Tensor | None = None,
        hidden: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Tokens (B, K, D), 0 where missing, and whether each is there (B, K).

        A token is there if its patch ends within its series' length and holds any observed value.
        ``mask`` (B, L) or (B, L, C) is True where ``x`` (B, L, C) is observed; ``hidden``
        (B, L, C) where it is not to be seen although it is.
        """
        L = x.shape[1]
        observed = torch.ones_like(x, dtype=torch.bool) if mask is None else mask
        if observed.dim() == 2:
            observed = observed[..., None].expand_as(x)
        if lengths is not None:
            inside = torch.arange(L, device=x.device) < lengths[:, None]
            observed = observed & inside[..., None]
        valid = plain_unfold(observed.any(2), self.patch, self.stride).any(2)  # (B, K)
        if lengths is not None:
            number = torch.arange(valid.shape[1], device=x.device)
            valid = valid & (number < self.counts(x, lengths)[:, None])
        assert self.conv.bias is not None
        seen = observed if hidden is None else observed & ~hidden
        tokens = patch_linear(
            torch.where(seen, x, 0.0), self.conv.weight, self.conv.bias, stride=self.stride
        )
        if hidden is not None:
            assert self.mask_vector is not None, "hidden samples need a model with a mask vector"
            share = hidden.to(tokens.dtype).mean(2).unfold(1, self.patch, self.stride).mean(2)
            tokens = tokens + share[..., None] * self.mask_vector
        return torch.where(valid[..., None], tokens, 0.0), valid

    def counts(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        """Whole patches in each of series (B, L, C), some of which may end at ``lengths``: (B,)."""
        if lengths is None:
            lengths = torch.full(x.shape[:1], x.shape[1], device=x.device)
        return (lengths - self.patch) // self.stride + 1
