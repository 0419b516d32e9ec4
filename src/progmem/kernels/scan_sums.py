"""Gradients of a step's vectors, from what all steps of the scan handed back: one pass over it all.

A program takes some rows of one part: of a norm's, for its weight and bias; of one slot's; of a
quarter of the feed-forward layer's. One product then adds up what the programs found.

Shapes: N windows, B series, n slots, R = B n rows, D width.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from progmem.kernels.ahead import kernel
from progmem.kernels.row_parts import divided, rows_at
from progmem.kernels.sums import column_sums

ROWS = 8  # of a program at a time
PROGRAMS = 64  # of a part


class OfNorm(NamedTuple):
    """A norm's way back: both (N, R, D), and the moments (N, 2, R) of its input."""

    dy: Tensor
    x: Tensor
    moments: Tensor


class Summed(NamedTuple):
    """Sums over rows, float32."""

    norms: tuple[Tensor, ...]  # weight and bias of each, (D,)
    by_slot: tuple[Tensor, Tensor]  # (n, D)
    rows: tuple[Tensor, Tensor]  # (D,)
    wide: Tensor  # (4D,)


def scan_sums(
    norms: tuple[OfNorm, OfNorm, OfNorm],
    by_slot: tuple[Tensor, Tensor],
    rows: tuple[Tensor, Tensor],
    wide: Tensor,
    slots: int,
) -> Summed:
    """Sums of what three norms, four of (N, R, D) and ``wide`` (N, R, 4D) handed back."""
    N, R, D = rows[0].shape
    parts = 3 + 2 * slots + 2 + 4
    programs = min(PROGRAMS, triton.cdiv(N * R, ROWS))
    sums = rows[0].new_empty(programs, parts + 3, D)
    _scan_sums[(programs, parts)](
        *(t for norm in norms for t in norm), *by_slot, *rows, wide, sums, N * R, R,
        n=slots, D=D, D_=triton.next_power_of_2(D), ROWS=ROWS,
    )  # fmt: skip
    found = column_sums(sums)  # (parts + 3, D): a norm has two
    reset, logit, others = found[6:].split([slots, slots, 6])
    return Summed(tuple(found[:6]), (reset, logit), (others[0], others[1]), others[2:].flatten())


@kernel("total", "R")
def _scan_sums(
    dy_0, x_0, moments_0, dy_1, x_1, moments_1, dy_2, x_2, moments_2, slot_0, slot_1,
    row_0, row_1, wide, sums, total, R,
    n: tl.constexpr, D: tl.constexpr, D_: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(1)
    to = sums + tl.program_id(0).to(tl.int64) * (2 * n + 12) * D
    if part == 0:
        _of_norm(dy_0, x_0, moments_0, to, total, R, D, D_, ROWS)
    elif part == 1:
        _of_norm(dy_1, x_1, moments_1, to + 2 * D, total, R, D, D_, ROWS)
    elif part == 2:
        _of_norm(dy_2, x_2, moments_2, to + 4 * D, total, R, D, D_, ROWS)
    else:
        to += (part + 3) * D
        if part < 3 + n:
            _of_rows(slot_0 + (part - 3) * D, n * D, to, total // n, D, D_, ROWS)
        elif part < 3 + 2 * n:
            _of_rows(slot_1 + (part - 3 - n) * D, n * D, to, total // n, D, D_, ROWS)
        elif part == 3 + 2 * n:
            _of_rows(row_0, D, to, total, D, D_, ROWS)
        elif part == 4 + 2 * n:
            _of_rows(row_1, D, to, total, D, D_, ROWS)
        else:
            _of_rows(wide + (part - 5 - 2 * n) * D, 4 * D, to, total, D, D_, ROWS)


@triton.jit
def _of_norm(dy, x, moments, to, total, R, D: tl.constexpr, D_: tl.constexpr, ROWS: tl.constexpr):
    c = tl.arange(0, D_)
    dw = tl.zeros((ROWS, D_), tl.float32)
    db = tl.zeros((ROWS, D_), tl.float32)
    for start in range(tl.program_id(0) * ROWS, total, tl.num_programs(0) * ROWS):
        r = (start + tl.arange(0, ROWS)).to(tl.int64)
        cell = (r < total)[:, None] & (c < D)[None, :]
        place = r[:, None] * D + c[None, :]
        step, row = divided(r, R)
        at = moments + step * 2 * R + row
        mean = tl.load(at, mask=r < total, other=0.0)
        scale = tl.load(at + R, mask=r < total, other=0.0)
        value, pull = rows_at(x, place, cell), rows_at(dy, place, cell)
        dw += pull * (value - mean[:, None]) * scale[:, None]
        db += pull
    tl.store(to + c, tl.sum(dw, axis=0), mask=c < D)
    tl.store(to + D + c, tl.sum(db, axis=0), mask=c < D)


@triton.jit
def _of_rows(x, step, to, total, D: tl.constexpr, D_: tl.constexpr, ROWS: tl.constexpr):
    c = tl.arange(0, D_)
    made = tl.zeros((ROWS, D_), tl.float32)
    for start in range(tl.program_id(0) * ROWS, total, tl.num_programs(0) * ROWS):
        r = (start + tl.arange(0, ROWS)).to(tl.int64)
        made += rows_at(x, r[:, None] * step + c[None, :], (r < total)[:, None] & (c < D)[None, :])
    tl.store(to + c, tl.sum(made, axis=0), mask=c < D)
