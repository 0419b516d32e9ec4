"""The overlap pool, first half: the mean of a token's copies, and of their convolution.

Copies are not stored: copy r of token t is row t % S + rS of window t // S - r.

Shapes: B series, K tokens, N windows, W window, S stride, O copies, D width, H heads, d = D / H;
sizes with _ are rounded up to powers of two.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from progmem.ops.fused.precompile import kernel
from progmem.ops.fused.tiles import apply, column_sums, divmod32

TOKENS = 2  # of a program at a time
PROGRAMS = 528  # of a backward pass, each with its own sums for the weights


def sizes_of(rows: Tensor, exists: Tensor, stride: int, heads: int) -> dict[str, int]:
    _, N, W, D = rows.shape
    K, O = exists.shape[1:]
    d = D // heads
    return {
        "K": K, "N": N, "W": W, "S": stride, "O": O, "H": heads, "d": d,
        "H_": triton.next_power_of_2(heads), "d_": triton.next_power_of_2(d),
        "O_": triton.next_power_of_2(O), "TOKENS": TOKENS,
    }  # fmt: skip


def allocate_rows(rows: Tensor, sizes: dict[str, int], dtype: torch.dtype | None = None) -> Tensor:
    """A buffer like ``rows``; zeros if some rows belong to no token and are never written."""
    every = (sizes["N"] - 1) * sizes["S"] + sizes["W"] <= sizes["K"]
    return (torch.empty_like if every else torch.zeros_like)(rows, dtype=dtype)


@triton.jit
def copy_index(
    token, r, b, exists, B, K, N, W: tl.constexpr, S: tl.constexpr, O: tl.constexpr
):  # fmt: skip
    """The row of the windows that is copy r of some tokens; whether it exists, is a row at all."""
    _, t = divmod32(token, K)
    w, j = t // S - r, t % S + r * S
    is_row = (token < B * K) & (w >= 0) & (w < N) & (j < W) & (r >= 0) & (r < O)
    there = is_row & (tl.load(exists + token * O + r, mask=is_row, other=0) != 0)
    return (b * N + w) * W + j, there, is_row


@triton.jit
def copy_score(q, k, bias, scale, h, r, there, H: tl.constexpr, O: tl.constexpr):
    """The score of copy r for each token and head, (TOKENS, H); very low where there is none."""
    bias_r = tl.load(bias + h * O + r, mask=h < H, other=0.0).to(tl.float32)
    score = tl.sum(q * k, axis=2) * scale + bias_r[None, :]
    return tl.where(there[:, None], score, -3.0e38)


@triton.jit
def load_copy(rows, row, there, inner, inside, step: tl.constexpr):
    at = rows + row[:, None, None] * step + inner[None]
    return tl.load(at, mask=there[:, None, None] & inside[None], other=0.0).to(tl.float32)


def copy_means(
    rows: Tensor, exists: Tensor, taps: Tensor, *, stride: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean of the copies, and in ``dtype`` the mean of their convolution with ``taps``: (B, K, D).

    ``rows`` is (B, N, W, D); ``exists`` (B, K, O) tells the copies that are there. The third result
    is ``rows`` in ``dtype``; backward adds its gradient.
    """
    cast = rows.dtype != dtype
    skip, tap_mean, other = apply(_CopyMeans, rows, exists, taps, stride, dtype, cast)
    return skip, tap_mean, other if cast else rows


class _CopyMeans(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        exists: Tensor,
        taps: Tensor,
        stride: int,
        dtype: torch.dtype,
        cast: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        rows, exists = rows.contiguous(), exists.contiguous()
        B, K, _ = exists.shape
        skip = rows.new_empty(B, K, rows.shape[-1])
        tap_mean = torch.empty_like(skip, dtype=dtype)
        sizes = sizes_of(rows, exists, stride, 1)
        grid = (triton.cdiv(B * K, TOKENS),)
        other = allocate_rows(rows, sizes, dtype) if cast else rows.new_empty(0)
        _means_forward[grid](
            rows, exists.view(torch.uint8), taps, skip, tap_mean, other, B, **sizes, CAST=cast
        )
        ctx.stride = stride
        ctx.save_for_backward(rows, exists, taps)
        return skip, tap_mean, other

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, d_skip: Tensor, d_tap_mean: Tensor, d_cast: Tensor
    ) -> tuple[Tensor | None, ...]:
        rows, exists, taps = ctx.saved_tensors
        B, K, _ = exists.shape
        sizes = sizes_of(rows, exists, ctx.stride, 1)
        programs = min(PROGRAMS, triton.cdiv(B * K, TOKENS))
        d_rows = allocate_rows(rows, sizes)
        sums = rows.new_empty(programs, *taps.shape, dtype=torch.float32)
        _means_backward[(programs,)](
            rows, exists.view(torch.uint8), taps, d_skip.contiguous(), d_tap_mean.contiguous(),
            d_cast.contiguous(), d_rows, sums, B, **sizes, CAST=d_cast.numel() > 0,
        )  # fmt: skip
        return d_rows, None, column_sums(sums).to(taps.dtype), None, None, None


