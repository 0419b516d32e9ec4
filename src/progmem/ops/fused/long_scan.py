"""The scan of the memory, forward only: two kernels a window.

`read` settles the memory of the window before, gates it, projects it and attends; a program takes
one head of one series and repeats the gate's product, which is cheaper than to wait for it. `write`
goes on to the feed-forward layer; a program takes some of its columns and leaves a part of the
result that the next `read` adds up.

Rows that a product takes are first put into memory of the program's own, as a product walks along
them in pieces; a barrier lies between.

Shapes: B series, N windows, W window, n slots, R = B n rows, D width, H heads, d = D / H, P parts
of the feed-forward layer.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from progmem.ops.fused.precompile import kernel
from progmem.ops.fused.tiles import layer_norm, row_of
from progmem.ops.window_attention import EPS, ScanWeights

MOST_SLOTS, WIDEST = 16, 512  # n, D; heads as wide as `long_attention` takes
COLUMNS = 64  # of the feed-forward layer, for a program
WARPS, STAGES = 8, 4  # a program waits for memory most of the time


class Seen(NamedTuple):
    """What the slots of each window see beside the carry; last axes dense."""

    bar_k: Tensor  # (B, N, n, D), not turned
    bar_v: Tensor  # (B, N, n, D)
    k: Tensor  # (B, N, W, D), of the tokens, turned by their place in the series
    v: Tensor  # (B, N, W, D)
    valid: Tensor  # (B, N, W)
    cos: Tensor  # (tokens, d/2), of places in the series
    sin: Tensor


class Made(NamedTuple):
    memory: Tensor  # (B, N, n, D) float32
    carry_k: Tensor  # (B, N, n, D), turned by the place of the window's first token
    carry_v: Tensor  # (B, N, n, D)


def scan(
    weights: ScanWeights,
    start: Tensor,
    seen: Seen,
    nonempty: Tensor,
    *,
    heads: int,
    stride: int,
) -> Made:
    """Carry ``start`` (B, n, D) through N windows, of which ``nonempty`` (B, N) write."""
    B, n, D = start.shape
    N, W = seen.k.shape[1:3]
    R, d, like = B * n, D // heads, weights.qkv
    parts = triton.cdiv(4 * D, COLUMNS)
    memory = start.new_empty(B, N, n, D)
    carry_k, carry_v = like.new_empty(2, B, N, n, D).unbind(0)
    carry, total, z = start.new_empty(R, D), start.new_empty(R, D), start.new_empty(R * heads, D)
    partial = start.new_empty(parts, R, D)
    own, attended = like.new_empty(2, R * heads, D), like.new_empty(R, D)
    f = like.new_empty(triton.cdiv(R, 16) * parts * 16, D)
    read: list[Any] = [
        total, partial, weights.fc2_bias, start, start.stride(0), memory,
        nonempty.contiguous().view(torch.uint8), *weights[:9],
    ]  # fmt: skip
    for t in seen[:4]:
        read += [t, *t.stride()[:3]]
    read += [seen.valid.view(torch.uint8), *seen.valid.stride(), seen.cos, seen.sin]
    read += [carry, *own, z, carry_k, carry_v, attended, d**-0.5 * 1.4426950408889634, EPS, B, N]
    write = [attended, carry, *weights[9:16], f, total, partial, R, EPS]
    sizes = {"D": D, "D_": max(16, int(triton.next_power_of_2(D)))}
    narrow = like.element_size() == 2
    settings = {"CHUNK": 32, "num_warps": WARPS, "num_stages": STAGES if narrow else 2}
    shape = {
        "W": W, "S": stride, "n": n, "n_": triton.next_power_of_2(n),
        "d": d, "d_": max(16, int(triton.next_power_of_2(d))), "H": heads, "P": parts,
        "KEYS": (128 if d <= 64 else 64) if narrow else 32,
    }  # fmt: skip
    for w in range(N):
        _read[(B, heads)](*read, w, **shape, **sizes, **settings)
        _write[(triton.cdiv(R, 16), parts)](*write, **sizes, COLUMNS=COLUMNS, **settings)
    _read[(B, 1)](*read, N, **shape, **sizes, **settings)  # settles the last window
    return Made(memory, carry_k, carry_v)


@triton.jit
def _piece(x, i, rows, D: tl.constexpr):
    """Columns ``i`` of up to 16 rows, (16, i)."""
    m = tl.arange(0, 16)
    where = (m < rows)[:, None] & (i < D)[None, :]
    return tl.load(x + m[:, None] * D + i[None, :], mask=where, other=0.0)


@triton.jit
def _product(x, weight, o, rows, there, D: tl.constexpr, O_: tl.constexpr, CHUNK: tl.constexpr):
    """Up to 16 rows of width D times the rows ``o`` of ``weight``: (16, O)."""
    made = tl.zeros((16, O_), tl.float32)
    for start in range(0, D, CHUNK):
        i = start + tl.arange(0, CHUNK)
        where = there[:, None] & (i < D)[None, :]
        w = tl.load(weight + o[:, None] * D + i[None, :], mask=where, other=0.0)
        made = tl.dot(_piece(x, i, rows, D), tl.trans(w), made, input_precision="ieee")
    return made


@triton.jit
def _project(
    x, qkv, o, other, there, rows, D: tl.constexpr, d_: tl.constexpr, CHUNK: tl.constexpr
):  # fmt: skip
    """q and k by the weights ``o`` and by their partners, v: (16, d) each, in one walk."""
    q = tl.zeros((16, d_), tl.float32)
    q_other = tl.zeros((16, d_), tl.float32)
    k = tl.zeros((16, d_), tl.float32)
    k_other = tl.zeros((16, d_), tl.float32)
    v = tl.zeros((16, d_), tl.float32)
    for start in range(0, D, CHUNK):
        i = start + tl.arange(0, CHUNK)
        piece = _piece(x, i, rows, D)
        where = there[:, None] & (i < D)[None, :]
        at, beside = o[:, None] * D + i[None, :], other[:, None] * D + i[None, :]
        w = tl.load(qkv + at, mask=where, other=0.0)
        q = tl.dot(piece, tl.trans(w), q, input_precision="ieee")
        w = tl.load(qkv + beside, mask=where, other=0.0)
        q_other = tl.dot(piece, tl.trans(w), q_other, input_precision="ieee")
        w = tl.load(qkv + D * D + at, mask=where, other=0.0)
        k = tl.dot(piece, tl.trans(w), k, input_precision="ieee")
        w = tl.load(qkv + D * D + beside, mask=where, other=0.0)
        k_other = tl.dot(piece, tl.trans(w), k_other, input_precision="ieee")
        w = tl.load(qkv + 2 * D * D + at, mask=where, other=0.0)
        v = tl.dot(piece, tl.trans(w), v, input_precision="ieee")
    return q, q_other, k, k_other, v


@triton.jit
def _take(q, keys, values, there, scale, most, total, made):
    """The running softmax after the keys that are ``there``, in powers of two."""
    score = tl.dot(q, tl.trans(keys), input_precision="ieee") * scale
    score = tl.where(there[None, :], score, -1e30)
    above = tl.maximum(most, tl.max(score, axis=1))
    weight = tl.exp2(score - above[:, None])
    shrink = tl.exp2(most - above)
    total = total * shrink + tl.sum(weight, axis=1)
    made = tl.dot(
        weight.to(values.dtype), values, made * shrink[:, None], input_precision="ieee"
    )  # fmt: skip
    return above, total, made


@kernel("B", "N", "w")
def _read(
    total, partial, narrow_b, start, sb, memory, nonempty,
    gate_w, gate_b, left, reset, logit, norm_w, norm_b, segment, qkv,
    bar_k, bkb, bkn, bkt, bar_v, bvb, bvn, bvt, k, kb, kn, kt, v, vb, vn, vt,
    valid, mb, mn, mt, cos, sin,
    carry, normed, hidden, gate, carry_k, carry_v, attended, scale, eps, B, N, w,
    W: tl.constexpr, S: tl.constexpr,
    n: tl.constexpr, n_: tl.constexpr, d: tl.constexpr, d_: tl.constexpr, H: tl.constexpr,
    P: tl.constexpr, KEYS: tl.constexpr, D: tl.constexpr, D_: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    b, h = tl.program_id(0).to(tl.int64), tl.program_id(1)
    s, c = tl.arange(0, n_), tl.arange(0, D_)
    cell = (s < n)[:, None] & (c < D)[None, :]
    at = s[:, None] * D + c[None, :]
    state = tl.load(start + b * sb + at, mask=cell, other=0.0)
    if w > 1:
        state = tl.load(memory + (b * N + w - 2) * n * D + at, mask=cell, other=0.0)
    if w > 0:
        new = tl.load(total + b * n * D + at, mask=cell, other=0.0)
        for p in tl.static_range(P):
            new += tl.load(partial + (p * B + b) * n * D + at, mask=cell, other=0.0)
        new = tl.where(cell, new + row_of(narrow_b, c, D), 0.0)
        wrote = tl.load(nonempty + b * N + w - 1) != 0
        state = tl.where(wrote, new, state)
        if h == 0:
            tl.store(memory + (b * N + w - 1) * n * D + at, state, mask=cell)
    if w < N:
        kind = qkv.dtype.element_ty
        own = (b * H + h) * n * D
        # M-bar of the carry: LN M_{w-1} against LN M_r
        a, _, _ = layer_norm(state, cell, gate_w, gate_b, c, eps, D)
        tl.store(normed + own + at, a.to(kind), mask=cell)
        tl.debug_barrier()
        z = _product(normed + own, left, c, n, c < D, D, D_, CHUNK)
        m = tl.arange(0, 16)
        inside = (m < n)[:, None] & (c < D)[None, :]
        tl.store(gate + own + m[:, None] * D + c[None, :], z, mask=inside)
        tl.debug_barrier()
        logits = tl.load(gate + own + at, mask=cell, other=0.0)
        logits += tl.load(logit + at, mask=cell, other=0.0).to(tl.float32)
        g = 1 / (1 + tl.exp(-logits))
        rows = g * a + (1 - g) * tl.load(reset + at, mask=cell, other=0.0).to(tl.float32)
        rows = tl.where(cell, rows, 0.0)
        if h == 0:
            tl.store(carry + b * n * D + at, rows, mask=cell)
        rows, _, _ = layer_norm(rows, cell, norm_w, norm_b, c, eps, D)
        rows += row_of(segment, c, D)
        tl.store(hidden + own + at, rows.to(kind), mask=cell)
        tl.debug_barrier()

        # q, k, v of this head; the other half of each pair that a position turns beside q and k
        e, half = tl.arange(0, d_), d // 2
        o = h * d + e
        other = tl.where(e < half, o + half, o - half)
        there = e < d
        q, q_other, own_k, k_other, own_v = _project(
            hidden + own, qkv, o, other, there, n, D, d_, CHUNK
        )
        own_v = own_v.to(kind)
        phase = w * S * half + e % half
        along = tl.load(cos + phase, mask=there, other=0.0)[None, :]
        across = tl.load(sin + phase, mask=there, other=0.0)[None, :]
        across = tl.where(e[None, :] < half, -across, across)
        to = (b * N + w) * n * D + m[:, None] * D + o[None, :]
        inside = (m < n)[:, None] & there[None, :]
        tl.store(carry_k + to, (own_k * along + k_other * across).to(kind), mask=inside)
        tl.store(carry_v + to, own_v, mask=inside)

        most = tl.full((16,), -1e30, tl.float32)
        mass = tl.zeros((16,), tl.float32)
        made = tl.zeros((16, d_), tl.float32)
        flat = q.to(kind)
        most, mass, made = _take(flat, own_k.to(kind), own_v, m < n, scale, most, mass, made)
        bar_keys = tl.load(
            bar_k + b * bkb + w * bkn + m[:, None] * bkt + o[None, :], mask=inside, other=0.0
        )
        bar_values = tl.load(
            bar_v + b * bvb + w * bvn + m[:, None] * bvt + o[None, :], mask=inside, other=0.0
        )
        most, mass, made = _take(flat, bar_keys, bar_values, m < n, scale, most, mass, made)
        turned = (q * along + q_other * across).to(kind)
        k += b * kb + w * kn + h * d
        v += b * vb + w * vn + h * d
        valid += b * mb + w * mn
        for first in range(0, W, KEYS):
            j = first + tl.arange(0, KEYS)
            seen = tl.load(valid + j * mt, mask=j < W, other=0) != 0
            where = (j < W)[:, None] & there[None, :]
            keys = tl.load(k + j[:, None] * kt + e[None, :], mask=where, other=0.0)
            values = tl.load(v + j[:, None] * vt + e[None, :], mask=where, other=0.0)
            most, mass, made = _take(turned, keys, values, seen, scale, most, mass, made)
        to = attended + b * n * D + m[:, None] * D + o[None, :]
        tl.store(to, (made / mass[:, None]).to(kind), mask=inside)


@kernel()
def _write(
    attended, carry, out, out_b, ahead_w, ahead_b, widen, widen_b, narrow,
    f, total, partial, R, eps,
    D: tl.constexpr, D_: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    kind = out.dtype.element_ty
    tile, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    first = tile * 16
    rows = R - first
    m, c = tl.arange(0, 16), tl.arange(0, D_)
    cell = (m < rows)[:, None] & (c < D)[None, :]
    at = m[:, None] * D + c[None, :]
    x = _product(attended + first * D, out, c, rows, c < D, D, D_, CHUNK)
    x += tl.load(carry + first * D + at, mask=cell, other=0.0) + row_of(out_b, c, D)
    x = tl.where(cell, x, 0.0)
    if part == 0:
        tl.store(total + first * D + at, x, mask=cell)
    own = f + (tile * tl.num_programs(1) + part) * 16 * D
    ahead, _, _ = layer_norm(x, cell, ahead_w, ahead_b, c, eps, D)
    tl.store(own + at, ahead.to(kind), mask=cell)
    tl.debug_barrier()
    o = part * COLUMNS + tl.arange(0, COLUMNS)
    there = o < 4 * D
    wide = _product(own, widen, o, rows, there, D, COLUMNS, CHUNK)
    wide += tl.load(widen_b + o, mask=there, other=0.0).to(tl.float32)[None, :]
    wide = 0.5 * wide * (1 + tl.erf(wide * 0.7071067811865476))
    where = (c < D)[:, None] & there[None, :]
    columns = tl.load(narrow + c[:, None] * 4 * D + o[None, :], mask=where, other=0.0)
    made = tl.dot(wide.to(kind), tl.trans(columns), input_precision="ieee")
    tl.store(partial + (part * R + first) * D + at, made, mask=cell)
