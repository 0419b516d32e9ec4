"""Anchors against drawn negatives that are never laid out: log sum_n e^{s_n / tau} and mean s_n.

Consecutive sequences meet consecutive, overlapping stretches of one shuffled pool, so the
similarities of all anchors are a band of the matrix (anchors x places of the pool). A program takes
a block of anchors over the places that its sequences meet; backward, d(anchors) goes the same way
and d(bank) takes a block of places over the anchors that met it. Every row is written once.

Similarities are kept for backward. Their products are of float32 split into three of the tensor
cores' (tf32x3): a similarity of unit vectors is right to about 1e-6, as in plain float32. Backward,
every factor is split beforehand into two bf16 numbers, which keeps 16 bits of it.

Shapes: S sequences of both views here, b of one view, B of the global batch, T anchors a sequence,
P entries a sequence, M negatives, D width, E entries of a view's bank.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from progmem.ops.fused.precompile import kernel
from progmem.ops.fused.tiles import apply
from progmem.ops.sampled_contrast import Bank, Repulsion

TILE, DEPTH, WIDE = 64, 32, 128  # of products: rows and columns, what is summed at once; of D
WARPS, STAGES = 4, 3
ROWS, COLUMNS = 4, 512  # of a program's sums


class _Given(NamedTuple):
    """What the kernels take, dense; a view's anchors meet the other view's bank."""

    anchors: Tensor  # (S, T, D) float32, the sequences from number ``begin`` of both views' 2b
    bank: Tensor  # (2, E, D)
    known: Tensor  # (2, E), entries that exist
    order: Tensor  # (B P,), the entry at each place; sequence i meets places i P .. i P + M - 1
    mask: Tensor  # (b, M)
    temperature: Tensor | float
    first: int  # number of the first own sequence in the global batch
    begin: int
    entries: int  # P


def repulsion(bank: Bank, temperature: float | Tensor) -> Repulsion:
    """`progmem.ops.sampled_contrast.repulsion`."""
    drawn, own = bank.drawn, bank.own

    def of(anchors: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        push, away = apply(
            _Against,
            anchors, bank.vectors, bank.known, drawn.order, drawn.mask[own], temperature,
            own.start, rows.start, drawn.entries,
        )  # fmt: skip
        return push, away

    return of


def supports(bank: Bank, temperature: float | Tensor) -> bool:
    return bank.vectors.dtype == torch.float32


class _Against(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *tensors: Any) -> tuple[Tensor, Tensor]:
        given = _Given(*tensors)
        anchors, bank = given.anchors.contiguous(), given.bank.contiguous()
        given = given._replace(anchors=anchors, bank=bank)
        S, T, _ = anchors.shape
        score = anchors.new_empty(S, T, given.mask.shape[1])
        push, away = anchors.new_empty(S, T), anchors.new_empty(S, T)
        M, sizes, tiles = score.shape[2], _sizes_of(given), _tiles_for(given)
        met = M + triton.cdiv(TILE - 1, T) * given.entries  # most places of a program's anchors
        _scores[(*_anchor_grid(given), triton.cdiv(met, TILE))](
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
        given = _Given(anchors, bank, mask, order, mask, *ctx.settings)
        return *_run_backward(given, score, push, back.contiguous()), *[None] * 7


def _run_backward(
    given: _Given, score: Tensor, push: Tensor, back: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of anchors and bank from those of ``push`` (S, T), with similarities (S, T, M)."""
    anchors, bank, order = given.anchors, given.bank, given.order
    d_anchors, d_bank = torch.empty_like(anchors), torch.empty_like(bank)
    if len(order) < bank.shape[1]:
        d_bank.zero_()  # also of entries that were not drawn
    slopes = score.new_empty(2, *score.shape, dtype=_kind(score))
    M, D = score.shape[2], bank.shape[2]
    rows = score.numel() // M
    tiles = _tiles_for(given) | {"V": WIDE}
    _slopes[(triton.cdiv(rows, ROWS),)](
        score, push, back, *slopes, given.temperature, rows, M, tiles["POINTED"], ROWS, COLUMNS
    )
    chunks = triton.cdiv(D, WIDE)
    of_anchors = _halves(anchors)
    same = bank.data_ptr() == anchors.data_ptr() and bank.numel() == anchors.numel()
    of_bank = of_anchors if same else _halves(bank)  # in one process they are
    _d_anchors[(*_anchor_grid(given), chunks)](
        *slopes, *of_bank, order, d_anchors, *_sizes_of(given),
        **tiles | {"Y": TILE, "num_stages": 2},
    )  # fmt: skip
    _d_bank[(triton.cdiv(len(order), TILE), 2, chunks)](
        *slopes, *of_anchors, order, d_bank, *_sizes_of(given), **tiles
    )
    return d_anchors, d_bank


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """``x`` as the sum of two bf16 tensors."""
    high, low = torch.empty_like(x, dtype=_kind(x)), torch.empty_like(x, dtype=_kind(x))
    _split[(triton.cdiv(x.numel(), 1024),)](x, high, low, x.numel(), C=1024)
    return high, low


