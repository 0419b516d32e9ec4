"""Rows of length one, one pass each way.

Shapes: R rows, D width.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from progmem.ops.fused.precompile import kernel
from progmem.ops.fused.tiles import rows_at, tile

ROWS = 4  # of a program
LEAST = tl.constexpr(1e-12)  # a length that counts as zero


def l2_normalize(x: Tensor) -> Tensor:
    """`progmem.ops.layers.l2_normalize`."""
    out: Tensor = _Normalize.apply(x)
    return out


class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        R, D = x.numel() // x.shape[-1], x.shape[-1]
        out, length = torch.empty_like(x), x.new_empty(R, dtype=torch.float32)
        _normalize_forward[(triton.cdiv(R, ROWS),)](x, out, length, R, D, _power(D), ROWS)
        ctx.save_for_backward(out, length)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, back: Tensor) -> Tensor:
        out, length = ctx.saved_tensors
        R, D = len(length), out.shape[-1]
        dx = torch.empty_like(out)
        _normalize_backward[(triton.cdiv(R, ROWS),)](
            out, length, back.contiguous(), dx, R, D, _power(D), ROWS
        )
        return dx


def _power(D: int) -> int:
    return int(triton.next_power_of_2(D))


@kernel("R")
def _normalize_forward(
    x, out, length, R, D: tl.constexpr, D_: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    r, _, at, cell = tile(R, D, D_, ROWS)
    row = rows_at(x, at, cell)
    size = tl.sqrt(tl.sum(row * row, axis=1))
    made = row / tl.maximum(size, LEAST)[:, None]
    tl.store(out + at, made.to(out.dtype.element_ty), mask=cell)
    tl.store(length + r, size, mask=r < R)


@kernel("R")
def _normalize_backward(
    out, length, back, dx, R, D: tl.constexpr, D_: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    r, _, at, cell = tile(R, D, D_, ROWS)
    made, pull = rows_at(out, at, cell), rows_at(back, at, cell)
    size = tl.load(length + r, mask=r < R, other=1.0)
    along = tl.where(size > LEAST, tl.sum(pull * made, axis=1), 0.0)  # a bound does not turn
    pull = (pull - made * along[:, None]) / tl.maximum(size, LEAST)[:, None]
    tl.store(dx + at, pull.to(dx.dtype.element_ty), mask=cell)
