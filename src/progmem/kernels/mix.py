"""A gate's mixture g a + (1 - g) b with g = sigmoid(z + c), one pass each way.

Twin: `progmem.model.gates.mixed`.

Shapes: R rows, D width, n rows that b and c are repeated in.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

BLOCK = 1024


def mixed(z: Tensor, c: Tensor | None, a: Tensor, b: Tensor) -> Tensor:
    """For ``z`` and ``a`` (..., n, D), ``c`` (n, D) or None, ``b`` (n, D) or of the shape of a."""
    out: Tensor = _Mixed.apply(z, c, a, b)
    return out


class _Mixed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, c: Tensor | None, a: Tensor, b: Tensor) -> Tensor:
        z, a, b = z.contiguous(), a.contiguous(), b.contiguous()
        c = None if c is None else c.contiguous()
        out = torch.empty_like(a, dtype=torch.promote_types(a.dtype, b.dtype))
        count = a.numel()
        _mix_forward[(triton.cdiv(count, BLOCK),)](
            z, z if c is None else c, a, b, out, count, b.numel(), BLOCK=BLOCK, SHIFT=c is not None
        )
        ctx.save_for_backward(z, c, a, b)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, back: Tensor) -> tuple[Tensor | None, ...]:
        z, c, a, b = ctx.saved_tensors
        back = back.contiguous()
        count = a.numel()
        dz, da = torch.empty_like(z), torch.empty_like(a)
        needs_b = ctx.needs_input_grad[3]
        db = torch.empty_like(a, dtype=b.dtype if b.shape == a.shape else torch.float32)
        _mix_backward[(triton.cdiv(count, BLOCK),)](
            z, z if c is None else c, a, b, back, dz, da, db, count, b.numel(),
            BLOCK=BLOCK, SHIFT=c is not None, NEEDS_B=needs_b,
        )  # fmt: skip
        dc = None
        if c is not None and ctx.needs_input_grad[1]:
            dc = dz.view(-1, *c.shape).sum(0, dtype=torch.float32).to(c.dtype)
        if not needs_b:
            return dz, dc, da, None
        if b.shape != a.shape:
            db = db.view(-1, *b.shape).sum(0).to(b.dtype)
        return dz, dc, da, db


@triton.jit
def _gate(z, c, at, where, period, SHIFT: tl.constexpr):
    x = tl.load(z + at, mask=where, other=0.0).to(tl.float32)
    if SHIFT:
        x += tl.load(c + at % period, mask=where, other=0.0).to(tl.float32)
    return 1 / (1 + tl.exp(-x))


@triton.jit
def _mix_forward(z, c, a, b, out, count, period, BLOCK: tl.constexpr, SHIFT: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    where = at < count
    g = _gate(z, c, at, where, period, SHIFT)
    new = tl.load(a + at, mask=where, other=0.0).to(tl.float32)
    old = tl.load(b + at % period, mask=where, other=0.0).to(tl.float32)
    tl.store(out + at, (g * new + (1 - g) * old).to(out.dtype.element_ty), mask=where)


@triton.jit
def _mix_backward(
    z, c, a, b, back, dz, da, db, count, period,
    BLOCK: tl.constexpr, SHIFT: tl.constexpr, NEEDS_B: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    where = at < count
    g = _gate(z, c, at, where, period, SHIFT)
    new = tl.load(a + at, mask=where, other=0.0).to(tl.float32)
    old = tl.load(b + at % period, mask=where, other=0.0).to(tl.float32)
    pull = tl.load(back + at, mask=where, other=0.0).to(tl.float32)
    tl.store(dz + at, (pull * (new - old) * g * (1 - g)).to(dz.dtype.element_ty), mask=where)
    tl.store(da + at, (pull * g).to(da.dtype.element_ty), mask=where)
    if NEEDS_B:
        tl.store(db + at, (pull * (1 - g)).to(db.dtype.element_ty), mask=where)
