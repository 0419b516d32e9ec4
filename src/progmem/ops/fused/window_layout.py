"""Projections of tokens unfolded into windows, with rotary positions applied; and the backward.

A window's rows are those of the memory below, as they are, then its tokens with queries and keys
rotated to their positions. The gradients of a token's copies in all windows are summed in one pass.

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
from progmem.ops.fused.tiles import apply, divmod32

ROWS, TOKENS = 2, 4  # of a program


class WindowGeometry(NamedTuple):
    """Which tokens windows hold: row j of window w is token wS + j - pad_left."""

    window: int  # W
    stride: int  # S
    windows: int  # N
    pad_left: int = 0  # rows of zeros before the first token


def unfold_rotate(
    x: Tensor, below: Tensor | None, cos: Tensor, sin: Tensor, geometry: WindowGeometry
) -> Tensor:
    """Projections ``x`` (B, K, 3, H, d) as windows, (B, N, n+W, 3, H, d).

    Only the first axis of ``x`` may be strided. ``below`` (B or 1, N or 1, n, 3, H, d) comes first
    in every window; ``cos`` and ``sin`` are (W, d/2).
    """
    B, _, _, H, d = x.shape
    n = 0 if below is None else below.shape[2]
    out = x.new_empty(B, geometry.windows, n + geometry.window, 3, H, d)
    first = x if below is None else below.contiguous()
    strides = [0 if first.shape[axis] == 1 else first.stride(axis) for axis in (0, 1)]
    R = B * geometry.windows * (n + geometry.window)
    _unfold_rotate[(triton.cdiv(R, ROWS),)](
        x, x.stride(0), first, *strides, cos, sin, out, R, **_sizes(x, geometry), n=n, ROWS=ROWS
    )  # fmt: skip
    return out


def unfold_rotate_backward(
    d_windows: Tensor,
    cos: Tensor,
    sin: Tensor,
    geometry: WindowGeometry,
    *,
    out: Tensor,
    key_only: int = 0,
) -> None:
    """Write the gradients of ``x`` (B, K, 3, H, d) from those of its windows.

    The first ``key_only`` rows of a window have no queries: gradients of these are not read.
    """
    R = out.shape[0] * out.shape[1]
    _unfold_rotate_backward[(triton.cdiv(R, ROWS),)](
        d_windows, cos, sin, out, out.stride(0), R, **_sizes(out, geometry),
        n=d_windows.shape[2] - geometry.window,
        copies=-(-geometry.window // geometry.stride), key_only=key_only, ROWS=ROWS,
    )  # fmt: skip


def _sizes(x: Tensor, geometry: WindowGeometry) -> dict[str, int]:
    _, K, _, H, d = x.shape
    return {
        "K": K, "N": geometry.windows, "W": geometry.window, "S": geometry.stride,
        "pad_left": geometry.pad_left, "H": H, "half": d // 2,
        "H_": triton.next_power_of_2(H), "half_": triton.next_power_of_2(d // 2),
    }  # fmt: skip


@kernel("R", "K", "N")
def _unfold_rotate(
    x, stride_x, below, stride_b, stride_n, cos, sin, out, R, K, N,
    W: tl.constexpr, S: tl.constexpr, pad_left: tl.constexpr,
    H: tl.constexpr, half: tl.constexpr, H_: tl.constexpr, half_: tl.constexpr,
    n: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    window, row = divmod32(r, n + W)
    b, w = divmod32(window, N)
    j = row - n
    t = w * S + j - pad_left
    D: tl.constexpr = 2 * half * H
    h, e = tl.arange(0, H_), tl.arange(0, half_)
    inner = h[:, None] * 2 * half + e[None, :]
    inside = (h < H)[:, None] & (e < half)[None, :]
    in_range = r < R
    token = (in_range & (j >= 0) & (t >= 0) & (t < K))[:, None, None] & inside[None]
    memory = (in_range & (j < 0))[:, None, None] & inside[None]
    rotates = (in_range & (j >= 0))[:, None] & (e < half)[None, :]
    phase = j[:, None] * half + e[None, :]
    c = tl.load(cos + phase, mask=rotates, other=1.0)[:, None, :]
    s = tl.load(sin + phase, mask=rotates, other=0.0)[:, None, :]
    at = x + (b * stride_x + t * 3 * D)[:, None, None] + inner[None]
    at_memory = below + (b * stride_b + w * stride_n + row * 3 * D)[:, None, None] + inner[None]
    to = out + r[:, None, None] * 3 * D + inner[None]
    where = in_range[:, None, None] & inside[None]
    # all loads are issued before the first is needed
    q, q_ = _load_halves(at, at_memory, token, memory, half, n)
    k, k_ = _load_halves(at + D, at_memory + D, token, memory, half, n)
    v, v_ = _load_halves(at + 2 * D, at_memory + 2 * D, token, memory, half, n)
    dtype = out.dtype.element_ty
    tl.store(to, (q * c - q_ * s).to(dtype), mask=where)
    tl.store(to + half, (q * s + q_ * c).to(dtype), mask=where)
    tl.store(to + D, (k * c - k_ * s).to(dtype), mask=where)
    tl.store(to + D + half, (k * s + k_ * c).to(dtype), mask=where)
    tl.store(to + 2 * D, v.to(dtype), mask=where)
    tl.store(to + 2 * D + half, v_.to(dtype), mask=where)


@triton.jit
def _load_halves(at, at_memory, token, memory, half: tl.constexpr, n: tl.constexpr):
    """Both halves of heads, of tokens or of the memory below."""
    left = tl.load(at, mask=token, other=0.0).to(tl.float32)
    right = tl.load(at + half, mask=token, other=0.0).to(tl.float32)
    if n > 0:
        left += tl.load(at_memory, mask=memory, other=0.0).to(tl.float32)
        right += tl.load(at_memory + half, mask=memory, other=0.0).to(tl.float32)
    return left, right


@kernel("R", "K", "N")
def _unfold_rotate_backward(
    d_windows, cos, sin, out, stride_out, R, K, N,
    W: tl.constexpr, S: tl.constexpr, pad_left: tl.constexpr,
    H: tl.constexpr, half: tl.constexpr, H_: tl.constexpr, half_: tl.constexpr,
    n: tl.constexpr, copies: tl.constexpr, key_only: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    b, own = divmod32(r, K)
    t = own + pad_left
    D: tl.constexpr = 2 * half * H
    h, e = tl.arange(0, H_), tl.arange(0, half_)
    inner = h[:, None] * 2 * half + e[None, :]
    inside = (h < H)[:, None] & (e < half)[None, :]
    to = out + (b * stride_out + own * 3 * D)[:, None, None] + inner[None]
    for part in tl.static_range(3):
        left = tl.zeros((ROWS, H_, half_), tl.float32)
        right = tl.zeros((ROWS, H_, half_), tl.float32)
        for copy in tl.static_range(copies):
            w, j = t // S - copy, t % S + copy * S
            there = (r < R) & (w >= 0) & (w < N) & (j < W)
            if part == 0:
                there = there & (j >= key_only)
            where = there[:, None, None] & inside[None]
            row = (b * N + w) * (n + W) + n + j
            at = d_windows + row[:, None, None] * 3 * D + part * D + inner[None]
            a = tl.load(at, mask=where, other=0.0).to(tl.float32)
            z = tl.load(at + half, mask=where, other=0.0).to(tl.float32)
            if part < 2:
                rotates = there[:, None] & (e < half)[None, :]
                phase = j[:, None] * half + e[None, :]
                c = tl.load(cos + phase, mask=rotates, other=0.0)[:, None, :]
                s = tl.load(sin + phase, mask=rotates, other=0.0)[:, None, :]
                left += a * c + z * s
                right += z * c - a * s
            else:
                left += a
                right += z
        where = (r < R)[:, None, None] & inside[None]
        tl.store(to + part * D, left.to(out.dtype.element_ty), mask=where)
        tl.store(to + part * D + half, right.to(out.dtype.element_ty), mask=where)


def unfold(x: Tensor, window: int, stride: int) -> Tensor:
    """Rows (B, K, D) as windows (B, N, W, D), a view; windows must cover all rows."""
    out: Tensor = apply(_Unfold, x, window, stride)
    return out


def unfold_supports(x: Tensor, *_: Any) -> bool:
    """Only the backward is fused: it sums each token's copies in one pass."""
    return x.dim() == 3 and x.requires_grad