@kernel("B", "K", "N")
def _means_forward(
    rows, exists, taps, skip, tap_mean, cast, B, K, N,
    W: tl.constexpr, S: tl.constexpr, O: tl.constexpr,
    H: tl.constexpr, d: tl.constexpr, H_: tl.constexpr, d_: tl.constexpr, O_: tl.constexpr,
    TOKENS: tl.constexpr, CAST: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    c = tl.arange(0, d_)  # as if there were one head
    total, before, after, count = _taps_of(
        rows, exists, cast, token, c, B, K, N, W, S, O, d, d_, TOKENS, CAST
    )
    first_tap = tl.load(taps + c, mask=c < d, other=0.0).to(tl.float32)
    middle_tap = tl.load(taps + d + c, mask=c < d, other=0.0).to(tl.float32)
    last_tap = tl.load(taps + 2 * d + c, mask=c < d, other=0.0).to(tl.float32)
    tap_sum = first_tap[None] * before + middle_tap[None] * total + last_tap[None] * after
    at_token = token[:, None] * d + c[None, :]
    cell = (token < B * K)[:, None] & (c < d)[None, :]
    tl.store(skip + at_token, (total / count[:, None]).to(skip.dtype.element_ty), mask=cell)
    average = tap_sum / count[:, None]
    tl.store(tap_mean + at_token, average.to(tap_mean.dtype.element_ty), mask=cell)


@triton.jit
def _taps_of(
    rows, exists, cast, token, c, B, K, N,
    W: tl.constexpr, S: tl.constexpr, O: tl.constexpr,
    d: tl.constexpr, d_: tl.constexpr, TOKENS: tl.constexpr, CAST: tl.constexpr,
):  # fmt: skip
    """Sums over the copies of some tokens: themselves, those before and after one that exists.

    If CAST, the copies are also written to ``cast``, zeros for those that are not there.
    """
    b, _ = divmod32(token, K)
    total = tl.zeros((TOKENS, d_), tl.float32)
    before = tl.zeros((TOKENS, d_), tl.float32)
    after = tl.zeros((TOKENS, d_), tl.float32)
    previous = tl.zeros((TOKENS, d_), tl.float32)
    previous_exists = token < 0
    count = tl.zeros((TOKENS,), tl.float32)
    for r in tl.static_range(O):
        row, there, is_row = copy_index(token, r, b, exists, B, K, N, W, S, O)
        where = there[:, None] & (c < d)[None, :]
        at = row[:, None] * d + c[None, :]
        copy = tl.load(rows + at, mask=where, other=0.0).to(tl.float32)
        if CAST:
            where = is_row[:, None] & (c < d)[None, :]
            tl.store(cast + at, copy.to(cast.dtype.element_ty), mask=where)
        total += copy
        before += tl.where(there[:, None], previous, 0.0)
        after += tl.where(previous_exists[:, None], copy, 0.0)
        count += there.to(tl.float32)
        previous, previous_exists = copy, there
    return total, before, after, tl.maximum(count, 1.0)


@kernel("B", "K", "N")
def _means_backward(
    rows, exists, taps, d_skip, d_tap_mean, d_cast, d_rows, sums, B, K, N,
    W: tl.constexpr, S: tl.constexpr, O: tl.constexpr,
    H: tl.constexpr, d: tl.constexpr, H_: tl.constexpr, d_: tl.constexpr, O_: tl.constexpr,
    TOKENS: tl.constexpr, CAST: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    c = tl.arange(0, d_)
    first_tap = tl.load(taps + c, mask=c < d, other=0.0).to(tl.float32)
    middle_tap = tl.load(taps + d + c, mask=c < d, other=0.0).to(tl.float32)
    last_tap = tl.load(taps + 2 * d + c, mask=c < d, other=0.0).to(tl.float32)
    d_first_tap = tl.zeros((TOKENS, d_), tl.float32)
    d_middle_tap = tl.zeros((TOKENS, d_), tl.float32)
    d_last_tap = tl.zeros((TOKENS, d_), tl.float32)
    for start in range(program * TOKENS, B * K, tl.num_programs(0) * TOKENS):
        token = (start + tl.arange(0, TOKENS)).to(tl.int64)
        total, before, after, count = _taps_of(
            rows, exists, rows, token, c, B, K, N, W, S, O, d, d_, TOKENS, False
        )
        at_token = token[:, None] * d + c[None, :]
        cell = (token < B * K)[:, None] & (c < d)[None, :]
        grad = tl.load(d_tap_mean + at_token, mask=cell, other=0.0).to(tl.float32) / count[:, None]
        d_copy = tl.load(d_skip + at_token, mask=cell, other=0.0).to(tl.float32) / count[:, None]
        d_first_tap += grad * before
        d_middle_tap += grad * total
        d_last_tap += grad * after
        d_copy += grad * middle_tap[None]
        b, _ = divmod32(token, K)
        for r in tl.static_range(O):
            row, there, is_row = copy_index(token, r, b, exists, B, K, N, W, S, O)
            _, next_there, _ = copy_index(token, r + 1, b, exists, B, K, N, W, S, O)
            _, previous_there, _ = copy_index(token, r - 1, b, exists, B, K, N, W, S, O)
            d_row = d_copy + tl.where(next_there[:, None], grad * first_tap[None], 0.0)
            d_row += tl.where(previous_there[:, None], grad * last_tap[None], 0.0)
            d_row = tl.where(there[:, None], d_row, 0.0)
            where = is_row[:, None] & (c < d)[None, :]
            at = row[:, None] * d + c[None, :]
            if CAST:
                d_row += tl.load(d_cast + at, mask=where, other=0.0).to(tl.float32)
            tl.store(d_rows + at, d_row.to(d_rows.dtype.element_ty), mask=where)
    at = sums + program * 3 * d + c
    tl.store(at, tl.sum(d_first_tap, axis=0), mask=c < d)
    tl.store(at + d, tl.sum(d_middle_tap, axis=0), mask=c < d)
    tl.store(at + 2 * d, tl.sum(d_last_tap, axis=0), mask=c < d)
