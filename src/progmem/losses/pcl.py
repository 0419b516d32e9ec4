"""PCL, the memory objective (eq. 3): a slot attracts itself in the other view, other series repel.

Slots have no head; they come l2-normalised, before negatives are picked from them.

Shapes: B sequences, A anchors a sequence (windows x slots), M negatives, D width.
"""

import torch
from torch import Tensor

from progmem.losses.bounded import cut, in_pieces
from progmem.losses.contrast import Bank, repulsion


def pcl_loss(
    anchors: Tensor,
    positives: Tensor,
    valid: Tensor,
    *,
    bank: Bank,
    temperature: float | Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """InfoNCE of each sequence's slots summed, their number, their summed gaps (see ICL): (B,).

    Args:
        anchors: slots of both views, (B, A, D), normalised like all the others.
        positives: the matching slots of the other view, (B, A, D).
        valid: anchors that have a positive, (B, A).
        bank: slots of all sequences. A sequence that none of them may repel has no anchors.

    Equal slots everywhere give log(1 + negatives) an anchor.
    """
    repelled = repulsion(bank, temperature)

    def term(rows: slice) -> tuple[Tensor, ...]:
        own = cut(anchors, rows)
        cosine = (own * cut(positives, rows)).sum(-1)  # (B, A)
        push, away = repelled(own, rows)
        found = valid[rows] & push.isfinite()
        pull, push = cosine / temperature, push.masked_fill(~found, 0.0)
        each = torch.logaddexp(pull, push) - pull
        told = torch.stack([each, cosine.detach() - away, torch.ones_like(each)])
        total, gaps, count = torch.where(found, told, 0.0).sum(-1)  # (3, B)
        return total, count, gaps

    total, count, gaps = in_pieces(term, len(anchors), cost=anchors.shape[1] * bank.negatives)
    return total, count, gaps
