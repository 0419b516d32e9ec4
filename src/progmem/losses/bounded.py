"""Sums over many anchors in bounded memory, and means over some of many negatives."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

LIMIT = 2**25  # similarities held at once


def sum_in_pieces(
    term: Callable[[slice], tuple[Tensor, ...]], rows: int, *, cost: int
) -> tuple[Tensor, ...]:
    """Sum of ``term`` over pieces of ``rows``, each row costing ``cost`` similarities.

    Where all rows at once would hold more than `LIMIT`, the pieces are made again in backward
    instead of being kept.
    """
    step = max(1, LIMIT // max(1, cost))
    if rows <= step:
        return term(slice(0, rows))
    total: tuple[Tensor, ...] | None = None
    for start in range(0, rows, step):
        piece = slice(start, min(start + step, rows))
        if torch.is_grad_enabled():
            part = checkpoint(term, piece, use_reentrant=False)
        else:
            part = term(piece)
        total = part if total is None else tuple(a + b for a, b in zip(total, part, strict=True))
    assert total is not None
    return total


def mean_over(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of the last axis where ``mask``; 0 where there is nothing."""
    return (values * mask).sum(-1) / mask.sum(-1).clamp(min=1)
