"""Causal attention of long windows, forward only: tiles of queries over tiles of keys.

Windows are views of their tokens: keys and values are read from the output of the projection, and
the few keys of the carry from their own tensor. Nothing is concatenated, padded or masked in
memory.

Shapes: B series, N windows, T rows of each, F first keys, H heads, d width of a head, D = H d.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from progmem.ops.fused.precompile import kernel
from progmem.ops.layers import Rotation, rotation

MAX_WIDTH = 128  # d; at most 16 first keys
MAX_TOKENS = 2**17  # their rotations are in one table
SHARED_MEMORY = 160_000  # most bytes that kernels for long windows use
ROWS = 4  # of a program that rotates rows
TILES = {  # by whether numbers have two bytes; 128 registers: two programs per multiprocessor
    True: {"QUERIES": 128, "KEYS": 64, "num_warps": 8, "num_stages": 3, "maxnreg": 128},
    False: {"QUERIES": 64, "KEYS": 32, "num_warps": 8, "num_stages": 2},
}


def supports(qkv: Tensor, heads: int, *, tokens: int, gaps: bool, training: bool) -> bool:
    """Whether kernels for long windows support projections (B, ..., 3D) of so many ``tokens``.

    ``gaps``: tokens are missing before a series' end. In ``training`` some rows are computed with
    and without a gradient, which must agree to the last bit.
    """
    if torch.is_grad_enabled() or training or gaps:
        return False
    fits = qkv.shape[-1] // 3 // heads <= MAX_WIDTH and tokens <= MAX_TOKENS
    return fits and _shared_memory(qkv) >= SHARED_MEMORY


def _shared_memory(x: Tensor) -> int:
    """Bytes of shared memory that a program can have on the device of ``x``."""
    if not x.is_cuda:
        return SHARED_MEMORY
    properties = torch.cuda.get_device_properties(x.device)
    return int(getattr(properties, "shared_memory_per_block_optin", 0))


def rotate_rows(qkv: Tensor, *, heads: int) -> Rotation:
    """Rotate queries and keys of (B, K, 3D) in place, by the tokens' positions in the series."""
    B, T, D = qkv.shape
    d = D // 3 // heads
    rope = rotation(qkv[..., :d])
    _rotate_rows[(triton.cdiv(T, ROWS) * B,)](  # one axis, as others are limited to 65,535
        qkv, qkv.stride(0), qkv.stride(1), *rope, T, H=2 * heads, half=d // 2,
        H_=triton.next_power_of_2(2 * heads), half_=triton.next_power_of_2(d // 2), ROWS=ROWS,
    )  # fmt: skip
    return rope


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    first: tuple[Tensor, Tensor] | None = None,
    *,
    heads: int,
    reach: int | None = None,
) -> Tensor:
    """softmax(q k' / sqrt(d)) v of each head, (B, N, T, D), dense.

    Args:
        q, k, v: (B, N, T, D) each, last axis dense. Row i sees the rows up to itself.
        first: keys and values that every row of a window sees, (B, N, F, D) each.
        reach: rows further back than this are not seen. None: all are.
    """
    B, N, T, D = q.shape
    d = D // heads
    out = q.new_empty(B, N, T, D)
    arguments: list[Any] = [x for t in (q, k, v) for x in (t, *t.stride()[:3])]
    F = 0 if first is None else first[0].shape[2]
    arguments += [x for t in first or (k, v) for x in (t, *t.stride()[:3])]
    tiles = TILES[q.element_size() == 2]
    if d > 64 or T <= 64:
        tiles = tiles | {"QUERIES": 64, "maxnreg": 255}
    _band_attention[(triton.cdiv(T, tiles["QUERIES"]) * B * N * heads,)](
        *arguments, out, d**-0.5 * 1.4426950408889634, N, T, T if reach is None else reach,
        F=F, H=heads, d=d, d_=max(16, int(triton.next_power_of_2(d))),
        BAND=reach is not None and reach < T, **tiles,
    )  # fmt: skip
    return out


@triton.jit
def _online_softmax_step(score, scale, values, row_max, total, acc):
    """The running softmax, in powers of two, after more scores (queries, keys)."""
    new_max = tl.maximum(row_max, tl.max(score, axis=1) * scale)
    weight = tl.exp2(score * scale - new_max[:, None])
    rescale = tl.exp2(row_max - new_max)
    total = total * rescale + tl.sum(weight, axis=1)
    weight = weight.to(values.dtype)
    acc = tl.dot(weight, values, acc * rescale[:, None], input_precision="ieee")
    return new_max, total, acc


