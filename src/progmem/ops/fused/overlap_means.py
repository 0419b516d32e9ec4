"""The overlap pool, first half: the mean of a token's copies, and of their taps.

Copies are never laid out: copy r of token t is row t % S + rS of window t // S - r.

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
from progmem.ops.fused.tiles import apply, column_sums, divided

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


def room_for(rows: Tensor, sizes: dict[str, int], dtype: torch.dtype | None = None) -> Tensor:
    """Like ``rows``, to be written by tokens; zeros where some rows have no token."""
    every = (sizes["N"] - 1) * sizes["S"] + sizes["W"] <= sizes["K"]
    return (torch.empty_like if every else torch.zeros_like)(rows, dtype=dtype)


@triton.jit
def place_of(
    token, r, b, exists, B, K, N, W: tl.constexpr, S: tl.constexpr, O: tl.constexpr
):  # fmt: skip
    """Which row of the windows copy r of some tokens is, if it is there, if there is such a row."""
    _, t = divided(token, K)
    w, j = t // S - r, t % S + r * S
    is_row = (token < B * K) & (w >= 0) & (w < N) & (j < W) & (r >= 0) & (r < O)
    there = is_row & (tl.load(exists + token * O + r, mask=is_row, other=0) != 0)
    return (b * N + w) * W + j, there, is_row


@triton.jit
def score_of(q, k, bias, by_width, h, r, there, H: tl.constexpr, O: tl.constexpr):
    """The score of copy r for each token and head, (TOKENS, H); lowest where it is not there."""
    more = tl.load(bias + h * O + r, mask=h < H, other=0.0).to(tl.float32)
    score = tl.sum(q * k, axis=2) * by_width + more[None, :]
    return tl.where(there[:, None], score, -3.0e38)


@triton.jit
def row_at(rows, row, there, inner, inside, step: tl.constexpr):
    at = rows + row[:, None, None] * step + inner[None]
    return tl.load(at, mask=there[:, None, None] & inside[None], other=0.0).to(tl.float32)


def means(
    rows: Tensor, exists: Tensor, taps: Tensor, *, stride: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean of the copies, and in ``dtype`` the mean of their convolution with ``taps``: (B, K, D).

    ``rows`` is (B, N, W, D); ``exists`` (B, K, O) tells the copies that are there. The third result
    is ``rows`` in ``dtype``: that one's gradient is added on the way.
    """
    cast = rows.dtype != dtype
    skip, mixed, other = apply(_Means, rows, exists, taps, stride, dtype, cast)
    return skip, mixed, other if cast else rows


class _Means(torch.autograd.Function):
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
        mixed = torch.empty_like(skip, dtype=dtype)
        sizes = sizes_of(rows, exists, stride, 1)
        grid = (triton.cdiv(B * K, TOKENS),)
        other = room_for(rows, sizes, dtype) if cast else rows.new_empty(0)
        _means_forward[grid](
            rows, exists.view(torch.uint8), taps, skip, mixed, other, B, **sizes, CAST=cast
        )
        ctx.stride = stride
        ctx.save_for_backward(rows, exists, taps)
        return skip, mixed, other

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, d_skip: Tensor, d_mixed: Tensor, d_cast: Tensor
    ) -> tuple[Tensor | None, ...]:
        rows, exists, taps = ctx.saved_tensors
        B, K, _ = exists.shape
        sizes = sizes_of(rows, exists, ctx.stride, 1)
        programs = min(PROGRAMS, triton.cdiv(B * K, TOKENS))
        d_rows = room_for(rows, sizes)
        sums = rows.new_empty(programs, *taps.shape, dtype=torch.float32)
        _means_backward[(programs,)](
            rows, exists.view(torch.uint8), taps, d_skip.contiguous(), d_mixed.contiguous(),
            d_cast.contiguous(), d_rows, sums, B, **sizes, CAST=d_cast.numel() > 0,
        )  # fmt: skip
        return d_rows, None, column_sums(sums).to(taps.dtype), None, None, None


