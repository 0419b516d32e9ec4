"""Projections of tokens laid out as windows, turned and ready for attention; and the way back.

A window's rows are those of the memory below, as they are, then its tokens with queries and keys
turned to their places. What all windows hand back to a token is summed in one pass.

Shapes: B series, K tokens, N windows, n rows of memory, W window, S stride, D width, H heads,
d = D / H; a projection holds queries, keys and values, (3, H, d).
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from progmem.ops.fused.precompile import kernel
from progmem.ops.fused.tiles import apply, divided

ROWS, TOKENS = 2, 4  # of a program


class Places(NamedTuple):
    """Where window rows lie: row j of window w is token wS + j - before."""

    window: int  # W
    stride: int  # S
    windows: int  # N
    before: int = 0  # tokens before the first, which are not there: rows of zeros


def lay(x: Tensor, below: Tensor | None, cos: Tensor, sin: Tensor, places: Places) -> Tensor:
    """Projections ``x`` (B, K, 3, H, d) as windows, (B, N, n+W, 3, H, d).

    Only the first axis of ``x`` may be strided. ``below`` (B or 1, N or 1, n, 3, H, d) comes first
    in every window; ``cos`` and ``sin`` are (W, d/2).
    """
    B, _, _, H, d = x.shape
    n = 0 if below is None else below.shape[2]
    out = x.new_empty(B, places.windows, n + places.window, 3, H, d)
    first = x if below is None else below.contiguous()
    steps = [0 if first.shape[axis] == 1 else first.stride(axis) for axis in (0, 1)]
    R = B * places.windows * (n + places.window)
    _lay[(triton.cdiv(R, ROWS),)](
        x, x.stride(0), first, *steps, cos, sin, out, R, **_sizes(x, places), n=n, ROWS=ROWS
    )  # fmt: skip
    return out


def gather(
    back: Tensor, cos: Tensor, sin: Tensor, places: Places, *, out: Tensor, silent: int = 0
) -> None:
    """Write the gradients of ``x`` (B, K, 3, H, d) from those of its windows.

    The first ``silent`` rows of a window are keys only: of their queries nothing is read.
    """
    R = out.shape[0] * out.shape[1]
    _gather[(triton.cdiv(R, ROWS),)](
        back, cos, sin, out, out.stride(0), R, **_sizes(out, places),
        n=back.shape[2] - places.window,
        copies=-(-places.window // places.stride), silent=silent, ROWS=ROWS,
    )  # fmt: skip


def _sizes(x: Tensor, places: Places) -> dict[str, int]:
    _, K, _, H, d = x.shape
    return {
        "K": K, "N": places.windows, "W": places.window, "S": places.stride,
        "before": places.before, "H": H, "half": d // 2,
        "H_": triton.next_power_of_2(H), "half_": triton.next_power_of_2(d // 2),
    }  # fmt: skip


@kernel("R", "K", "N")
def _lay(
    x, step_x, below, step_b, step_n, cos, sin, out, R, K, N,
    W: tl.constexpr, S: tl.constexpr, before: tl.constexpr,
    H: tl.constexpr, half: tl.constexpr, H_: tl.constexpr, half_: tl.constexpr,
    n: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    window, row = divided(r, n + W)
    b, w = divided(window, N)
    j = row - n
    t = w * S + j - before
    D: tl.constexpr = 2 * half * H
    h, e = tl.arange(0, H_), tl.arange(0, half_)
    inner = h[:, None] * 2 * half + e[None, :]
    inside = (h < H)[:, None] & (e < half)[None, :]
    live = r < R
    token = (live & (j >= 0) & (t >= 0) & (t < K))[:, None, None] & inside[None]
    memory = (live & (j < 0))[:, None, None] & inside[None]
    turns = (live & (j >= 0))[:, None] & (e < half)[None, :]
    phase = j[:, None] * half + e[None, :]
    c = tl.load(cos + phase, mask=turns, other=1.0)[:, None, :]
    s = tl.load(sin + phase, mask=turns, other=0.0)[:, None, :]
    at = x + (b * step_x + t * 3 * D)[:, None, None] + inner[None]
    at_memory = below + (b * step_b + w * step_n + row * 3 * D)[:, None, None] + inner[None]
    to = out + r[:, None, None] * 3 * D + inner[None]
    where = live[:, None, None] & inside[None]
    # everything is asked for before anything is waited for
    q, q_ = _halves(at, at_memory, token, memory, half, n)
    k, k_ = _halves(at + D, at_memory + D, token, memory, half, n)
    v, v_ = _halves(at + 2 * D, at_memory + 2 * D, token, memory, half, n)
    kind = out.dtype.element_ty
    tl.store(to, (q * c - q_ * s).to(kind), mask=where)
    tl.store(to + half, (q * s + q_ * c).to(kind), mask=where)
    tl.store(to + D, (k * c - k_ * s).to(kind), mask=where)
    tl.store(to + D + half, (k * s + k_ * c).to(kind), mask=where)
    tl.store(to + 2 * D, v.to(kind), mask=where)
    tl.store(to + 2 * D + half, v_.to(kind), mask=where)


@triton.jit
def _halves(at, at_memory, token, memory, half: tl.constexpr, n: tl.constexpr):
    """Both halves of heads, of tokens or of the memory below."""
    left = tl.load(at, mask=token, other=0.0).to(tl.float32)
    right = tl.load(at + half, mask=token, other=0.0).to(tl.float32)
    if n > 0:
        left += tl.load(at_memory, mask=memory, other=0.0).to(tl.float32)
        right += tl.load(at_memory + half, mask=memory, other=0.0).to(tl.float32)
    return left, right


@kernel("R", "K", "N")
def _gather(
    back, cos, sin, out, step_out, R, K, N,
    W: tl.constexpr, S: tl.constexpr, before: tl.constexpr,
    H: tl.constexpr, half: tl.constexpr, H_: tl.constexpr, half_: tl.constexpr,
    n: tl.constexpr, copies: tl.constexpr, silent: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    b, own = divided(r, K)
    t = own + before
    D: tl.constexpr = 2 * half * H
    h, e = tl.arange(0, H_), tl.arange(0, half_)
    inner = h[:, None] * 2 * half + e[None, :]
    inside = (h < H)[:, None] & (e < half)[None, :]
    to = out + (b * step_out + own * 3 * D)[:, None, None] + inner[None]
    for part in tl.static_range(3):
        left = tl.zeros((ROWS, H_, half_), tl.float32)
        right = tl.zeros((ROWS, H_, half_), tl.float32)
        for copy in tl.static_range(copies):
            w, j = t // S - copy, t % S + copy * S
            there = (r < R) & (w >= 0) & (w < N) & (j < W)
            if part == 0:
                there = there & (j >= silent)
            where = there[:, None, None] & inside[None]
            row = (b * N + w) * (n + W) + n + j
            at = back + row[:, None, None] * 3 * D + part * D + inner[None]
            a = tl.load(at, mask=where, other=0.0).to(tl.float32)
            z = tl.load(at + half, mask=where, other=0.0).to(tl.float32)
            if part < 2:
                turns = there[:, None] & (e < half)[None, :]
                phase = j[:, None] * half + e[None, :]
                c = tl.load(cos + phase, mask=turns, other=0.0)[:, None, :]
                s = tl.load(sin + phase, mask=turns, other=0.0)[:, None, :]
                left += a * c + z * s
                right += z * c - a * s
            else:
                left += a
                right += z
        where = (r < R)[:, None, None] & inside[None]
        tl.store(to + part * D, left.to(out.dtype.element_ty), mask=where)
        tl.store(to + part * D + half, right.to(out.dtype.element_ty), mask=where)


def unfold(x: Tensor, window: int, stride: int) -> Tensor:
    """Tokens (B, K, D) as windows (B, N, W, D), a view; windows must cover all tokens."""
    out: Tensor = apply(_Unfold, x, window, stride)
    return out


def unfold_supports(x: Tensor, *_: Any) -> bool:
    """What is fused is the way back: each token's copies are summed in one pass."""
    return x.dim() == 3 and x.requires_grad


