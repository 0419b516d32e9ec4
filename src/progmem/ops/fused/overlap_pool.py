"""The overlap pool, second half: attention over a token's copies, mixed with their mean.

Between the halves are the query's two linear maps. No (B, K, O, D) is ever laid out. The way back
takes whole rows first, whose norm ties all heads together; then heads apart, one warp a token.

Shapes: B series, K tokens, N windows, W window, S stride, O copies, D width, H heads, d = D / H;
sizes with _ are rounded up to powers of two.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from progmem.config import ModelConfig
from progmem.ops import compute_dtype
from progmem.ops.fused.overlap_means import (
    TOKENS,
    means,
    place_of,
    room_for,
    row_at,
    score_of,
    sizes_of,
)
from progmem.ops.fused.precompile import kernel
from progmem.ops.fused.tiles import apply, column_sums, divided, norm_pull, normed, row_of, rows_at
from progmem.ops.layers import linear, linear_gelu
from progmem.ops.overlap_pool import PoolWeights

ROWS, PROGRAMS = 4, 528  # of the mixture: tokens at a time, programs with sums of their own
BACK_TOKENS, TOKEN_PROGRAMS = 1, 4224  # of the attention


def overlap_pool(rows: Tensor, exists: Tensor, weights: PoolWeights, *, cfg: ModelConfig) -> Tensor:
    """`progmem.ops.overlap_pool.overlap_pool` of windows that overlap."""
    choice, S, dtype = weights.attentive, cfg.stride, compute_dtype(weights.value)
    assert choice is not None
    skip, mean, rows = means(rows, exists, choice.taps, stride=S, dtype=dtype)
    keys_and_values = torch.cat([choice.key, weights.value])  # one product for two
    projected = F.linear(rows, keys_and_values)
    query = linear(linear_gelu(mean, choice.fc1, choice.fc1_bias), choice.fc2, choice.fc2_bias)
    return attended(
        query, projected, skip, exists, choice.bias, weights.value_bias, weights.gamma,
        weights.skip_gate, stride=S, eps=weights.eps,
    )  # fmt: skip


def supports(rows: Tensor, exists: Tensor, weights: PoolWeights, *, cfg: ModelConfig) -> bool:
    return weights.attentive is not None


def attended(
    query: Tensor,
    rows: Tensor,
    skip: Tensor,
    exists: Tensor,
    bias: Tensor,
    shift: Tensor,
    gamma: Tensor,
    skip_gate: Tensor,
    *,
    stride: int,
    eps: float,
) -> Tensor:
    """A_t mixed with S_t, (B, K, D) in the wider type of ``skip`` and ``gamma``.

    Args:
        query, skip: (B, K, D).
        rows: keys and values of the windows' rows, (B, N, W, 2D).
        bias: of the scores, (H, O).
        shift: of the values, (D,).
    """
    out: Tensor = apply(
        _Attended,
        query, rows, skip, exists, bias, shift, gamma, skip_gate, stride, eps,
        torch.is_grad_enabled(),  # inside it never is
    )  # fmt: skip
    return out


def _scales(sizes: dict[str, int]) -> tuple[float, float]:
    return sizes["d"] ** -0.5, sizes["O"] ** -0.5


class _Attended(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        rows: Tensor,
        skip: Tensor,
        exists: Tensor,
        bias: Tensor,
        shift: Tensor,
        gamma: Tensor,
        skip_gate: Tensor,
        stride: int,
        eps: float,
        keep: bool,
    ) -> Tensor:
        query, rows, skip, exists = (t.contiguous() for t in (query, rows, skip, exists))
        out = torch.empty_like(query, dtype=torch.promote_types(skip.dtype, gamma.dtype))
        sizes = sizes_of(rows[..., : len(gamma)], exists, stride, len(bias))
        B, K, _ = exists.shape
        mean = torch.empty_like(query) if keep else query  # over the copies
        lse = query.new_empty(B, K, len(bias) if keep else 0, dtype=torch.float32)
        _attended_forward[(triton.cdiv(B * K, TOKENS),)](
            query, rows, skip, exists.view(torch.uint8), bias, shift, gamma, skip_gate, out, mean,
            lse, B, eps, *_scales(sizes), **sizes, KEEP=keep,
        )  # fmt: skip
        ctx.settings = stride, eps
        ctx.save_for_backward(query, rows, skip, exists, bias, shift, gamma, skip_gate, mean, lse)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, back: Tensor) -> tuple[Tensor | None, ...]:
        query, rows, skip, exists, bias, shift, gamma, skip_gate, mean, lse = ctx.saved_tensors
        stride, eps = ctx.settings
        layer = Pooled(gamma, skip_gate, shift, eps)
        pull, d_skip, (d_gamma, d_gate, d_shift) = run_mix_backward(
            back.contiguous(), mean, skip, layer, copies=exists.shape[2]
        )
        d_query, d_rows, d_bias = run_attend_backward(
            pull, query, rows, exists, bias, mean, lse, stride=stride
        )
        return (
            d_query, d_rows, d_skip, None, d_bias.to(bias.dtype), d_shift.to(shift.dtype),
            d_gamma.to(gamma.dtype), d_gate.to(skip_gate.dtype), None, None, None,
        )  # fmt: skip


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
    sizes = sizes_of(rows[..., :D], exists, stride, len(bias)) | {"TOKENS": BACK_TOKENS}
    d_query, d_rows = torch.empty_like(query), room_for(rows, sizes)
    programs = min(TOKEN_PROGRAMS, triton.cdiv(B * K, BACK_TOKENS))
    d_bias = rows.new_empty(programs, *bias.shape, dtype=torch.float32)
    _attend_backward[(programs,)](
        pull, query, rows, exists.view(torch.uint8), bias, mean, lse, d_query, d_rows, d_bias, B,
        sizes["d"] ** -0.5, **sizes, num_warps=1,
    )  # fmt: skip
    return d_query, d_rows, column_sums(d_bias)


@triton.jit
def _unit(mean, inside, eps, D: tl.constexpr):
    """Rows (TOKENS, H, d) normalised."""
    level = tl.sum(tl.sum(mean, axis=2), axis=1) / D
    centred = tl.where(inside[None], mean - level[:, None, None], 0.0)
    scale = 1 / tl.sqrt(tl.sum(tl.sum(centred * centred, axis=2), axis=1) / D + eps)
    return centred * scale[:, None, None]


@triton.jit
def _attend(
    q, rows, bias, by_width, token, b, exists, h, inner, inside, B, K, N,
    W: tl.constexpr, S: tl.constexpr, O: tl.constexpr,
    H: tl.constexpr, d: tl.constexpr, H_: tl.constexpr, d_: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """Weighted mean of the copies, (TOKENS, H, d), and log of the weights' sum, (TOKENS, H)."""
    most = tl.full((TOKENS, H_), -3.0e38, tl.float32)
    total = tl.zeros((TOKENS, H_), tl.float32)
    made = tl.zeros((TOKENS, H_, d_), tl.float32)
    for r in tl.static_range(O):
        row, there, _ = place_of(token, r, b, exists, B, K, N, W, S, O)
        k = row_at(rows, row, there, inner, inside, 2 * H * d)
        v = row_at(rows + H * d, row, there, inner, inside, 2 * H * d)
        score = score_of(q, k, bias, by_width, h, r, there, H, O)
        above = tl.maximum(most, score)
        fade, weight = tl.exp(most - above), tl.exp(score - above)
        made = made * fade[:, :, None] + weight[:, :, None] * v
        total = total * fade + weight
        most = above
    return made / total[:, :, None], most + tl.log(total)


