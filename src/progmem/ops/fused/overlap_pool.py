"""The overlap pool, second half: attention over a token's copies, mixed with their mean.

Between the halves are the query's two linear maps. No tensor (B, K, O, D) is ever stored. The
backward pass first takes whole rows, since their norm couples all heads, then each head on its own,
one warp a token.

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
    allocate_rows,
    copy_index,
    copy_means,
    copy_score,
    load_copy,
    sizes_of,
)
from progmem.ops.fused.precompile import kernel
from progmem.ops.fused.tiles import (
    apply,
    column_sums,
    divmod32,
    layer_norm_backward,
    load_row_vector,
    load_rows,
    standardize,
)
from progmem.ops.layers import linear, linear_gelu
from progmem.ops.overlap_pool import PoolWeights

ROWS, PROGRAMS = 4, 528  # of the mixture: tokens at a time, programs with partial sums
BACK_TOKENS, TOKEN_PROGRAMS = 1, 4224  # of the attention


def overlap_pool(rows: Tensor, exists: Tensor, weights: PoolWeights, *, cfg: ModelConfig) -> Tensor:
    """`progmem.ops.overlap_pool.overlap_pool` of windows that overlap."""
    attention, S, dtype = weights.attention, cfg.stride, compute_dtype(weights.value)
    assert attention is not None
    skip, mean, rows = copy_means(rows, exists, attention.taps, stride=S, dtype=dtype)
    keys_and_values = torch.cat([attention.key, weights.value])  # one product for both
    projected = F.linear(rows, keys_and_values)
    hidden = linear_gelu(mean, attention.fc1, attention.fc1_bias)
    query = linear(hidden, attention.fc2, attention.fc2_bias)
    return attend_copies(
        query, projected, skip, exists, attention.bias, weights.value_bias, weights.gamma,
        weights.skip_gate, stride=S, eps=weights.eps,
    )  # fmt: skip


def supports(rows: Tensor, exists: Tensor, weights: PoolWeights, *, cfg: ModelConfig) -> bool:
    return weights.attention is not None


def attend_copies(
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
        _AttendCopies,
        query, rows, skip, exists, bias, shift, gamma, skip_gate, stride, eps,
        torch.is_grad_enabled(),  # inside the function it never is
    )  # fmt: skip
    return out


def _scales(sizes: dict[str, int]) -> tuple[float, float]:
    return sizes["d"] ** -0.5, sizes["O"] ** -0.5


class _AttendCopies(torch.autograd.Function):
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
        _attend_copies_forward[(triton.cdiv(B * K, TOKENS),)](
            query, rows, skip, exists.view(torch.uint8), bias, shift, gamma, skip_gate, out, mean,
            lse, B, eps, *_scales(sizes), **sizes, KEEP=keep,
        )  # fmt: skip
        ctx.settings = stride, eps
        ctx.save_for_backward(query, rows, skip, exists, bias, shift, gamma, skip_gate, mean, lse)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        query, rows, skip, exists, bias, shift, gamma, skip_gate, mean, lse = ctx.saved_tensors
        stride, eps = ctx.settings
        layer = MixWeights(gamma, skip_gate, shift, eps)
        d_mean, d_skip, (d_gamma, d_gate, d_shift) = run_mix_backward(
            d_out.contiguous(), mean, skip, layer, copies=exists.shape[2]
        )
        d_query, d_rows, d_bias = run_attend_backward(
            d_mean, query, rows, exists, bias, mean, lse, stride=stride
        )
        return (
            d_query, d_rows, d_skip, None, d_bias.to(bias.dtype), d_shift.to(shift.dtype),
            d_gamma.to(gamma.dtype), d_gate.to(skip_gate.dtype), None, None, None,
        )  # fmt: skip


class MixWeights(NamedTuple):
    """Weights of A = gamma LN(O^-1/2 (mean + shift)), mixed with S by the skip gate."""

    gamma: Tensor  # (D,)
    skip_gate: Tensor  # (D,)
    shift: Tensor  # (D,)
    eps: float


def run_mix_backward(
    d_out: Tensor, mean: Tensor, skip: Tensor, layer: MixWeights, *, copies: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of ``mean`` and ``skip`` (B, K, D), and of gamma, gate and shift, (3, D)."""
    R, D = mean.numel() // mean.shape[-1], mean.shape[-1]
    d_mean, d_skip = torch.empty_like(mean), torch.empty_like(skip)
    programs = min(PROGRAMS, triton.cdiv(R, ROWS))
    sums = mean.new_empty(programs, 3, D, dtype=torch.float32)
    _mix_backward[(programs,)](
        d_out, mean, skip, *layer, copies**-0.5, d_mean, d_skip, sums, R,
        D=D, D_=triton.next_power_of_2(D), ROWS=ROWS,
    )  # fmt: skip
    return d_mean, d_skip, column_sums(sums)


