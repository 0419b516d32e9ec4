"""Which rows may repel each other, and who meets whom.

Shapes: B sequences, P entries a sequence (slots of windows, tokens or windows), M negatives.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Negatives(NamedTuple):
    """A shuffled pool, and for each sequence M places of it that its anchors are told apart from.

    Sequence i takes the places from i P on; after the last place comes the first again.
    """

    order: Tensor  # (B P,), at each place an entry of the key view
    mask: Tensor  # (B, M): not of this sequence, not overlapping it in time

    @property
    def entries(self) -> int:
        """P, by which sequences are apart."""
        return len(self.order) // len(self.mask)


def circular(x: Tensor, count: int) -> Tensor:
    """Places (B P, ...) with the first ``count`` once more behind the last."""
    return torch.cat([x, x[:count]])


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
