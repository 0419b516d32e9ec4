"""log sum_n e^{s_n / tau} and mean s_n over sampled negatives, which are never gathered.

The negatives of consecutive sequences are consecutive, overlapping ranges of one shuffled pool, so
the similarities of all anchors form a band of the matrix (anchors x pool positions). A program
computes a block of anchors against the positions that its sequences sample. In the backward pass
d(anchors) is computed in the same way, and d(bank) by programs that take a block of positions
against the anchors that sampled it. Every row is written once.

Similarities are saved for the backward pass. A float32 product is split into three products on
tensor cores (tf32x3): a similarity of unit vectors is accurate to about 1e-6, as in plain float32.
In the backward pass every factor is split beforehand into two bf16 numbers, which keeps 16 bits.

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
from progmem.ops.sampled_contrast import Bank, NegativeLogSumExp

TILE, DEPTH, WIDE = 64, 32, 128  # of a product: rows and columns, inner size; columns of D
WARPS, STAGES = 4, 3
ROWS, COLUMNS = 4, 512  # block of a reduction over negatives


class _Inputs(NamedTuple):
    """Inputs of the kernels, dense; anchors of a view are compared with the other view's bank."""

    anchors: Tensor  # (S, T, D) float32, the sequences from number ``begin`` of both views' 2b
    bank: Tensor  # (2, E, D)
    valid: Tensor  # (2, E), entries that exist
    order: Tensor  # (B P,), the pool: sequence i samples its positions i P .. i P + M - 1
    mask: Tensor  # (b, M)
    temperature: Tensor | float
    first: int  # number of the first own sequence in the global batch
    begin: int
    entries: int  # P


def negative_logsumexp(bank: Bank, temperature: float | Tensor) -> NegativeLogSumExp:
    """`progmem.ops.sampled_contrast.negative_logsumexp`."""
    negatives, own = bank.negatives, bank.own

    def of_anchors(anchors: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        negative_lse, negative_sim = apply(
            _LogSumExp,
            anchors, bank.vectors, bank.valid, negatives.order, negatives.mask[own], temperature,
            own.start, rows.start, negatives.entries,
        )  # fmt: skip
        return negative_lse, negative_sim

    return of_anchors


def supports(bank: Bank, temperature: float | Tensor) -> bool:
    return bank.vectors.dtype == torch.float32


class _LogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *tensors: Any) -> tuple[Tensor, Tensor]:
        inputs = _Inputs(*tensors)
        anchors, bank = inputs.anchors.contiguous(), inputs.bank.contiguous()
        inputs = inputs._replace(anchors=anchors, bank=bank)
        S, T, _ = anchors.shape
        score = anchors.new_empty(S, T, inputs.mask.shape[1])
        lse, mean_sim = anchors.new_empty(S, T), anchors.new_empty(S, T)
        M, sizes, tiles = score.shape[2], _sizes_of(inputs), _tiles_for(inputs)
        span = (
            M + triton.cdiv(TILE - 1, T) * inputs.entries
        )  # most positions that one program reads
        _scores[(*_anchor_grid(inputs), triton.cdiv(span, TILE))](
            anchors, bank, inputs.valid.contiguous().view(torch.uint8), inputs.order,
            inputs.mask.contiguous().view(torch.uint8), score, *sizes, **tiles,
        )  # fmt: skip
        _logsumexp[(triton.cdiv(S * T, ROWS),)](
            score,
            lse,
            mean_sim,
            inputs.temperature,
            S * T,
            M,
            tiles["TENSOR_TEMPERATURE"],
            ROWS,
            COLUMNS,
        )
        ctx.save_for_backward(anchors, bank, inputs.order, inputs.mask, score, lse)
        ctx.settings = inputs[5:]
        ctx.mark_non_differentiable(mean_sim)
        return lse, mean_sim

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_lse: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        anchors, bank, order, mask, score, lse = ctx.saved_tensors
        inputs = _Inputs(anchors, bank, mask, order, mask, *ctx.settings)
        return *_run_backward(inputs, score, lse, d_lse.contiguous()), *[None] * 7


