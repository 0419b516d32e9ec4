"""Causal attention of long windows, forward only: tiles of queries over the tiles of keys they see.

Windows are views of their tokens, so keys and values are read where the projection left them, and
the few keys of the carry from where they lie: nothing is joined, padded or masked in memory.

Twin: `progmem.model.attention.attend_plainly` under the mask of the band.

Shapes: B series, N windows, T rows of each, F first keys, H heads, d width of a head, D = H d.
"""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from progmem.kernels.ahead import kernel

WIDEST = 128  # d; at most 16 first keys
TILES = {  # by whether numbers have two bytes; with 128 registers two programs share a processor
    True: {"QUERIES": 128, "KEYS": 64, "num_warps": 8, "num_stages": 3, "maxnreg": 128},
    False: {"QUERIES": 64, "KEYS": 32, "num_warps": 8, "num_stages": 2},
}


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
