"""LayerNorm of rows, fused with a sum before it: one pass over the rows in each direction.

After the functions for autograd come those that write to given buffers, for the scan.

Shapes: R rows, D width.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from progmem.ops.fused.precompile import kernel
from progmem.ops.fused.tiles import (
    apply,
    column_sums,
    divmod32,
    layer_norm_backward,
    load_row_vector,
    load_rows,
    load_vector,
    standardize,
    tile,
)
from progmem.ops.layers import NormWeights

ROWS = 8  # of a program at a time
# A backward pass with the gradients of weight and bias: a warp a row, without synchronisation, the
# next row prefetched; many programs, each with its own partial sums.
SUM_ROWS, PROGRAMS, WARPS, STAGES = 1, 1056, 1, 2


def layer_norm(
    x: Tensor, norm: NormWeights, *, dtype: torch.dtype, segment: Tensor | None = None
) -> Tensor:
    """`progmem.ops.layers.layer_norm`."""
    y: Tensor = apply(_Norm, x, None, None, *norm, segment, dtype, False)
    return y


def norm_residual(
    x: Tensor, norm: NormWeights, *, dtype: torch.dtype, segment: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`progmem.ops.layers.norm_residual`."""
    both: tuple[Tensor, Tensor] = apply(_Norm, x, None, None, *norm, segment, dtype, True)
    return both


def add_norm(
    x: Tensor, more: Tensor, shift: Tensor, norm: NormWeights, *, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """x + more + shift (D,) in the wider type of x and more (..., D), and LN of it in ``dtype``."""
    both: tuple[Tensor, Tensor] = apply(_Norm, x, more, shift, *norm, None, dtype, False)
    return both


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        more: Tensor | None,
        shift: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        eps: float,
        segment: Tensor | None,
        dtype: torch.dtype,
        residual: bool,
    ) -> Tensor | tuple[Tensor, Tensor]:
        x = x if more is not None and are_windows(x) else x.contiguous()
        more = None if more is None else more.contiguous()
        norm = NormWeights(weight, bias, eps)
        total, y, moments = norm_forward(x, more, shift, norm, segment, dtype)
        ctx.types = x.dtype, None if more is None else more.dtype
        ctx.segment = segment is not None
        ctx.save_for_backward(total, weight, bias, moments, shift)
        if more is None and not residual:
            return y
        return (total.detach() if residual else total), y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        total, weight, bias, moments, shift = ctx.saved_tensors
        params = any(ctx.needs_input_grad[2:7])
        dx, d_more, sums = norm_backward(
            total, weight, moments, grads[-1].contiguous(),
            None if len(grads) == 1 else grads[0].contiguous(), *ctx.types, params=params,
        )  # fmt: skip
        dw = db = d_shift = None
        if params:
            dw, db, d_shift = column_sums(sums)
            dw, db = dw.to(weight.dtype), db.to(bias.dtype)
            d_shift = None if shift is None else d_shift.to(shift.dtype)
        return dx, d_more, d_shift, dw, db, None, db if ctx.segment else None, None, None


def run_forward(x: Tensor, norm: NormWeights, *, out: Tensor, moments: Tensor) -> None:
    """Write LN(x) and the moments (2, R) of ``x`` (R, D)."""
    _launch_forward(x, None, None, norm, None, x, out, moments)


def run_add_forward(
    x: Tensor,
    more: Tensor,
    shift: Tensor,
    norm: NormWeights,
    *,
    total: Tensor,
    out: Tensor,
    moments: Tensor,
) -> None:
    """Write x + more + shift, its LN, its moments (2, R)."""
    _launch_forward(x, more, shift, norm, None, total, out, moments)


def run_add_backward(
    dy: Tensor,
    d_total: Tensor,
    total: Tensor,
    moments: Tensor,
    norm: NormWeights,
    *,
    out: Tensor,
    cast: Tensor,
) -> None:
    """Write the gradient of the sum, in two types."""
    _launch_backward(total, norm.weight, moments, dy, d_total, out, cast, None)


