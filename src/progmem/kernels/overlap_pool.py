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

from progmem.kernels.ahead import kernel
from progmem.kernels.copies import TOKENS, place_of, row_at, score_of, sizes_of
from progmem.kernels.overlap_backward import Pooled, run_attend_backward, run_mix_backward
from progmem.kernels.row_parts import divided


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
