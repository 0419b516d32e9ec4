"""Windows as views of their tokens, and the way back: each token's copies summed in one pass.

Twin: `progmem.model.geometry.unfold_windows`.

Shapes: B series, K tokens, N windows, W window, S stride, D width.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from progmem.kernels.ahead import kernel
from progmem.kernels.row_parts import divided

TOKENS = 4  # of a program


def unfold(x: Tensor, window: int, stride: int) -> Tensor:
    """(B, K, D) -> (B, N, W, D), a view; windows must cover all tokens."""
    out: Tensor = _Unfold.apply(x, window, stride)
    return out


class _Unfold(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, window: int, stride: int) -> Tensor:
        ctx.settings = x.shape, stride
        return x.unfold(1, window, stride).movedim(-1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, back: Tensor) -> tuple[Tensor, None, None]:
        (B, K, D), stride = ctx.settings
        back = back.contiguous()
        _, N, W, _ = back.shape
        out = back.new_empty(B, K, D)
        _fold[(triton.cdiv(B * K, TOKENS),)](
            back, out, B * K, K=K, N=N, W=W, S=stride, O=-(-W // stride), D=D,
            D_=triton.next_power_of_2(D), TOKENS=TOKENS,
        )  # fmt: skip
        return out, None, None


@kernel("total", "K", "N")
def _fold(
    back, out, total, K, N, W: tl.constexpr, S: tl.constexpr, O: tl.constexpr,
    D: tl.constexpr, D_: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    b, t = divided(token, K)
    c = tl.arange(0, D_)
    made = tl.zeros((TOKENS, D_), tl.float32)
    for r in tl.static_range(O):
        w, j = t // S - r, t % S + r * S
        there = (token < total) & (w >= 0) & (w < N) & (j < W)
        where = there[:, None] & (c < D)[None, :]
        row = (b * N + w) * W + j
        made += tl.load(back + row[:, None] * D + c[None, :], mask=where, other=0.0).to(tl.float32)
    where = (token < total)[:, None] & (c < D)[None, :]
    at = out + token[:, None] * D + c[None, :]
    tl.store(at, made.to(out.dtype.element_ty), mask=where)
