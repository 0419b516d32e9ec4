"""Attention over a few keys: scores, softmax and weighted sum of one window in registers.

Library kernels are tuned for hundreds of keys; with the six tokens of a window they mostly compute
padding. Here a program takes one head of several windows and packs them into one small product, of
which only the blocks on the diagonal are used.

Shapes: B series, N windows, H heads, T queries, F first keys, J other keys, d width of a head;
G windows of a program, R = G T packed rows, C = G (F + J) packed columns; sizes with _ are rounded
up to what the kernels take.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from progmem.ops.fused.precompile import kernel
from progmem.ops.fused.tiles import apply, divmod32

MAX_QUERIES, MAX_KEYS, MAX_WIDTH = 64, 64, 128  # the width is that of a head
TILES = 5  # of queries, keys, values and gradients, in shared memory at a time
FEW_WINDOWS = 4096  # up to here fewer, larger programs are faster


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    first: tuple[Tensor, Tensor] | None = None,
    causal: bool = False,
) -> Tensor:
    """`progmem.ops.layers.attend` of series, windows and heads, or of series and heads."""
    k, v = k.to(q.dtype), v.to(q.dtype)
    if mask is not None:
        mask = mask.expand(*q.shape[:-3], 1, q.shape[-2], -1).squeeze(-3)
    whole = q.dim() == 5
    if not whole:
        q, k, v = (t.unsqueeze(1) for t in (q, k, v))
        mask = None if mask is None else mask.unsqueeze(1)
        first = None if first is None else (first[0].unsqueeze(1), first[1].unsqueeze(1))
    if first is None:
        first = k[:, :, :, :0], v[:, :, :, :0]
    out: Tensor = apply(_ShortAttention, q, *first, k, v, mask, causal)
    out = out.transpose(2, 3)
    return out if whole else out.squeeze(1)


def supports(q: Tensor, k: Tensor, *_: Any, first: Any = None, **__: Any) -> bool:
    """Whether `attend` can compute these."""
    keys = k.shape[-2] + (0 if first is None else first[0].shape[-2])
    return q.dim() in (4, 5) and supports_sizes(q.shape[-2], keys, q.shape[-1])


def supports_sizes(queries: int, keys: int, width: int) -> bool:
    """Whether so many queries over so many keys, with heads of ``width``, are few enough."""
    if queries > MAX_QUERIES or keys > MAX_KEYS or width > MAX_WIDTH:
        return False
    tile = 4 * _padded_size(max(queries, keys)) * _padded_size(width)  # bytes; float32 needs most
    return TILES * tile <= _shared_memory()


class Inputs(NamedTuple):
    """Inputs of the kernels; the last axis of every tensor is dense."""

    q: Tensor  # (B, N, H, T, d)
    first_k: Tensor  # (B, N, H, F, d)
    first_v: Tensor  # (B, N, H, F, d)
    k: Tensor  # (B, N, H, J, d)
    v: Tensor  # (B, N, H, J, d)
    mask: Tensor | None  # (B, N, T, F+J), True where a query may look; strides may be 0
    causal: bool = False  # the last query sees all of k, each one before it one key less


class _ShortAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        ctx.settings = inputs[6:]
        B, N, H, T, d = inputs[0].shape
        out = inputs[0].new_empty(B, N, T, H, d)  # merging the heads is then a view
        lse = out.new_empty(B, N, T, H, dtype=torch.float32)
        run_forward(Inputs(*inputs), out=out, lse=lse)
        ctx.save_for_backward(*inputs[:6], out, lse)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, out, lse = ctx.saved_tensors
        inputs = Inputs(*tensors, *ctx.settings)
        keys = ctx.needs_input_grad[3] or ctx.needs_input_grad[4]
        B, N, H, T, d = inputs.q.shape
        F, J = inputs.first_k.shape[3], inputs.k.shape[3] if keys else 0
        grads = [inputs.q.new_empty(B, N, rows, H, d) for rows in (T, F, F, J, J)]
        run_backward(inputs, out=out, lse=lse, d_out=d_out, grads=grads, keys=keys)
        dq, dfk, dfv, dk, dv = (t.transpose(2, 3) for t in grads)
        return dq, dfk, dfv, *((dk, dv) if keys else (None, None)), None, None


def run_forward(inputs: Inputs, *, out: Tensor, lse: Tensor) -> None:
    """Write the result (B, N, T, H, d) and the log of the softmax' sums (B, N, T, H), dense."""
    B, N, _, _, d = inputs.q.shape
    arguments, sizes = _arguments(inputs)
    _short_attention_forward[_grid(inputs, sizes)](*arguments, out, lse, d**-0.5, B * N, N, **sizes)


