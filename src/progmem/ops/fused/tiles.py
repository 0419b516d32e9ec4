"""What kernels have in common: how autograd is told of them, sums, and parts of kernels over rows.

Shapes: R rows, of which a program has ROWS; D width, D_ the same rounded up to a power of two.
"""

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


class _NoContext:
    """In place of autograd's context where no gradient is wanted: nothing is kept."""

    def save_for_backward(self, *_: Tensor | None) -> None: ...

    def mark_non_differentiable(self, *_: Tensor) -> None: ...


def apply(function: type[torch.autograd.Function], *given: Any) -> Any:
    """``function.apply``; without a gradient its forward pass alone: less work for the host."""
    if torch.is_grad_enabled():
        return function.apply(*given)
    return function.forward(_NoContext(), *given)


def column_sums(x: Tensor) -> Tensor:
    """Sum of ``x`` (R, ...) over its first axis, float32.

    As a product with ones, which the library spreads over the whole GPU.
    """
    rounded = x.dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest"
    if not x.is_cuda or rounded:  # nobody asked for rounded sums
        return x.sum(0, dtype=torch.float32)
    R = len(x)
    ones = _ones(1 << (R - 1).bit_length(), x.dtype, x.device)[:, :R]
    return torch.mm(ones, x.reshape(R, -1), out_dtype=torch.float32).view(x.shape[1:])


@cache
def _ones(rows: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Cached for good: a captured graph keeps reading them."""
    with torch.inference_mode(False):
        return torch.ones(1, rows, dtype=dtype, device=device)


@triton.jit
def tile(R, D: tl.constexpr, D_: tl.constexpr, ROWS: tl.constexpr):
    """A program's rows and columns, where they lie if dense, and which cells are there."""
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, D_)
    return r, c, r[:, None] * D + c[None, :], (r < R)[:, None] & (c < D)[None, :]


@triton.jit
def divided(x, by):
    """x // by and x % by, divided in four bytes: in eight it takes many times as long."""
    x = x.to(tl.int32)
    return (x // by).to(tl.int64), (x % by).to(tl.int64)


@triton.jit
def rows_at(x, at, cell):
    return tl.load(x + at, mask=cell, other=0.0).to(tl.float32)


@triton.jit
def vector(x, c, D: tl.constexpr):
    return tl.load(x + c, mask=c < D, other=0.0).to(tl.float32)


@triton.jit
def row_of(x, c, D: tl.constexpr):
    """A vector as a row, for all rows."""
    return vector(x, c, D)[None, :]


@triton.jit
def normed(x, cell, eps, D: tl.constexpr):
    """Rows, 0 where there is no cell, less their mean and times their scale; mean and scale."""
    mean = tl.sum(x, axis=1) / D
    centred = tl.where(cell, x - mean[:, None], 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, axis=1) / D + eps)
    return centred * scale[:, None], mean, scale


@triton.jit
def layer_norm(x, cell, weight, bias, c, eps, D: tl.constexpr):
    """LN of rows that are 0 where there is no cell; mean and scale."""
    unit, mean, scale = normed(x, cell, eps, D)
    return unit * row_of(weight, c, D) + row_of(bias, c, D), mean, scale


@triton.jit
def norm_pull(pull, unit, scale, D: tl.constexpr):
    """Through a norm: from the gradient of weight * unit, already times the weight."""
    along = tl.sum(pull * unit, axis=1) / D
    level = tl.sum(pull, axis=1) / D
    return scale[:, None] * (pull - level[:, None] - unit * along[:, None])
