"""PCL, the memory objective (eq. 2): a slot attracts itself in the other view, other series repel.

Slots have no projection head. They are l2-normalised before negatives are drawn from them.

Shapes: B sequences, N windows, n slots, A = N n anchors a sequence, D width.
"""

import torch
from torch import Tensor

from progmem.losses.pairs import Match, in_chunks, take_rows
from progmem.ops.sampled_contrast import Bank, negative_logsumexp


def pcl_loss(
    slots: Tensor,
    keys: Tensor,
    matched: Match,
    *,
    bank: Bank,
    temperature: float | Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """InfoNCE of each sequence's slots summed, their number, their summed gaps (see ICL): (B,).

    Args:
        slots: of both views, (B, N, n, D), normalised.
        keys: the slots of the same sequences in the other view, (B, N, n, D).
        matched: each window's counterpart, (B, N).
        bank: slots of all sequences. A sequence without a negative has no anchors.

    If all slots are equal, the loss of an anchor is log(1 + negatives).
    """
    score_negatives = negative_logsumexp(bank, temperature)
    _, N, n, _ = slots.shape

    def term(rows: slice) -> tuple[Tensor, ...]:
        anchors = take_rows(slots, rows)
        # All pairs of windows are compared, and the matches gathered from the similarities:
        # gathering keys instead would add up their gradients in an order that is not fixed.
        pairs = anchors.transpose(1, 2) @ take_rows(keys, rows).permute(0, 2, 3, 1)  # (b, n, N, N)
        position = matched.position[rows, None, :, None].expand(-1, n, -1, -1)
        positive_sim = pairs.gather(3, position).squeeze(3).mT.flatten(1)  # (b, A)
        negative_lse, negative_sim = score_negatives(anchors.flatten(1, 2), rows)
        found = matched.found[rows].repeat_interleave(n, dim=1) & (negative_lse > -float("inf"))
        logits = [positive_sim / temperature, torch.where(found, negative_lse, 0.0)]
        loss = -torch.stack(logits).log_softmax(0)[0]
        terms = [loss, torch.ones_like(loss), positive_sim.detach() - negative_sim]
        return torch.where(found, torch.stack(terms), 0.0).sum(-1).unbind(0)  # (b,) each

    total, count, gaps = in_chunks(term, len(slots), cost=N * n * (N + bank.sample_size))
    return total, count, gaps
