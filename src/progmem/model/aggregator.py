"""The attentive overlap aggregator: one row per token again, out of its copies in the windows.

One query per token attends over the token's copies; the result is scaled by 1/sqrt(O),
normalised and scaled by gamma, then mixed with the plain mean of the copies by the SkipGate.

Shapes: B series, K tokens, O copies, D width, H heads, d = D / H.
"""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from progmem import kernels
from progmem.config import ModelConfig
from progmem.model.attention import precision_of
from progmem.model.geometry import align_copies


class OverlapAggregator(nn.Module):
    """A_t = gamma LN(O^-1/2 sum_r alpha_r V_r), mixed with S_t = mean_r W_r.

    With O = 1 there is nothing to choose between, so no keys and no query are built.
    """

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.cfg = cfg
        dim, self.heads, self.overlap = cfg.dim, cfg.heads, cfg.overlap
        self.value = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim, elementwise_affine=False)  # gamma is its scale
        self.gamma = nn.Parameter(torch.ones(dim))
        self.skip_gate = nn.Parameter(torch.full((dim,), -2.0))
        if self.overlap > 1:
            self.key = nn.Linear(dim, dim, bias=False)
            self.taps = nn.Parameter(torch.randn(3, dim) * 3**-0.5)  # depthwise over copies
            narrow = max(1, dim // 4)
            self.query = nn.Sequential(nn.Linear(dim, narrow), nn.GELU(), nn.Linear(narrow, dim))
            self.bias = nn.Parameter(torch.zeros(self.heads, self.overlap))

    def forward(self, rows: Tensor, exists: Tensor, projected: Tensor | None = None) -> Tensor:
        """Merge windows (B, N, W, D) into tokens (B, K, D), whose copies ``exists`` (B, K, O).

        ``projected`` (B, N, W, 2D): the rows' product with `keys_and_values`, if that is known.
        """
        if self.overlap > 1 and kernels.fit(rows):
            return self.by_kernels(rows, exists, projected)
        return self.of_copies(align_copies(rows, self.cfg, exists.shape[1]), exists)

    def by_kernels(self, rows: Tensor, exists: Tensor, projected: Tensor | None = None) -> Tensor:
        """`forward` of windows that overlap, by kernels."""
        from progmem.kernels import biased, overlap_means, overlap_pool

        S, dtype = self.cfg.stride, precision_of(self.value)
        skip, mean, rows = overlap_means.means(
            rows, exists, self.taps, stride=S, dtype=dtype, cast=projected is None
        )
        if projected is None:
            projected = F.linear(rows, self.keys_and_values())
        first, last = cast(nn.Linear, self.query[0]), cast(nn.Linear, self.query[2])
        narrow = biased.gelu(F.linear(mean, first.weight), first.bias)
        query = biased.linear(narrow, last.weight.to(dtype), last.bias)
        return overlap_pool.attended(
            query, projected, skip, exists, self.bias, self.value.bias,
            self.gamma, self.skip_gate, stride=S, eps=self.norm.eps,
        )  # fmt: skip

    def keys_and_values(self) -> Tensor:
        """The weights of both, (2D, D): one product for two."""
        return torch.cat([self.key.weight, self.value.weight])

    def of_copies(self, copies: Tensor, exists: Tensor) -> Tensor:
        """Merge ``copies`` (B, K, O, D), of which ``exists`` (B or 1, K, O) are there: (B, K, D).

        A token without any copy gives a finite row that means nothing.
        """
        present = exists[..., None].to(copies.dtype)  # (B, K, O, 1)
        count = present.sum(2).clamp(min=1)  # (B, K, 1)
        copies = copies * present
        skip = copies.sum(2) / count  # S_t, (B, K, D)
        value = self.value(copies)  # (B, K, O, D)
        if self.overlap == 1:
            attended = value.squeeze(2)
        else:
            query = self.query(self._mixed_mean(copies, present, count))  # (B, K, D)
            weight = self._weights(query, self.key(copies), exists)  # (B, K, O, H)
            value = torch.unflatten(value, -1, (self.heads, -1))  # (B, K, O, H, d)
            attended = (weight[..., None] * value).sum(2).flatten(-2)  # (B, K, D)
        attended = self.gamma * self.norm(attended * self.overlap**-0.5)  # A_t
        return skip + torch.sigmoid(self.skip_gate) * (attended - skip)

    def _mixed_mean(self, copies: Tensor, present: Tensor, count: Tensor) -> Tensor:
        """Mean over a token's copies of their depthwise convolution (3 taps, zeros outside).

        The mean is taken before the taps, which moves no more than K rows per tap.
        """
        before = (copies[:, :, :-1] * present[:, :, 1:]).sum(2)  # copy r-1, where r exists
        after = (copies[:, :, 1:] * present[:, :, :-1]).sum(2)  # copy r+1, where r exists
        return (self.taps[0] * before + self.taps[1] * copies.sum(2) + self.taps[2] * after) / count

    def _weights(self, query: Tensor, key: Tensor, exists: Tensor) -> Tensor:
        """alpha_{h,r} (B, K, O, H), from one query per token."""
        q = torch.unflatten(query, -1, (self.heads, -1))[:, :, None]  # (B, K, 1, H, d)
        k = torch.unflatten(key, -1, (self.heads, -1))  # (B, K, O, H, d)
        score = (q * k).sum(-1) * k.shape[-1] ** -0.5 + self.bias.mT  # (B, K, O, H)
        # the lowest number instead of -inf: a token without copies must not give NaN
        score = score.masked_fill(~exists[..., None], torch.finfo(score.dtype).min)
        return F.softmax(score, dim=2)
