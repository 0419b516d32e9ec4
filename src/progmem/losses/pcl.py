"""PCL, the memory objective (eq. 3): a slot attracts itself in the other view, other series repel.

Slots have no head; they come l2-normalised, before negatives are picked from them.

Shapes: B sequences, N windows, n slots, A = N n anchors a sequence, D width.
"""

import torch
from torch import Tensor

from progmem.losses.pairs import Match, cut, in_pieces
from progmem.ops.sampled_contrast import Bank, repulsion


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
        slots: of both views, (B, N, n, D), normalised like all the others.
        keys: the same sequences' in the other view, (B, N, n, D).
        matched: each window's counterpart, (B, N).
        bank: slots of all sequences. A sequence that none of them may repel has no anchors.

    Equal slots everywhere give log(1 + negatives) an anchor.
    """
    repelled = repulsion(bank, temperature)
    _, N, n, _ = slots.shape

    def term(rows: slice) -> tuple[Tensor, ...]:
        own = cut(slots, rows)
        # every window with every other: a gradient picked from these has one place to go to, one
        # picked from the keys would be summed in any order
        pairs = own.transpose(1, 2) @ cut(keys, rows).permute(0, 2, 3, 1)  # (b, n, N, N)
        place = matched.place[rows, None, :, None].expand(-1, n, -1, -1)
        cosine = pairs.gather(3, place).squeeze(3).mT.flatten(1)  # (b, A)
        push, away = repelled(own.flatten(1, 2), rows)
        found = matched.found[rows].repeat_interleave(n, dim=1) & (push > -float("inf"))
        shares = torch.stack([cosine / temperature, torch.where(found, push, 0.0)]).log_softmax(0)
        told = [torch.ones_like(cosine), cosine.detach() - away]
        sums = torch.where(found, torch.stack([-shares[0], *told]), 0.0).sum(-1)
        return sums.unbind(0)  # (B,) each

    total, count, gaps = in_pieces(term, len(slots), cost=N * n * (N + bank.negatives))
    return total, count, gaps