def _kind(x: Tensor) -> torch.dtype:
    """Of the halves: Triton's interpreter has no products of bf16."""
    return torch.bfloat16 if x.is_cuda else torch.float32


def _anchor_grid(given: _Given) -> tuple[int, int]:
    S, T, _ = given.anchors.shape
    return triton.cdiv(min(S, len(given.mask)) * T, TILE), 2


def _sizes_of(given: _Given) -> tuple[Any, ...]:
    S, T, _ = given.anchors.shape
    b, M = given.mask.shape
    pool, E = len(given.order), given.bank.shape[1]
    return given.temperature, given.first, given.begin, S, b, pool, E, M, T, given.entries


def _tiles_for(given: _Given) -> dict[str, Any]:
    return {
        "D": given.bank.shape[2], "POINTED": isinstance(given.temperature, Tensor),
        "X": TILE, "Y": DEPTH, "num_warps": WARPS, "num_stages": STAGES,
    }  # fmt: skip


@triton.jit
def _sharpness_of(temperature, POINTED: tl.constexpr):
    if POINTED:
        temperature = tl.load(temperature).to(tl.float32)
    return 1.0 / temperature


@triton.jit
def _block_of(
    block, view, first, begin, S, b, M, T, P, R: tl.constexpr
):  # fmt: skip
    """R anchors of a view: which exist, their rows, own sequences, and the places they meet."""
    low = tl.maximum(begin, view * b)
    count = tl.maximum(tl.minimum(begin + S, (view + 1) * b) - low, 0)  # sequences of the view
    row = block * R + tl.arange(0, R)
    there = row < count * T
    own = low - view * b
    last = tl.minimum((block * R + R - 1) // T, count - 1)
    start = (first + own + block * R // T) * P
    end = (first + own + last) * P + M
    return there, ((low - begin) * T + row).to(tl.int64), own + row // T, start, end


@triton.jit
def _entries_at(order, column, pool):
    """The entries at columns of the band: places beyond the last are the first again."""
    return tl.load(order + column % pool)


@kernel()
def _scores(
    anchors, bank, known, order, mask, score_, temperature, first, begin, S, b, pool, E, M,
    T, P, D: tl.constexpr, POINTED: tl.constexpr, X: tl.constexpr, Y: tl.constexpr,
):  # fmt: skip
    """Similarities, -inf where a negative does not count."""
    view = tl.program_id(1)
    there, row, own, start, end = _block_of(tl.program_id(0), view, first, begin, S, b, M, T, P, X)
    column = start + tl.program_id(2) * X + tl.arange(0, X)
    entry = (1 - view) * E + _entries_at(order, column, pool)
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
    sharpness = _sharpness_of(temperature, POINTED)
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


@triton.jit
def _halve(x, high, low, at, cell):
    """Write ``x`` as the sum of two numbers of bf16."""
    half = x.to(tl.bfloat16).to(tl.float32)
    rest = (x - half).to(tl.bfloat16)
    tl.store(high + at, half.to(high.dtype.element_ty), mask=cell)
    tl.store(low + at, rest.to(low.dtype.element_ty), mask=cell)


@kernel()
def _split(x, high, low, count, C: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * C + tl.arange(0, C)
    cell = at < count
    _halve(tl.load(x + at, mask=cell, other=0.0), high, low, at, cell)


@kernel()
def _slopes(
    score_, push, back, high, low, temperature, rows, M, POINTED: tl.constexpr,
    R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """d(loss)/d(similarity) from d(loss)/d(log sum), in two halves."""
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    sharpness = _sharpness_of(temperature, POINTED)
    norm = tl.load(push + row, mask=row < rows, other=0.0)
    norm = tl.where(norm == float("-inf"), 0.0, norm)
    pull = tl.load(back + row, mask=row < rows, other=0.0) * sharpness
    for start in range(0, M, C):
        m = start + tl.arange(0, C)
        cell = (row < rows)[:, None] & (m < M)[None, :]
        at = row[:, None] * M + m[None, :]
        score = tl.load(score_ + at, mask=cell, other=float("-inf"))
        slope = tl.exp(score * sharpness - norm[:, None]) * pull[:, None]
        _halve(slope, high, low, at, cell)


@kernel()
def _d_anchors(
    slope_high, slope_low, bank_high, bank_low, order, d_anchors, temperature, first, begin, S, b,
    pool, E, M, T, P,
    D: tl.constexpr, POINTED: tl.constexpr, X: tl.constexpr, Y: tl.constexpr,
    V: tl.constexpr,
):  # fmt: skip
    view, e = tl.program_id(1), tl.program_id(2) * V + tl.arange(0, V)
    there, row, own, start, end = _block_of(tl.program_id(0), view, first, begin, S, b, M, T, P, X)
    made = tl.zeros((X, V), tl.float32)
    for at in range(start, end, Y):
        column = at + tl.arange(0, Y)
        m = column[None, :] - (first + own)[:, None] * P
        cell = there[:, None] & (m >= 0) & (m < M)
        slope = row[:, None] * M + m
        high = tl.load(slope_high + slope, mask=cell, other=0.0)
        low = tl.load(slope_low + slope, mask=cell, other=0.0)
        entry = (1 - view) * E + _entries_at(order, column, pool)
        vector = entry[:, None] * D + e[None, :]
        cell = (column < end)[:, None] & (e < D)[None, :]
        k = tl.load(bank_high + vector, mask=cell, other=0.0)
        made = tl.dot(high, k, made)
        made = tl.dot(low, k, made)
        made = tl.dot(high, tl.load(bank_low + vector, mask=cell, other=0.0), made)
    to = d_anchors + row[:, None] * D + e[None, :]
    tl.store(to, made, mask=there[:, None] & (e < D)[None, :])


@kernel()
def _d_bank(
    slope_high, slope_low, anchors_high, anchors_low, order, d_bank, temperature, first, begin, S,
    b, pool, E, M, T, P,
    D: tl.constexpr, POINTED: tl.constexpr, X: tl.constexpr, Y: tl.constexpr,
    V: tl.constexpr,
):  # fmt: skip
    block, view = tl.program_id(0), tl.program_id(1)  # the view that the anchors are of
    e = tl.program_id(2) * V + tl.arange(0, V)
    B = pool // P
    place = block * X + tl.arange(0, X)
    # sequences low .. high meet a place of this block; those before 0 are the last ones
    high = tl.minimum((block * X + X - 1) // P, B - 1)
    low = (block * X + pool - M) // P + 1 - B
    low = tl.maximum(low, high + 1 - B)
    made = tl.zeros((X, V), tl.float32)
    for at in range(low * T, (high + 1) * T, Y):
        number = at - low * T + tl.arange(0, Y)
        i = low + number // T
        own = tl.where(i < 0, i + B, i) - first
        local = view * b + own - begin
        there = (i <= high) & (own >= 0) & (own < b) & (local >= 0) & (local < S)
        row = (local * T + number % T).to(tl.int64)
        m = place[:, None] - (i * P)[None, :]
        m = tl.where(m < 0, m + pool, m)
        cell = there[None, :] & (m < M) & (place < pool)[:, None]
        slope = (row * M)[None, :] + m
        steep = tl.load(slope_high + slope, mask=cell, other=0.0)
        rest = tl.load(slope_low + slope, mask=cell, other=0.0)
        vector = row[:, None] * D + e[None, :]
        cell = there[:, None] & (e < D)[None, :]
        a = tl.load(anchors_high + vector, mask=cell, other=0.0)
        made = tl.dot(steep, a, made)
        made = tl.dot(rest, a, made)
        made = tl.dot(steep, tl.load(anchors_low + vector, mask=cell, other=0.0), made)
    entry = (1 - view) * E + tl.load(order + place, mask=place < pool, other=0)
    to = d_bank + entry[:, None] * D + e[None, :]
    tl.store(to, made, mask=(place < pool)[:, None] & (e < D)[None, :])
