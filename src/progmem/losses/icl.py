"""ICL, the sequence objective (eq. 4): two views of a series attract, other series repel.

Shapes: A anchors, G keys (both views of all series), D width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def icl_loss(
    anchors: Tensor, keys: Tensor, *, positive: Tensor, mask: Tensor, temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Summed InfoNCE of projected CLS vectors, the number of anchors, and their summed gaps.

    An anchor's gap is the cosine with its positive minus the mean cosine with its negatives.

    Args:
        anchors: (A, D), normalised.
        keys: (G, D), the same vectors and those of all other series, in both views.
        positive: the key that is the anchor's other view, (A,).
        mask: keys in the denominator, (A, G): the positive and the negatives, not the anchor.

    If all vectors are equal, the loss of an anchor is log(keys in the denominator).
    """
    cosine = anchors @ keys.T  # (A, G)
    logits = torch.where(mask, cosine / temperature, -float("inf"))
    total = F.cross_entropy(logits, positive, reduction="sum")
    with torch.no_grad():
        positive_sim = cosine.gather(1, positive[:, None]).squeeze(1)
        negatives = mask.sum(1) - 1  # the positive is in the mask
        negative_sim = ((cosine * mask).sum(1) - positive_sim) / negatives.clamp(min=1)
    return total, anchors.new_full((), len(anchors)), (positive_sim - negative_sim).sum()
