"""What the baselines do to a series to get another view of it: each a function of its draws.

Gaps move with the samples, and what lies past a series' end stays there.

Shapes: B series, L samples, C channels, S segments.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from progmem.views import resample


class Source:
    """Random numbers of a generator, on its device."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def uniform(self, *shape: int) -> Tensor:
        """In [0, 1)."""
        return torch.rand(shape, generator=self.generator, device=self.generator.device)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, device=self.generator.device)


class Segments(NamedTuple):
    """Where series are cut, and in which order the segments follow each other."""

    cuts: Tensor  # (B, S-1), shares of the length; 1 is no cut
    order: Tensor  # (B, S): segments are sorted by it


def draw_segments(batch: int, most: int, source: Source) -> Segments:
    """One to ``most`` segments of any lengths, in any order."""
    count = 1 + (most * source.uniform(batch, 1)).floor()
    unused = torch.arange(1, most, device=count.device) >= count  # (B, S-1)
    return Segments(
        source.uniform(batch, most - 1).masked_fill(unused, 1.0), source.uniform(batch, most)
    )


def equal_segments(batch: int, count: int, source: Source) -> Segments:
    """``count`` segments of one length, in any order."""
    order = source.uniform(batch, count)
    cuts = torch.arange(1, count, device=order.device) / count
    return Segments(cuts.expand(batch, -1).to(order.dtype), order)


def permute(
    x: Tensor, observed: Tensor, lengths: Tensor, segments: Segments
) -> tuple[Tensor, Tensor]:
    """Series (B, L, C) and what is observed of them, with their segments in another order.

    All channels of a series move together.
    """
    sample = torch.arange(x.shape[1], device=x.device)
    share = (sample / lengths[:, None]).to(segments.cuts.dtype)  # (B, L)
    number = (share[..., None] >= segments.cuts[:, None]).sum(2)
    place = segments.order.gather(1, number).masked_fill(sample >= lengths[:, None], 2.0)
    index = place.argsort(dim=1, stable=True)[..., None].expand_as(x)
    return x.gather(1, index), observed.gather(1, index)


def reverse(x: Tensor, observed: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Series backwards."""
    sample = torch.arange(x.shape[1], device=x.device)
    mirrored = lengths[:, None] - 1 - sample
    index = torch.where(mirrored >= 0, mirrored, sample)[..., None].expand_as(x)
    return x.gather(1, index), observed.gather(1, index)


def warp(x: Tensor, observed: Tensor, lengths: Tensor, speeds: Tensor) -> tuple[Tensor, Tensor]:
    """Series played at ``speeds`` (B, S) in S parts of one length; both ends stay."""
    last = (lengths - 1).clamp(min=1)[:, None]  # (B, 1)
    sample = torch.arange(x.shape[1], device=x.device)
    part = (sample * speeds.shape[1] // last).clamp(max=speeds.shape[1] - 1)  # (B, L)
    steps = torch.where(sample < last, speeds.gather(1, part), 0.0)
    elapsed = torch.cat([torch.zeros_like(steps[:, :1]), steps.cumsum(1)[:, :-1]], dim=1)
    return resample(x, observed, lengths, last * elapsed / steps.sum(1, keepdim=True))
