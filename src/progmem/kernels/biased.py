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

from progmem.kernels.ahead import kernel
from progmem.kernels.sums import column_sums

ROWS, COLUMNS = 16, 128  # of a program at a time
PROGRAMS = 264  # of a backward pass, for each block of columns


def gelu(h: Tensor, bias: Tensor) -> Tensor:
    """gelu(h + bias) for ``h`` (..., D)."""
    out: Tensor = _Gelu.apply(h, bias)
    return out


def add(x: Tensor, more: Tensor, bias: Tensor, valid: Tensor | None = None) -> Tensor:
    """x + more + bias, in the wider type of ``x`` and ``more`` (..., D); 0 where not ``valid``."""
    out: Tensor = _Add.apply(x, more, bias, valid)
    return out


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The linear map itself, where nothing follows it; ``x`` and ``weight`` of one type."""
    out: Tensor = _Linear.apply(x.flatten(0, -2), weight, bias)
    return out.view(*x.shape[:-1], -1)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.bias = bias.dtype
        return torch.addmm(bias.to(x.dtype), x, weight.T)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, back: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        dx = back @ weight if ctx.needs_input_grad[0] else None
        return dx, back.T @ x, column_sums(back).to(ctx.bias)


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
    fast = h.element_size() == 2
    _gelu_forward[grid](h, bias, out, R, D, ROWS=ROWS, COLUMNS=COLUMNS, FAST=fast)
    return out


def run_gelu_backward(
    h: Tensor, bias: Tensor, back: Tensor, *, out: Tensor, sums: Tensor | None = None
) -> None:
    """Write the gradient of ``h``, and sums (programs, D) for that of the bias."""
    R, D = h.numel() // h.shape[-1], h.shape[-1]
    programs = triton.cdiv(R, ROWS) if sums is None else len(sums)
    _gelu_backward[(programs, triton.cdiv(D, COLUMNS))](
        h, bias, back, out, out if sums is None else sums, R, D, ROWS=ROWS, COLUMNS=COLUMNS,
        PARAMS=sums is not None, FAST=h.element_size() == 2,
    )  # fmt: skip


class _Add(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, more: Tensor, bias: Tensor, valid: Tensor | None) -> Tensor:
        x, more = x.contiguous(), more.contiguous()
        valid = None if valid is None else valid.contiguous().view(torch.uint8)
        out = torch.empty_like(x, dtype=torch.promote_types(x.dtype, more.dtype))
        ctx.types, ctx.bias = (x.dtype, more.dtype), bias.dtype
        R, D = x.numel() // x.shape[-1], x.shape[-1]
        grid = (triton.cdiv(R, ROWS), triton.cdiv(D, COLUMNS))
        _add_forward[grid](
            x, more, bias, x if valid is None else valid, out, R, D, ROWS=ROWS, COLUMNS=COLUMNS,
            MASKED=valid is not None,
        )  # fmt: skip
        ctx.save_for_backward(valid)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, back: Tensor) -> tuple[Tensor | None, ...]:
        (valid,) = ctx.saved_tensors
        back = back.contiguous()
        x_type, more_type = ctx.types
        R, D = back.numel() // back.shape[-1], back.shape[-1]
        dx = back
        if valid is not None or x_type != back.dtype:
            dx = torch.empty_like(back, dtype=x_type)
        cast = torch.empty_like(back, dtype=more_type) if more_type != x_type else dx
        needs = ctx.needs_input_grad[2]
        if dx is not back or cast is not back or needs:
            programs = min(PROGRAMS, triton.cdiv(R, ROWS))
            sums = back.new_empty(programs, D, dtype=torch.float32)
            _add_backward[(programs, triton.cdiv(D, COLUMNS))](
                back, back if valid is None else valid, dx, cast, sums, R, D,
                ROWS=ROWS, COLUMNS=COLUMNS, MASKED=valid is not None,
                OWN=dx is not back, CAST=cast is not dx, PARAMS=needs,
            )  # fmt: skip
        return dx, cast, column_sums(sums).to(ctx.bias) if needs else None, None


@triton.jit
def _tile(start, R, D, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    r = (start + tl.arange(0, ROWS)).to(tl.int64)
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    return r[:, None] * D + c[None, :], (r < R)[:, None] & (c < D)[None, :], c


@triton.jit
def _is_valid(valid, start, R, ROWS: tl.constexpr):
    r = start + tl.arange(0, ROWS)
    return (tl.load(valid + r, mask=r < R, other=0) != 0)[:, None]


@triton.jit
def share(x, FAST: tl.constexpr):
    """The normal distribution function, to 5e-7 if FAST, and its derivative: gelu is x times it."""
    density = tl.exp2(x * x * -0.7213475204444817)  # e^{-x^2 / 2}
    if FAST:  # Abramowitz and Stegun, 7.1.26, with what was just computed
        root = tl.rsqrt(1 + 0.2316418882663604 * tl.abs(x))
        t = root * root
        tail = -0.142248368 + t * (0.7107068705 + t * (-0.7265760135 + t * 0.5307027145))
        tail = t * (0.127414796 + t * tail) * density
        made = tl.where(x < 0, tail, 1 - tail)
    else:
        made = 0.5 * (1 + tl.erf(x * 0.7071067811865476))
    return made, density * 0.3989422804014327


@kernel("R")
def _gelu_forward(
    h, bias, out, R, D, ROWS: tl.constexpr, COLUMNS: tl.constexpr, FAST: tl.constexpr
):
    at, cell, c = _tile(tl.program_id(0) * ROWS, R, D, ROWS, COLUMNS)
    x = tl.load(h + at, mask=cell, other=0.0).to(tl.float32)
    x += tl.load(bias + c, mask=c < D, other=0.0).to(tl.float32)[None, :]
    y = x * share(x, FAST)[0]
    tl.store(out + at, y.to(out.dtype.element_ty), mask=cell)


@kernel("R")
def _gelu_backward(
    h, bias, back, dh, sums, R, D,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PARAMS: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    shift = tl.load(bias + c, mask=c < D, other=0.0).to(tl.float32)[None, :]
    for start in range(tl.program_id(0) * ROWS, R, tl.num_programs(0) * ROWS):
        at, cell, _ = _tile(start, R, D, ROWS, COLUMNS)
        x = tl.load(h + at, mask=cell, other=0.0).to(tl.float32) + shift
        pull = tl.load(back + at, mask=cell, other=0.0).to(tl.float32)
        part, density = share(x, FAST)
        pull = pull * (part + x * density)
        total += pull
        tl.store(dh + at, pull.to(dh.dtype.element_ty), mask=cell)
    if PARAMS:
        tl.store(sums + tl.program_id(0) * D + c, tl.sum(total, axis=0), mask=c < D)


@kernel("R")
def _add_forward(
    x, more, bias, valid, out, R, D,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    at, cell, c = _tile(tl.program_id(0) * ROWS, R, D, ROWS, COLUMNS)
    total = tl.load(x + at, mask=cell, other=0.0).to(tl.float32)
    total += tl.load(more + at, mask=cell, other=0.0).to(tl.float32)
    total += tl.load(bias + c, mask=c < D, other=0.0).to(tl.float32)[None, :]
    if MASKED:
        total = tl.where(_is_valid(valid, tl.program_id(0) * ROWS, R, ROWS), total, 0.0)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=cell)


@kernel("R")
def _add_backward(
    back, valid, dx, cast, sums, R, D,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, MASKED: tl.constexpr,
    OWN: tl.constexpr, CAST: tl.constexpr, PARAMS: tl.constexpr,
):  # fmt: skip
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    for start in range(tl.program_id(0) * ROWS, R, tl.num_programs(0) * ROWS):
        at, cell, _ = _tile(start, R, D, ROWS, COLUMNS)
        pull = tl.load(back + at, mask=cell, other=0.0).to(tl.float32)
        if MASKED:
            pull = tl.where(_is_valid(valid, start, R, ROWS), pull, 0.0)
        total += pull
        if OWN:
            tl.store(dx + at, pull.to(dx.dtype.element_ty), mask=cell)
        if CAST:
            tl.store(cast + at, pull.to(cast.dtype.element_ty), mask=cell)
    if PARAMS:
        tl.store(sums + tl.program_id(0) * D + c, tl.sum(total, axis=0), mask=c < D)
