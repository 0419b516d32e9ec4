"""The way back through the overlap aggregator's second half: mixture and norm, then attention.

Whole rows first, whose norm ties all heads together; then heads apart, one warp a token.

Shapes: B series, K tokens, N windows, W window, S stride, O copies, D width, H heads, d = D / H,
R = B K; sizes with _ are rounded up to powers of two.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from progmem.kernels.ahead import kernel
from progmem.kernels.copies import place_of, room_for, row_at, score_of, sizes_of
from progmem.kernels.row_parts import divided, norm_pull, normed, row_of, rows_at
from progmem.kernels.sums import column_sums

ROWS, PROGRAMS = 4, 528  # of the mixture: tokens at a time, programs with sums of their own
TOKEN_PROGRAMS = 4224  # of the attention


class Pooled(NamedTuple):
    """What the attended mean goes through: A = gamma LN(O^-1/2 (mean + shift)), mixed with S."""

    gamma: Tensor  # (D,)
    skip_gate: Tensor  # (D,)
    shift: Tensor  # (D,)
    eps: float


def run_mix_backward(
    back: Tensor, mean: Tensor, skip: Tensor, layer: Pooled, *, copies: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of ``mean`` and ``skip`` (B, K, D), and of gamma, gate and shift, (3, D)."""
    R, D = mean.numel() // mean.shape[-1], mean.shape[-1]
    pull, d_skip = torch.empty_like(mean), torch.empty_like(skip)
    programs = min(PROGRAMS, triton.cdiv(R, ROWS))
    sums = mean.new_empty(programs, 3, D, dtype=torch.float32)
    _mix_backward[(programs,)](
        back, mean, skip, *layer, copies**-0.5, pull, d_skip, sums, R,
        D=D, D_=triton.next_power_of_2(D), ROWS=ROWS,
    )  # fmt: skip
    return pull, d_skip, column_sums(sums)


def run_attend_backward(
    pull: Tensor,
    query: Tensor,
    rows: Tensor,
    exists: Tensor,
    bias: Tensor,
    mean: Tensor,
    lse: Tensor,
    *,
    stride: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the queries, of the rows' keys and values, and of the scores' bias (H, O)."""
    B, K, D = query.shape
    sizes = sizes_of(rows[..., :D], exists, stride, len(bias)) | {"TOKENS": 1}
    d_query, d_rows = torch.empty_like(query), room_for(rows, sizes)
    programs = min(TOKEN_PROGRAMS, B * K)
    d_bias = rows.new_empty(programs, *bias.shape, dtype=torch.float32)
    _attend_backward[(programs,)](
        pull, query, rows, exists.view(torch.uint8), bias, mean, lse, d_query, d_rows, d_bias, B,
        sizes["d"] ** -0.5, **sizes, num_warps=1,
    )  # fmt: skip
    return d_query, d_rows, column_sums(d_bias)


@kernel("R")
def _mix_backward(
    back, mean, skip, gamma, skip_gate, shift, eps, by_copies, pull, d_skip, sums, R,
    D: tl.constexpr, D_: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    c = tl.arange(0, D_)
    scale, level = row_of(gamma, c, D), row_of(shift, c, D)
    gate = 1 / (1 + tl.exp(-row_of(skip_gate, c, D)))
    d_scale = tl.zeros((ROWS, D_), tl.float32)
    d_gate = tl.zeros((ROWS, D_), tl.float32)
    d_shift = tl.zeros((ROWS, D_), tl.float32)
    for start in range(tl.program_id(0) * ROWS, R, tl.num_programs(0) * ROWS):
        r = (start + tl.arange(0, ROWS)).to(tl.int64)
        at, cell = r[:, None] * D + c[None, :], (r < R)[:, None] & (c < D)[None, :]
        made, plain = rows_at(mean, at, cell), rows_at(skip, at, cell)
        down = rows_at(back, at, cell)
        made = tl.where(cell, (made + level) * by_copies, 0.0)
        unit, _, spread = normed(made, cell, eps, D)
        d_gate += down * (scale * unit - plain)
        tl.store(d_skip + at, (down * (1 - gate)).to(d_skip.dtype.element_ty), mask=cell)
        down = down * gate
        d_scale += down * unit
        down = tl.where(cell, norm_pull(down * scale, unit, spread * by_copies, D), 0.0)
        d_shift += down
        tl.store(pull + at, down.to(pull.dtype.element_ty), mask=cell)
    at = sums + tl.program_id(0) * 3 * D + c
    tl.store(at, tl.sum(d_scale, axis=0), mask=c < D)
    of_gate = tl.sum(d_gate * (gate * (1 - gate)), axis=0)
    tl.store(at + D, of_gate, mask=c < D)
    tl.store(at + 2 * D, tl.sum(d_shift, axis=0), mask=c < D)


@kernel("B", "K", "N")
def _attend_backward(
    pull, query, rows, exists, bias, mean, lse, d_query, d_rows, bias_sums, B, by_width, K, N,
    W: tl.constexpr, S: tl.constexpr, O: tl.constexpr,
    H: tl.constexpr, d: tl.constexpr, H_: tl.constexpr, d_: tl.constexpr, O_: tl.constexpr,
    TOKENS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    h, e, o = tl.arange(0, H_), tl.arange(0, d_), tl.arange(0, O_)
    D: tl.constexpr = H * d
    inner = h[:, None] * d + e[None, :]
    inside = (h < H)[:, None] & (e < d)[None, :]
    d_bias = tl.zeros((H_, O_), tl.float32)
    for start in range(program * TOKENS, B * K, tl.num_programs(0) * TOKENS):
        token = (start + tl.arange(0, TOKENS)).to(tl.int64)
        live = token < B * K
        q = row_at(query, token, live, inner, inside, D)
        down = row_at(pull, token, live, inner, inside, D)
        made = row_at(mean, token, live, inner, inside, D)
        where = live[:, None] & (h < H)[None, :]
        norm = tl.load(lse + token[:, None] * H + h[None, :], mask=where, other=0.0)
        total = tl.sum(down * made, axis=2)  # (TOKENS, H)
        b, _ = divided(token, K)
        dq = tl.zeros((TOKENS, H_, d_), tl.float32)
        for r in tl.static_range(O):
            row, there, is_row = place_of(token, r, b, exists, B, K, N, W, S, O)
            k = row_at(rows, row, there, inner, inside, 2 * D)
            v = row_at(rows + D, row, there, inner, inside, 2 * D)
            score = score_of(q, k, bias, by_width, h, r, there, H, O)
            weight = tl.where(there[:, None], tl.exp(score - norm), 0.0)
            slope = weight * (tl.sum(down * v, axis=2) - total)
            d_bias += tl.where((o == r)[None, :], tl.sum(slope, axis=0)[:, None], 0.0)
            slope = slope * by_width
            dq += slope[:, :, None] * k
            at_row = d_rows + row[:, None, None] * 2 * D + inner[None]
            where = is_row[:, None, None] & inside[None]
            tl.store(at_row, (slope[:, :, None] * q).to(d_rows.dtype.element_ty), mask=where)
            dv = (weight[:, :, None] * down).to(d_rows.dtype.element_ty)
            tl.store(at_row + D, dv, mask=where)
        at = d_query + token[:, None, None] * D + inner[None]
        whole = live[:, None, None] & inside[None]
        tl.store(at, dq.to(d_query.dtype.element_ty), mask=whole)
    at = bias_sums + program * H * O + h[:, None] * O + o[None, :]
    tl.store(at, d_bias, mask=(h < H)[:, None] & (o < O)[None, :])