class _Unfold(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, window: int, stride: int) -> Tensor:
        ctx.settings = x.shape, stride
        return x.unfold(1, window, stride).movedim(-1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_windows: Tensor) -> tuple[Tensor, None, None]:
        (B, K, D), stride = ctx.settings
        d_windows = d_windows.contiguous()
        _, N, W, _ = d_windows.shape
        out = d_windows.new_empty(B, K, D)
        _fold[(triton.cdiv(B * K, TOKENS),)](
            d_windows, out, B * K, K=K, N=N, W=W, S=stride, O=-(-W // stride), D=D,
            D_=triton.next_power_of_2(D), TOKENS=TOKENS,
        )  # fmt: skip
        return out, None, None


@kernel("total", "K", "N")
def _fold(
    d_windows, out, total, K, N, W: tl.constexpr, S: tl.constexpr, O: tl.constexpr,
    D: tl.constexpr, D_: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    b, t = divmod32(token, K)
    c = tl.arange(0, D_)
    acc = tl.zeros((TOKENS, D_), tl.float32)
    for r in tl.static_range(O):
        w, j = t // S - r, t % S + r * S
        there = (token < total) & (w >= 0) & (w < N) & (j < W)
        where = there[:, None] & (c < D)[None, :]
        row = (b * N + w) * W + j
        acc += tl.load(d_windows + row[:, None] * D + c[None, :], mask=where, other=0.0).to(
            tl.float32
        )
    where = (token < total)[:, None] & (c < D)[None, :]
    at = out + token[:, None] * D + c[None, :]
    tl.store(at, acc.to(out.dtype.element_ty), mask=where)
