"""The overlap aggregator, second half: attention over a token's copies, mixed with their mean.

Between the halves are the query's two linear maps. No (B, K, O, D) is ever laid out.

Twin: `progmem.model.aggregator.OverlapAggregator.of_copies` on `align_copies`.

Shapes: B series, K tokens, N windows, W window, S stride, O copies, D width, H heads, d = D / H;
sizes with _ are rounded up to powers of two.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from progmem.kernels.copies import PROGRAMS, TOKENS, place_of, room_for, sizes_of
from progmem.kernels.sums import column_sums


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
    out: Tensor = _Attended.apply(
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
        sizes = sizes_of(rows[..., : len(gamma)], exists, stride, len(bias))
        B, K, _ = exists.shape
        sizes["TOKENS"] = 1  # more would need more registers than there are
        programs = min(PROGRAMS, B * K)
        d_query, d_skip = torch.empty_like(query), torch.empty_like(skip)
        d_rows = room_for(rows, sizes)
        sums = rows.new_empty(programs, 3, len(gamma), dtype=torch.float32)
        d_bias = rows.new_empty(programs, *bias.shape, dtype=torch.float32)
        _attended_backward[(programs,)](
            query, rows, skip, exists.view(torch.uint8), bias, shift, gamma, skip_gate,
            mean, lse, back.contiguous(), d_query, d_rows, d_skip, sums, d_bias, B, eps,
            *_scales(sizes), **sizes,
        )  # fmt: skip
        d_gamma, d_gate, d_shift = column_sums(sums)
        return (
            d_query, d_rows, d_skip, None, column_sums(d_bias).to(bias.dtype),
            d_shift.to(shift.dtype), d_gamma.to(gamma.dtype), d_gate.to(skip_gate.dtype),
            None, None, None,
        )  # fmt: skip


@triton.jit
def _score(q, k, bias, by_width, h, r, there, H: tl.constexpr, O: tl.constexpr):
    """The score of copy r for each token and head, (TOKENS, H); lowest where it is not there."""
    more = tl.load(bias + h * O + r, mask=h < H, other=0.0).to(tl.float32)
    score = tl.sum(q * k, axis=2) * by_width + more[None, :]
    return tl.where(there[:, None], score, -3.0e38)


@triton.jit
def _row(rows, row, there, inner, inside, step: tl.constexpr):
    where = there[:, None, None] & inside[None]
    return tl.load(rows + row[:, None, None] * step + inner[None], mask=where, other=0.0).to(
        tl.float32
    )


@triton.jit
def _unit(mean, inside, eps, D: tl.constexpr):
    """Rows (TOKENS, H, d) normalised, and the scale they were multiplied by."""
    level = tl.sum(tl.sum(mean, axis=2), axis=1) / D
    centred = tl.where(inside[None], mean - level[:, None, None], 0.0)
    scale = 1 / tl.sqrt(tl.sum(tl.sum(centred * centred, axis=2), axis=1) / D + eps)
    return centred * scale[:, None, None], scale


@triton.jit
def _attend(
    q, rows, bias, by_width, token, b, exists, h, inner, inside, B,
    K: tl.constexpr, N: tl.constexpr, W: tl.constexpr, S: tl.constexpr, O: tl.constexpr,
    H: tl.constexpr, d: tl.constexpr, H_: tl.constexpr, d_: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """Weighted mean of the copies, (TOKENS, H, d), and log of the weights' sum, (TOKENS, H)."""
    most = tl.full((TOKENS, H_), -3.0e38, tl.float32)
    total = tl.zeros((TOKENS, H_), tl.float32)
    made = tl.zeros((TOKENS, H_, d_), tl.float32)
    for r in tl.static_range(O):
        row, there, _ = place_of(token, r, b, exists, B, K, N, W, S, O)
        k = _row(rows, row, there, inner, inside, 2 * H * d)
        v = _row(rows + H * d, row, there, inner, inside, 2 * H * d)
        score = _score(q, k, bias, by_width, h, r, there, H, O)
        above = tl.maximum(most, score)
        fade, weight = tl.exp(most - above), tl.exp(score - above)
        made = made * fade[:, :, None] + weight[:, :, None] * v
        total = total * fade + weight
        most = above
    return made / total[:, :, None], most + tl.log(total)


