"""The negatives' part of a contrastive loss: log sum_n e^{s_n / tau} of each anchor.

A sequence's negatives are consecutive entries of the shuffled bank. They are read as a strided
view of it: only similarities are computed, and no negative is copied.

Shapes: b own sequences, B of the global batch, T anchors a sequence, P entries a sequence, M
negatives, D width, E entries of one view.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from progmem.ops import with_fused

# anchors (s, T, D) and the sequences they belong to -> log-sum-exp and mean similarity, (s, T) each
NegativeLogSumExp = Callable[[Tensor, slice], tuple[Tensor, Tensor]]


class Negatives(NamedTuple):
    """A shuffled pool of entries, and for each sequence M of them that are its anchors' negatives.

    Sequence i takes the M positions of the pool from i P on; the pool is circular.
    """

    order: Tensor  # (B P,), the entry of the key view at each position of the pool
    mask: Tensor  # (B, M): not of this sequence, not overlapping it in time

    @property
    def entries(self) -> int:
        """P: positions of the pool between the negatives of one sequence and those of the next."""
        return len(self.order) // len(self.mask)


class Bank(NamedTuple):
    """Entries of all sequences in both views; anchors of one view are compared with the other's."""

    vectors: Tensor  # (2, E, D), normalised
    valid: Tensor  # (2, E), entries that exist
    negatives: Negatives  # of all B sequences
    own: slice  # the b sequences that the anchors belong to

    @property
    def sample_size(self) -> int:
        """M."""
        return self.negatives.mask.shape[1]


@with_fused(
    "sampled_contrast.negative_logsumexp",
    supports="supports",
    decides=lambda bank, *_, **__: bank.vectors,
)
def negative_logsumexp(bank: Bank, temperature: float | Tensor) -> NegativeLogSumExp:
    """A function of anchors (s, T, D) and of which of the 2b sequences of both views they are.

    It returns, (s, T) each, log sum_n e^{s_n / tau} over each anchor's negatives, -inf if there are
    none, and the mean of s_n without a gradient, 0 if there are none.
    """
    negatives, own, M = bank.negatives, bank.own, bank.sample_size
    b = own.stop - own.start
    pools = [circular(x.index_select(0, negatives.order), M) for x in bank.vectors]
    masks = [
        circular(x[negatives.order], M).unfold(0, M, negatives.entries)[own] & negatives.mask[own]
        for x in bank.valid
    ]  # (b, M) each

    def of_anchors(anchors: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        results, done = [], 0
        for view in (0, 1):
            low, high = (min(max(edge - view * b, 0), b) for edge in (rows.start, rows.stop))
            if low == high:
                continue
            # all anchors are passed on as they are, which spares a copy of their gradient
            some = anchors if high - low == len(anchors) else anchors[done : done + high - low]
            mask = masks[1 - view][low:high]
            results.append(
                _NegativeLogSumExp.apply(  # type: ignore[no-untyped-call]
                    some, pools[1 - view], mask, temperature, own.start + low, negatives.entries
                )
            )
            done += high - low
        negative_lse, negative_sim = (torch.cat(column) for column in zip(*results, strict=True))
        return negative_lse, negative_sim

    return of_anchors


def circular(x: Tensor, count: int) -> Tensor:
    """A pool (B P, ...) with its first ``count`` entries repeated after the last."""
    return torch.cat([x, x[:count]])


class _NegativeLogSumExp(torch.autograd.Function):
    """Each sequence's anchors (s, T, D) against its M entries of the pool (B P + M, D).

    Autograd would keep several tensors of the size of the similarities (s, T, M), and pass over
    them a dozen times; the shares of the negatives are all that backward needs. It would also store
    the gradient of every sequence's entries and then add them up. Here the gradients of sequences
    whose entries do not overlap are added to the pool's in one product; a few such products cover
    all sequences.
    """

    @staticmethod
    def forward(
        ctx: Any,
        anchors: Tensor,
        pool: Tensor,
        mask: Tensor,
        temperature: float | Tensor,
        first: int,
        P: int,
    ) -> tuple[Tensor, Tensor]:
        """Log-sum-exp and mean similarity, (s, T) each; ``mask`` is (s, M)."""
        entries = pool[first * P :].unfold(0, mask.shape[1], P)[: len(anchors)]  # (s, D, M)
        # the lowest number instead of -inf: a sequence without negatives must not give NaN
        floor = pool.new_zeros(mask.shape).masked_fill(~mask, torch.finfo(pool.dtype).min)
        logits = torch.baddbmm(floor[:, None], anchors / temperature, entries)  # (s, T, M)
        shares = F.softmax(logits, dim=-1)
        lse = logits.amax(-1) - shares.amax(-1).log()  # the largest share is e^{max - lse}
        lse = lse.masked_fill(~mask.any(1, keepdim=True), -float("inf"))
        total = mask[:, None].to(pool.dtype) @ entries.mT  # (s, 1, D)
        mean = (anchors @ total.mT).squeeze(2) / mask.sum(1, keepdim=True).clamp(min=1)
        ctx.save_for_backward(anchors, pool, shares)
        ctx.settings = temperature, first, P
        ctx.mark_non_differentiable(mean)
        return lse, mean

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_lse: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        anchors, pool, shares = ctx.saved_tensors
        temperature, first, P = ctx.settings
        M = shares.shape[2]
        d_similarity = shares * (d_lse / temperature)[..., None]
        d_anchors = d_similarity @ pool[first * P :].unfold(0, M, P)[: len(anchors)].mT
        d_pool = torch.zeros_like(pool)
        step = -(-M // P)  # sequences until the next one whose entries do not overlap
        for i in range(min(step, len(anchors))):
            some = anchors[i::step]
            d_entries = d_pool[(first + i) * P :].unfold(0, M, step * P)[: len(some)]  # (., D, M)
            d_entries.mT.baddbmm_(d_similarity[i::step].mT, some)
        return d_anchors, d_pool, None, None, None, None
