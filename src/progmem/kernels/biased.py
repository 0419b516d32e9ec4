"""What follows a linear map, with its bias: the gelu inside, the sum after a feed-forward layer.

The bias enters here and not in the product, because a backward pass over the rows then gives its
gradient for nothing.

Twins: `F.gelu(h + bias)` and `x + more + bias`.

Shapes: R rows, D width.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from progmem.kernels.sums import column_sums

ROWS, COLUMNS = 16, 128  # of a program at a time
PROGRAMS = 264  # of a backward pass, for each block of columns


def gelu(h: Tensor, bias: Tensor) -> Tensor:
    """gelu(h + bias) for ``h`` (..., D)."""
    out: Tensor = _Gelu.apply(h, bias)
    return out


def add(x: Tensor, more: Tensor, bias: Tensor) -> Tensor:
    """x + more + bias, in the wider type of ``x`` and ``more`` (..., D)."""
    out: Tensor = _Add.apply(x, more, bias)
    return out


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, bias: Tensor) -> Tensor:
        h = h.contiguous()
        ctx.save_for_backward(h, bias)
        return run_gelu_forward(h, bias, out=torch.empty_like(h))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, back: Tensor) -> tuple[Tensor, Tensor | None]:
        h, bias = ctx.saved_tensors
        R, D = h.numel() // h.shape[-1], h.shape[-1]
        dh = torch.empty_like(h)
        sums = h.new_empty(min(PROGRAMS, triton.cdiv(R, ROWS)), D, dtype=torch.float32)
        run_gelu_backward(h, bias, back.contiguous(), out=dh, sums=sums)
        return dh, column_sums(sums).to(bias.dtype)


def run_gelu_forward(h: Tensor, bias: Tensor, *, out: Tensor) -> Tensor:
    R, D = h.numel() // h.shape[-1], h.shape[-1]
    grid = (triton.cdiv(R, ROWS), triton.cdiv(D, COLUMNS))
    _gelu_forward[grid](h, bias, out, R, D, ROWS=ROWS, COLUMNS=COLUMNS)
    return out


def run_gelu_backward(
    h: Tensor, bias: Tensor, back: Tensor, *, out: Tensor, sums: Tensor | None = None
) -> None:
    """Write the gradient of ``h``, and sums (programs, D) for that of the bias."""
    R, D = h.numel() // h.shape[-1], h.shape[-1]
    programs = triton.cdiv(R, ROWS) if sums is None else len(sums)
    _gelu_backward[(programs, triton.cdiv(D, COLUMNS))](
        h, bias, back, out, out if sums is None else sums, R, D, ROWS=ROWS, COLUMNS=COLUMNS,
        PARAMS=sums is not None,
    )  # fmt: skip


class _Add(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, more: Tensor, bias: Tensor) -> Tensor:
        x, more = x.contiguous(), more.contiguous()
        out = torch.empty_like(x, dtype=torch.promote_types(x.dtype, more.dtype))
        ctx.types, ctx.bias = (x.dtype, more.dtype), bias.dtype
        R, D = x.numel() // x.shape[-1], x.shape[-1]
        grid = (triton.cdiv(R, ROWS), triton.cdiv(D, COLUMNS))
        _add_forward[grid](x, more, bias, out, R, D, ROWS=ROWS, COLUMNS=COLUMNS)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, back: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        back = back.contiguous()
        x_type, more_type = ctx.types
        R, D = back.numel() // back.shape[-1], back.shape[-1]
        cast = torch.empty_like(back, dtype=more_type) if more_type != back.dtype else back
        needs = ctx.needs_input_grad[2]
        if cast is not back or needs:
            programs = min(PROGRAMS, triton.cdiv(R, ROWS))
            sums = back.new_empty(programs, D, dtype=torch.float32)
            _add_backward[(programs, triton.cdiv(D, COLUMNS))](
                back, cast, sums, R, D, ROWS=ROWS, COLUMNS=COLUMNS,
                CAST=cast is not back, PARAMS=needs,
            )  # fmt: skip
        return back.to(x_type), cast, column_sums(sums).to(ctx.bias) if needs else None


@triton.jit
def _tile(start, R, D, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    r = (start + tl.arange(0, ROWS)).to(tl.int64)
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    return r[:, None] * D + c[None, :], (r < R)[:, None] & (c < D)[None, :], c


@triton.jit
def _gelu_forward(h, bias, out, R, D, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    at, cell, c = _tile(tl.program_id(0) * ROWS, R, D, ROWS, COLUMNS)
    x = tl.load(h + at, mask=cell, other=0.0).to(tl.float32)
    x += tl.load(bias + c, mask=c < D, other=0.0).to(tl.float32)[None, :]
    y = 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))
    tl.store(out + at, y.to(out.dtype.element_ty), mask=cell)


@triton.jit
def _gelu_backward(
    h, bias, back, dh, sums, R, D,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PARAMS: tl.constexpr,
):  # fmt: skip
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    shift = tl.load(bias + c, mask=c < D, other=0.0).to(tl.float32)[None, :]
    for start in range(tl.program_id(0) * ROWS, R, tl.num_programs(0) * ROWS):
        at, cell, _ = _tile(start, R, D, ROWS, COLUMNS)
        x = tl.load(h + at, mask=cell, other=0.0).to(tl.float32) + shift
        pull = tl.load(back + at, mask=cell, other=0.0).to(tl.float32)
        slope = 0.5 * (1 + tl.erf(x * 0.7071067811865476))
        slope += x * tl.exp(-0.5 * x * x) * 0.3989422804014327
        pull = pull * slope
        total += pull
        tl.store(dh + at, pull.to(dh.dtype.element_ty), mask=cell)
    if PARAMS:
        tl.store(sums + tl.program_id(0) * D + c, tl.sum(total, axis=0), mask=c < D)


@triton.jit
def _add_forward(x, more, bias, out, R, D, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    at, cell, c = _tile(tl.program_id(0) * ROWS, R, D, ROWS, COLUMNS)
    total = tl.load(x + at, mask=cell, other=0.0).to(tl.float32)
    total += tl.load(more + at, mask=cell, other=0.0).to(tl.float32)
    total += tl.load(bias + c, mask=c < D, other=0.0).to(tl.float32)[None, :]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=cell)


@triton.jit
def _add_backward(
    back, cast, sums, R, D,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, CAST: tl.constexpr, PARAMS: tl.constexpr,
):  # fmt: skip
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    for start in range(tl.program_id(0) * ROWS, R, tl.num_programs(0) * ROWS):
        at, cell, _ = _tile(start, R, D, ROWS, COLUMNS)
        pull = tl.load(back + at, mask=cell, other=0.0).to(tl.float32)
        total += pull
        if CAST:
            tl.store(cast + at, pull.to(cast.dtype.element_ty), mask=cell)
    if PARAMS:
        tl.store(sums + tl.program_id(0) * D + c, tl.sum(total, axis=0), mask=c < D)