def norm_forward(
    x: Tensor,
    more: Tensor | None,
    shift: Tensor | None,
    norm: NormWeights,
    segment: Tensor | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    total = x
    if more is not None:
        total = x.new_empty(x.shape, dtype=torch.promote_types(x.dtype, more.dtype))
    y = x.new_empty(x.shape, dtype=dtype)
    moments = x.new_empty(2, x.numel() // x.shape[-1], dtype=torch.float32)
    _launch_forward(x, more, shift, norm, segment, total, y, moments)
    return total, y, moments


def _launch_forward(
    x: Tensor,
    more: Tensor | None,
    shift: Tensor | None,
    norm: NormWeights,
    segment: Tensor | None,
    total: Tensor,
    y: Tensor,
    moments: Tensor,
) -> None:
    D = x.shape[-1]
    R = x.numel() // D
    weight, bias, eps = norm
    N, W = x.shape[1:3] if are_windows(x) else (1, 1)
    strides = x.stride()[:3] if are_windows(x) else (D, D, D)
    _norm_forward[(triton.cdiv(R, ROWS),)](
        x, *strides, N, W, x if more is None else more, bias if shift is None else shift,
        weight, bias, bias if segment is None else segment, total, y, moments, R, eps,
        D=D, D_=triton.next_power_of_2(D), ROWS=ROWS,
        ADD=more is not None, SEGMENT=segment is not None,
    )  # fmt: skip


def norm_backward(
    total: Tensor,
    weight: Tensor,
    moments: Tensor,
    dy: Tensor,
    d_total: Tensor | None,
    x_type: torch.dtype,
    more_type: torch.dtype | None,
    *,
    params: bool,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Gradients of x and more, and sums (programs, 3, D) for weight, bias and shift."""
    R, D = total.numel() // total.shape[-1], total.shape[-1]
    dx = torch.empty_like(total, dtype=x_type)
    d_more = dx
    if more_type is not None and more_type != x_type:
        d_more = torch.empty_like(total, dtype=more_type)
    programs = min(PROGRAMS, triton.cdiv(R, SUM_ROWS)) if params else 0
    sums = dx.new_empty(programs, 3, D, dtype=torch.float32)
    _launch_backward(total, weight, moments, dy, d_total, dx, d_more, sums if params else None)
    return dx, None if more_type is None else d_more, sums


def are_windows(x: Tensor) -> bool:
    """Whether ``x`` (B, N, W, D) is a view of tokens, read as it is."""
    return x.dim() == 4 and x.stride(-1) == 1 and not x.is_contiguous()


def _launch_backward(
    total: Tensor,
    weight: Tensor,
    moments: Tensor,
    dy: Tensor,
    d_total: Tensor | None,
    dx: Tensor,
    d_more: Tensor,
    sums: Tensor | None,
) -> None:
    R, D = total.numel() // total.shape[-1], total.shape[-1]
    rows, warps, stages = (2, 4, 1) if sums is None else (SUM_ROWS, WARPS, STAGES)
    programs = triton.cdiv(R, rows) if sums is None else len(sums)
    _norm_backward[(programs,)](
        total, weight, moments, dy, dy if d_total is None else d_total, dx, d_more,
        dx if sums is None else sums, R, D=D, D_=triton.next_power_of_2(D), ROWS=rows,
        HAS_D_TOTAL=d_total is not None, SEPARATE=d_more is not dx, PARAMS=sums is not None,
        STAGES=stages, num_warps=warps,
    )  # fmt: skip


@kernel("R")
def _norm_forward(
    x, xb, xn, xt, N, W, more, shift, weight, bias, segment, total, y, moments, R, eps,
    D: tl.constexpr, D_: tl.constexpr, ROWS: tl.constexpr,
    ADD: tl.constexpr, SEGMENT: tl.constexpr,
):  # fmt: skip
    r, c, _, cell = tile(R, D, D_, ROWS)
    window, j = divmod32(r, W)
    b, w = divmod32(window, N)
    row = b * xb + w * xn + j * xt
    value = load_rows(x, row[:, None] + c[None, :], cell)
    y_rows, mean, scale = sum_and_norm(
        value, more, shift, weight, bias, segment, total, r, c, cell, eps, D, ADD, SEGMENT
    )
    to = y + r[:, None] * D + c[None, :]
    tl.store(to, y_rows.to(y.dtype.element_ty), mask=cell)
    tl.store(moments + r, mean, mask=r < R)
    tl.store(moments + R + r, scale, mask=r < R)


@triton.jit
def sum_and_norm(
    value, more, shift, weight, bias, segment, total, r, c, cell, eps,
    D: tl.constexpr, ADD: tl.constexpr, SEGMENT: tl.constexpr,
):  # fmt: skip
    """LN of rows, if ADD of their sum with more and shift, kept in total; mean and scale."""
    if ADD:
        at_cell = r[:, None] * D + c[None, :]
        value += load_rows(more, at_cell, cell)
        value += load_row_vector(shift, c, D)
        tl.store(total + at_cell, value.to(total.dtype.element_ty), mask=cell)
    x_hat, mean, scale = standardize(value, cell, eps, D)
    offset = load_vector(bias, c, D)
    if SEGMENT:
        offset += load_vector(segment, c, D)
    return x_hat * load_row_vector(weight, c, D) + offset[None, :], mean, scale


@kernel("R")
def _norm_backward(
    total, weight, moments, dy, d_total, dx, d_more, sums, R,
    D: tl.constexpr, D_: tl.constexpr, ROWS: tl.constexpr,
    HAS_D_TOTAL: tl.constexpr, SEPARATE: tl.constexpr, PARAMS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    c = tl.arange(0, D_)
    w = load_row_vector(weight, c, D)
    dw = tl.zeros((ROWS, D_), tl.float32)
    db = tl.zeros((ROWS, D_), tl.float32)
    d_shift = tl.zeros((ROWS, D_), tl.float32)
    for start in tl.range(program * ROWS, R, tl.num_programs(0) * ROWS, num_stages=STAGES):
        r = (start + tl.arange(0, ROWS)).to(tl.int64)
        cell = (r < R)[:, None] & (c < D)[None, :]
        at_cell = r[:, None] * D + c[None, :]
        # all loads are issued before the first is needed
        x = load_rows(total, at_cell, cell)
        grad = load_rows(dy, at_cell, cell)
        if HAS_D_TOTAL:
            from_total = load_rows(d_total, at_cell, cell)
        mean = tl.load(moments + r, mask=r < R, other=0.0)
        scale = tl.load(moments + R + r, mask=r < R, other=0.0)
        x_hat = tl.where(cell, (x - mean[:, None]) * scale[:, None], 0.0)
        if PARAMS:
            dw += grad * x_hat
            db += grad
        d_sum = layer_norm_backward(grad * w, x_hat, scale, D)
        if HAS_D_TOTAL:
            d_sum += from_total
            if PARAMS:
                d_shift += tl.where(cell, d_sum, 0.0)
        tl.store(dx + at_cell, d_sum.to(dx.dtype.element_ty), mask=cell)
        if SEPARATE:
            tl.store(d_more + at_cell, d_sum.to(d_more.dtype.element_ty), mask=cell)
    if PARAMS:
        at = sums + program * 3 * D + c
        tl.store(at, tl.sum(dw, axis=0), mask=c < D)
        tl.store(at + D, tl.sum(db, axis=0), mask=c < D)
        tl.store(at + 2 * D, tl.sum(d_shift, axis=0), mask=c < D)
