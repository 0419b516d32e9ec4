"""Costs of dynamic time warping: each thread of a program aligns one pair of series, cell by cell.

Only one row of a pair's costs is kept: cell (i, j) takes the place of (i - 1, j), which is entry
j + 1. Entry 0 lies outside, and is the way into the first cell.

Shapes: A and B series, L samples, C channels.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from progmem.ops.fused.precompile import kernel

LANES = 128  # pairs of a program, with the same first series


def pair_costs(x: Tensor, y: Tensor, x_length: Tensor, y_length: Tensor, reach: int) -> Tensor:
    """`progmem.ops.dtw.pair_costs`."""
    (L, C, A), B = x.shape, y.shape[2]
    x, y = x.contiguous(), y.contiguous()
    costs = x.new_full((A, L + 1, B), torch.inf, dtype=torch.float32)
    costs[:, 0] = 0.0
    out = x.new_empty(A, B, dtype=torch.float32)
    grid = (A, triton.cdiv(B, LANES))
    _align[grid](x, y, x_length, y_length, costs, out, L, A, B, C, reach, LANES=LANES)
    return out.to(x.dtype)


@kernel("L", "A", "B", "C", "reach")
def _align(x, y, x_length, y_length, costs, out, L, A, B, C, reach, LANES: tl.constexpr):
    a = tl.program_id(0)
    b = tl.program_id(1) * LANES + tl.arange(0, LANES)
    real = b < B
    outside = tl.full((LANES,), float("inf"), tl.float32)
    row = costs + a.to(tl.int64) * (L + 1) * B + b
    for i in range(0, tl.load(x_length + a)):
        low = tl.maximum(0, i - reach)
        corner = tl.load(row + low * B, mask=real, other=0.0)
        tl.store(row, outside, mask=real)
        left = outside
        for j in range(low, tl.minimum(L, i + reach + 1)):
            cost = tl.zeros((LANES,), tl.float32)
            for c in range(0, C):
                apart = tl.load(x + (i * C + c) * A + a) - tl.load(
                    y + (j * C + c) * B + b, mask=real, other=0.0
                )
                cost += (apart * apart).to(tl.float32)
            above = tl.load(row + (j + 1) * B, mask=real, other=0.0)
            left = cost + tl.minimum(tl.minimum(left, above), corner)
            corner = above
            tl.store(row + (j + 1) * B, left, mask=real)
    end = tl.load(y_length + b, mask=real, other=1)
    tl.store(out + a * B + b, tl.load(row + end * B, mask=real, other=0.0), mask=real)