@triton.jit
def _attended_forward(
    query, rows, skip, exists, bias, shift, gamma, skip_gate, out, mean, lse, B, eps,
    by_width, by_copies,
    K: tl.constexpr, N: tl.constexpr, W: tl.constexpr, S: tl.constexpr, O: tl.constexpr,
    H: tl.constexpr, d: tl.constexpr, H_: tl.constexpr, d_: tl.constexpr, O_: tl.constexpr,
    TOKENS: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    h, e = tl.arange(0, H_), tl.arange(0, d_)
    inner = h[:, None] * d + e[None, :]
    inside = (h < H)[:, None] & (e < d)[None, :]
    live = token < B * K
    q = _row(query, token, live, inner, inside, H * d)
    made, norm = _attend(
        q, rows, bias, by_width, token, token // K, exists, h, inner, inside, B,
        K, N, W, S, O, H, d, H_, d_, TOKENS,
    )  # fmt: skip
    at = token[:, None, None] * H * d + inner[None]
    whole = live[:, None, None] & inside[None]
    if KEEP:
        tl.store(mean + at, made.to(mean.dtype.element_ty), mask=whole)
        where = live[:, None] & (h < H)[None, :]
        tl.store(lse + token[:, None] * H + h[None, :], norm, mask=where)
    made += tl.load(shift + inner, mask=inside, other=0.0).to(tl.float32)[None]
    unit, _ = _unit(made * by_copies, inside, eps, H * d)
    scale = tl.load(gamma + inner, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(skip_gate + inner, mask=inside, other=0.0).to(tl.float32)
    gate = 1 / (1 + tl.exp(-gate))
    plain = _row(skip, token, live, inner, inside, H * d)
    result = plain + gate[None] * (scale[None] * unit - plain)
    tl.store(out + at, result.to(out.dtype.element_ty), mask=whole)


@triton.jit
def _attended_backward(
    query, rows, skip, exists, bias, shift, gamma, skip_gate, mean, lse,
    back, d_query, d_rows, d_skip, sums, bias_sums, B, eps, by_width, by_copies,
    K: tl.constexpr, N: tl.constexpr, W: tl.constexpr, S: tl.constexpr, O: tl.constexpr,
    H: tl.constexpr, d: tl.constexpr, H_: tl.constexpr, d_: tl.constexpr, O_: tl.constexpr,
    TOKENS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    h, e, o = tl.arange(0, H_), tl.arange(0, d_), tl.arange(0, O_)
    D: tl.constexpr = H * d
    inner = h[:, None] * d + e[None, :]
    inside = (h < H)[:, None] & (e < d)[None, :]
    scale = tl.load(gamma + inner, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(skip_gate + inner, mask=inside, other=0.0).to(tl.float32)
    gate = 1 / (1 + tl.exp(-gate))
    level = tl.load(shift + inner, mask=inside, other=0.0).to(tl.float32)
    d_scale = tl.zeros((H_, d_), tl.float32)
    d_gate = tl.zeros((H_, d_), tl.float32)
    d_shift = tl.zeros((H_, d_), tl.float32)
    d_bias = tl.zeros((H_, O_), tl.float32)
    for start in range(program * TOKENS, B * K, tl.num_programs(0) * TOKENS):
        token = (start + tl.arange(0, TOKENS)).to(tl.int64)
        b = token // K
        live = token < B * K
        whole = live[:, None, None] & inside[None]
        q = _row(query, token, live, inner, inside, D)
        made = _row(mean, token, live, inner, inside, D)
        where = live[:, None] & (h < H)[None, :]
        norm = tl.load(lse + token[:, None] * H + h[None, :], mask=where, other=0.0)
        unit, spread = _unit((made + level[None]) * by_copies, inside, eps, D)
        plain = _row(skip, token, live, inner, inside, D)
        pull = _row(back, token, live, inner, inside, D)
        d_gate += tl.sum(pull * (scale[None] * unit - plain), axis=0) * gate * (1 - gate)
        at = token[:, None, None] * D + inner[None]
        tl.store(d_skip + at, (pull * (1 - gate)[None]).to(d_skip.dtype.element_ty), mask=whole)
        pull = pull * gate[None]
        d_scale += tl.sum(pull * unit, axis=0)
        pull = pull * scale[None]
        along = tl.sum(tl.sum(pull * unit, axis=2), axis=1) / D
        middle = tl.sum(tl.sum(pull, axis=2), axis=1) / D
        pull = pull - middle[:, None, None] - unit * along[:, None, None]
        pull = tl.where(inside[None], pull * (spread * by_copies)[:, None, None], 0.0)
        d_shift += tl.sum(pull, axis=0)
        total = tl.sum(pull * made, axis=2)  # (TOKENS, H)
        dq = tl.zeros((TOKENS, H_, d_), tl.float32)
        for r in tl.static_range(O):
            row, there, is_row = place_of(token, r, b, exists, B, K, N, W, S, O)
            k = _row(rows, row, there, inner, inside, 2 * D)
            v = _row(rows + D, row, there, inner, inside, 2 * D)
            score = _score(q, k, bias, by_width, h, r, there, H, O)
            weight = tl.where(there[:, None], tl.exp(score - norm), 0.0)
            slope = weight * (tl.sum(pull * v, axis=2) - total)
            d_bias += tl.where((o == r)[None, :], tl.sum(slope, axis=0)[:, None], 0.0)
            slope = slope * by_width
            dq += slope[:, :, None] * k
            at_row = d_rows + row[:, None, None] * 2 * D + inner[None]
            where = is_row[:, None, None] & inside[None]
            tl.store(at_row, (slope[:, :, None] * q).to(d_rows.dtype.element_ty), mask=where)
            dv = (weight[:, :, None] * pull).to(d_rows.dtype.element_ty)
            tl.store(at_row + D, dv, mask=where)
        tl.store(d_query + at, dq.to(d_query.dtype.element_ty), mask=whole)
    at = sums + program * 3 * D + inner
    tl.store(at, d_scale, mask=inside)
    tl.store(at + D, d_gate, mask=inside)
    tl.store(at + 2 * D, d_shift, mask=inside)
    at = bias_sums + program * H * O + h[:, None] * O + o[None, :]
    tl.store(at, d_bias, mask=(h < H)[:, None] & (o < O)[None, :])
