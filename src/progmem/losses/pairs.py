"""Which positions of two views are compared: matches in time attract, drawn entries repel.

Shapes: B sequences, T tokens or windows, P entries a sequence (slots of windows, tokens or
windows), M negatives.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from progmem.ops.sampled_contrast import Negatives, circular

LIMIT = 2**25  # most similarities in memory at a time


class Match(NamedTuple):
    """For each position of one view, the position of the other."""

    position: Tensor  # (B, T)
    found: Tensor  # (B, T), whether there is one


@torch.no_grad()
def match(
    time: Tensor | None,
    valid: Tensor,
    other_time: Tensor | None,
    other_valid: Tensor,
    *,
    tolerance: float,
) -> Match:
    """The nearest position in input time, if it is within ``tolerance`` samples.

    Times are (B, T). Without them positions of the same index match, as in the paper.
    """
    B, T = valid.shape
    if time is None or other_time is None:
        position = torch.arange(T, device=valid.device).expand(B, T)
        return Match(position, valid & other_valid)

    def nearest(rows: slice) -> tuple[Tensor, ...]:
        distance = (time[rows, :, None] - other_time[rows, None]).abs()  # (b, T, T)
        return tuple(distance.masked_fill(~other_valid[rows, None], float("inf")).min(dim=2))

    distance, position = in_chunks(nearest, B, cost=T * T)
    return Match(position, valid & (distance <= tolerance))


def overlapping(recording: Tensor, start: Tensor, length: Tensor) -> Tensor:
    """Which rows share samples of a recording, (B, B); a row overlaps itself."""
    end = start + length
    same = recording[:, None] == recording
    return same & (start[:, None] < end) & (start < end[:, None])


def draw_negatives(
    overlap: Tensor, entries: int, *, count: int, generator: torch.Generator
) -> Negatives:
    """Up to ``count`` entries for each of B sequences with ``entries`` entries each.

    The whole pool is shuffled once a step. Sequence i takes consecutive entries of it from an
    offset of its own, and all its anchors share them.
    """
    pool = len(overlap) * entries
    order = torch.randperm(pool, generator=generator, device=generator.device).to(overlap.device)
    count = min(count, pool)
    sequence = circular(order // entries, count).unfold(0, count, entries)[:-1]  # (B, M)
    return Negatives(order, ~overlap.gather(1, sequence))


def in_chunks(
    term: Callable[[slice], tuple[Tensor, ...]], rows: int, *, cost: int
) -> tuple[Tensor, ...]:
    """``term`` of all ``rows``, where a row needs ``cost`` similarities.

    Where all rows together would need more than `LIMIT`, they are computed in chunks, and each
    chunk is recomputed in the backward pass (gradient checkpointing).
    """
    step = max(1, LIMIT // max(1, cost))
    if rows <= step:
        return term(slice(0, rows))
    parts = []
    for start in range(0, rows, step):
        chunk = slice(start, min(start + step, rows))
        if torch.is_grad_enabled():
            parts.append(checkpoint(term, chunk, use_reentrant=False))
        else:
            parts.append(term(chunk))
    return tuple(torch.cat(column) for column in zip(*parts, strict=True))


def take_rows(x: Tensor, rows: slice) -> Tensor:
    """``x[rows]``, or ``x`` itself for all rows, which spares a copy of its gradient."""
    return x if (rows.start, rows.stop) == (0, len(x)) else x[rows]
