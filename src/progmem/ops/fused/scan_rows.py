"""The row-wise parts of a step of the scan, between its five products, each in one pass.

Forward, a step is: product, `gate_and_norm`, product, attention, product, norm, product, gelu,
product, `settle`. Backward goes the same way in reverse; what it leaves for the vectors that learn
is summed over all steps in one pass, `scan_sums`: a program takes some rows of one part (of a
norm's, of one slot's, of a quarter of the feed-forward layer's), and one product then adds up what
the programs found.

Shapes: N windows, R = B n rows of slots (B series, n slots), D width.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from progmem.ops.fused.precompile import kernel
from progmem.ops.fused.tiles import (
    column_sums,
    divided,
    layer_norm,
    norm_pull,
    row_of,
    rows_at,
    tile,
)
from progmem.ops.layers import NormWeights

ROWS = 2  # of a program: a step has few rows, and all processors should have some
SUM_ROWS, SUM_PROGRAMS = 8, 64  # of a program at a time; of a part


class Before(NamedTuple):
    """The step before, on the way back: what it is given and what it starts from."""

    own: Tensor  # gradient of its memory by the memory's readers, (B, n, D), slots' rows dense
    nonempty: Tensor  # (B,), whether it wrote
    masked: Tensor  # takes the whole gradient where it wrote, 0 elsewhere, (R, D)
    cast: Tensor  # takes the same, in the products' type


def gate_and_norm(
    z: Tensor,
    state: Tensor,
    moments: Tensor,
    *,
    gate: NormWeights,
    reset: Tensor,
    logit: Tensor,
    norm: NormWeights,
    segment: Tensor,
    carry: Tensor,
    h: Tensor,
    made: Tensor,
) -> None:
    """Write carry = g LN(state) + (1-g) reset with g = sigmoid(z + logit), h = LN(carry) + segment.

    ``moments`` (2, R) are those of ``state`` (R, D), ``made`` takes those of the carry; ``reset``
    and ``logit`` are (n, D).
    """
    R, D = state.shape
    _gate_norm_forward[_grid(R)](
        z, state, moments, gate.weight, gate.bias, reset, logit, norm.weight, norm.bias, segment,
        carry, h, made, R, norm.eps, n=len(reset), **_sizes(D),
    )  # fmt: skip


def gate_and_norm_backward(
    dh: Tensor,
    d_total: Tensor,
    carry: Tensor,
    carry_moments: Tensor,
    z: Tensor,
    state: Tensor,
    moments: Tensor,
    *,
    gate: NormWeights,
    reset: Tensor,
    logit: Tensor,
    norm: NormWeights,
    dz: Tensor,
    da: Tensor,
    d_reset: Tensor,
) -> None:
    """Write the gradients of z, of reset, row by row, and, but for z's part, of LN(state)."""
    R, D = state.shape
    _gate_norm_backward[_grid(R)](
        dh, d_total, carry, carry_moments, norm.weight, z, state, moments, gate.weight, gate.bias,
        reset, logit, dz, da, d_reset, R, n=len(reset), **_sizes(D),
    )  # fmt: skip


def settle(
    total: Tensor,
    y: Tensor,
    bias: Tensor,
    state: Tensor,
    nonempty: Tensor,
    *,
    gate: NormWeights,
    out: Tensor,
    normed: Tensor,
    moments: Tensor,
) -> None:
    """Write total + y + bias, or ``state`` where a window is empty, to ``out``; its LN, moments."""
    R, D = state.shape
    _settle_forward[_grid(R)](
        total, y, bias, state, nonempty.view(torch.uint8), gate.weight, gate.bias,
        out, normed, moments, R, gate.eps, n=R // len(nonempty), **_sizes(D),
    )  # fmt: skip


def begin_backward(last: Before, *, out: Tensor) -> None:
    """Start with the gradient of the last memory, which goes to ``out`` (R, D)."""
    R, D = out.shape
    own, nonempty, masked, cast = last
    _begin_backward[_grid(R)](
        own, own.stride(0), nonempty.view(torch.uint8), out, masked, cast, R,
        n=R // len(nonempty), **_sizes(D),
    )  # fmt: skip


