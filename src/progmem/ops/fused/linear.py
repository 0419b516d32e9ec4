"""Linear maps fused with what follows them: a bias, a gelu, a sum, a norm.

The bias is added after the product, not in it: the backward pass over the rows then also computes
its gradient. For the steps of the scan, whose rows are few, a product and the gelu after it are one
kernel, which saves the time between kernels.

Shapes: R rows, D width; of a product K inner size, C columns.
"""

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from progmem.ops import compute_dtype
from progmem.ops.fused.norm import add_norm
from progmem.ops.fused.precompile import kernel
from progmem.ops.fused.tiles import apply, column_sums
from progmem.ops.layers import NormWeights

ROWS, COLUMNS = 16, 128  # of a program at a time
PROGRAMS = 264  # of a backward pass, for each block of columns
# of a product with its gelu: rows, columns, inner size
TILES = {"X": 64, "Y": 64, "Z": 64, "num_warps": 4, "num_stages": 4}


def linear_add_norm(
    x: Tensor, h: Tensor, weight: Tensor, bias: Tensor, norm: NormWeights, *, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """`progmem.ops.layers.linear_add_norm`."""
    return add_norm(x, F.linear(h, weight), bias, norm, dtype=dtype)


def linear_gelu(h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`progmem.ops.layers.linear_gelu`."""
    out: Tensor = apply(_Gelu, F.linear(h, weight), bias)
    return out


def linear_add(
    x: Tensor, h: Tensor, weight: Tensor, bias: Tensor, *, valid: Tensor | None = None
) -> Tensor:
    """`progmem.ops.layers.linear_add`, in the wider type of ``x`` and the product."""
    out: Tensor = apply(_Add, x, F.linear(h, weight), bias, valid)
    return out


def linear(h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`progmem.ops.layers.linear`."""
    dtype = compute_dtype(weight)
    out: Tensor = apply(_Linear, h.to(dtype).flatten(0, -2), weight.to(dtype), bias)
    return out.view(*h.shape[:-1], len(weight))  # there may be no rows


def patch_linear(x: Tensor, weight: Tensor, bias: Tensor, *, stride: int) -> Tensor:
    """`progmem.ops.layers.patch_linear`: one product, whose gradients are summed in one order."""
    patches = x.unfold(1, weight.shape[2], stride).flatten(2)  # (B, K, C patch)
    return linear(patches, weight.flatten(1), bias)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.bias = bias.dtype
        return torch.addmm(bias.to(x.dtype), x, weight.T)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        dx = d_out @ weight if ctx.needs_input_grad[0] else None
        return dx, d_out.T @ x, column_sums(d_out).to(ctx.bias)


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, bias: Tensor) -> Tensor:
        h = h.contiguous()
        ctx.save_for_backward(h, bias)
        return run_gelu_forward(h, bias, out=torch.empty_like(h))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, Tensor | None]:
        h, bias = ctx.saved_tensors
        R, D = h.numel() // h.shape[-1], h.shape[-1]
        dh = torch.empty_like(h)
        sums = h.new_empty(min(PROGRAMS, triton.cdiv(R, ROWS)), D, dtype=torch.float32)
        run_gelu_backward(h, bias, d_out.contiguous(), out=dh, sums=sums)
        return dh, column_sums(sums).to(bias.dtype)


def run_gelu_forward(h: Tensor, bias: Tensor, *, out: Tensor) -> Tensor:
    R, D = h.numel() // h.shape[-1], h.shape[-1]
    grid = (triton.cdiv(R, ROWS), triton.cdiv(D, COLUMNS))
    fast = h.element_size() == 2
    _gelu_forward[grid](h, bias, out, R, D, ROWS=ROWS, COLUMNS=COLUMNS, FAST=fast)
    return out


