"""Causal attention of long windows, forward only: tiles of queries over the tiles of keys they see.

Windows are views of their tokens, so keys and values are read where the projection left them, and
the few keys of the carry from where they lie: nothing is joined, padded or masked in memory.

Shapes: B series, N windows, T rows of each, F first keys, H heads, d width of a head, D = H d.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from progmem.ops.fused.precompile import kernel
from progmem.ops.layers import Rotation, rotation

WIDEST = 128  # d; at most 16 first keys
LONGEST = 2**17  # tokens, as positions of all of them are kept
SHARED = 160_000  # bytes of fast memory that kernels for long windows take at most
ROWS = 4  # of a program that turns rows
TILES = {  # by whether numbers have two bytes; with 128 registers two programs share a processor
    True: {"QUERIES": 128, "KEYS": 64, "num_warps": 8, "num_stages": 3, "maxnreg": 128},
    False: {"QUERIES": 64, "KEYS": 32, "num_warps": 8, "num_stages": 2},
}


def supports(qkv: Tensor, heads: int, *, tokens: int, gaps: bool, training: bool) -> bool:
    """Whether kernels for long windows can take projections (B, ..., 3D) of so many ``tokens``.

    ``gaps``: tokens are missing before a series' end. In ``training`` some rows are made with a
    gradient and without, which must agree to the last bit.
    """
    if torch.is_grad_enabled() or training or gaps:
        return False
    fits = qkv.shape[-1] // 3 // heads <= WIDEST and tokens <= LONGEST
    return fits and _shared(qkv) >= SHARED


def _shared(x: Tensor) -> int:
    """Bytes of fast memory that a program can have where ``x`` lies."""
    if not x.is_cuda:
        return SHARED
    found = torch.cuda.get_device_properties(x.device)
    return int(getattr(found, "shared_memory_per_block_optin", 0))


def rotate_rows(qkv: Tensor, *, heads: int) -> Rotation:
    """Turn queries and keys of (B, K, 3D) in place, each by its token's place in the series."""
    B, T, D = qkv.shape
    d = D // 3 // heads
    place = rotation(qkv[..., :d])
    _turn[(triton.cdiv(T, ROWS) * B,)](  # one axis, as the others end at 65,535
        qkv, qkv.stride(0), qkv.stride(1), *place, T, H=2 * heads, half=d // 2,
        H_=triton.next_power_of_2(2 * heads), half_=triton.next_power_of_2(d // 2), ROWS=ROWS,
    )  # fmt: skip
    return place


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
    given: list[Any] = [x for t in (q, k, v) for x in (t, *t.stride()[:3])]
    F = 0 if first is None else first[0].shape[2]
    given += [x for t in first or (k, v) for x in (t, *t.stride()[:3])]
    tiles = TILES[q.element_size() == 2]
    if d > 64 or T <= 64:
        tiles = tiles | {"QUERIES": 64, "maxnreg": 255}
    _band[(triton.cdiv(T, tiles["QUERIES"]) * B * N * heads,)](
        *given, out, d**-0.5 * 1.4426950408889634, N, T, T if reach is None else reach,
        F=F, H=heads, d=d, d_=max(16, int(triton.next_power_of_2(d))),
        BAND=reach is not None and reach < T, **tiles,
    )  # fmt: skip
    return out


@triton.jit
def _take(score, scale, values, most, total, made):
    """The running softmax after some more scores (queries, keys), in powers of two."""
    above = tl.maximum(most, tl.max(score, axis=1) * scale)
    weight = tl.exp2(score * scale - above[:, None])
    shrink = tl.exp2(most - above)
    total = total * shrink + tl.sum(weight, axis=1)
    weight = weight.to(values.dtype)
    made = tl.dot(weight, values, made * shrink[:, None], input_precision="ieee")
    return above, total, made


@triton.jit
def _walk(
    rows, k, kt, v, vt, i, e, start, stop, scale, most, total, made, T, reach,
    d: tl.constexpr, KEYS: tl.constexpr, MASKED: tl.constexpr, BAND: tl.constexpr,
):  # fmt: skip
    """Take in the keys from ``start`` to ``stop``, a tile at a time."""
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
            # scaled first: a row that sees none so far must not give NaN
            score = tl.where(seen, score * scale, -1e30)
            most, total, made = _take(score, 1.0, values, most, total, made)
        else:
            most, total, made = _take(score, scale, values, most, total, made)
    return most, total, made


@kernel()
def _band(
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
    most = tl.full((QUERIES,), -1e30, tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    made = tl.zeros((QUERIES, d_), tl.float32)
    if F > 0:
        f = tl.arange(0, 16)
        where = (f < F)[:, None] & (e < d)[None, :]
        at = fk + b * fkb + n * fkn + h * d
        keys = tl.load(at + f[:, None] * fkt + e[None, :], mask=where, other=0.0)
        score = tl.dot(rows, tl.trans(keys), input_precision="ieee") * scale
        score = tl.where((f < F)[None, :], score, -1e30)
        at = fv + b * fvb + n * fvn + h * d
        values = tl.load(at + f[:, None] * fvt + e[None, :], mask=where, other=0.0)
        most, total, made = _take(score, 1.0, values, most, total, made)
    whole = 0  # from here on to the diagonal every row sees every key
    if BAND:
        edge = tl.maximum(0, start - reach) // KEYS * KEYS
        whole = tl.cdiv(tl.maximum(0, start + QUERIES - 1 - reach), KEYS) * KEYS
        whole = tl.minimum(whole, start)
        most, total, made = _walk(
            rows, k, kt, v, vt, i, e, edge, whole, scale, most, total, made, T, reach,
            d, KEYS, True, BAND,
        )  # fmt: skip
    most, total, made = _walk(
        rows, k, kt, v, vt, i, e, whole, start, scale, most, total, made, T, reach,
        d, KEYS, False, BAND,
    )  # fmt: skip
    most, total, made = _walk(
        rows, k, kt, v, vt, i, e, start, tl.minimum(start + QUERIES, T), scale,
        most, total, made, T, reach, d, KEYS, True, BAND,
    )  # fmt: skip
    at = out + ((b * N + n) * T + i[:, None]) * (H * d) + h * d + e[None, :]
    tl.store(at, (made / total[:, None]).to(out.dtype.element_ty), mask=cell)


@kernel()
def _turn(
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
