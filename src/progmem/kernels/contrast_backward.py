"""The way back from log sums over drawn negatives to anchors and bank.

Every factor is split beforehand into two bf16 numbers, which keeps 16 bits of it: the tensor cores
then take three products for one of float32. Every row is written once.

Shapes: S sequences of both views here, b of one view, B of the global batch, T anchors a sequence,
P entries a sequence, M negatives, D width, E entries of a view's bank.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from progmem.kernels.ahead import kernel
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

WIDE = 128  # of D at a time


def run_backward(given: Given, score: Tensor, push: Tensor, back: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of anchors and bank from those of ``push`` (S, T), with similarities (S, T, M)."""
    anchors, bank, order = given.anchors, given.bank, given.order
    d_anchors, d_bank = torch.empty_like(anchors), torch.empty_like(bank)
    if len(order) < bank.shape[1]:
        d_bank.zero_()  # also of entries that were not drawn
    slopes = score.new_empty(2, *score.shape, dtype=_kind(score))
    M, D = score.shape[2], bank.shape[2]
    rows = score.numel() // M
    tiles = tiles_for(given) | {"V": WIDE}
    _slopes[(triton.cdiv(rows, ROWS),)](
        score, push, back, *slopes, given.temperature, rows, M, tiles["POINTED"], ROWS, COLUMNS
    )
    chunks = triton.cdiv(D, WIDE)
    of_anchors = _halves(anchors)
    same = bank.data_ptr() == anchors.data_ptr() and bank.numel() == anchors.numel()
    of_bank = of_anchors if same else _halves(bank)  # in one process they are
    _d_anchors[(*anchor_grid(given), chunks)](
        *slopes, *of_bank, order, d_anchors, *sizes_of(given),
        **tiles | {"Y": TILE, "num_stages": 2},
    )  # fmt: skip
    _d_bank[(triton.cdiv(len(order), TILE), 2, chunks)](
        *slopes, *of_anchors, order, d_bank, *sizes_of(given), **tiles
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
    sharpness = sharpness_of(temperature, POINTED)
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
    there, row, own, start, end = block_of(tl.program_id(0), view, first, begin, S, b, M, T, P, X)
    made = tl.zeros((X, V), tl.float32)
    for at in range(start, end, Y):
        column = at + tl.arange(0, Y)
        m = column[None, :] - (first + own)[:, None] * P
        cell = there[:, None] & (m >= 0) & (m < M)
        slope = row[:, None] * M + m
        high = tl.load(slope_high + slope, mask=cell, other=0.0)
        low = tl.load(slope_low + slope, mask=cell, other=0.0)
        entry = (1 - view) * E + entries_at(order, column, pool)
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
