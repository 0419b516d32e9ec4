"""The memory scan of long windows, forward only: two kernels a window.

`_read` completes the memory of the window before, gates it, projects it and attends; a program
takes one head of one series and repeats the gate's product, which is cheaper than synchronising.
`_write` computes output projection and feed-forward; a program takes some columns of the hidden
layer and stores a partial result, and the next `_read` sums the parts.

The rows of a product's left side are first written to memory of the program's own, since the
product reads them in chunks; a barrier lies between.

Shapes: B series, N windows, W window, n slots, R = B n rows, D width, H heads, d = D / H, P parts
of the feed-forward layer.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from progmem.ops.fused.precompile import kernel
from progmem.ops.fused.tiles import layer_norm, load_row_vector
from progmem.ops.window_attention import EPS, ScanWeights

MAX_SLOTS, MAX_DIM = 16, 512  # n, D; heads at most as wide as in `long_attention`
COLUMNS = 64  # of the hidden layer, for a program
WARPS, STAGES = 8, 4  # a program waits for memory most of the time


class SlotKeys(NamedTuple):
    """What the slots of each window attend to beside the carry; last axes dense."""

    bar_k: Tensor  # (B, N, n, D), M-bar of the block below, not rotated
    bar_v: Tensor  # (B, N, n, D)
    k: Tensor  # (B, N, W, D), of the tokens, rotated by their positions in the series
    v: Tensor  # (B, N, W, D)
    valid: Tensor  # (B, N, W)
    cos: Tensor  # (tokens, d/2), of positions in the series
    sin: Tensor


class ScanOutput(NamedTuple):
    memory: Tensor  # (B, N, n, D) float32
    carry_k: Tensor  # (B, N, n, D), rotated by the position of the window's first token
    carry_v: Tensor  # (B, N, n, D)


def scan(
    weights: ScanWeights,
    start: Tensor,
    visible: SlotKeys,
    nonempty: Tensor,
    *,
    heads: int,
    stride: int,
) -> ScanOutput:
    """Carry ``start`` (B, n, D) through N windows, of which ``nonempty`` (B, N) write."""
    B, n, D = start.shape
    N, W = visible.k.shape[1:3]
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
    for t in visible[:4]:
        read += [t, *t.stride()[:3]]
    read += [visible.valid.view(torch.uint8), *visible.valid.stride(), visible.cos, visible.sin]
    read += [carry, *own, z, carry_k, carry_v, attended, d**-0.5 * 1.4426950408889634, EPS, B, N]
    write = [attended, carry, *weights[9:16], f, total, partial, R, EPS]
    sizes = {"D": D, "D_": max(16, int(triton.next_power_of_2(D)))}
    two_bytes = like.element_size() == 2
    settings = {"CHUNK": 32, "num_warps": WARPS, "num_stages": STAGES if two_bytes else 2}
    shape = {
        "W": W, "S": stride, "n": n, "n_": triton.next_power_of_2(n),
        "d": d, "d_": max(16, int(triton.next_power_of_2(d))), "H": heads, "P": parts,
        "KEYS": (128 if d <= 64 else 64) if two_bytes else 32,
    }  # fmt: skip
    for w in range(N):
        _read[(B, heads)](*read, w, **shape, **sizes, **settings)
        _write[(triton.cdiv(R, 16), parts)](*write, **sizes, COLUMNS=COLUMNS, **settings)
    _read[(B, 1)](*read, N, **shape, **sizes, **settings)  # completes the memory of the last window
    return ScanOutput(memory, carry_k, carry_v)


@triton.jit
def _load_columns(x, i, rows, D: tl.constexpr):
    """Columns ``i`` of up to 16 rows, (16, i)."""
    m = tl.arange(0, 16)
    where = (m < rows)[:, None] & (i < D)[None, :]
    return tl.load(x + m[:, None] * D + i[None, :], mask=where, other=0.0)


@triton.jit
def _matmul(x, weight, o, rows, there, D: tl.constexpr, O_: tl.constexpr, CHUNK: tl.constexpr):
    """Up to 16 rows of width D times the rows ``o`` of ``weight``: (16, O)."""
    acc = tl.zeros((16, O_), tl.float32)
    for start in range(0, D, CHUNK):
        i = start + tl.arange(0, CHUNK)
        where = there[:, None] & (i < D)[None, :]
        w = tl.load(weight + o[:, None] * D + i[None, :], mask=where, other=0.0)
        acc = tl.dot(_load_columns(x, i, rows, D), tl.trans(w), acc, input_precision="ieee")
    return acc


@triton.jit
def _project(
    x, qkv, o, partner, there, rows, D: tl.constexpr, d_: tl.constexpr, CHUNK: tl.constexpr
):  # fmt: skip
    """q and k by the weights ``o`` and by their rotation partners, v: (16, d) each, in one pass."""
    q = tl.zeros((16, d_), tl.float32)
    q_partner = tl.zeros((16, d_), tl.float32)
    k = tl.zeros((16, d_), tl.float32)
    k_partner = tl.zeros((16, d_), tl.float32)
    v = tl.zeros((16, d_), tl.float32)
    for start in range(0, D, CHUNK):
        i = start + tl.arange(0, CHUNK)
        x_columns = _load_columns(x, i, rows, D)
        where = there[:, None] & (i < D)[None, :]
        at, at_partner = o[:, None] * D + i[None, :], partner[:, None] * D + i[None, :]
        w = tl.load(qkv + at, mask=where, other=0.0)
        q = tl.dot(x_columns, tl.trans(w), q, input_precision="ieee")
        w = tl.load(qkv + at_partner, mask=where, other=0.0)
        q_partner = tl.dot(x_columns, tl.trans(w), q_partner, input_precision="ieee")
        w = tl.load(qkv + D * D + at, mask=where, other=0.0)
        k = tl.dot(x_columns, tl.trans(w), k, input_precision="ieee")
        w = tl.load(qkv + D * D + at_partner, mask=where, other=0.0)
        k_partner = tl.dot(x_columns, tl.trans(w), k_partner, input_precision="ieee")
        w = tl.load(qkv + 2 * D * D + at, mask=where, other=0.0)
        v = tl.dot(x_columns, tl.trans(w), v, input_precision="ieee")
    return q, q_partner, k, k_partner, v


@triton.jit
def _online_softmax_step(q, keys, values, there, scale, row_max, total, acc):
    """The running softmax, in powers of two, after more keys; only those ``there`` count."""
    score = tl.dot(q, tl.trans(keys), input_precision="ieee") * scale
    score = tl.where(there[None, :], score, -1e30)
    new_max = tl.maximum(row_max, tl.max(score, axis=1))
    weight = tl.exp2(score - new_max[:, None])
    rescale = tl.exp2(row_max - new_max)
    total = total * rescale + tl.sum(weight, axis=1)
    acc = tl.dot(
        weight.to(values.dtype), values, acc * rescale[:, None], input_precision="ieee"
    )  # fmt: skip
    return new_max, total, acc


@kernel("B", "N", "w")
def _read(
    total, partial, fc2_b, start, sb, memory, nonempty,
    gate_w, gate_b, gate_matrix, reset, logit, norm_w, norm_b, segment, qkv,
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
        new = tl.where(cell, new + load_row_vector(fc2_b, c, D), 0.0)
        wrote = tl.load(nonempty + b * N + w - 1) != 0
        state = tl.where(wrote, new, state)
        if h == 0:
            tl.store(memory + (b * N + w - 1) * n * D + at, state, mask=cell)
    if w < N:
        dtype = qkv.dtype.element_ty
        own = (b * H + h) * n * D
        # M-bar of the carry: LN M_{w-1} against LN M_r
        a, _, _ = layer_norm(state, cell, gate_w, gate_b, c, eps, D)
        tl.store(normed + own + at, a.to(dtype), mask=cell)
        tl.debug_barrier()
        z = _matmul(normed + own, gate_matrix, c, n, c < D, D, D_, CHUNK)
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
        rows += load_row_vector(segment, c, D)
        tl.store(hidden + own + at, rows.to(dtype), mask=cell)
        tl.debug_barrier()

        # q, k, v of this head; q and k also of the partner of each column in its rotation
        e, half = tl.arange(0, d_), d // 2
        o = h * d + e
        partner = tl.where(e < half, o + half, o - half)
        there = e < d
        q, q_partner, own_k, k_partner, own_v = _project(
            hidden + own, qkv, o, partner, there, n, D, d_, CHUNK
        )
        own_v = own_v.to(dtype)
        phase = w * S * half + e % half
        cos_row = tl.load(cos + phase, mask=there, other=0.0)[None, :]
        sin_row = tl.load(sin + phase, mask=there, other=0.0)[None, :]
        sin_row = tl.where(e[None, :] < half, -sin_row, sin_row)
        to = (b * N + w) * n * D + m[:, None] * D + o[None, :]
        inside = (m < n)[:, None] & there[None, :]
        tl.store(carry_k + to, (own_k * cos_row + k_partner * sin_row).to(dtype), mask=inside)
        tl.store(carry_v + to, own_v, mask=inside)

        row_max = tl.full((16,), -1e30, tl.float32)
        total_weight = tl.zeros((16,), tl.float32)
        acc = tl.zeros((16, d_), tl.float32)
        unrotated_q = q.to(dtype)
        row_max, total_weight, acc = _online_softmax_step(
            unrotated_q, own_k.to(dtype), own_v, m < n, scale, row_max, total_weight, acc
        )
        bar_keys = tl.load(
            bar_k + b * bkb + w * bkn + m[:, None] * bkt + o[None, :], mask=inside, other=0.0
        )
        bar_values = tl.load(
            bar_v + b * bvb + w * bvn + m[:, None] * bvt + o[None, :], mask=inside, other=0.0
        )
        row_max, total_weight, acc = _online_softmax_step(
            unrotated_q, bar_keys, bar_values, m < n, scale, row_max, total_weight, acc
        )
        rotated_q = (q * cos_row + q_partner * sin_row).to(dtype)
        k += b * kb + w * kn + h * d
        v += b * vb + w * vn + h * d
        valid += b * mb + w * mn
        for first in range(0, W, KEYS):
            j = first + tl.arange(0, KEYS)
            visible = tl.load(valid + j * mt, mask=j < W, other=0) != 0
            where = (j < W)[:, None] & there[None, :]
            keys = tl.load(k + j[:, None] * kt + e[None, :], mask=where, other=0.0)
            values = tl.load(v + j[:, None] * vt + e[None, :], mask=where, other=0.0)
            row_max, total_weight, acc = _online_softmax_step(
                rotated_q, keys, values, visible, scale, row_max, total_weight, acc
            )
        to = attended + b * n * D + m[:, None] * D + o[None, :]
        tl.store(to, (acc / total_weight[:, None]).to(dtype), mask=inside)


@kernel()
def _write(
    attended, carry, out, out_b, ff_norm_w, ff_norm_b, fc1, fc1_b, fc2,
    f, total, partial, R, eps,
    D: tl.constexpr, D_: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    dtype = out.dtype.element_ty
    tile, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    first = tile * 16
    rows = R - first
    m, c = tl.arange(0, 16), tl.arange(0, D_)
    cell = (m < rows)[:, None] & (c < D)[None, :]
    at = m[:, None] * D + c[None, :]
    x = _matmul(attended + first * D, out, c, rows, c < D, D, D_, CHUNK)
    x += tl.load(carry + first * D + at, mask=cell, other=0.0) + load_row_vector(out_b, c, D)
    x = tl.where(cell, x, 0.0)
    if part == 0:
        tl.store(total + first * D + at, x, mask=cell)
    own = f + (tile * tl.num_programs(1) + part) * 16 * D
    normed_x, _, _ = layer_norm(x, cell, ff_norm_w, ff_norm_b, c, eps, D)
    tl.store(own + at, normed_x.to(dtype), mask=cell)
    tl.debug_barrier()
    o = part * COLUMNS + tl.arange(0, COLUMNS)
    there = o < 4 * D
    expanded = _matmul(own, fc1, o, rows, there, D, COLUMNS, CHUNK)
    expanded += tl.load(fc1_b + o, mask=there, other=0.0).to(tl.float32)[None, :]
    expanded = 0.5 * expanded * (1 + tl.erf(expanded * 0.7071067811865476))
    where = (c < D)[:, None] & there[None, :]
    columns = tl.load(fc2 + c[:, None] * 4 * D + o[None, :], mask=where, other=0.0)
    acc = tl.dot(expanded.to(dtype), tl.trans(columns), input_precision="ieee")
    tl.store(partial + (part * R + first) * D + at, acc, mask=cell)