@kernel("B", "K", "N")
def _attended_forward(
    query, rows, skip, exists, bias, shift, gamma, skip_gate, out, mean, lse, B, eps,
    by_width, by_copies, K, N,
    W: tl.constexpr, S: tl.constexpr, O: tl.constexpr,
    H: tl.constexpr, d: tl.constexpr, H_: tl.constexpr, d_: tl.constexpr, O_: tl.constexpr,
    TOKENS: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    h, e = tl.arange(0, H_), tl.arange(0, d_)
    inner = h[:, None] * d + e[None, :]
    inside = (h < H)[:, None] & (e < d)[None, :]
    live = token < B * K
    q = row_at(query, token, live, inner, inside, H * d)
    b, _ = divided(token, K)
    made, norm = _attend(
        q, rows, bias, by_width, token, b, exists, h, inner, inside, B,
        K, N, W, S, O, H, d, H_, d_, TOKENS,
    )  # fmt: skip
    at = token[:, None, None] * H * d + inner[None]
    whole = live[:, None, None] & inside[None]
    if KEEP:
        tl.store(mean + at, made.to(mean.dtype.element_ty), mask=whole)
        where = live[:, None] & (h < H)[None, :]
        tl.store(lse + token[:, None] * H + h[None, :], norm, mask=where)
    made += tl.load(shift + inner, mask=inside, other=0.0).to(tl.float32)[None]
    unit = _unit(made * by_copies, inside, eps, H * d)
    scale = tl.load(gamma + inner, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(skip_gate + inner, mask=inside, other=0.0).to(tl.float32)
    gate = 1 / (1 + tl.exp(-gate))
    plain = row_at(skip, token, live, inner, inside, H * d)
    result = plain + gate[None] * (scale[None] * unit - plain)
    tl.store(out + at, result.to(out.dtype.element_ty), mask=whole)


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
