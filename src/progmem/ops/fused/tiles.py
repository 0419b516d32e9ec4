"""What kernels have in common: calling autograd functions, column sums, parts of row kernels.

Shapes: R rows, of which a program has ROWS; D width, D_ the same rounded up to a power of two.
"""

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


class _NoContext:
    """Stands in for autograd's context where no gradient is needed: saves nothing."""

    def save_for_backward(self, *_: Tensor | None) -> None: ...

    def mark_non_differentiable(self, *_: Tensor) -> None: ...


def apply(function: type[torch.autograd.Function], *args: Any) -> Any:
    """``function.apply``; without gradients only its forward, which is less work for the host."""
    if torch.is_grad_enabled():
        return function.apply(*args)
    return function.forward(_NoContext(), *args)


def column_sums(x: Tensor) -> Tensor:
    """Sum of ``x`` (R, ...) over its first axis, float32.

    Computed as a product with ones, which the library spreads over the whole GPU.
    """
    rounded = x.dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest"
    if not x.is_cuda or rounded:  # the product would round to tf32
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
    """A program's rows, columns, offsets of their cells if dense, and the mask of cells."""
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, D_)
    return r, c, r[:, None] * D + c[None, :], (r < R)[:, None] & (c < D)[None, :]


@triton.jit
def divmod32(x, by):
    """x // by and x % by in int32: in int64 a division takes many times as long."""
    x = x.to(tl.int32)
    return (x // by).to(tl.int64), (x % by).to(tl.int64)


@triton.jit
def load_rows(x, at, cell):
    return tl.load(x + at, mask=cell, other=0.0).to(tl.float32)


@triton.jit
def load_vector(x, c, D: tl.constexpr):
    return tl.load(x + c, mask=c < D, other=0.0).to(tl.float32)


@triton.jit
def load_row_vector(x, c, D: tl.constexpr):
    """A vector as one row, to be broadcast."""
    return load_vector(x, c, D)[None, :]


@triton.jit
def standardize(x, cell, eps, D: tl.constexpr):
    """Rows (0 outside ``cell``) minus their mean over their deviation; mean, 1 / deviation."""
    mean = tl.sum(x, axis=1) / D
    centred = tl.where(cell, x - mean[:, None], 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, axis=1) / D + eps)
    return centred * scale[:, None], mean, scale


@triton.jit
def layer_norm(x, cell, weight, bias, c, eps, D: tl.constexpr):
    """LN of rows that are 0 outside ``cell``; mean and 1 / deviation."""
    x_hat, mean, scale = standardize(x, cell, eps, D)
    return x_hat * load_row_vector(weight, c, D) + load_row_vector(bias, c, D), mean, scale


@triton.jit
def layer_norm_backward(grad, x_hat, scale, D: tl.constexpr):
    """Gradient of the input of a norm, from that of ``x_hat``."""
    projection = tl.sum(grad * x_hat, axis=1) / D
    mean_grad = tl.sum(grad, axis=1) / D
    return scale[:, None] * (grad - mean_grad[:, None] - x_hat * projection[:, None])
