"""The tokens of a series as three statistics of each feature, collected piece by piece.

They are the largest value, the standard deviation, and the share of tokens above the feature's
median over the training tokens. Together with the sequence vector they are one vector from all
scales, of a whole series or of a stream so far.

Shapes: B series, K tokens, D width.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from progmem.encoding import Encoding
from progmem.errors import InputError
from progmem.series import follow_device

SOFTNESS = 0.1  # of the step from below the median to above it, in units of the feature's spread


class TokenStats(NamedTuple):
    """Median and spread of each feature over training tokens, float64."""

    median: Tensor  # (D,)
    scale: Tensor  # (D,), above 0


class TokenStatsBuffers(nn.Module):
    """The token statistics of a model, zeros until fitted, float64 whatever it is cast to."""

    median: Tensor
    scale: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("median", torch.zeros(dim, dtype=torch.float64))
        self.register_buffer("scale", torch.zeros(dim, dtype=torch.float64))

    @property
    def values(self) -> TokenStats | None:
        """A copy of what was fitted, if anything was: whoever keeps it sees no later fit."""
        fitted = bool((self.scale > 0).any())
        return TokenStats(self.median.clone(), self.scale.clone()) if fitted else None

    def set(self, stats: TokenStats | None) -> None:
        for name in TokenStats._fields:
            buffer: Tensor = getattr(self, name)
            buffer.zero_() if stats is None else buffer.copy_(getattr(stats, name))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "TokenStatsBuffers":
        return follow_device(self, fn)


class TokenSummary:
    """What is kept of all tokens so far; its size does not depend on how many there were.

    Sums are float64 and deviations are taken from the mean, so that neither many tokens nor a
    large offset cost digits.
    """

    def __init__(self, stats: TokenStats, batch_size: int, device: torch.device) -> None:
        self.median, self.scale = (t.to(device, torch.float64) for t in stats)  # (D,)
        zeros = torch.zeros(batch_size, len(self.median), dtype=torch.float64, device=device)
        self.count = torch.zeros(batch_size, 1, dtype=torch.int64, device=device)
        self.mean = zeros  # (B, D)
        self.square = zeros  # summed squared deviations from the mean
        self.highest = zeros - torch.inf
        self.above = zeros  # summed over tokens: near 1 above the median, near 0 below

    def add(self, tokens: Tensor, token_mask: Tensor) -> None:
        """Take in tokens (B, K, D), K from 0 up, of which those of ``token_mask`` (B, K) count."""
        if not tokens.shape[1]:
            return
        x = tokens.to(torch.promote_types(tokens.dtype, torch.float32))
        valid = token_mask[..., None]
        new = valid.sum(1)  # (B, 1)
        mean = torch.where(valid, x, 0.0).sum(1).double() / new.clamp(min=1)
        apart = torch.where(valid, x - mean[:, None].to(x.dtype), 0.0)
        median, width = self.median.to(x.dtype), (SOFTNESS * self.scale).to(x.dtype)
        # a step would flip between 0 and 1 with the rounding of a token that is near the median
        above = torch.where(valid, torch.sigmoid((x - median) / width), 0.0)
        total = self.count + new
        share = new.double() / total.clamp(min=1)  # of the tokens so far that are new
        shift = mean - self.mean
        between = shift.square() * self.count * share
        self.square = self.square + apart.square().sum(1) + between
        self.mean = self.mean + shift * share
        self.highest = self.highest.maximum(x.masked_fill(~valid, -torch.inf).amax(1).double())
        self.above = self.above + above.sum(1)
        self.count = total

    def statistics(self) -> Tensor:
        """Maximum, standard deviation and share above the median, (B, 3D); 0 without a token."""
        count = self.count.clamp(min=1)
        highest = torch.where(self.count > 0, self.highest, 0.0)
        return torch.cat([highest, (self.square / count).sqrt(), self.above / count], dim=1)

    def features(self, sequence: Tensor) -> Tensor:
        """The sequence vectors (B, D) joined with the statistics: (B, 4D), at least float32."""
        precise = torch.promote_types(sequence.dtype, torch.float32)
        return torch.cat([sequence.to(precise), self.statistics().to(precise)], dim=1)


def all_scales(z: Encoding, stats: TokenStats) -> Tensor:
    """One vector (B, 4D) for each series: the sequence vector and three statistics of its tokens.

    These are, of each feature, the maximum, the standard deviation, and the share of tokens above
    the median of ``stats``; all 0 where no token is valid.
    """
    fitted, given = len(stats.median), z.tokens.shape[2]
    if fitted != given:
        raise InputError(
            f"the token statistics are of {fitted} features, the encoder gives {given}; fit them "
            "on its own tokens"
        )
    summary = TokenSummary(stats, len(z.tokens), z.tokens.device)
    summary.add(z.tokens, z.token_mask)
    return summary.features(z.sequence)
