"""Attention of a few queries over a few keys: one head of a series a program, in one warp.

In a step of the scan the two slots of a window attend to ten keys. Products on tensor cores would
be mostly padding; here the keys are held in registers and every query goes over them once. The
inputs are those of `short_attention` for one window.

Shapes: B series, H heads, T queries, F first keys, J other keys, d width of a head; sizes with _
are rounded up to powers of two.
"""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor, uint8

from progmem.ops.fused.precompile import kernel
from progmem.ops.fused.short_attention import Inputs, rows_and_sizes, with_strides

MAX_QUERIES = 4  # queries
HEADS, WARPS = 1, 1  # of a program
REGISTERS, SMALL = 128, 1024  # of a thread, so that many fit, if keys times width are few enough


def run_forward(inputs: Inputs, *, out: Tensor, lse: Tensor) -> None:
    """Write the result (B, 1, T, H, d) and the log of the softmax' sums (B, 1, T, H), dense."""
    arguments, sizes = _arguments(inputs)
    _slot_attention_forward[_grid(inputs)](
        *arguments, out, lse, inputs.q.shape[-1] ** -0.5, **sizes
    )


def run_backward(
    inputs: Inputs,
    *,
    out: Tensor,
    lse: Tensor,
    d_out: Tensor,
    grads: list[Tensor],
    add_to_first: tuple[Tensor, Tensor],
    accumulate_from: int,
) -> None:
    """Write the gradients of q, first keys, first values, keys and values; see `short_attention`.

    ``d_out`` and each of ``grads`` and ``add_to_first`` are (B, 1, rows, H, d), the heads dense.
    """
    arguments, sizes = _arguments(inputs)
    targets = with_strides([*grads, *add_to_first], (0, 2), sizes["ALIGN"])
    _slot_attention_backward[_grid(inputs)](
        *arguments, out, lse, inputs.q.shape[-1] ** -0.5, d_out.contiguous(), *targets, **sizes,
        ACCUMULATE_FROM=accumulate_from,
    )  # fmt: skip


def _grid(inputs: Inputs) -> tuple[int]:
    """One axis, as others are limited to 65,535."""
    B, _, H, _, _ = inputs.q.shape
    return (triton.cdiv(H, HEADS) * B,)


def _arguments(inputs: Inputs) -> tuple[list[Any], dict[str, Any]]:
    mask = inputs.mask
    arguments, sizes = rows_and_sizes(inputs, (0, 2, 3))
    assert mask is not None and (sizes["T"] == 1 or mask.stride(2) == 0)  # one mask for all
    arguments += [mask.view(uint8), mask.stride(0), mask.stride(3)]
    C_, d_ = (triton.next_power_of_2(x) for x in (sizes["F"] + sizes["J"], sizes["d"]))
    sizes |= {
        "C_": C_, "d_": d_, "HEADS": HEADS, "num_warps": WARPS,
        "maxnreg": REGISTERS if C_ * d_ <= SMALL else None,
    }  # fmt: skip
    return arguments, sizes


