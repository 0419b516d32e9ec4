"""PCL, the memory objective (eq. 3): a slot attracts itself in the other view, other series repel.

Slots have no head; they come l2-normalised, before negatives are picked from them.

Shapes: B sequences, A anchors a sequence (windows x slots), M negatives, D width.
"""

import torch
from torch import Tensor

from progmem.losses.bounded import in_pieces, mean_over


def pcl_loss(
    anchors: Tensor,
    positives: Tensor,
    valid: Tensor,
    *,
    negatives: Tensor,
    negative_mask: Tensor,
    temperature: float | Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """InfoNCE of each sequence's slots summed, their number, their summed gaps (see ICL): (B,).

    Args:
        anchors: slots of one view, (B, A, D), normalised like all the others.
        positives: the matching slots of the other view, (B, A, D).
        valid: anchors that have a positive, (B, A).
        negatives: slots of other sequences in the other view, (B, M, D).
        negative_mask: which of those count, (B, M). A sequence without any has no anchors.

    Equal slots everywhere give log(1 + negatives) an anchor.
    """
    valid = valid & negative_mask.any(1, keepdim=True)

    def term(rows: slice) -> tuple[Tensor, ...]:
        pull = (anchors[rows] * positives[rows]).sum(-1, keepdim=True)  # (B, A, 1)
        push = (negatives[rows] @ anchors[rows].mT).mT  # (B, A, M); so the gradient stays dense
        allowed = push.masked_fill(~negative_mask[rows, None], -float("inf"))
        logits = torch.cat([pull, allowed], dim=-1) / temperature
        each = torch.logsumexp(logits, dim=-1) - logits[..., 0]  # (B, A)
        away = mean_over(push.detach(), negative_mask[rows, None])
        gap = pull.detach().squeeze(-1) - away
        told = torch.where(valid[rows], torch.stack([each, gap]), 0.0).sum(-1)  # (2, B)
        return told[0], told[1]

    cost = anchors.shape[1] * negatives.shape[1]
    total, gaps = in_pieces(term, len(anchors), cost=cost)
    return total, valid.sum(1).to(total.dtype), gaps
