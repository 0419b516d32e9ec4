"""Which rows may repel each other, and who meets whom.

Shapes: B sequences, P entries a sequence (slots of windows, tokens or windows), M negatives.
"""

import torch
from torch import Tensor

from progmem.ops.sampled_contrast import Negatives, circular


def overlapping(recording: Tensor, start: Tensor, length: Tensor) -> Tensor:
    """Which rows share samples of a recording, (B, B); a row overlaps itself."""
    end = start + length
    same = recording[:, None] == recording
    return same & (start[:, None] < end) & (start < end[:, None])


def draw_negatives(
    overlap: Tensor, entries: int, *, count: int, generator: torch.Generator
) -> Negatives:
    """Up to ``count`` entries for each of B sequences with ``entries`` entries each.

    One permutation of the whole pool serves a step: sequence i takes consecutive places of it from
    an offset of its own, and all its anchors share them.
    """
    pool = len(overlap) * entries
    order = torch.randperm(pool, generator=generator, device=generator.device).to(overlap.device)
    count = min(count, pool)
    sequence = circular(order // entries, count).unfold(0, count, entries)[:-1]  # (B, M)
    return Negatives(order, ~overlap.gather(1, sequence))