@kernel("B", "K", "N")
def _means_forward(
    rows, exists, taps, skip, mixed, cast, B, K, N,
    W: tl.constexpr, S: tl.constexpr, O: tl.constexpr,
    H: tl.constexpr, d: tl.constexpr, H_: tl.constexpr, d_: tl.constexpr, O_: tl.constexpr,
    TOKENS: tl.constexpr, CAST: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    c = tl.arange(0, d_)  # one head as wide as all
    total, before, after, count = _taps_of(
        rows, exists, cast, token, c, B, K, N, W, S, O, d, d_, TOKENS, CAST
    )
    first = tl.load(taps + c, mask=c < d, other=0.0).to(tl.float32)
    middle = tl.load(taps + d + c, mask=c < d, other=0.0).to(tl.float32)
    third = tl.load(taps + 2 * d + c, mask=c < d, other=0.0).to(tl.float32)
    made = first[None] * before + middle[None] * total + third[None] * after
    place = token[:, None] * d + c[None, :]
    cell = (token < B * K)[:, None] & (c < d)[None, :]
    tl.store(skip + place, (total / count[:, None]).to(skip.dtype.element_ty), mask=cell)
    tl.store(mixed + place, (made / count[:, None]).to(mixed.dtype.element_ty), mask=cell)


@triton.jit
def _taps_of(
    rows, exists, cast, token, c, B, K, N,
    W: tl.constexpr, S: tl.constexpr, O: tl.constexpr,
    d: tl.constexpr, d_: tl.constexpr, TOKENS: tl.constexpr, CAST: tl.constexpr,
):  # fmt: skip
    """Sums over the copies of some tokens: themselves, those before and after one that exists.

    If CAST, the copies are also written to ``cast``, zeros for those that are not there.
    """
    b, _ = divided(token, K)
    total = tl.zeros((TOKENS, d_), tl.float32)
    before = tl.zeros((TOKENS, d_), tl.float32)
    after = tl.zeros((TOKENS, d_), tl.float32)
    last = tl.zeros((TOKENS, d_), tl.float32)
    was = token < 0
    count = tl.zeros((TOKENS,), tl.float32)
    for r in tl.static_range(O):
        row, there, is_row = place_of(token, r, b, exists, B, K, N, W, S, O)
        where = there[:, None] & (c < d)[None, :]
        at = row[:, None] * d + c[None, :]
        copy = tl.load(rows + at, mask=where, other=0.0).to(tl.float32)
        if CAST:
            where = is_row[:, None] & (c < d)[None, :]
            tl.store(cast + at, copy.to(cast.dtype.element_ty), mask=where)
        total += copy
        before += tl.where(there[:, None], last, 0.0)
        after += tl.where(was[:, None], copy, 0.0)
        count += there.to(tl.float32)
        last, was = copy, there
    return total, before, after, tl.maximum(count, 1.0)


@kernel("B", "K", "N")
def _means_backward(
    rows, exists, taps, d_skip, d_mixed, d_cast, d_rows, sums, B, K, N,
    W: tl.constexpr, S: tl.constexpr, O: tl.constexpr,
    H: tl.constexpr, d: tl.constexpr, H_: tl.constexpr, d_: tl.constexpr, O_: tl.constexpr,
    TOKENS: tl.constexpr, CAST: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    c = tl.arange(0, d_)
    first = tl.load(taps + c, mask=c < d, other=0.0).to(tl.float32)
    middle = tl.load(taps + d + c, mask=c < d, other=0.0).to(tl.float32)
    third = tl.load(taps + 2 * d + c, mask=c < d, other=0.0).to(tl.float32)
    d_first = tl.zeros((TOKENS, d_), tl.float32)
    d_middle = tl.zeros((TOKENS, d_), tl.float32)
    d_third = tl.zeros((TOKENS, d_), tl.float32)
    for start in range(program * TOKENS, B * K, tl.num_programs(0) * TOKENS):
        token = (start + tl.arange(0, TOKENS)).to(tl.int64)
        total, before, after, count = _taps_of(
            rows, exists, rows, token, c, B, K, N, W, S, O, d, d_, TOKENS, False
        )
        place = token[:, None] * d + c[None, :]
        cell = (token < B * K)[:, None] & (c < d)[None, :]
        pull = tl.load(d_mixed + place, mask=cell, other=0.0).to(tl.float32) / count[:, None]
        plain = tl.load(d_skip + place, mask=cell, other=0.0).to(tl.float32) / count[:, None]
        d_first += pull * before
        d_middle += pull * total
        d_third += pull * after
        plain += pull * middle[None]
        b, _ = divided(token, K)
        for r in tl.static_range(O):
            row, there, is_row = place_of(token, r, b, exists, B, K, N, W, S, O)
            _, next_there, _ = place_of(token, r + 1, b, exists, B, K, N, W, S, O)
            _, last_there, _ = place_of(token, r - 1, b, exists, B, K, N, W, S, O)
            back = plain + tl.where(next_there[:, None], pull * first[None], 0.0)
            back += tl.where(last_there[:, None], pull * third[None], 0.0)
            back = tl.where(there[:, None], back, 0.0)
            where = is_row[:, None] & (c < d)[None, :]
            at = row[:, None] * d + c[None, :]
            if CAST:
                back += tl.load(d_cast + at, mask=where, other=0.0).to(tl.float32)
            tl.store(d_rows + at, back.to(d_rows.dtype.element_ty), mask=where)
    at = sums + program * 3 * d + c
    tl.store(at, tl.sum(d_first, axis=0), mask=c < d)
    tl.store(at + d, tl.sum(d_middle, axis=0), mask=c < d)
    tl.store(at + 2 * d, tl.sum(d_third, axis=0), mask=c < d)
