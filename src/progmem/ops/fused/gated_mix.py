"""The mixture g a + (1 - g) b with g = sigmoid(z + c), in one pass per direction.

Shapes: R rows, D width; b and c may have fewer rows, which are then repeated.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from progmem.ops.fused.precompile import kernel
from progmem.ops.fused.tiles import apply, column_sums, divmod32

ROWS, COLUMNS = 16, 64  # of a program at a time
PROGRAMS = 264  # of a backward pass, for each block of columns


def gated_mix(z: Tensor, bias_z: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """`progmem.ops.layers.gated_mix`."""
    out: Tensor = apply(_GatedMix, z, bias_z, a, b)
    return out


class _GatedMix(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, c: Tensor, a: Tensor, b: Tensor) -> Tensor:
        z, c, a, b = (t.contiguous() for t in (z, c, a, b))
        ctx.save_for_backward(z, c, a, b)
        return run_forward(z, c, a, b)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        z, c, a, b = ctx.saved_tensors
        dz, da, db, sums = run_backward(z, c, a, b, d_out.contiguous())
        repeated = b.shape != a.shape
        dc = column_sums(sums)[None] if len(c) == 1 else column_sums(_by_repeat(dz, c))
        return (
            dz,
            dc.to(c.dtype),
            da,
            column_sums(_by_repeat(db, b)).to(b.dtype) if repeated else db,
        )


def run_forward(z: Tensor, c: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """`gated_mix` of dense tensors."""
    out = torch.empty_like(a, dtype=torch.promote_types(a.dtype, b.dtype))
    R, D = a.numel() // a.shape[-1], a.shape[-1]
    grid = (triton.cdiv(R, ROWS), triton.cdiv(D, COLUMNS))
    _mix_forward[grid](z, c, a, b, out, R, D, *_rows(c, b), ROWS=ROWS, COLUMNS=COLUMNS)
    return out


def run_backward(
    z: Tensor, c: Tensor, a: Tensor, b: Tensor, d_out: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of z, of a, of b for each row, and sums (programs, D) for a ``c`` of one row."""
    R, D = a.numel() // a.shape[-1], a.shape[-1]
    dz, da = torch.empty_like(z), torch.empty_like(a)
    db = torch.empty_like(a, dtype=b.dtype if b.shape == a.shape else torch.float32)
    programs = min(PROGRAMS, triton.cdiv(R, ROWS))
    sums = z.new_empty(programs, D, dtype=torch.float32)
    _mix_backward[(programs, triton.cdiv(D, COLUMNS))](
        z, c, a, b, d_out, dz, da, db, sums, R, D, *_rows(c, b), ROWS=ROWS, COLUMNS=COLUMNS
    )
    return dz, da, db, sums


def _rows(*repeated: Tensor) -> list[int]:
    return [t.numel() // t.shape[-1] for t in repeated]


def _by_repeat(x: Tensor, like: Tensor) -> Tensor:
    return x.view(-1, *like.shape)


@triton.jit
def _load(x, r, c, D, cell):
    return tl.load(x + r[:, None] * D + c[None, :], mask=cell, other=0.0).to(tl.float32)


@kernel("R")
def _mix_forward(z, c, a, b, out, R, D, nc, nb, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    e = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    cell = (r < R)[:, None] & (e < D)[None, :]
    _, of_c = divmod32(r, nc)
    _, of_b = divmod32(r, nb)
    g = 1 / (1 + tl.exp(-(_load(z, r, e, D, cell) + _load(c, of_c, e, D, cell))))
    mixed = g * _load(a, r, e, D, cell) + (1 - g) * _load(b, of_b, e, D, cell)
    at = out + r[:, None] * D + e[None, :]
    tl.store(at, mixed.to(out.dtype.element_ty), mask=cell)


@kernel("R")
def _mix_backward(
    z, c, a, b, d_out, dz, da, db, sums, R, D, nc, nb, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    e = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(tl.program_id(0) * ROWS, R, tl.num_programs(0) * ROWS):
        r = (start + tl.arange(0, ROWS)).to(tl.int64)
        cell = (r < R)[:, None] & (e < D)[None, :]
        _, of_c = divmod32(r, nc)
        _, of_b = divmod32(r, nb)
        g = 1 / (1 + tl.exp(-(_load(z, r, e, D, cell) + _load(c, of_c, e, D, cell))))
        grad = _load(d_out, r, e, D, cell)
        difference = _load(a, r, e, D, cell) - _load(b, of_b, e, D, cell)
        d_z = grad * difference * g * (1 - g)
        total += d_z
        at = r[:, None] * D + e[None, :]
        tl.store(dz + at, d_z.to(dz.dtype.element_ty), mask=cell)
        tl.store(da + at, (grad * g).to(da.dtype.element_ty), mask=cell)
        tl.store(db + at, (grad * (1 - g)).to(db.dtype.element_ty), mask=cell)
    tl.store(sums + tl.program_id(0) * D + e, tl.sum(total, axis=0), mask=e < D)