def run_backward(
    inputs: Inputs,
    *,
    out: Tensor,
    lse: Tensor,
    d_out: Tensor,
    grads: list[Tensor],
    keys: bool = True,
    add_to_first: tuple[Tensor, Tensor] | None = None,
    accumulate_from: int | None = None,
) -> None:
    """Write the gradients of q, first keys, first values and, if ``keys``, keys and values.

    ``d_out`` and each of ``grads`` are (B, N, rows, H, d), the heads of ``grads`` dense. With one
    window ``add_to_first`` (B, 1, F, H, d) is added to the gradients of the first keys and values.
    From index ``accumulate_from`` on, gradients of keys and values are added to those in ``grads``.
    """
    B, N, _, _, d = inputs.q.shape
    if d_out.stride(-1) != 1:
        d_out = d_out.contiguous()
    arguments, sizes = _arguments(inputs)
    window = 0 if N == 1 else 1  # the axis whose stride separates windows
    align = sizes["ALIGN"]
    _short_attention_backward[_grid(inputs, sizes)](
        *arguments, out, lse, d**-0.5, *with_strides([d_out], (0, 1, 3, 2), align),
        *with_strides(grads, (window, 2), align),
        *with_strides(add_to_first or grads[1:3], (0, 2, 3), align),
        B * N, N, **sizes, KEYS=keys, ADD_TO_FIRST=add_to_first is not None,
        ACCUMULATE_FROM=inputs.k.shape[3] if accumulate_from is None else accumulate_from,
    )  # fmt: skip


def _grid(inputs: Inputs, sizes: dict[str, Any]) -> tuple[int]:
    """One axis, as others are limited to 65,535; adjacent programs read heads of the same rows."""
    B, N, H, _, _ = inputs.q.shape
    return (H * triton.cdiv(B * N, sizes["G"]),)


@cache
def _shared_memory() -> int:
    """Bytes of shared memory that a program can have."""
    if not torch.cuda.is_available():
        return 2**17
    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    return int(getattr(found, "shared_memory_per_block_optin", 0))


def _padded_size(x: int) -> int:
    return max(16, int(triton.next_power_of_2(x)))  # products take no less


def rows_and_sizes(inputs: Inputs, axes: Sequence[int]) -> tuple[list[Any], dict[str, Any]]:
    """Queries, keys and values with their strides along ``axes``, and compile-time sizes."""
    H, T, d = inputs.q.shape[2:]
    align = math.gcd(d, 8)  # rows consist of whole heads, so it divides every stride
    assert all(t.stride(-1) == 1 for t in inputs[:5])
    assert all(t.stride(axis) % align == 0 for t in inputs[:5] for axis in axes)
    F, J = inputs.first_k.shape[3], inputs.k.shape[3]
    sizes = {"T": T, "F": F, "J": J, "H": H, "d": d, "ALIGN": align}
    return with_strides(inputs[:5], axes, align), sizes


