"""ICL, the sequence objective (eq. 5): two views of a series attract, other series repel.

Shapes: A anchors, G keys (both views of all series), D width.
"""

import torch.nn.functional as F
from torch import Tensor


def icl_loss(
    anchors: Tensor, keys: Tensor, *, positive: Tensor, mask: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Summed InfoNCE of projected CLS vectors, and the number of anchors.

    Args:
        anchors: (A, D), need not be normalised.
        keys: (G, D), the same vectors and those of all other series, in both views.
        positive: the key that is the anchor's other view, (A,).
        mask: keys in the denominator, (A, G): the positive and the negatives, not the anchor.

    Equal vectors everywhere give log(keys in the denominator) an anchor, the value of not knowing.
    """
    logits = F.normalize(anchors, dim=1) @ F.normalize(keys, dim=1).T / temperature  # (A, G)
    logits = logits.masked_fill(~mask, -float("inf"))
    each = F.cross_entropy(logits, positive, reduction="sum")
    return each, mask.new_tensor(len(anchors), dtype=anchors.dtype)
