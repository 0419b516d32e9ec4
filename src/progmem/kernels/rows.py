"""Rows where they lie, forward only: norms and sums of windows in pieces, positions in place.

A piece of the rows goes through a whole layer while it is in the cache, so each kernel takes the
number of its first row; windows are views that no piece has to copy.

Twins: `progmem.model.attention.Norm.before`, `x + more + bias`, `F.gelu(h + bias)`,
`progmem.model.rotary.turned`.

Shapes: B series, N windows, W rows of each, R rows of a piece, D width, T tokens, H heads, d width
of a head.
"""

import triton
import triton.language as tl
from torch import Tensor

from progmem.kernels.ahead import kernel
from progmem.kernels.norm_rows import Normed, sum_and_norm
from progmem.kernels.row_parts import divided, row_of, rows_at, tile

ROWS = 4  # of a program
COLUMNS = 128


def norm(x: Tensor, layer: Normed, *, out: Tensor, segment: Tensor | None = None) -> None:
    """Write LN(x) + segment for ``x`` (B, N, W, D) to ``out`` (B, N W, D), last axes dense."""
    _launch(x, None, None, layer, segment, None, out, 0, x.numel() // x.shape[-1])


def add_norm(
    x: Tensor,
    more: Tensor,
    shift: Tensor,
    layer: Normed,
    *,
    first: int,
    total: Tensor,
    out: Tensor,
) -> None:
    """Write x + more + shift to ``total`` (R, D) and its LN to ``out`` (R, D).

    ``more`` (R, D) belongs to the rows from number ``first`` on of ``x`` (B, N, W, D).
    """
    _launch(x, more, shift, layer, None, total, out[None], first, len(more))


def add(x: Tensor, more: Tensor, bias: Tensor, *, out: Tensor, cast: Tensor | None) -> None:
    """Write x + more + bias, (R, D) each, dense, to ``out`` and in another type to ``cast``."""
    R, D = x.shape
    _add[(triton.cdiv(R, 16), triton.cdiv(D, COLUMNS))](
        x, more, bias, out, out if cast is None else cast, R,
        D=D, ROWS=16, COLUMNS=COLUMNS, CAST=cast is not None,
    )  # fmt: skip


def turn(x: Tensor, cos: Tensor, sin: Tensor, *, heads: int) -> None:
    """Turn the rows of ``x`` (B, T, H d), last axis dense, in place, by (T, d/2)."""
    B, T, D = x.shape
    half = D // heads // 2
    _turn[(triton.cdiv(T, ROWS) * B,)](  # one axis, as the others end at 65,535
        x, x.stride(0), x.stride(1), cos, sin, T, H=heads, half=half,
        H_=triton.next_power_of_2(heads), half_=triton.next_power_of_2(half), ROWS=ROWS,
    )  # fmt: skip


def _launch(
    x: Tensor,
    more: Tensor | None,
    shift: Tensor | None,
    layer: Normed,
    segment: Tensor | None,
    total: Tensor | None,
    out: Tensor,
    first: int,
    count: int,
) -> None:
    _, N, W, D = x.shape
    weight, bias, eps = layer
    _norm[(triton.cdiv(count, ROWS),)](
        x, *x.stride()[:3], x if more is None else more, bias if shift is None else shift,
        weight, bias, bias if segment is None else segment, out if total is None else total,
        out, out.stride(0) if len(out) > 1 else 0, out.stride(1), first, count, eps, N * W, W,
        D=D, D_=triton.next_power_of_2(D), ROWS=ROWS, ADD=more is not None,
        SEGMENT=segment is not None,
    )  # fmt: skip


@kernel("first", "count")
def _norm(
    x, xb, xn, xt, more, shift, weight, bias, segment, total, out, ob, ot, first, count, eps,
    series, W,
    D: tl.constexpr, D_: tl.constexpr, ROWS: tl.constexpr, ADD: tl.constexpr,
    SEGMENT: tl.constexpr,
):  # fmt: skip
    r, c, _, cell = tile(count, D, D_, ROWS)
    b, within = divided(first + r, series)
    w, j = divided(within, W)
    row = b * xb + w * xn + j * xt
    value = rows_at(x, row[:, None] + c[None, :], cell)
    made, _, _ = sum_and_norm(
        value, more, shift, weight, bias, segment, total, r, c, cell, eps, D, ADD, SEGMENT
    )
    to = r * ot if ADD else b * ob + within * ot
    tl.store(out + to[:, None] + c[None, :], made.to(out.dtype.element_ty), mask=cell)


@kernel("R")
def _add(
    x, more, bias, out, cast, R,
    D: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CAST: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    at, cell = r[:, None] * D + c[None, :], (r < R)[:, None] & (c < D)[None, :]
    total = rows_at(x, at, cell) + rows_at(more, at, cell) + row_of(bias, c, D)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=cell)
    if CAST:
        tl.store(cast + at, total.to(cast.dtype.element_ty), mask=cell)


@kernel()
def _turn(
    x, xb, xt, cos, sin, T,
    H: tl.constexpr, half: tl.constexpr, H_: tl.constexpr, half_: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    groups = tl.cdiv(T, ROWS)
    t = tl.program_id(0) % groups * ROWS + tl.arange(0, ROWS)
    h, e = tl.arange(0, H_), tl.arange(0, half_)
    where = (t < T)[:, None] & (e < half)[None, :]
    cell = where[:, None, :] & (h < H)[None, :, None]
    row = (tl.program_id(0) // groups).to(tl.int64) * xb + t.to(tl.int64) * xt
    at = x + row[:, None, None] + (h * 2 * half)[None, :, None] + e[None, None, :]
    a = tl.load(at, mask=cell, other=0.0).to(tl.float32)
    b = tl.load(at + half, mask=cell, other=0.0).to(tl.float32)
    phase = t[:, None] * half + e[None, :]
    c = tl.load(cos + phase, mask=where, other=0.0)[:, None, :]
    s = tl.load(sin + phase, mask=where, other=0.0)[:, None, :]
    tl.store(at, (a * c - b * s).to(x.dtype.element_ty), mask=cell)
    tl.store(at + half, (a * s + b * c).to(x.dtype.element_ty), mask=cell)