@triton.jit
def _attend_range(
    rows, k, kt, v, vt, i, e, start, stop, scale, row_max, total, acc, T, reach,
    d: tl.constexpr, KEYS: tl.constexpr, MASKED: tl.constexpr, BAND: tl.constexpr,
):  # fmt: skip
    """Attend to the keys from ``start`` to ``stop``, a tile at a time."""
    inside = (e < d)[None, :]
    for first in range(start, stop, KEYS):
        j = first + tl.arange(0, KEYS)
        where = inside
        if MASKED:
            where = where & (j < T)[:, None]
        keys = tl.load(k + j[:, None] * kt + e[None, :], mask=where, other=0.0)
        score = tl.dot(rows, tl.trans(keys), input_precision="ieee")
        values = tl.load(v + j[:, None] * vt + e[None, :], mask=where, other=0.0)
        if MASKED:
            seen = j[None, :] <= i[:, None]
            if BAND:
                seen = seen & (j[None, :] >= i[:, None] - reach)
            # scaled before masking: a row without a visible key so far must not give NaN
            score = tl.where(seen, score * scale, -1e30)
            row_max, total, acc = _online_softmax_step(score, 1.0, values, row_max, total, acc)
        else:
            row_max, total, acc = _online_softmax_step(score, scale, values, row_max, total, acc)
    return row_max, total, acc


@kernel()
def _band_attention(
    q, qb, qn, qt, k, kb, kn, kt, v, vb, vn, vt, fk, fkb, fkn, fkt, fv, fvb, fvn, fvt,
    out, scale, N, T, reach,
    F: tl.constexpr, H: tl.constexpr, d: tl.constexpr, d_: tl.constexpr, BAND: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(T, QUERIES)
    tile = tiles - 1 - tl.program_id(0) % tiles  # the longest first
    h, window = (tl.program_id(0) // tiles) % H, tl.program_id(0) // tiles // H
    b, n = (window // N).to(tl.int64), (window % N).to(tl.int64)
    start = tile * QUERIES
    i, e = start + tl.arange(0, QUERIES), tl.arange(0, d_)
    cell = (i < T)[:, None] & (e < d)[None, :]
    at = q + b * qb + n * qn + h * d
    rows = tl.load(at + i[:, None] * qt + e[None, :], mask=cell, other=0.0)
    k += b * kb + n * kn + h * d
    v += b * vb + n * vn + h * d
    row_max = tl.full((QUERIES,), -1e30, tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    acc = tl.zeros((QUERIES, d_), tl.float32)
    if F > 0:
        f = tl.arange(0, 16)
        where = (f < F)[:, None] & (e < d)[None, :]
        at = fk + b * fkb + n * fkn + h * d
        keys = tl.load(at + f[:, None] * fkt + e[None, :], mask=where, other=0.0)
        score = tl.dot(rows, tl.trans(keys), input_precision="ieee") * scale
        score = tl.where((f < F)[None, :], score, -1e30)
        at = fv + b * fvb + n * fvn + h * d
        values = tl.load(at + f[:, None] * fvt + e[None, :], mask=where, other=0.0)
        row_max, total, acc = _online_softmax_step(score, 1.0, values, row_max, total, acc)
    whole = 0  # from here on to the diagonal every row sees every key
    if BAND:
        edge = tl.maximum(0, start - reach) // KEYS * KEYS
        whole = tl.cdiv(tl.maximum(0, start + QUERIES - 1 - reach), KEYS) * KEYS
        whole = tl.minimum(whole, start)
        row_max, total, acc = _attend_range(
            rows, k, kt, v, vt, i, e, edge, whole, scale, row_max, total, acc, T, reach,
            d, KEYS, True, BAND,
        )  # fmt: skip
    row_max, total, acc = _attend_range(
        rows, k, kt, v, vt, i, e, whole, start, scale, row_max, total, acc, T, reach,
        d, KEYS, False, BAND,
    )  # fmt: skip
    row_max, total, acc = _attend_range(
        rows, k, kt, v, vt, i, e, start, tl.minimum(start + QUERIES, T), scale,
        row_max, total, acc, T, reach, d, KEYS, True, BAND,
    )  # fmt: skip
    at = out + ((b * N + n) * T + i[:, None]) * (H * d) + h * d + e[None, :]
    tl.store(at, (acc / total[:, None]).to(out.dtype.element_ty), mask=cell)


@kernel()
def _rotate_rows(
    x, xb, xt, cos, sin, T,
    H: tl.constexpr, half: tl.constexpr, H_: tl.constexpr, half_: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    groups = tl.cdiv(T, ROWS)
    t = tl.program_id(0) % groups * ROWS + tl.arange(0, ROWS)
    h, e = tl.arange(0, H_), tl.arange(0, half_)
    where = (t < T)[:, None] & (e < half)[None, :]
    cell = where[:, None, :] & (h < H)[None, :, None]
    row = (tl.program_id(0) // groups).to(tl.int64) * xb + t.to(tl.int64) * xt
    at = x + row[:, None, None] + (h * 2 * half)[None, :, None] + e[None, None, :]
    a = tl.load(at, mask=cell, other=0.0).to(tl.float32)
    b = tl.load(at + half, mask=cell, other=0.0).to(tl.float32)
    phase = t[:, None] * half + e[None, :]
    c = tl.load(cos + phase, mask=where, other=0.0)[:, None, :]
    s = tl.load(sin + phase, mask=where, other=0.0)[:, None, :]
    tl.store(at, (a * c - b * s).to(x.dtype.element_ty), mask=cell)
    tl.store(at + half, (a * s + b * c).to(x.dtype.element_ty), mask=cell)