def _run_backward(
    inputs: _Inputs, score: Tensor, lse: Tensor, d_lse: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of anchors and bank from ``d_lse`` (S, T), with similarities (S, T, M)."""
    anchors, bank, order = inputs.anchors, inputs.bank, inputs.order
    d_anchors, d_bank = torch.empty_like(anchors), torch.empty_like(bank)
    if len(order) < bank.shape[1]:
        d_bank.zero_()  # entries that were not sampled are not written below
    d_scores = score.new_empty(2, *score.shape, dtype=_split_dtype(score))
    M, D = score.shape[2], bank.shape[2]
    rows = score.numel() // M
    tiles = _tiles_for(inputs) | {"V": WIDE}
    _d_scores[(triton.cdiv(rows, ROWS),)](
        score,
        lse,
        d_lse,
        *d_scores,
        inputs.temperature,
        rows,
        M,
        tiles["TENSOR_TEMPERATURE"],
        ROWS,
        COLUMNS,
    )
    chunks = triton.cdiv(D, WIDE)
    of_anchors = _split_bf16(anchors)
    same = bank.data_ptr() == anchors.data_ptr() and bank.numel() == anchors.numel()
    of_bank = of_anchors if same else _split_bf16(bank)  # in one process they are the same
    _d_anchors[(*_anchor_grid(inputs), chunks)](
        *d_scores, *of_bank, order, d_anchors, *_sizes_of(inputs),
        **tiles | {"Y": TILE, "num_stages": 2},
    )  # fmt: skip
    _d_bank[(triton.cdiv(len(order), TILE), 2, chunks)](
        *d_scores, *of_anchors, order, d_bank, *_sizes_of(inputs), **tiles
    )
    return d_anchors, d_bank


def _split_bf16(x: Tensor) -> tuple[Tensor, Tensor]:
    """``x`` as the sum of two bf16 tensors."""
    high, low = (
        torch.empty_like(x, dtype=_split_dtype(x)),
        torch.empty_like(x, dtype=_split_dtype(x)),
    )
    _split[(triton.cdiv(x.numel(), 1024),)](x, high, low, x.numel(), C=1024)
    return high, low


def _split_dtype(x: Tensor) -> torch.dtype:
    """The type of both halves: Triton's interpreter has no products of bf16."""
    return torch.bfloat16 if x.is_cuda else torch.float32


def _anchor_grid(inputs: _Inputs) -> tuple[int, int]:
    S, T, _ = inputs.anchors.shape
    return triton.cdiv(min(S, len(inputs.mask)) * T, TILE), 2


def _sizes_of(inputs: _Inputs) -> tuple[Any, ...]:
    S, T, _ = inputs.anchors.shape
    b, M = inputs.mask.shape
    pool, E = len(inputs.order), inputs.bank.shape[1]
    return inputs.temperature, inputs.first, inputs.begin, S, b, pool, E, M, T, inputs.entries


def _tiles_for(inputs: _Inputs) -> dict[str, Any]:
    return {
        "D": inputs.bank.shape[2], "TENSOR_TEMPERATURE": isinstance(inputs.temperature, Tensor),
        "X": TILE, "Y": DEPTH, "num_warps": WARPS, "num_stages": STAGES,
    }  # fmt: skip


@triton.jit
def _inverse_temperature(temperature, TENSOR_TEMPERATURE: tl.constexpr):
    if TENSOR_TEMPERATURE:
        temperature = tl.load(temperature).to(tl.float32)
    return 1.0 / temperature


@triton.jit
def _block_of(
    block, view, first, begin, S, b, M, T, P, R: tl.constexpr
):  # fmt: skip
    """R anchors of a view: which exist, their rows, sequences, and the positions they sample."""
    low = tl.maximum(begin, view * b)
    count = tl.maximum(tl.minimum(begin + S, (view + 1) * b) - low, 0)  # sequences of the view
    row = block * R + tl.arange(0, R)
    exists = row < count * T
    own = low - view * b
    last = tl.minimum((block * R + R - 1) // T, count - 1)
    start = (first + own + block * R // T) * P
    end = (first + own + last) * P + M
    return exists, ((low - begin) * T + row).to(tl.int64), own + row // T, start, end


@triton.jit
def _entries_at(order, column, pool):
    """The entries at columns of the band; the pool is circular."""
    return tl.load(order + column % pool)


@kernel()
def _scores(
    anchors, bank, valid, order, mask, score_, temperature, first, begin, S, b, pool, E, M,
    T, P, D: tl.constexpr, TENSOR_TEMPERATURE: tl.constexpr, X: tl.constexpr, Y: tl.constexpr,
):  # fmt: skip
    """Similarities, -inf where an entry is not a valid negative."""
    view = tl.program_id(1)
    exists, row, own, start, end = _block_of(tl.program_id(0), view, first, begin, S, b, M, T, P, X)
    column = start + tl.program_id(2) * X + tl.arange(0, X)
    entry = (1 - view) * E + _entries_at(order, column, pool)
    score = tl.zeros((X, X), tl.float32)
    for chunk in range(0, D, Y):
        e = chunk + tl.arange(0, Y)
        a = tl.load(
            anchors + row[:, None] * D + e[None, :],
            mask=exists[:, None] & (e < D)[None, :], other=0.0,
        )  # fmt: skip
        k = tl.load(
            bank + entry[:, None] * D + e[None, :],
            mask=(column < end)[:, None] & (e < D)[None, :], other=0.0,
        )  # fmt: skip
        score = tl.dot(a, tl.trans(k), score, input_precision="tf32x3")
    m = column[None, :] - (first + own)[:, None] * P
    cell = exists[:, None] & (m >= 0) & (m < M)
    counts = tl.load(mask + own[:, None] * M + m, mask=cell, other=0) != 0
    counts = counts & (tl.load(valid + entry) != 0)[None, :]
    score = tl.where(counts, score, float("-inf"))
    tl.store(score_ + row[:, None] * M + m, score, mask=cell)


@kernel()
def _logsumexp(
    score_, lse, mean_sim, temperature, rows, M, TENSOR_TEMPERATURE: tl.constexpr,
    R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Log sum and mean of each anchor's similarities."""
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    inverse_temperature = _inverse_temperature(temperature, TENSOR_TEMPERATURE)
    row_max = tl.full((R,), float("-inf"), tl.float32)
    total, sum = tl.zeros((R,), tl.float32), tl.zeros((R,), tl.float32)
    count = tl.zeros((R,), tl.int32)
    for start in range(0, M, C):
        m = start + tl.arange(0, C)
        cell = (row < rows)[:, None] & (m < M)[None, :]
        score = tl.load(score_ + row[:, None] * M + m[None, :], mask=cell, other=float("-inf"))
        counts = score > float("-inf")
        sum += tl.sum(tl.where(counts, score, 0.0), axis=1)
        count += tl.sum(counts.to(tl.int32), axis=1)
        score = score * inverse_temperature
        new_max = tl.maximum(row_max, tl.max(score, axis=1))
        shift = tl.where(new_max == float("-inf"), 0.0, new_max)
        total = total * tl.exp(row_max - shift) + tl.sum(tl.exp(score - shift[:, None]), axis=1)
        row_max = new_max
    tl.store(lse + row, row_max + tl.log(tl.maximum(total, 1e-30)), mask=row < rows)
    tl.store(mean_sim + row, sum / tl.maximum(count, 1), mask=row < rows)


@triton.jit
def _store_split(x, high, low, at, cell):
    """Store ``x`` as the sum of two bf16 numbers."""
    half = x.to(tl.bfloat16).to(tl.float32)
    low_part = (x - half).to(tl.bfloat16)
    tl.store(high + at, half.to(high.dtype.element_ty), mask=cell)
    tl.store(low + at, low_part.to(low.dtype.element_ty), mask=cell)


@kernel()
def _split(x, high, low, count, C: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * C + tl.arange(0, C)
    cell = at < count
    _store_split(tl.load(x + at, mask=cell, other=0.0), high, low, at, cell)


@kernel()
def _d_scores(
    score_, lse, d_lse, high, low, temperature, rows, M, TENSOR_TEMPERATURE: tl.constexpr,
    R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """d(loss)/d(similarity) from d(loss)/d(log sum), in two halves."""
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    inverse_temperature = _inverse_temperature(temperature, TENSOR_TEMPERATURE)
    norm = tl.load(lse + row, mask=row < rows, other=0.0)
    norm = tl.where(norm == float("-inf"), 0.0, norm)
    scaled_d_lse = tl.load(d_lse + row, mask=row < rows, other=0.0) * inverse_temperature
    for start in range(0, M, C):
        m = start + tl.arange(0, C)
        cell = (row < rows)[:, None] & (m < M)[None, :]
        at = row[:, None] * M + m[None, :]
        score = tl.load(score_ + at, mask=cell, other=float("-inf"))
        d_score = tl.exp(score * inverse_temperature - norm[:, None]) * scaled_d_lse[:, None]
        _store_split(d_score, high, low, at, cell)


@kernel()
def _d_anchors(
    d_score_high, d_score_low, bank_high, bank_low, order, d_anchors, temperature, first, begin, S,
    b, pool, E, M, T, P,
    D: tl.constexpr, TENSOR_TEMPERATURE: tl.constexpr, X: tl.constexpr, Y: tl.constexpr,
    V: tl.constexpr,
):  # fmt: skip
    view, e = tl.program_id(1), tl.program_id(2) * V + tl.arange(0, V)
    exists, row, own, start, end = _block_of(tl.program_id(0), view, first, begin, S, b, M, T, P, X)
    acc = tl.zeros((X, V), tl.float32)
    for at in range(start, end, Y):
        column = at + tl.arange(0, Y)
        m = column[None, :] - (first + own)[:, None] * P
        cell = exists[:, None] & (m >= 0) & (m < M)
        score_at = row[:, None] * M + m
        high = tl.load(d_score_high + score_at, mask=cell, other=0.0)
        low = tl.load(d_score_low + score_at, mask=cell, other=0.0)
        entry = (1 - view) * E + _entries_at(order, column, pool)
        vector = entry[:, None] * D + e[None, :]
        cell = (column < end)[:, None] & (e < D)[None, :]
        k = tl.load(bank_high + vector, mask=cell, other=0.0)
        acc = tl.dot(high, k, acc)
        acc = tl.dot(low, k, acc)
        acc = tl.dot(high, tl.load(bank_low + vector, mask=cell, other=0.0), acc)
    to = d_anchors + row[:, None] * D + e[None, :]
    tl.store(to, acc, mask=exists[:, None] & (e < D)[None, :])


@kernel()
def _d_bank(
    d_score_high, d_score_low, anchors_high, anchors_low, order, d_bank, temperature, first, begin,
    S, b, pool, E, M, T, P,
    D: tl.constexpr, TENSOR_TEMPERATURE: tl.constexpr, X: tl.constexpr, Y: tl.constexpr,
    V: tl.constexpr,
):  # fmt: skip
    block, view = tl.program_id(0), tl.program_id(1)  # the view of the anchors
    e = tl.program_id(2) * V + tl.arange(0, V)
    B = pool // P
    position = block * X + tl.arange(0, X)
    # sequences low .. high sample a position of this block; negative numbers wrap around
    high = tl.minimum((block * X + X - 1) // P, B - 1)
    low = (block * X + pool - M) // P + 1 - B
    low = tl.maximum(low, high + 1 - B)
    acc = tl.zeros((X, V), tl.float32)
    for at in range(low * T, (high + 1) * T, Y):
        number = at - low * T + tl.arange(0, Y)
        i = low + number // T
        own = tl.where(i < 0, i + B, i) - first
        local = view * b + own - begin
        exists = (i <= high) & (own >= 0) & (own < b) & (local >= 0) & (local < S)
        row = (local * T + number % T).to(tl.int64)
        m = position[:, None] - (i * P)[None, :]
        m = tl.where(m < 0, m + pool, m)
        cell = exists[None, :] & (m < M) & (position < pool)[:, None]
        score_at = (row * M)[None, :] + m
        high_part = tl.load(d_score_high + score_at, mask=cell, other=0.0)
        low_part = tl.load(d_score_low + score_at, mask=cell, other=0.0)
        vector = row[:, None] * D + e[None, :]
        cell = exists[:, None] & (e < D)[None, :]
        a = tl.load(anchors_high + vector, mask=cell, other=0.0)
        acc = tl.dot(high_part, a, acc)
        acc = tl.dot(low_part, a, acc)
        acc = tl.dot(high_part, tl.load(anchors_low + vector, mask=cell, other=0.0), acc)
    entry = (1 - view) * E + tl.load(order + position, mask=position < pool, other=0)
    to = d_bank + entry[:, None] * D + e[None, :]
    tl.store(to, acc, mask=(position < pool)[:, None] & (e < D)[None, :])