def run_attend_backward(
    d_mean: Tensor,
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
    d_query, d_rows = torch.empty_like(query), allocate_rows(rows, sizes)
    programs = min(TOKEN_PROGRAMS, triton.cdiv(B * K, BACK_TOKENS))
    d_bias = rows.new_empty(programs, *bias.shape, dtype=torch.float32)
    _attend_backward[(programs,)](
        d_mean, query, rows, exists.view(torch.uint8), bias, mean, lse, d_query, d_rows, d_bias, B,
        sizes["d"] ** -0.5, **sizes, num_warps=1,
    )  # fmt: skip
    return d_query, d_rows, column_sums(d_bias)


@triton.jit
def _standardize(mean, inside, eps, D: tl.constexpr):
    """Rows (TOKENS, H, d) normalised."""
    average = tl.sum(tl.sum(mean, axis=2), axis=1) / D
    centred = tl.where(inside[None], mean - average[:, None, None], 0.0)
    scale = 1 / tl.sqrt(tl.sum(tl.sum(centred * centred, axis=2), axis=1) / D + eps)
    return centred * scale[:, None, None]


@triton.jit
def _attend(
    q, rows, bias, score_scale, token, b, exists, h, inner, inside, B, K, N,
    W: tl.constexpr, S: tl.constexpr, O: tl.constexpr,
    H: tl.constexpr, d: tl.constexpr, H_: tl.constexpr, d_: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """Weighted mean of the copies, (TOKENS, H, d), and log of the weights' sum, (TOKENS, H)."""
    row_max = tl.full((TOKENS, H_), -3.0e38, tl.float32)
    total = tl.zeros((TOKENS, H_), tl.float32)
    acc = tl.zeros((TOKENS, H_, d_), tl.float32)
    for r in tl.static_range(O):
        row, there, _ = copy_index(token, r, b, exists, B, K, N, W, S, O)
        k = load_copy(rows, row, there, inner, inside, 2 * H * d)
        v = load_copy(rows + H * d, row, there, inner, inside, 2 * H * d)
        score = copy_score(q, k, bias, score_scale, h, r, there, H, O)
        new_max = tl.maximum(row_max, score)
        rescale, weight = tl.exp(row_max - new_max), tl.exp(score - new_max)
        acc = acc * rescale[:, :, None] + weight[:, :, None] * v
        total = total * rescale + weight
        row_max = new_max
    return acc / total[:, :, None], row_max + tl.log(total)


@kernel("B", "K", "N")
def _attend_copies_forward(
    query, rows, skip, exists, bias, shift, gamma, skip_gate, out, mean, lse, B, eps,
    score_scale, copies_scale, K, N,
    W: tl.constexpr, S: tl.constexpr, O: tl.constexpr,
    H: tl.constexpr, d: tl.constexpr, H_: tl.constexpr, d_: tl.constexpr, O_: tl.constexpr,
    TOKENS: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    h, e = tl.arange(0, H_), tl.arange(0, d_)
    inner = h[:, None] * d + e[None, :]
    inside = (h < H)[:, None] & (e < d)[None, :]
    live = token < B * K
    q = load_copy(query, token, live, inner, inside, H * d)
    b, _ = divmod32(token, K)
    acc, norm = _attend(
        q, rows, bias, score_scale, token, b, exists, h, inner, inside, B,
        K, N, W, S, O, H, d, H_, d_, TOKENS,
    )  # fmt: skip
    at = token[:, None, None] * H * d + inner[None]
    whole = live[:, None, None] & inside[None]
    if KEEP:
        tl.store(mean + at, acc.to(mean.dtype.element_ty), mask=whole)
        where = live[:, None] & (h < H)[None, :]
        tl.store(lse + token[:, None] * H + h[None, :], norm, mask=where)
    acc += tl.load(shift + inner, mask=inside, other=0.0).to(tl.float32)[None]
    x_hat = _standardize(acc * copies_scale, inside, eps, H * d)
    scale = tl.load(gamma + inner, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(skip_gate + inner, mask=inside, other=0.0).to(tl.float32)
    gate = 1 / (1 + tl.exp(-gate))
    skip_row = load_copy(skip, token, live, inner, inside, H * d)
    result = skip_row + gate[None] * (scale[None] * x_hat - skip_row)
    tl.store(out + at, result.to(out.dtype.element_ty), mask=whole)


@kernel("R")
def _mix_backward(
    d_out, mean, skip, gamma, skip_gate, shift, eps, copies_scale, d_mean, d_skip, sums, R,
    D: tl.constexpr, D_: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    c = tl.arange(0, D_)
    scale, shift_row = load_row_vector(gamma, c, D), load_row_vector(shift, c, D)
    gate = 1 / (1 + tl.exp(-load_row_vector(skip_gate, c, D)))
    d_scale = tl.zeros((ROWS, D_), tl.float32)
    d_gate = tl.zeros((ROWS, D_), tl.float32)
    d_shift = tl.zeros((ROWS, D_), tl.float32)
    for start in range(tl.program_id(0) * ROWS, R, tl.num_programs(0) * ROWS):
        r = (start + tl.arange(0, ROWS)).to(tl.int64)
        at, cell = r[:, None] * D + c[None, :], (r < R)[:, None] & (c < D)[None, :]
        acc, skip_row = load_rows(mean, at, cell), load_rows(skip, at, cell)
        grad = load_rows(d_out, at, cell)
        acc = tl.where(cell, (acc + shift_row) * copies_scale, 0.0)
        x_hat, _, inv_std = standardize(acc, cell, eps, D)
        d_gate += grad * (scale * x_hat - skip_row)
        tl.store(d_skip + at, (grad * (1 - gate)).to(d_skip.dtype.element_ty), mask=cell)
        grad = grad * gate
        d_scale += grad * x_hat
        grad = layer_norm_backward(grad * scale, x_hat, inv_std * copies_scale, D)
        grad = tl.where(cell, grad, 0.0)
        d_shift += grad
        tl.store(d_mean + at, grad.to(d_mean.dtype.element_ty), mask=cell)
    at = sums + tl.program_id(0) * 3 * D + c
    tl.store(at, tl.sum(d_scale, axis=0), mask=c < D)
    of_gate = tl.sum(d_gate * (gate * (1 - gate)), axis=0)
    tl.store(at + D, of_gate, mask=c < D)
    tl.store(at + 2 * D, tl.sum(d_shift, axis=0), mask=c < D)


@kernel("B", "K", "N")
def _attend_backward(
    d_mean, query, rows, exists, bias, mean, lse, d_query, d_rows, bias_sums, B, score_scale, K, N,
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
        q = load_copy(query, token, live, inner, inside, D)
        grad = load_copy(d_mean, token, live, inner, inside, D)
        acc = load_copy(mean, token, live, inner, inside, D)
        where = live[:, None] & (h < H)[None, :]
        norm = tl.load(lse + token[:, None] * H + h[None, :], mask=where, other=0.0)
        total = tl.sum(grad * acc, axis=2)  # (TOKENS, H)
        b, _ = divmod32(token, K)
        dq = tl.zeros((TOKENS, H_, d_), tl.float32)
        for r in tl.static_range(O):
            row, there, is_row = copy_index(token, r, b, exists, B, K, N, W, S, O)
            k = load_copy(rows, row, there, inner, inside, 2 * D)
            v = load_copy(rows + D, row, there, inner, inside, 2 * D)
            score = copy_score(q, k, bias, score_scale, h, r, there, H, O)
            weight = tl.where(there[:, None], tl.exp(score - norm), 0.0)
            d_score = weight * (tl.sum(grad * v, axis=2) - total)
            d_bias += tl.where((o == r)[None, :], tl.sum(d_score, axis=0)[:, None], 0.0)
            d_score = d_score * score_scale
            dq += d_score[:, :, None] * k
            at_row = d_rows + row[:, None, None] * 2 * D + inner[None]
            where = is_row[:, None, None] & inside[None]
            tl.store(at_row, (d_score[:, :, None] * q).to(d_rows.dtype.element_ty), mask=where)
            dv = (weight[:, :, None] * grad).to(d_rows.dtype.element_ty)
            tl.store(at_row + D, dv, mask=where)
        at = d_query + token[:, None, None] * D + inner[None]
        whole = live[:, None, None] & inside[None]
        tl.store(at, dq.to(d_query.dtype.element_ty), mask=whole)
    at = bias_sums + program * H * O + h[:, None] * O + o[None, :]
    tl.store(at, d_bias, mask=(h < H)[:, None] & (o < O)[None, :])
