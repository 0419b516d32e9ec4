"""Terms of many anchors in bounded memory."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

LIMIT = 2**25  # similarities held at once


def in_pieces(
    term: Callable[[slice], tuple[Tensor, ...]], rows: int, *, cost: int
) -> tuple[Tensor, ...]:
    """``term`` of all ``rows``, made of pieces where a row costs ``cost`` similarities.

    Where all rows at once would hold more than `LIMIT`, the pieces are made again in backward
    instead of being kept.
    """
    step = max(1, LIMIT // max(1, cost))
    if rows <= step:
        return term(slice(0, rows))
    parts = []
    for start in range(0, rows, step):
        piece = slice(start, min(start + step, rows))
        if torch.is_grad_enabled():
            parts.append(checkpoint(term, piece, use_reentrant=False))
        else:
            parts.append(term(piece))
    return tuple(torch.cat(column) for column in zip(*parts, strict=True))


def cut(x: Tensor, rows: slice) -> Tensor:
    """``x[rows]``, or ``x`` itself where that is all of it: no copy of its gradient then."""
    return x if (rows.start, rows.stop) == (0, len(x)) else x[rows]
