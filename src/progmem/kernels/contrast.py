"""Anchors against drawn negatives that are never laid out: log sum_n e^{s_n / tau} and mean s_n.

Consecutive sequences meet consecutive, overlapping stretches of one shuffled pool, so the
similarities of all anchors are a band of the matrix (anchors x places of the pool). A program takes
a block of anchors over the places that its sequences meet; backward, d(anchors) goes the same way
and d(bank) takes a block of places over the anchors that met it. Every row is written once.

Similarities are kept for backward. Their products are of float32 split into three of the tensor
cores' (tf32x3): a similarity of unit vectors is right to about 1e-6, as in plain float32. Backward,
every factor is split beforehand into two bf16 numbers, which keeps 16 bits of it.

Twin: `progmem.losses.contrast.repulsion_plainly`.

Shapes: S sequences of both views here, b of one view, B of the global batch, T anchors a sequence,
P entries a sequence, M negatives, D width, E entries of a view's bank.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from progmem.kernels.ahead import kernel
from progmem.kernels.contrast_backward import run_backward
from progmem.kernels.contrast_tiles import (
    COLUMNS,
    ROWS,
    TILE,
    Given,
    anchor_grid,
    block_of,
    entries_at,
    sharpness_of,
    sizes_of,
    tiles_for,
)


def against(given: Given) -> tuple[Tensor, Tensor]:
    """(S, T) both; -inf and 0 where no negative counts. The mean has no gradient."""
    push, away = _Against.apply(*given)
    return push, away


class _Against(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *tensors: Any) -> tuple[Tensor, Tensor]:
        given = Given(*tensors)
        anchors, bank = given.anchors.contiguous(), given.bank.contiguous()
        given = given._replace(anchors=anchors, bank=bank)
        S, T, _ = anchors.shape
        score = anchors.new_empty(S, T, given.mask.shape[1])
        push, away = anchors.new_empty(S, T), anchors.new_empty(S, T)
        M, sizes, tiles = score.shape[2], sizes_of(given), tiles_for(given)
        met = M + triton.cdiv(TILE - 1, T) * given.entries  # most places of a program's anchors
        _scores[(*anchor_grid(given), triton.cdiv(met, TILE))](
            anchors, bank, given.known.contiguous().view(torch.uint8), given.order,
            given.mask.contiguous().view(torch.uint8), score, *sizes, **tiles,
        )  # fmt: skip
        _sums[(triton.cdiv(S * T, ROWS),)](
            score, push, away, given.temperature, S * T, M, tiles["POINTED"], ROWS, COLUMNS
        )
        ctx.save_for_backward(anchors, bank, given.order, given.mask, score, push)
        ctx.settings = given[5:]
        ctx.mark_non_differentiable(away)
        return push, away

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, back: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        anchors, bank, order, mask, score, push = ctx.saved_tensors
        given = Given(anchors, bank, mask, order, mask, *ctx.settings)
        return *run_backward(given, score, push, back.contiguous()), *[None] * 7


@kernel()
def _scores(
    anchors, bank, known, order, mask, score_, temperature, first, begin, S, b, pool, E, M,
    T, P, D: tl.constexpr, POINTED: tl.constexpr, X: tl.constexpr, Y: tl.constexpr,
):  # fmt: skip
    """Similarities, -inf where a negative does not count."""
    view = tl.program_id(1)
    there, row, own, start, end = block_of(tl.program_id(0), view, first, begin, S, b, M, T, P, X)
    column = start + tl.program_id(2) * X + tl.arange(0, X)
    entry = (1 - view) * E + entries_at(order, column, pool)
    score = tl.zeros((X, X), tl.float32)
    for chunk in range(0, D, Y):
        e = chunk + tl.arange(0, Y)
        a = tl.load(
            anchors + row[:, None] * D + e[None, :],
            mask=there[:, None] & (e < D)[None, :], other=0.0,
        )  # fmt: skip
        k = tl.load(
            bank + entry[:, None] * D + e[None, :],
            mask=(column < end)[:, None] & (e < D)[None, :], other=0.0,
        )  # fmt: skip
        score = tl.dot(a, tl.trans(k), score, input_precision="tf32x3")
    m = column[None, :] - (first + own)[:, None] * P
    cell = there[:, None] & (m >= 0) & (m < M)
    seen = tl.load(mask + own[:, None] * M + m, mask=cell, other=0) != 0
    seen = seen & (tl.load(known + entry) != 0)[None, :]
    score = tl.where(seen, score, float("-inf"))
    tl.store(score_ + row[:, None] * M + m, score, mask=cell)


@kernel()
def _sums(
    score_, push, away, temperature, rows, M, POINTED: tl.constexpr,
    R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Log sum and mean of each anchor's similarities."""
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    sharpness = sharpness_of(temperature, POINTED)
    most = tl.full((R,), float("-inf"), tl.float32)
    total, sum = tl.zeros((R,), tl.float32), tl.zeros((R,), tl.float32)
    count = tl.zeros((R,), tl.int32)
    for start in range(0, M, C):
        m = start + tl.arange(0, C)
        cell = (row < rows)[:, None] & (m < M)[None, :]
        score = tl.load(score_ + row[:, None] * M + m[None, :], mask=cell, other=float("-inf"))
        seen = score > float("-inf")
        sum += tl.sum(tl.where(seen, score, 0.0), axis=1)
        count += tl.sum(seen.to(tl.int32), axis=1)
        score = score * sharpness
        above = tl.maximum(most, tl.max(score, axis=1))
        level = tl.where(above == float("-inf"), 0.0, above)
        total = total * tl.exp(most - level) + tl.sum(tl.exp(score - level[:, None]), axis=1)
        most = above
    tl.store(push + row, most + tl.log(tl.maximum(total, 1e-30)), mask=row < rows)
    tl.store(away + row, sum / tl.maximum(count, 1), mask=row < rows)