def run_gelu_backward(
    h: Tensor, bias: Tensor, d_out: Tensor, *, out: Tensor, sums: Tensor | None = None
) -> None:
    """Write the gradient of ``h``, and sums (programs, D) for that of the bias."""
    R, D = h.numel() // h.shape[-1], h.shape[-1]
    programs = triton.cdiv(R, ROWS) if sums is None else len(sums)
    _gelu_backward[(programs, triton.cdiv(D, COLUMNS))](
        h, bias, d_out, out, out if sums is None else sums, R, D, ROWS=ROWS, COLUMNS=COLUMNS,
        PARAMS=sums is not None, FAST=h.element_size() == 2,
    )  # fmt: skip


def matmul_gelu(x: Tensor, weight: Tensor, bias: Tensor, *, hidden: Tensor, out: Tensor) -> None:
    """Write x weight' to ``hidden`` and gelu(hidden + bias) to ``out``; ``weight`` is (C, K).

    Four-byte numbers use the library's product, which is exact.
    """
    if x.element_size() == 2:
        _launch_matmul_gelu(x, weight.T, bias, hidden, out, backward=False)
    else:
        torch.mm(x, weight.T, out=hidden)
        run_gelu_forward(hidden, bias, out=out)


def matmul_gelu_backward(
    x: Tensor, weight: Tensor, bias: Tensor, *, hidden: Tensor, out: Tensor
) -> None:
    """Write x weight times gelu'(hidden + bias) to ``out``; ``weight`` is (K, C)."""
    if x.element_size() == 2:
        _launch_matmul_gelu(x, weight, bias, hidden, out, backward=True)
    else:
        run_gelu_backward(hidden, bias, torch.mm(x, weight), out=out)


def _launch_matmul_gelu(
    x: Tensor, weight: Tensor, bias: Tensor, hidden: Tensor, out: Tensor, *, backward: bool
) -> None:
    (R, K), C = x.shape, weight.shape[1]
    grid = (triton.cdiv(C, TILES["Y"]), triton.cdiv(R, TILES["X"]))
    _matmul_gelu[grid](
        x, weight, *weight.stride(), bias, hidden, out, R, C, K=K, BACKWARD=backward, **TILES
    )


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
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        (valid,) = ctx.saved_tensors
        d_out = d_out.contiguous()
        x_type, more_type = ctx.types
        R, D = d_out.numel() // d_out.shape[-1], d_out.shape[-1]
        dx = d_out
        if valid is not None or x_type != d_out.dtype:
            dx = torch.empty_like(d_out, dtype=x_type)
        cast = torch.empty_like(d_out, dtype=more_type) if more_type != x_type else dx
        needs_bias = ctx.needs_input_grad[2]
        if dx is not d_out or cast is not d_out or needs_bias:
            programs = min(PROGRAMS, triton.cdiv(R, ROWS))
            sums = d_out.new_empty(programs, D, dtype=torch.float32)
            _add_backward[(programs, triton.cdiv(D, COLUMNS))](
                d_out, d_out if valid is None else valid, dx, cast, sums, R, D,
                ROWS=ROWS, COLUMNS=COLUMNS, MASKED=valid is not None,
                OWN=dx is not d_out, CAST=cast is not dx, PARAMS=needs_bias,
            )  # fmt: skip
        return dx, cast, column_sums(sums).to(ctx.bias) if needs_bias else None, None


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
def normal_cdf(x, FAST: tl.constexpr):
    """The normal distribution function, to 5e-7 if FAST, and its derivative; gelu(x) = x cdf(x)."""
    density = tl.exp2(x * x * -0.7213475204444817)  # e^{-x^2 / 2}
    if FAST:  # Abramowitz and Stegun, 7.1.26, which needs the density too
        root = tl.rsqrt(1 + 0.2316418882663604 * tl.abs(x))
        t = root * root
        tail = -0.142248368 + t * (0.7107068705 + t * (-0.7265760135 + t * 0.5307027145))
        tail = t * (0.127414796 + t * tail) * density
        cdf = tl.where(x < 0, tail, 1 - tail)
    else:
        cdf = 0.5 * (1 + tl.erf(x * 0.7071067811865476))
    return cdf, density * 0.3989422804014327


