"""Which rows may repel each other, and who meets whom.

Shapes: B sequences, P entries a sequence (slots of windows, tokens or windows), M negatives.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Negatives(NamedTuple):
    """For each sequence, entries of the pool that its anchors are told apart from."""

    entry: Tensor  # (B, M) into the B * P entries of the key view
    mask: Tensor  # (B, M): not of this sequence, not overlapping it in time


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
    B = overlap.shape[0]
    pool = B * entries
    count = min(count, pool)
    order = torch.randperm(pool, generator=generator, device=generator.device)
    place = torch.arange(B, device=order.device)[:, None] * pool // B
    place = (place + torch.arange(count, device=order.device)) % pool
    entry = order[place].to(overlap.device)  # (B, M)
    return Negatives(entry, ~overlap.gather(1, entry // entries))
