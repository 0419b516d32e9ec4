"""The row-wise parts of a step of the scan, between its five products, each in one pass.

Forward, a step is: product, `gate_and_norm`, product, attention, product, norm, product, gelu,
product, `update_memory`. Backward is the reverse. The gradients of learned vectors are summed over
the rows of all steps in one pass, `scan_sums`: a program sums some rows for one norm, one slot or
a quarter of the feed-forward layer, and one product then adds up the programs' sums.

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
    divmod32,
    layer_norm,
    layer_norm_backward,
    load_row_vector,
    load_rows,
    tile,
)
from progmem.ops.layers import NormWeights

ROWS = 2  # of a program: a step has few rows, to be spread over all multiprocessors
SUM_ROWS, SUM_PROGRAMS = 8, 64  # of a program at a time; of a part


class PreviousStep(NamedTuple):
    """The step before, in the backward pass: its inputs, and the buffers that it starts from."""

    d_memory: Tensor  # gradient of its memory as an output, (B, n, D), slots' rows dense
    nonempty: Tensor  # (B,), whether it wrote to the memory
    masked: Tensor  # output: the whole gradient where it wrote, 0 elsewhere, (R, D)
    cast: Tensor  # output: the same, in the products' type


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
    carry_moments: Tensor,
) -> None:
    """Write carry = g LN(state) + (1-g) reset with g = sigmoid(z + logit), h = LN(carry) + segment.

    ``moments`` (2, R) are those of ``state`` (R, D); those of the carry are written to
    ``carry_moments``. ``reset`` and ``logit`` are (n, D).
    """
    R, D = state.shape
    _gate_norm_forward[_grid(R)](
        z, state, moments, gate.weight, gate.bias, reset, logit, norm.weight, norm.bias, segment,
        carry, h, carry_moments, R, norm.eps, n=len(reset), **_sizes(D),
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


def update_memory(
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
    _update_memory_forward[_grid(R)](
        total, y, bias, state, nonempty.view(torch.uint8), gate.weight, gate.bias,
        out, normed, moments, R, gate.eps, n=R // len(nonempty), **_sizes(D),
    )  # fmt: skip


def start_backward(last_step: PreviousStep, *, out: Tensor) -> None:
    """Start with the gradient of the last memory, which goes to ``out`` (R, D)."""
    R, D = out.shape
    d_memory, nonempty, masked, cast = last_step
    _start_backward[_grid(R)](
        d_memory, d_memory.stride(0), nonempty.view(torch.uint8), out, masked, cast, R,
        n=R // len(nonempty), **_sizes(D),
    )  # fmt: skip


def update_memory_backward(
    da: Tensor,
    via_gate: Tensor,
    state: Tensor,
    moments: Tensor,
    d_next: Tensor,
    nonempty: Tensor,
    *,
    gate: NormWeights,
    out: Tensor,
    previous: PreviousStep | None,
) -> None:
    """dL/dstate from the gradient of LN(state), ``da + via_gate``, and ``d_next`` of empty windows.

    Writes the sum of both to ``da``, the result to ``out``, and the inputs of step ``previous``.
    """
    R, D = state.shape
    d_memory, previous_nonempty, masked, cast = previous or PreviousStep(
        d_next, nonempty, out, via_gate
    )
    _update_memory_backward[_grid(R)](
        da, via_gate, state, moments, gate.weight, d_next, nonempty.view(torch.uint8), d_memory,
        d_memory.stride(0), previous_nonempty.view(torch.uint8), out, masked, cast, R,
        n=R // len(nonempty), MORE=previous is not None, **_sizes(D),
    )  # fmt: skip


def _grid(R: int) -> tuple[int]:
    return (triton.cdiv(R, ROWS),)


def _sizes(D: int) -> dict[str, int]:
    return {"D": D, "D_": triton.next_power_of_2(D), "ROWS": ROWS}


@triton.jit
def _standardize(x, moments, r, R, cell):
    mean = tl.load(moments + r, mask=r < R, other=0.0)
    scale = tl.load(moments + R + r, mask=r < R, other=0.0)
    return tl.where(cell, (x - mean[:, None]) * scale[:, None], 0.0), scale


@triton.jit
def _gate(z, logit, at, r, c, cell, n: tl.constexpr, D: tl.constexpr):
    repeated = (r % n)[:, None] * D + c[None, :]
    x = load_rows(z, at, cell) + load_rows(logit, repeated, cell)
    return 1 / (1 + tl.exp(-x)), repeated


@kernel()
def _gate_norm_forward(
    z, state, moments, gate_w, gate_b, reset, logit, norm_w, norm_b, segment,
    carry, h, carry_moments, R, eps,
    n: tl.constexpr, D: tl.constexpr, D_: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    r, c, at, cell = tile(R, D, D_, ROWS)
    x_hat, _ = _standardize(load_rows(state, at, cell), moments, r, R, cell)
    a = x_hat * load_row_vector(gate_w, c, D) + load_row_vector(gate_b, c, D)
    g, repeated = _gate(z, logit, at, r, c, cell, n, D)
    x = tl.where(cell, g * a + (1 - g) * load_rows(reset, repeated, cell), 0.0)
    tl.store(carry + at, x, mask=cell)
    y, mean, scale = layer_norm(x, cell, norm_w, norm_b, c, eps, D)
    y += load_row_vector(segment, c, D)
    tl.store(h + at, y.to(h.dtype.element_ty), mask=cell)
    tl.store(carry_moments + r, mean, mask=r < R)
    tl.store(carry_moments + R + r, scale, mask=r < R)


@kernel()
def _gate_norm_backward(
    dh, d_total, carry, carry_moments, norm_w, z, state, moments, gate_w, gate_b, reset, logit,
    dz, da, d_reset, R, n: tl.constexpr, D: tl.constexpr, D_: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    r, c, at, cell = tile(R, D, D_, ROWS)
    x_hat, scale = _standardize(load_rows(carry, at, cell), carry_moments, r, R, cell)
    d_norm = load_rows(dh, at, cell) * load_row_vector(norm_w, c, D)
    grad = layer_norm_backward(d_norm, x_hat, scale, D)
    grad += load_rows(d_total, at, cell)
    x_hat, _ = _standardize(load_rows(state, at, cell), moments, r, R, cell)
    a = x_hat * load_row_vector(gate_w, c, D) + load_row_vector(gate_b, c, D)
    g, repeated = _gate(z, logit, at, r, c, cell, n, D)
    d_z = grad * (a - load_rows(reset, repeated, cell)) * g * (1 - g)
    tl.store(dz + at, d_z.to(dz.dtype.element_ty), mask=cell)
    tl.store(da + at, grad * g, mask=cell)
    tl.store(d_reset + at, grad * (1 - g), mask=cell)


@kernel()
def _update_memory_forward(
    total, y, bias, state, nonempty, gate_w, gate_b, out, normed, moments, R, eps,
    n: tl.constexpr, D: tl.constexpr, D_: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    r, c, at, cell = tile(R, D, D_, ROWS)
    is_written = tl.load(nonempty + r // n, mask=r < R, other=0) != 0
    new = load_rows(total, at, cell) + load_rows(y, at, cell) + load_row_vector(bias, c, D)
    x = tl.where(is_written[:, None] & cell, new, load_rows(state, at, cell))
    tl.store(out + at, x, mask=cell)
    a, mean, scale = layer_norm(x, cell, gate_w, gate_b, c, eps, D)
    tl.store(normed + at, a.to(normed.dtype.element_ty), mask=cell)
    tl.store(moments + r, mean, mask=r < R)
    tl.store(moments + R + r, scale, mask=r < R)


@triton.jit
def _load_memory_rows(d_memory, step, r, c, cell, n: tl.constexpr, D: tl.constexpr):
    """Rows of (B, n, D) whose series are ``step`` apart."""
    return load_rows(d_memory, (r // n * step + r % n * D)[:, None] + c[None, :], cell)


@triton.jit
def _store_memory_gradient(
    grad, nonempty, out, masked, cast, r, at, cell, R, n: tl.constexpr, MORE: tl.constexpr
):
    """Write the gradient of a memory, and what reaches the step that wrote it, in two types."""
    tl.store(out + at, grad, mask=cell)
    if MORE:
        wrote = tl.load(nonempty + r // n, mask=r < R, other=0) != 0
        grad = tl.where(wrote[:, None], grad, 0.0)
        tl.store(masked + at, grad, mask=cell)
        tl.store(cast + at, grad.to(cast.dtype.element_ty), mask=cell)


@kernel()
def _start_backward(
    d_last, step, nonempty, out, masked, cast, R,
    n: tl.constexpr, D: tl.constexpr, D_: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    r, c, at, cell = tile(R, D, D_, ROWS)
    grad = _load_memory_rows(d_last, step, r, c, cell, n, D)
    _store_memory_gradient(grad, nonempty, out, masked, cast, r, at, cell, R, n, True)


@kernel()
def _update_memory_backward(
    da, via_gate, state, moments, gate_w, d_next, nonempty, d_memory, step, previous_nonempty, out,
    masked, cast, R,
    n: tl.constexpr, MORE: tl.constexpr, D: tl.constexpr, D_: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    r, c, at, cell = tile(R, D, D_, ROWS)
    x_hat, scale = _standardize(load_rows(state, at, cell), moments, r, R, cell)
    grad = load_rows(da, at, cell) + load_rows(via_gate, at, cell)
    tl.store(da + at, grad, mask=cell)
    grad = layer_norm_backward(grad * load_row_vector(gate_w, c, D), x_hat, scale, D)
    is_written = tl.load(nonempty + r // n, mask=r < R, other=0) != 0
    grad += tl.where(is_written[:, None], 0.0, load_rows(d_next, at, cell))
    if MORE:
        grad += _load_memory_rows(d_memory, step, r, c, cell, n, D)
    _store_memory_gradient(grad, previous_nonempty, out, masked, cast, r, at, cell, R, n, MORE)


class NormGradient(NamedTuple):
    """Of a norm: gradient and input (N, R, D), and the moments (N, 2, R) of the input."""

    dy: Tensor
    x: Tensor
    moments: Tensor


class ScanSums(NamedTuple):
    """Sums over rows, float32."""

    norms: tuple[Tensor, ...]  # weight and bias of each, (D,)
    by_slot: tuple[Tensor, Tensor]  # (n, D)
    rows: tuple[Tensor, Tensor]  # (D,)
    hidden: Tensor  # (4D,)


def scan_sums(
    norms: tuple[NormGradient, NormGradient, NormGradient],
    by_slot: tuple[Tensor, Tensor],
    rows: tuple[Tensor, Tensor],
    hidden: Tensor,
    slots: int,
) -> ScanSums:
    """Sums of the gradients of three norms, four of (N, R, D) and ``hidden`` (N, R, 4D)."""
    N, R, D = rows[0].shape
    parts = 3 + 2 * slots + 2 + 4
    programs = min(SUM_PROGRAMS, triton.cdiv(N * R, SUM_ROWS))
    sums = rows[0].new_empty(programs, parts + 3, D)
    _scan_sums[(programs, parts)](
        *(t for norm in norms for t in norm), *by_slot, *rows, hidden, sums, N * R, R,
        n=slots, D=D, D_=triton.next_power_of_2(D), ROWS=SUM_ROWS,
    )  # fmt: skip
    sums_by_part = column_sums(sums)  # (parts + 3, D): a norm has two
    reset, logit, others = sums_by_part[6:].split([slots, slots, 6])
    biases, hidden_bias = (others[0], others[1]), others[2:].flatten()
    return ScanSums(tuple(sums_by_part[:6]), (reset, logit), biases, hidden_bias)


@kernel("total", "R")
def _scan_sums(
    dy_0, x_0, moments_0, dy_1, x_1, moments_1, dy_2, x_2, moments_2, slot_0, slot_1,
    row_0, row_1, hidden, sums, total, R,
    n: tl.constexpr, D: tl.constexpr, D_: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(1)
    to = sums + tl.program_id(0).to(tl.int64) * (2 * n + 12) * D
    if part == 0:
        _sum_norm(dy_0, x_0, moments_0, to, total, R, D, D_, ROWS)
    elif part == 1:
        _sum_norm(dy_1, x_1, moments_1, to + 2 * D, total, R, D, D_, ROWS)
    elif part == 2:
        _sum_norm(dy_2, x_2, moments_2, to + 4 * D, total, R, D, D_, ROWS)
    else:
        to += (part + 3) * D
        if part < 3 + n:
            _sum_rows(slot_0 + (part - 3) * D, n * D, to, total // n, D, D_, ROWS)
        elif part < 3 + 2 * n:
            _sum_rows(slot_1 + (part - 3 - n) * D, n * D, to, total // n, D, D_, ROWS)
        elif part == 3 + 2 * n:
            _sum_rows(row_0, D, to, total, D, D_, ROWS)
        elif part == 4 + 2 * n:
            _sum_rows(row_1, D, to, total, D, D_, ROWS)
        else:
            _sum_rows(hidden + (part - 5 - 2 * n) * D, 4 * D, to, total, D, D_, ROWS)


@triton.jit
def _sum_norm(dy, x, moments, to, total, R, D: tl.constexpr, D_: tl.constexpr, ROWS: tl.constexpr):
    c = tl.arange(0, D_)
    dw = tl.zeros((ROWS, D_), tl.float32)
    db = tl.zeros((ROWS, D_), tl.float32)
    for start in range(tl.program_id(0) * ROWS, total, tl.num_programs(0) * ROWS):
        r = (start + tl.arange(0, ROWS)).to(tl.int64)
        cell = (r < total)[:, None] & (c < D)[None, :]
        at_cell = r[:, None] * D + c[None, :]
        step, row = divmod32(r, R)
        at = moments + step * 2 * R + row
        mean = tl.load(at, mask=r < total, other=0.0)
        scale = tl.load(at + R, mask=r < total, other=0.0)
        value, grad = load_rows(x, at_cell, cell), load_rows(dy, at_cell, cell)
        dw += grad * (value - mean[:, None]) * scale[:, None]
        db += grad
    tl.store(to + c, tl.sum(dw, axis=0), mask=c < D)
    tl.store(to + D + c, tl.sum(db, axis=0), mask=c < D)


@triton.jit
def _sum_rows(x, step, to, total, D: tl.constexpr, D_: tl.constexpr, ROWS: tl.constexpr):
    c = tl.arange(0, D_)
    acc = tl.zeros((ROWS, D_), tl.float32)
    for start in range(tl.program_id(0) * ROWS, total, tl.num_programs(0) * ROWS):
        r = (start + tl.arange(0, ROWS)).to(tl.int64)
        cell = (r < total)[:, None] & (c < D)[None, :]
        acc += load_rows(x, r[:, None] * step + c[None, :], cell)
    tl.store(to + c, tl.sum(acc, axis=0), mask=c < D)