def with_strides(tensors: Sequence[Tensor], axes: Sequence[int], align: int) -> list[Any]:
    """Each tensor and its strides along ``axes``, in units of ``align``."""
    return [x for t in tensors for x in (t, *(t.stride(axis) // align for axis in axes))]


def _arguments(inputs: Inputs) -> tuple[list[Any], dict[str, Any]]:
    """The first arguments of both kernels, and their compile-time sizes."""
    q, mask = inputs.q, inputs.mask
    arguments, sizes = rows_and_sizes(inputs, (0, 1, 2, 3))
    arguments += [q, 0, 0, 0, 0] if mask is None else [mask.view(torch.uint8), *mask.stride()]
    keys = sizes["F"] + sizes["J"]
    few_windows = q.shape[0] * q.shape[1] <= FEW_WINDOWS
    G = max(1, (32 if few_windows else 16) // keys)
    R_, C_ = _padded_size(G * sizes["T"]), _padded_size(G * keys)
    sizes |= {
        "d_": _padded_size(sizes["d"]), "G": G, "R_": R_, "C_": C_, "MASKED": mask is not None,
        "CAUSAL": inputs.causal, "num_warps": 4 if few_windows or R_ * C_ > 1024 else 1,
    }  # fmt: skip
    return arguments, sizes


@triton.jit
def _packed_indices(
    T: tl.constexpr, F: tl.constexpr, J: tl.constexpr, H: tl.constexpr, G: tl.constexpr,
    R_: tl.constexpr, C_: tl.constexpr, windows,
):  # fmt: skip
    """Window and position in it of the packed rows and columns, and which of them exist."""
    row, column = tl.arange(0, R_), tl.arange(0, C_)
    first = (tl.program_id(0) // H).to(tl.int64) * G
    r_window, c_window = first + row // T, first + column // (F + J)
    r_there = (row < G * T) & (r_window < windows)
    c_there = (column < G * (F + J)) & (c_window < windows)
    return r_window, row % T, r_there, c_window, column % (F + J), c_there


@triton.jit
def _address(x, row, head, e, ALIGN: tl.constexpr):
    """Addresses of one head of some rows; strides are in units of ALIGN, so loads can be wide."""
    return x + ((row[:, None] + head) * ALIGN + e[None, :])


@triton.jit
def _keys(
    first, fb, fn, fh, ft, other, ob, on, oh, ot, window, j, there, h, e, N,
    F: tl.constexpr, d: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    """Packed keys or values, (C, d): the first F of a window, then the others."""
    b, n = divmod32(window, N)
    inside = there[:, None] & (e < d)[None, :]
    at = _address(other, b * ob + n * on + (j - F) * ot, h * oh, e, ALIGN)
    x = tl.load(at, mask=inside & (j >= F)[:, None], other=0.0)
    if F > 0:
        at = _address(first, b * fb + n * fn + j * ft, h * fh, e, ALIGN)
        x += tl.load(at, mask=inside & (j < F)[:, None], other=0.0)
    return x


@triton.jit
def _scores(
    q, k, scale, mask, mb, mn, mt, mj, N, r_window, t, r_there, c_window, j, c_there,
    T: tl.constexpr, F: tl.constexpr, J: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """q k' of the packed windows, (R, C); -inf between windows and where a query may not look."""
    score = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    visible = (r_window[:, None] == c_window[None, :]) & r_there[:, None] & c_there[None, :]
    if MASKED:
        b, n = divmod32(r_window, N)
        row = b * mb + n * mn + t * mt
        seen = tl.load(mask + row[:, None] + j[None, :] * mj, mask=visible, other=0)
        visible = visible & (seen != 0)
    if CAUSAL:
        visible = visible & ((j[None, :] < F) | (j[None, :] - F <= t[:, None] + J - T))
    return tl.where(visible, score, float("-inf"))


@kernel("windows", "N")
def _short_attention_forward(
    q, qb, qn, qh, qt, fk, fkb, fkn, fkh, fkt, fv, fvb, fvn, fvh, fvt,
    k, kb, kn, kh, kt, v, vb, vn, vh, vt, mask, mb, mn, mt, mj, out, lse, scale, windows, N,
    T: tl.constexpr, F: tl.constexpr, J: tl.constexpr, H: tl.constexpr, d: tl.constexpr,
    d_: tl.constexpr, G: tl.constexpr, R_: tl.constexpr, C_: tl.constexpr, ALIGN: tl.constexpr,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    h, e = tl.program_id(0) % H, tl.arange(0, d_)
    r_window, t, r_there, c_window, j, c_there = _packed_indices(T, F, J, H, G, R_, C_, windows)
    cell = r_there[:, None] & (e < d)[None, :]
    b, n = divmod32(r_window, N)
    at = _address(q, b * qb + n * qn + t * qt, h * qh, e, ALIGN)
    rows = tl.load(at, mask=cell, other=0.0)
    keys = _keys(
        fk, fkb, fkn, fkh, fkt, k, kb, kn, kh, kt, c_window, j, c_there, h, e, N, F, d, ALIGN
    )
    values = _keys(
        fv, fvb, fvn, fvh, fvt, v, vb, vn, vh, vt, c_window, j, c_there, h, e, N, F, d, ALIGN
    )
    score = _scores(
        rows, keys, scale, mask, mb, mn, mt, mj, N,
        r_window, t, r_there, c_window, j, c_there, T, F, J, MASKED, CAUSAL,
    )  # fmt: skip
    row_max = tl.max(score, axis=1)
    row_max = tl.where(row_max == float("-inf"), 0.0, row_max)  # rows that are padding
    weight = tl.exp(score - row_max[:, None])
    total = tl.maximum(tl.sum(weight, axis=1), 1e-30)
    acc = tl.dot((weight / total[:, None]).to(values.dtype), values, input_precision="ieee")
    to = _address(out, (r_window * T + t) * (H * d // ALIGN), h * (d // ALIGN), e, ALIGN)
    tl.store(to, acc.to(out.dtype.element_ty), mask=cell)
    tl.store(lse + (r_window * T + t) * H + h, row_max + tl.log(total), mask=r_there)


@kernel("windows", "N")
def _short_attention_backward(
    q, qb, qn, qh, qt, fk, fkb, fkn, fkh, fkt, fv, fvb, fvn, fvh, fvt,
    k, kb, kn, kh, kt, v, vb, vn, vh, vt, mask, mb, mn, mt, mj, out, lse, scale,
    d_out, gb, gn, gh, gt,
    dq, dqw, dqt, dfk, dfkw, dfkt, dfv, dfvw, dfvt, dk, dkw, dkt, dv, dvw, dvt,
    mk, mkw, mkt, mkh, mv, mvw, mvt, mvh, windows, N,
    T: tl.constexpr, F: tl.constexpr, J: tl.constexpr, H: tl.constexpr, d: tl.constexpr,
    d_: tl.constexpr, G: tl.constexpr, R_: tl.constexpr, C_: tl.constexpr, ALIGN: tl.constexpr,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, KEYS: tl.constexpr, ADD_TO_FIRST: tl.constexpr,
    ACCUMULATE_FROM: tl.constexpr,
):  # fmt: skip
    h, e = tl.program_id(0) % H, tl.arange(0, d_)
    dtype = q.dtype.element_ty
    r_window, t, r_there, c_window, j, c_there = _packed_indices(T, F, J, H, G, R_, C_, windows)
    cell = r_there[:, None] & (e < d)[None, :]
    b, n = divmod32(r_window, N)
    at = _address(q, b * qb + n * qn + t * qt, h * qh, e, ALIGN)
    rows = tl.load(at, mask=cell, other=0.0)
    # all loads are issued before the first is needed
    keys = _keys(
        fk, fkb, fkn, fkh, fkt, k, kb, kn, kh, kt, c_window, j, c_there, h, e, N, F, d, ALIGN
    )
    values = _keys(
        fv, fvb, fvn, fvh, fvt, v, vb, vn, vh, vt, c_window, j, c_there, h, e, N, F, d, ALIGN
    )
    grad = tl.load(
        _address(d_out, b * gb + n * gn + t * gt, h * gh, e, ALIGN), mask=cell, other=0.0
    )
    at = _address(out, (r_window * T + t) * (H * d // ALIGN), h * (d // ALIGN), e, ALIGN)
    output = tl.load(at, mask=cell, other=0.0)
    norm = tl.load(lse + (r_window * T + t) * H + h, mask=r_there, other=0.0)
    score = _scores(
        rows, keys, scale, mask, mb, mn, mt, mj, N,
        r_window, t, r_there, c_window, j, c_there, T, F, J, MASKED, CAUSAL,
    )  # fmt: skip
    weight = tl.exp(score - norm[:, None])  # (R, C)
    total = tl.sum(grad.to(tl.float32) * output.to(tl.float32), axis=1)
    grad = grad.to(dtype)
    d_score = tl.dot(grad, tl.trans(values), input_precision="ieee")
    d_score = (weight * (d_score - total[:, None]) * scale).to(dtype)  # dL/d(q k')
    dq_rows = tl.dot(d_score, keys, input_precision="ieee")
    to = _address(dq, r_window * dqw + t * dqt, h * (d // ALIGN), e, ALIGN)
    tl.store(to, dq_rows.to(dtype), mask=cell)
    dkey = tl.dot(tl.trans(d_score), rows, input_precision="ieee")
    dvalue = tl.dot(tl.trans(weight.to(dtype)), grad, input_precision="ieee")
    inside = c_there[:, None] & (e < d)[None, :]
    if KEYS:
        where = inside & (j >= F)[:, None]
        to = _address(dk, c_window * dkw + (j - F) * dkt, h * (d // ALIGN), e, ALIGN)
        if ACCUMULATE_FROM < J:
            there = where & (j >= F + ACCUMULATE_FROM)[:, None]
            dkey += tl.load(to, mask=there, other=0.0).to(tl.float32)
        tl.store(to, dkey.to(dtype), mask=where)
        to = _address(dv, c_window * dvw + (j - F) * dvt, h * (d // ALIGN), e, ALIGN)
        if ACCUMULATE_FROM < J:
            dvalue += tl.load(to, mask=there, other=0.0).to(tl.float32)
        tl.store(to, dvalue.to(dtype), mask=where)
    if F > 0:
        where = inside & (j < F)[:, None]
        if ADD_TO_FIRST:
            at = _address(mk, c_window * mkw + j * mkt, h * mkh, e, ALIGN)
            dkey += tl.load(at, mask=where, other=0.0).to(tl.float32)
            at = _address(mv, c_window * mvw + j * mvt, h * mvh, e, ALIGN)
            dvalue += tl.load(at, mask=where, other=0.0).to(tl.float32)
        to = _address(dfk, c_window * dfkw + j * dfkt, h * (d // ALIGN), e, ALIGN)
        tl.store(to, dkey.to(dtype), mask=where)
        to = _address(dfv, c_window * dfvw + j * dfvt, h * (d // ALIGN), e, ALIGN)
        tl.store(to, dvalue.to(dtype), mask=where)