@kernel("R")
def _gelu_forward(
    h, bias, out, R, D, ROWS: tl.constexpr, COLUMNS: tl.constexpr, FAST: tl.constexpr
):
    at, cell, c = _tile(tl.program_id(0) * ROWS, R, D, ROWS, COLUMNS)
    x = tl.load(h + at, mask=cell, other=0.0).to(tl.float32)
    x += tl.load(bias + c, mask=c < D, other=0.0).to(tl.float32)[None, :]
    y = x * normal_cdf(x, FAST)[0]
    tl.store(out + at, y.to(out.dtype.element_ty), mask=cell)


@kernel("R")
def _gelu_backward(
    h, bias, d_out, dh, sums, R, D,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PARAMS: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    shift = tl.load(bias + c, mask=c < D, other=0.0).to(tl.float32)[None, :]
    for start in range(tl.program_id(0) * ROWS, R, tl.num_programs(0) * ROWS):
        at, cell, _ = _tile(start, R, D, ROWS, COLUMNS)
        x = tl.load(h + at, mask=cell, other=0.0).to(tl.float32) + shift
        grad = tl.load(d_out + at, mask=cell, other=0.0).to(tl.float32)
        cdf, density = normal_cdf(x, FAST)
        grad = grad * (cdf + x * density)
        total += grad
        tl.store(dh + at, grad.to(dh.dtype.element_ty), mask=cell)
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
    d_out, valid, dx, cast, sums, R, D,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, MASKED: tl.constexpr,
    OWN: tl.constexpr, CAST: tl.constexpr, PARAMS: tl.constexpr,
):  # fmt: skip
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    for start in range(tl.program_id(0) * ROWS, R, tl.num_programs(0) * ROWS):
        at, cell, _ = _tile(start, R, D, ROWS, COLUMNS)
        grad = tl.load(d_out + at, mask=cell, other=0.0).to(tl.float32)
        if MASKED:
            grad = tl.where(_is_valid(valid, start, R, ROWS), grad, 0.0)
        total += grad
        if OWN:
            tl.store(dx + at, grad.to(dx.dtype.element_ty), mask=cell)
        if CAST:
            tl.store(cast + at, grad.to(cast.dtype.element_ty), mask=cell)
    if PARAMS:
        tl.store(sums + tl.program_id(0) * D + c, tl.sum(total, axis=0), mask=c < D)


@kernel()
def _matmul_gelu(
    x, weight, wk, wc, bias, hidden, out, R, C,
    K: tl.constexpr, BACKWARD: tl.constexpr, X: tl.constexpr, Y: tl.constexpr, Z: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(1).to(tl.int64) * X + tl.arange(0, X)
    c = tl.program_id(0) * Y + tl.arange(0, Y)
    at, cell = r[:, None] * C + c[None, :], (r < R)[:, None] & (c < C)[None, :]
    bias_row = tl.load(bias + c, mask=c < C, other=0.0).to(tl.float32)[None, :]
    if BACKWARD:
        y = tl.load(hidden + at, mask=cell, other=0.0).to(tl.float32) + bias_row
    acc = tl.zeros((X, Y), tl.float32)
    for start in range(0, K, Z):
        k = start + tl.arange(0, Z)
        a = tl.load(
            x + r[:, None] * K + k[None, :], mask=(r < R)[:, None] & (k < K)[None, :], other=0.0
        )
        b = tl.load(
            weight + k[:, None] * wk + c[None, :] * wc,
            mask=(k < K)[:, None] & (c < C)[None, :], other=0.0,
        )  # fmt: skip
        acc = tl.dot(a, b, acc)
    if BACKWARD:
        cdf, density = normal_cdf(y, True)
        acc = acc * (cdf + y * density)
    else:
        rounded = acc.to(hidden.dtype.element_ty)
        tl.store(hidden + at, rounded, mask=cell)
        y = rounded.to(tl.float32) + bias_row
        acc = y * normal_cdf(y, True)[0]
    tl.store(out + at, acc.to(out.dtype.element_ty), mask=cell)
