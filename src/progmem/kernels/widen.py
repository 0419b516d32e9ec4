"""A product and the gelu after it, or the product before a gelu's way back, in one kernel each.

For the steps of the scan, whose rows are few: what is saved is the time between kernels. Numbers of
four bytes go through the library's product, which is exact.

Twin: `F.gelu(F.linear(...))`.

Shapes: R rows, K what is summed, C columns.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from progmem.kernels import biased
from progmem.kernels.ahead import kernel
from progmem.kernels.biased import share

# rows, columns, what is summed at once
TILES = {
    "X": 64,
    "Y": 64,
    "Z": 64,
    "num_warps": 4,
    "num_stages": 4,
}


def gelu_of_product(x: Tensor, weight: Tensor, bias: Tensor, *, wide: Tensor, out: Tensor) -> None:
    """Write x weight' to ``wide`` and gelu(wide + bias) to ``out``; ``weight`` is (C, K)."""
    if x.element_size() == 2:
        _launch(x, weight.T, bias, wide, out, back=False)
    else:
        torch.mm(x, weight.T, out=wide)
        biased.run_gelu_forward(wide, bias, out=out)


def gelu_backward_of_product(
    x: Tensor, weight: Tensor, bias: Tensor, *, wide: Tensor, out: Tensor
) -> None:
    """Write x weight times the slope of gelu at wide + bias to ``out``; ``weight`` is (K, C)."""
    if x.element_size() == 2:
        _launch(x, weight, bias, wide, out, back=True)
    else:
        biased.run_gelu_backward(wide, bias, torch.mm(x, weight), out=out)


def _launch(
    x: Tensor, weight: Tensor, bias: Tensor, wide: Tensor, out: Tensor, *, back: bool
) -> None:
    (R, K), C = x.shape, weight.shape[1]
    grid = (triton.cdiv(C, TILES["Y"]), triton.cdiv(R, TILES["X"]))
    _product[grid](x, weight, *weight.stride(), bias, wide, out, R, C, K=K, BACK=back, **TILES)


@kernel()
def _product(
    x, weight, wk, wc, bias, wide, out, R, C,
    K: tl.constexpr, BACK: tl.constexpr, X: tl.constexpr, Y: tl.constexpr, Z: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(1).to(tl.int64) * X + tl.arange(0, X)
    c = tl.program_id(0) * Y + tl.arange(0, Y)
    at, cell = r[:, None] * C + c[None, :], (r < R)[:, None] & (c < C)[None, :]
    level = tl.load(bias + c, mask=c < C, other=0.0).to(tl.float32)[None, :]
    if BACK:
        y = tl.load(wide + at, mask=cell, other=0.0).to(tl.float32) + level
    made = tl.zeros((X, Y), tl.float32)
    for start in range(0, K, Z):
        k = start + tl.arange(0, Z)
        a = tl.load(
            x + r[:, None] * K + k[None, :], mask=(r < R)[:, None] & (k < K)[None, :], other=0.0
        )
        b = tl.load(
            weight + k[:, None] * wk + c[None, :] * wc,
            mask=(k < K)[:, None] & (c < C)[None, :], other=0.0,
        )  # fmt: skip
        made = tl.dot(a, b, made)
    if BACK:
        part, density = share(y, True)
        made = made * (part + y * density)
    else:
        half = made.to(wide.dtype.element_ty)
        tl.store(wide + at, half, mask=cell)
        y = half.to(tl.float32) + level
        made = y * share(y, True)[0]
    tl.store(out + at, made.to(out.dtype.element_ty), mask=cell)