class _Unfold(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, window: int, stride: int) -> Tensor:
        ctx.settings = x.shape, stride
        return x.unfold(1, window, stride).movedim(-1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, back: Tensor) -> tuple[Tensor, None, None]:
        (B, K, D), stride = ctx.settings
        back = back.contiguous()
        _, N, W, _ = back.shape
        out = back.new_empty(B, K, D)
        _fold[(triton.cdiv(B * K, TOKENS),)](
            back, out, B * K, K=K, N=N, W=W, S=stride, O=-(-W // stride), D=D,
            D_=triton.next_power_of_2(D), TOKENS=TOKENS,
        )  # fmt: skip
        return out, None, None


@kernel("total", "K", "N")
def _fold(
    back, out, total, K, N, W: tl.constexpr, S: tl.constexpr, O: tl.constexpr,
    D: tl.constexpr, D_: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    b, t = divided(token, K)
    c = tl.arange(0, D_)
    made = tl.zeros((TOKENS, D_), tl.float32)
    for r in tl.static_range(O):
        w, j = t // S - r, t % S + r * S
        there = (token < total) & (w >= 0) & (w < N) & (j < W)
        where = there[:, None] & (c < D)[None, :]
        row = (b * N + w) * W + j
        made += tl.load(back + row[:, None] * D + c[None, :], mask=where, other=0.0).to(tl.float32)
    where = (token < total)[:, None] & (c < D)[None, :]
    at = out + token[:, None] * D + c[None, :]
    tl.store(at, made.to(out.dtype.element_ty), mask=where)
