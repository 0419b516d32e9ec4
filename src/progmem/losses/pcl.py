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
        found = valid[rows] & (push > -float("inf"))
        shares = torch.stack([cosine / temperature, torch.where(found, push, 0.0)]).log_softmax(0)
        told = [torch.ones_like(cosine), cosine.detach() - away]
        sums = torch.where(found, torch.stack([-shares[0], *told]), 0.0).sum(-1)
        return sums.unbind(0)  # (B,) each

    total, count, gaps = in_pieces(term, len(anchors), cost=anchors.shape[1] * bank.negatives)
    return total, count, gaps
