"""How much an anchor's negatives repel it: log sum_n e^{s_n / tau}, without gathering them.

A sequence's negatives are consecutive places of the shuffled bank, so all of them are one view of
it, of which only the similarities are made.

Shapes: b own sequences, B of the global batch, T anchors a sequence, P entries a sequence, M
negatives, D width, E entries of one view.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from progmem.ops import with_fused

Repulsion = Callable[[Tensor, slice], tuple[Tensor, Tensor]]


class Negatives(NamedTuple):
    """A shuffled pool, and for each sequence M places of it that its anchors are told apart from.

    Sequence i takes the places from i P on; after the last place comes the first again.
    """

    order: Tensor  # (B P,), at each place an entry of the key view
    mask: Tensor  # (B, M): not of this sequence, not overlapping it in time

    @property
    def entries(self) -> int:
        """P, by which sequences are apart."""
        return len(self.order) // len(self.mask)


class Bank(NamedTuple):
    """Entries of all sequences in both views; the anchors of one view meet those of the other."""

    vectors: Tensor  # (2, E, D), normalised
    known: Tensor  # (2, E), entries that exist
    drawn: Negatives  # of all B sequences
    own: slice  # the b sequences that anchors are of

    @property
    def negatives(self) -> int:
        """M."""
        return self.drawn.mask.shape[1]


@with_fused(
    "sampled_contrast.repulsion", supports="supports", decides=lambda bank, *_, **__: bank.vectors
)
def repulsion(bank: Bank, temperature: float | Tensor) -> Repulsion:
    """A function of anchors (s, T, D) and which of the 2b sequences of both views they are.

    It gives log sum_n e^{s_n / tau} of each anchor, -inf without negatives, and the mean of s_n, 0
    without negatives and without a gradient: (s, T) both.
    """
    drawn, own, M = bank.drawn, bank.own, bank.negatives
    b = own.stop - own.start
    places = [circular(x.index_select(0, drawn.order), M) for x in bank.vectors]
    counted = [
        circular(x[drawn.order], M).unfold(0, M, drawn.entries)[own] & drawn.mask[own]
        for x in bank.known
    ]  # (b, M) each

    def of(anchors: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        found, done = [], 0
        for view in (0, 1):
            low, high = (min(max(edge - view * b, 0), b) for edge in (rows.start, rows.stop))
            if low == high:
                continue
            # all of them as they are: no copy of their gradient then
            some = anchors if high - low == len(anchors) else anchors[done : done + high - low]
            cosine: Tensor = _Similarity.apply(  # type: ignore[no-untyped-call]
                some, places[1 - view], own.start + low, M, drawn.entries
            )
            mask = counted[1 - view][low:high, None]  # (s, 1, M)
            logits = (cosine / temperature).masked_fill(~mask, -float("inf"))
            found.append((torch.logsumexp(logits, dim=-1), _mean(cosine.detach(), mask)))
            done += high - low
        push, away = (torch.cat(column) for column in zip(*found, strict=True))
        return push, away

    return of


def circular(x: Tensor, count: int) -> Tensor:
    """Places (B P, ...) with the first ``count`` once more behind the last."""
    return torch.cat([x, x[:count]])


class _Similarity(torch.autograd.Function):
    """Each sequence's anchors (s, T, D) with its stretch of the places (B P + M, D): (s, T, M).

    Autograd would make the gradient of every stretch and then add them up. Here stretches that do
    not overlap are added to the places' gradient at once, in as many rounds as it takes.
    """

    @staticmethod
    def forward(ctx: Any, anchors: Tensor, places: Tensor, first: int, M: int, P: int) -> Tensor:
        ctx.save_for_backward(anchors, places)
        ctx.settings = first, M, P
        return anchors @ places[first * P :].unfold(0, M, P)[: len(anchors)]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, back: Tensor) -> tuple[Tensor | None, ...]:
        anchors, places = ctx.saved_tensors
        first, M, P = ctx.settings
        d_anchors = back @ places[first * P :].unfold(0, M, P)[: len(anchors)].mT
        d_places = torch.zeros_like(places)
        apart = -(-M // P)  # sequences until the next stretch that does not overlap
        for i in range(min(apart, len(anchors))):
            some = anchors[i::apart]
            to = d_places[(first + i) * P :].unfold(0, M, apart * P)[: len(some)]  # (., D, M)
            to.mT.baddbmm_(back[i::apart].mT, some)
        return d_anchors, d_places, None, None, None


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of the last axis where ``mask``; 0 where there is nothing."""
    return (values * mask).sum(-1) / mask.sum(-1).clamp(min=1)
