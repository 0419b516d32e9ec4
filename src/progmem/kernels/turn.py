"""Rotary positions applied in one pass.

Twin: `progmem.model.rotary.turned`.

Shapes: B and N any batch, H heads, T rows, d width of a head.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from progmem.kernels.ahead import kernel
from progmem.kernels.row_parts import divided

ROWS = 8  # of a program


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``x`` (B, N, H, T, d), last axis dense, turned by (T, d/2); dense like (B, N, T, H, d)."""
    out: Tensor = _Turned.apply(x, cos, sin)
    return out


class _Turned(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _run(x, cos, sin, 1.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, back: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _run(back, cos, sin, -1.0), None, None


def _run(x: Tensor, cos: Tensor, sin: Tensor, way: float) -> Tensor:
    if x.stride(-1) != 1:
        x = x.contiguous()
    B, N, H, T, d = x.shape
    out = x.new_empty(B, N, T, H, d).transpose(2, 3)
    _turn[(triton.cdiv(B * N * T, ROWS),)](
        x, *x.stride()[:4], out, cos, sin, way, B * N * T, N,
        T=T, H=H, half=d // 2, H_=triton.next_power_of_2(H), half_=triton.next_power_of_2(d // 2),
        ROWS=ROWS,
    )  # fmt: skip
    return out


@kernel("R", "N")
def _turn(
    x, xb, xn, xh, xt, out, cos, sin, way, R, N,
    T: tl.constexpr, H: tl.constexpr, half: tl.constexpr,
    H_: tl.constexpr, half_: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    window, t = divided(r, T)
    series, w = divided(window, N)
    h, e = tl.arange(0, H_), tl.arange(0, half_)
    row = series * xb + w * xn + t * xt
    cell = (r < R)[:, None, None] & (h < H)[None, :, None] & (e < half)[None, None, :]
    at = x + row[:, None, None] + h[None, :, None] * xh + e[None, None, :]
    a = tl.load(at, mask=cell, other=0.0).to(tl.float32)
    b = tl.load(at + half, mask=cell, other=0.0).to(tl.float32)
    where = (r < R)[:, None] & (e < half)[None, :]
    phase = t[:, None] * half + e[None, :]
    c = tl.load(cos + phase, mask=where, other=0.0)[:, None, :]
    s = tl.load(sin + phase, mask=where, other=0.0)[:, None, :] * way
    to = out + r[:, None, None] * H * 2 * half + h[None, :, None] * 2 * half + e[None, None, :]
    tl.store(to, (a * c - b * s).to(out.dtype.element_ty), mask=cell)
    tl.store(to + half, (a * s + b * c).to(out.dtype.element_ty), mask=cell)