def settle_backward(
    da: Tensor,
    through: Tensor,
    state: Tensor,
    moments: Tensor,
    back: Tensor,
    nonempty: Tensor,
    *,
    gate: NormWeights,
    out: Tensor,
    before: Before | None,
) -> None:
    """dL/dstate from the gradient of LN(state), ``da + through``, and ``back`` where not nonempty.

    ``da`` takes the sum of both, ``out`` the result, and what the step ``before`` starts from.
    """
    R, D = state.shape
    own, own_alive, masked, cast = before or Before(back, nonempty, out, through)
    _settle_backward[_grid(R)](
        da, through, state, moments, gate.weight, back, nonempty.view(torch.uint8), own,
        own.stride(0), own_alive.view(torch.uint8), out, masked, cast, R,
        n=R // len(nonempty), MORE=before is not None, **_sizes(D),
    )  # fmt: skip


def _grid(R: int) -> tuple[int]:
    return (triton.cdiv(R, ROWS),)


def _sizes(D: int) -> dict[str, int]:
    return {"D": D, "D_": triton.next_power_of_2(D), "ROWS": ROWS}


@triton.jit
def _unit(x, moments, r, R, cell):
    mean = tl.load(moments + r, mask=r < R, other=0.0)
    scale = tl.load(moments + R + r, mask=r < R, other=0.0)
    return tl.where(cell, (x - mean[:, None]) * scale[:, None], 0.0), scale


@triton.jit
def _gate(z, logit, at, r, c, cell, n: tl.constexpr, D: tl.constexpr):
    repeated = (r % n)[:, None] * D + c[None, :]
    x = rows_at(z, at, cell) + rows_at(logit, repeated, cell)
    return 1 / (1 + tl.exp(-x)), repeated