@triton.jit
def _indices(
    F: tl.constexpr, J: tl.constexpr, H: tl.constexpr, d: tl.constexpr, C_: tl.constexpr,
    d_: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """A program's series, heads, keys and columns; offsets of its heads in a row; masks."""
    groups: tl.constexpr = (H + HEADS - 1) // HEADS
    b = (tl.program_id(0) // groups).to(tl.int64)
    h = tl.program_id(0) % groups * HEADS + tl.arange(0, HEADS)
    j, e = tl.arange(0, C_), tl.arange(0, d_)
    cell = (h < H)[:, None] & (e < d)[None, :]
    inside = (j < F + J)[:, None, None] & cell[None]
    return b, h, j, e, h[:, None] * d + e[None, :], cell, inside


@triton.jit
def _keys(
    first, fb, fh, ft, other, ob, oh, ot, b, h, j, e, inside,
    F: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    """Keys or values, (C, HEADS, d): the first F, then the others."""
    own = (j < F)[:, None, None]
    at = ((b * fb + j * ft)[:, None] + (h * fh)[None, :])[:, :, None] * ALIGN + e[None, None, :]
    x = tl.load(first + at, mask=inside & own, other=0.0)
    at = (b * ob + (j - F) * ot)[:, None] + (h * oh)[None, :]
    at = at[:, :, None] * ALIGN + e[None, None, :]
    x += tl.load(other + at, mask=inside & (own == 0), other=0.0)
    return x.to(tl.float32)


@triton.jit
def _weights(q, qb, qh, qt, keys, seen, scale, b, h, t, e, cell, ALIGN: tl.constexpr):
    """A query (HEADS, d) and its scores (C, HEADS), -inf where a key is masked."""
    at = (b * qb + t * qt + h * qh)[:, None] * ALIGN + e[None, :]
    row = tl.load(q + at, mask=cell, other=0.0).to(tl.float32)
    score = tl.sum(keys * row[None], axis=2) * scale
    return row, tl.where(seen[:, None], score, float("-inf"))


@kernel()
def _slot_attention_forward(
    q, qb, qh, qt, fk, fkb, fkh, fkt, fv, fvb, fvh, fvt, k, kb, kh, kt, v, vb, vh, vt,
    mask, mb, mj, out, lse, scale,
    T: tl.constexpr, F: tl.constexpr, J: tl.constexpr, H: tl.constexpr, d: tl.constexpr,
    C_: tl.constexpr, d_: tl.constexpr, HEADS: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    b, h, j, e, head, cell, inside = _indices(F, J, H, d, C_, d_, HEADS)
    keys = _keys(fk, fkb, fkh, fkt, k, kb, kh, kt, b, h, j, e, inside, F, ALIGN)
    values = _keys(fv, fvb, fvh, fvt, v, vb, vh, vt, b, h, j, e, inside, F, ALIGN)
    seen = tl.load(mask + b * mb + j * mj, mask=j < F + J, other=0) != 0
    for t in tl.static_range(T):
        _, score = _weights(q, qb, qh, qt, keys, seen, scale, b, h, t, e, cell, ALIGN)
        row_max = tl.max(score, axis=0)
        weight = tl.exp(score - row_max[None])
        total = tl.sum(weight, axis=0)
        acc = tl.sum(weight[:, :, None] * values, axis=0) / total[:, None]
        tl.store(out + (b * T + t) * H * d + head, acc.to(out.dtype.element_ty), mask=cell)
        tl.store(lse + (b * T + t) * H + h, row_max + tl.log(total), mask=h < H)


@kernel()
def _slot_attention_backward(
    q, qb, qh, qt, fk, fkb, fkh, fkt, fv, fvb, fvh, fvt, k, kb, kh, kt, v, vb, vh, vt,
    mask, mb, mj, out, lse, scale,
    d_out, dq, dqb, dqt, dfk, dfkb, dfkt, dfv, dfvb, dfvt, dk, dkb, dkt, dv, dvb, dvt,
    mk, mkb, mkt, mv, mvb, mvt,
    T: tl.constexpr, F: tl.constexpr, J: tl.constexpr, H: tl.constexpr, d: tl.constexpr,
    C_: tl.constexpr, d_: tl.constexpr, HEADS: tl.constexpr, ALIGN: tl.constexpr,
    ACCUMULATE_FROM: tl.constexpr,
):  # fmt: skip
    b, h, j, e, head, cell, inside = _indices(F, J, H, d, C_, d_, HEADS)
    keys = _keys(fk, fkb, fkh, fkt, k, kb, kh, kt, b, h, j, e, inside, F, ALIGN)
    values = _keys(fv, fvb, fvh, fvt, v, vb, vh, vt, b, h, j, e, inside, F, ALIGN)
    # start from given gradients: add_to_first, and those of the others from ACCUMULATE_FROM on
    there = inside & ((j < F) | (j >= F + ACCUMULATE_FROM))[:, None, None]
    dh: tl.constexpr = d // ALIGN  # stride from head to head of the outputs
    d_keys = _keys(mk, mkb, dh, mkt, dk, dkb, dh, dkt, b, h, j, e, there, F, ALIGN)
    d_values = _keys(mv, mvb, dh, mvt, dv, dvb, dh, dvt, b, h, j, e, there, F, ALIGN)
    seen = tl.load(mask + b * mb + j * mj, mask=j < F + J, other=0) != 0
    for t in tl.static_range(T):
        row, score = _weights(q, qb, qh, qt, keys, seen, scale, b, h, t, e, cell, ALIGN)
        at = (b * T + t) * H * d + head
        grad = tl.load(d_out + at, mask=cell, other=0.0).to(tl.float32)
        output = tl.load(out + at, mask=cell, other=0.0).to(tl.float32)
        norm = tl.load(lse + (b * T + t) * H + h, mask=h < H, other=0.0)
        weight = tl.exp(score - norm[None])  # (C, HEADS)
        d_score = tl.sum(values * grad[None], axis=2) - tl.sum(grad * output, axis=1)[None]
        d_score = weight * d_score * scale
        dq_row = tl.sum(d_score[:, :, None] * keys, axis=0)
        to = dq + (b * dqb + t * dqt) * ALIGN + head
        tl.store(to, dq_row.to(dq.dtype.element_ty), mask=cell)
        d_keys += d_score[:, :, None] * row[None]
        d_values += weight[:, :, None] * grad[None]
    _store(dfk, dfkb, dfkt, dk, dkb, dkt, d_keys, b, j, head, inside, F, ALIGN)
    _store(dfv, dfvb, dfvt, dv, dvb, dvt, d_values, b, j, head, inside, F, ALIGN)


@triton.jit
def _store(
    first, fb, ft, other, ob, ot, x, b, j, head, inside, F: tl.constexpr, ALIGN: tl.constexpr
):
    own = (j < F)[:, None, None]
    x = x.to(first.dtype.element_ty)
    at = (b * fb + j * ft)[:, None, None] * ALIGN + head[None]
    tl.store(first + at, x, mask=inside & own)
    at = (b * ob + (j - F) * ot)[:, None, None] * ALIGN + head[None]
    tl.store(other + at, x, mask=inside & (own == 0))