@kernel()
def _gate_norm_forward(
    z, state, moments, gate_w, gate_b, reset, logit, norm_w, norm_b, segment,
    carry, h, made, R, eps,
    n: tl.constexpr, D: tl.constexpr, D_: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    r, c, at, cell = tile(R, D, D_, ROWS)
    unit, _ = _unit(rows_at(state, at, cell), moments, r, R, cell)
    a = unit * row_of(gate_w, c, D) + row_of(gate_b, c, D)
    g, repeated = _gate(z, logit, at, r, c, cell, n, D)
    x = tl.where(cell, g * a + (1 - g) * rows_at(reset, repeated, cell), 0.0)
    tl.store(carry + at, x, mask=cell)
    y, mean, scale = layer_norm(x, cell, norm_w, norm_b, c, eps, D)
    y += row_of(segment, c, D)
    tl.store(h + at, y.to(h.dtype.element_ty), mask=cell)
    tl.store(made + r, mean, mask=r < R)
    tl.store(made + R + r, scale, mask=r < R)


@kernel()
def _gate_norm_backward(
    dh, d_total, carry, carry_moments, norm_w, z, state, moments, gate_w, gate_b, reset, logit,
    dz, da, d_reset, R, n: tl.constexpr, D: tl.constexpr, D_: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    r, c, at, cell = tile(R, D, D_, ROWS)
    unit, scale = _unit(rows_at(carry, at, cell), carry_moments, r, R, cell)
    pull = norm_pull(rows_at(dh, at, cell) * row_of(norm_w, c, D), unit, scale, D)
    pull += rows_at(d_total, at, cell)
    unit, _ = _unit(rows_at(state, at, cell), moments, r, R, cell)
    a = unit * row_of(gate_w, c, D) + row_of(gate_b, c, D)
    g, repeated = _gate(z, logit, at, r, c, cell, n, D)
    slope = pull * (a - rows_at(reset, repeated, cell)) * g * (1 - g)
    tl.store(dz + at, slope.to(dz.dtype.element_ty), mask=cell)
    tl.store(da + at, pull * g, mask=cell)
    tl.store(d_reset + at, pull * (1 - g), mask=cell)


@kernel()
def _settle_forward(
    total, y, bias, state, nonempty, gate_w, gate_b, out, normed, moments, R, eps,
    n: tl.constexpr, D: tl.constexpr, D_: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    r, c, at, cell = tile(R, D, D_, ROWS)
    writes = tl.load(nonempty + r // n, mask=r < R, other=0) != 0
    new = rows_at(total, at, cell) + rows_at(y, at, cell) + row_of(bias, c, D)
    x = tl.where(writes[:, None] & cell, new, rows_at(state, at, cell))
    tl.store(out + at, x, mask=cell)
    a, mean, scale = layer_norm(x, cell, gate_w, gate_b, c, eps, D)
    tl.store(normed + at, a.to(normed.dtype.element_ty), mask=cell)
    tl.store(moments + r, mean, mask=r < R)
    tl.store(moments + R + r, scale, mask=r < R)


@triton.jit
def _own_rows(own, step, r, c, cell, n: tl.constexpr, D: tl.constexpr):
    """Rows of (B, n, D) whose series are ``step`` apart."""
    return rows_at(own, (r // n * step + r % n * D)[:, None] + c[None, :], cell)


@triton.jit
def _hand_on(
    pull, nonempty, out, masked, cast, r, at, cell, R, n: tl.constexpr, MORE: tl.constexpr
):
    """Write the gradient of a memory, and what reaches the step that wrote it, in two types."""
    tl.store(out + at, pull, mask=cell)
    if MORE:
        wrote = tl.load(nonempty + r // n, mask=r < R, other=0) != 0
        pull = tl.where(wrote[:, None], pull, 0.0)
        tl.store(masked + at, pull, mask=cell)
        tl.store(cast + at, pull.to(cast.dtype.element_ty), mask=cell)


@kernel()
def _begin_backward(
    later, step, nonempty, out, masked, cast, R,
    n: tl.constexpr, D: tl.constexpr, D_: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    r, c, at, cell = tile(R, D, D_, ROWS)
    pull = _own_rows(later, step, r, c, cell, n, D)
    _hand_on(pull, nonempty, out, masked, cast, r, at, cell, R, n, True)


@kernel()
def _settle_backward(
    da, through, state, moments, gate_w, back, nonempty, own, step, own_alive, out, masked, cast, R,
    n: tl.constexpr, MORE: tl.constexpr, D: tl.constexpr, D_: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    r, c, at, cell = tile(R, D, D_, ROWS)
    unit, scale = _unit(rows_at(state, at, cell), moments, r, R, cell)
    pull = rows_at(da, at, cell) + rows_at(through, at, cell)
    tl.store(da + at, pull, mask=cell)
    pull = norm_pull(pull * row_of(gate_w, c, D), unit, scale, D)
    writes = tl.load(nonempty + r // n, mask=r < R, other=0) != 0
    pull += tl.where(writes[:, None], 0.0, rows_at(back, at, cell))
    if MORE:
        pull += _own_rows(own, step, r, c, cell, n, D)
    _hand_on(pull, own_alive, out, masked, cast, r, at, cell, R, n, MORE)


class NormGradient(NamedTuple):
    """Of a norm: gradient and input (N, R, D), and the moments (N, 2, R) of the input."""

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
    norms: tuple[NormGradient, NormGradient, NormGradient],
    by_slot: tuple[Tensor, Tensor],
    rows: tuple[Tensor, Tensor],
    wide: Tensor,
    slots: int,
) -> Summed:
    """Sums of what three norms, four of (N, R, D) and ``wide`` (N, R, 4D) handed back."""
    N, R, D = rows[0].shape
    parts = 3 + 2 * slots + 2 + 4
    programs = min(SUM_PROGRAMS, triton.cdiv(N * R, SUM_ROWS))
    sums = rows[0].new_empty(programs, parts + 3, D)
    _scan_sums[(programs, parts)](
        *(t for norm in norms for t in norm), *by_slot, *rows, wide, sums, N * R, R,
        n=slots, D=D, D_=triton.next_power_of_2(D), ROWS=SUM_ROWS,
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
