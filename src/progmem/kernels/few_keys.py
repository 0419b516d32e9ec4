"""Attention over a few keys: scores, softmax and weighted sum of one window in registers.

Library kernels are made for hundreds of keys; with the six tokens of a window they spend their
time on padding. Here a program takes one head of several windows and packs them into one small
product, of which the blocks on the diagonal count. Positions are turned on the way, so nothing is
laid out before.

Twin: `progmem.model.attention.attend_plainly`.

Shapes: B series, N windows, H heads, T queries, F first keys, J other keys, d width of a head,
whose halves make the pairs that are turned; G windows of a program, R = G T packed rows, C =
G (F + J) packed columns; sizes with _ are rounded up to what the kernels take.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from progmem.model.rotary import Turn

MOST_QUERIES, MOST_KEYS, WIDEST = 16, 64, 128  # WIDEST: of a head
COLUMNS = 16  # packed, unless one window has more
WARPS = 2


def takes(q: Tensor, keys: int) -> bool:
    """Whether queries (..., H, T, d) over so many keys are few enough."""
    T, d = q.shape[-2:]
    return T <= MOST_QUERIES and keys <= MOST_KEYS and d <= WIDEST


class Given(NamedTuple):
    """What the kernels take; the last axis of every tensor is dense."""

    q: Tensor  # (B, N, H, T, d), turned by q_turn
    first_k: Tensor  # (B, N, H, F, d), never turned
    first_v: Tensor  # (B, N, H, F, d)
    k: Tensor  # (B, N, H, J, d), turned by k_turn
    v: Tensor  # (B, N, H, J, d)
    mask: Tensor | None  # (B, N, T, F+J), True where a query may look; strides of 0 are welcome
    q_turn: Turn | None = None
    k_turn: Turn | None = None
    causal: bool = False  # the last query sees all of k, each one before it one key less


def attend(
    q: Tensor,
    first: tuple[Tensor, Tensor] | None,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    q_turn: Turn | None,
    k_turn: Turn | None,
    *,
    causal: bool,
) -> Tensor:
    """softmax(q k' / sqrt(d)) v, (B, N, H, T, d); shapes as in `Given`."""
    if first is None:
        first = k[:, :, :, :0], v[:, :, :, :0]
    out: Tensor = _FewKeys.apply(q, *first, k, v, mask, q_turn, k_turn, causal)
    return out.transpose(2, 3)


class _FewKeys(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        ctx.settings = given[6:]
        B, N, H, T, d = given[0].shape
        out = given[0].new_empty(B, N, T, H, d)  # joining the heads then moves nothing
        lse = out.new_empty(B, N, T, H, dtype=torch.float32)
        run_forward(Given(*given), out=out, lse=lse)
        ctx.save_for_backward(*given[:6], out, lse)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, back: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, out, lse = ctx.saved_tensors
        given = Given(*tensors, *ctx.settings)
        keys = ctx.needs_input_grad[3] or ctx.needs_input_grad[4]
        B, N, H, T, d = given.q.shape
        F, J = given.first_k.shape[3], given.k.shape[3] if keys else 0
        made = [given.q.new_empty(B, N, rows, H, d) for rows in (T, F, F, J, J)]
        run_backward(given, out=out, lse=lse, back=back, made=made, keys=keys)
        dq, dfk, dfv, dk, dv = (t.transpose(2, 3) for t in made)
        return dq, dfk, dfv, *((dk, dv) if keys else (None, None)), *(None,) * 4


def run_forward(given: Given, *, out: Tensor, lse: Tensor) -> None:
    """Write the result (B, N, T, H, d) and the log of the softmax' sums (B, N, T, H), dense."""
    B, N, H, _, d = given.q.shape
    arguments, sizes = _arguments(given)
    grid = (triton.cdiv(B * N, sizes["G"]), H)
    _few_keys_forward[grid](*arguments, out, lse, d**-0.5, B * N, N, **sizes, num_warps=WARPS)


def run_backward(
    given: Given,
    *,
    out: Tensor,
    lse: Tensor,
    back: Tensor,
    made: list[Tensor],
    keys: bool,
    more: tuple[Tensor, Tensor] | None = None,
) -> None:
    """Write the gradients of q, first keys, first values and, if ``keys``, keys and values.

    ``back`` and each of ``made`` are (B, N, rows, H, d), the heads of ``made`` dense. With one
    window ``more`` (B, 1, F, H, d) is added to the gradients of the first keys and values.
    """
    B, N, H, _, d = given.q.shape
    if back.stride(-1) != 1:
        back = back.contiguous()
    arguments, sizes = _arguments(given)
    window = 0 if N == 1 else 1  # the axis that tells windows apart
    places = [x for t in made for x in (t, t.stride(window), t.stride(2))]
    extra = [x for t in more or made[1:3] for x in (t, t.stride(0), t.stride(2), t.stride(3))]
    _few_keys_backward[(triton.cdiv(B * N, sizes["G"]), H)](
        *arguments, out, lse, d**-0.5, back, *(back.stride(axis) for axis in (0, 1, 3, 2)),
        *places, *extra, B * N, N, **sizes, KEYS=keys, MORE=more is not None, num_warps=WARPS,
    )  # fmt: skip


def _power(x: int) -> int:
    return max(16, int(triton.next_power_of_2(x)))  # products take no less


def _arguments(given: Given) -> tuple[list[Any], dict[str, Any]]:
    """What both kernels take first, and their compile-time sizes."""
    q, first_k, first_v, k, v, mask, q_turn, k_turn, causal = given
    H, T, d = q.shape[2:]
    arguments: list[Any] = []
    for t in (q, first_k, first_v, k, v):
        assert t.stride(-1) == 1, "the last axis must be dense"
        arguments += [t, *t.stride()[:4]]
    arguments += [q, 0, 0, 0, 0] if mask is None else [mask.view(torch.uint8), *mask.stride()]
    for turn in (q_turn, k_turn):
        arguments += [q, q] if turn is None else list(turn)
    F, J = first_k.shape[3], k.shape[3]
    G = max(1, COLUMNS // (F + J))
    sizes = {
        "T": T, "F": F, "J": J, "H": H, "half": d // 2, "half_": _power(d // 2),
        "G": G, "R_": _power(G * T), "C_": _power(G * (F + J)),
        "MASKED": mask is not None, "TURN_Q": q_turn is not None, "TURN_K": k_turn is not None,
        "CAUSAL": causal, "PRECISION": "ieee",
    }  # fmt: skip
    return arguments, sizes


@triton.jit
def _turned(x, y, cos, sin):
    return x * cos - y * sin, x * sin + y * cos


@triton.jit
def _load(at, half: tl.constexpr, where):
    x = tl.load(at, mask=where, other=0.0).to(tl.float32)
    return x, tl.load(at + half, mask=where, other=0.0).to(tl.float32)


@triton.jit
def _store(at, x, y, half: tl.constexpr, where):
    tl.store(at, x.to(at.dtype.element_ty), mask=where)
    tl.store(at + half, y.to(at.dtype.element_ty), mask=where)


@triton.jit
def _phase(cos, sin, place, where):
    return tl.load(cos + place, mask=where, other=0.0), tl.load(sin + place, mask=where, other=0.0)


@triton.jit
def _load_turned(
    at, cos, sin, place, where, half: tl.constexpr, TURN: tl.constexpr,
):  # fmt: skip
    x, y = _load(at, half, where)
    if TURN:
        c, s = _phase(cos, sin, place, where)
        x, y = _turned(x, y, c, s)
    return x, y


@triton.jit
def _places(
    T: tl.constexpr, F: tl.constexpr, J: tl.constexpr, G: tl.constexpr,
    R_: tl.constexpr, C_: tl.constexpr, windows,
):  # fmt: skip
    """Window (of all) and place in it of the packed rows and columns, and which are there."""
    row, column = tl.arange(0, R_), tl.arange(0, C_)
    first = tl.program_id(0).to(tl.int64) * G
    r_window, c_window = first + row // T, first + column // (F + J)
    r_there = (row < G * T) & (r_window < windows)
    c_there = (column < G * (F + J)) & (c_window < windows)
    return r_window, row % T, r_there, c_window, column % (F + J), c_there


@triton.jit
def _keys(
    first, fb, fn, fh, ft, other, ob, on, oh, ot, cos, sin, window, j, there, h, e, N,
    F: tl.constexpr, half: tl.constexpr, TURN: tl.constexpr,
):  # fmt: skip
    """Packed keys or values, (C, half) twice: the first F of a window, then the others."""
    b, n = window // N, window % N
    inside = there[:, None] & (e < half)[None, :]
    at = other + (b * ob + n * on + (j - F) * ot)[:, None] + h * oh + e[None, :]
    where = inside & (j >= F)[:, None]
    place = (j - F)[:, None] * half + e[None, :]
    x, y = _load_turned(at, cos, sin, place, where, half, TURN)
    if F > 0:
        at = first + (b * fb + n * fn + j * ft)[:, None] + h * fh + e[None, :]
        fx, fy = _load(at, half, inside & (j < F)[:, None])
        x, y = x + fx, y + fy
    return x, y


@triton.jit
def _scores(
    qx, qy, kx, ky, mask, mb, mn, mt, mj, N,
    r_window, t, r_there, c_window, j, c_there,
    T: tl.constexpr, F: tl.constexpr, J: tl.constexpr,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """q k' of the packed windows, (R, C); -inf between windows and where a query may not look."""
    score = tl.dot(qx, tl.trans(kx), input_precision=PRECISION)
    score = tl.dot(qy, tl.trans(ky), score, input_precision=PRECISION)
    open = (r_window[:, None] == c_window[None, :]) & r_there[:, None] & c_there[None, :]
    if MASKED:
        row = (r_window // N) * mb + (r_window % N) * mn + t * mt
        seen = tl.load(mask + row[:, None] + j[None, :] * mj, mask=open, other=0)
        open = open & (seen != 0)
    if CAUSAL:
        open = open & ((j[None, :] < F) | (j[None, :] - F <= t[:, None] + J - T))
    return tl.where(open, score, float("-inf"))


@triton.jit
def _few_keys_forward(
    q, qb, qn, qh, qt, fk, fkb, fkn, fkh, fkt, fv, fvb, fvn, fvh, fvt,
    k, kb, kn, kh, kt, v, vb, vn, vh, vt, mask, mb, mn, mt, mj,
    q_cos, q_sin, k_cos, k_sin, out, lse, scale, windows, N,
    T: tl.constexpr, F: tl.constexpr, J: tl.constexpr, H: tl.constexpr, half: tl.constexpr,
    half_: tl.constexpr, G: tl.constexpr, R_: tl.constexpr, C_: tl.constexpr,
    MASKED: tl.constexpr, TURN_Q: tl.constexpr, TURN_K: tl.constexpr, CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    h, e = tl.program_id(1), tl.arange(0, half_)
    D: tl.constexpr = H * 2 * half
    kind = q.dtype.element_ty
    r_window, t, r_there, c_window, j, c_there = _places(T, F, J, G, R_, C_, windows)
    cell = r_there[:, None] & (e < half)[None, :]
    row = (r_window // N) * qb + (r_window % N) * qn + t * qt
    at = q + row[:, None] + h * qh + e[None, :]
    place = t[:, None] * half + e[None, :]
    qx, qy = _load_turned(at, q_cos, q_sin, place, cell, half, TURN_Q)
    qx, qy = (qx * scale).to(kind), (qy * scale).to(kind)
    kx, ky = _keys(
        fk, fkb, fkn, fkh, fkt, k, kb, kn, kh, kt, k_cos, k_sin,
        c_window, j, c_there, h, e, N, F, half, TURN_K,
    )  # fmt: skip
    score = _scores(
        qx, qy, kx.to(kind), ky.to(kind), mask, mb, mn, mt, mj, N,
        r_window, t, r_there, c_window, j, c_there, T, F, J, MASKED, CAUSAL, PRECISION,
    )  # fmt: skip
    most = tl.max(score, axis=1)
    most = tl.where(most == float("-inf"), 0.0, most)  # rows that only fill up
    weight = tl.exp(score - most[:, None])
    total = tl.maximum(tl.sum(weight, axis=1), 1e-30)
    vx, vy = _keys(
        fv, fvb, fvn, fvh, fvt, v, vb, vn, vh, vt, k_cos, k_sin,
        c_window, j, c_there, h, e, N, F, half, False,
    )  # fmt: skip
    weight = (weight / total[:, None]).to(kind)
    ox = tl.dot(weight, vx.to(kind), input_precision=PRECISION)
    oy = tl.dot(weight, vy.to(kind), input_precision=PRECISION)
    to = out + (r_window * T + t)[:, None] * D + h * 2 * half + e[None, :]
    _store(to, ox, oy, half, cell)
    tl.store(lse + (r_window * T + t) * H + h, most + tl.log(total), mask=r_there)


@triton.jit
def _few_keys_backward(
    q, qb, qn, qh, qt, fk, fkb, fkn, fkh, fkt, fv, fvb, fvn, fvh, fvt,
    k, kb, kn, kh, kt, v, vb, vn, vh, vt, mask, mb, mn, mt, mj,
    q_cos, q_sin, k_cos, k_sin, out, lse, scale,
    back, gb, gn, gh, gt,
    dq, dqw, dqt, dfk, dfkw, dfkt, dfv, dfvw, dfvt, dk, dkw, dkt, dv, dvw, dvt,
    mk, mkw, mkt, mkh, mv, mvw, mvt, mvh, windows, N,
    T: tl.constexpr, F: tl.constexpr, J: tl.constexpr, H: tl.constexpr, half: tl.constexpr,
    half_: tl.constexpr, G: tl.constexpr, R_: tl.constexpr, C_: tl.constexpr,
    MASKED: tl.constexpr, TURN_Q: tl.constexpr, TURN_K: tl.constexpr, CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr, KEYS: tl.constexpr, MORE: tl.constexpr,
):  # fmt: skip
    h, e = tl.program_id(1), tl.arange(0, half_)
    D: tl.constexpr = H * 2 * half
    kind = q.dtype.element_ty
    r_window, t, r_there, c_window, j, c_there = _places(T, F, J, G, R_, C_, windows)
    cell = r_there[:, None] & (e < half)[None, :]
    r_b, r_n = r_window // N, r_window % N
    at = q + (r_b * qb + r_n * qn + t * qt)[:, None] + h * qh + e[None, :]
    r_place = t[:, None] * half + e[None, :]
    qx, qy = _load_turned(at, q_cos, q_sin, r_place, cell, half, TURN_Q)
    qx, qy = (qx * scale).to(kind), (qy * scale).to(kind)
    kx, ky = _keys(
        fk, fkb, fkn, fkh, fkt, k, kb, kn, kh, kt, k_cos, k_sin,
        c_window, j, c_there, h, e, N, F, half, TURN_K,
    )  # fmt: skip
    kx, ky = kx.to(kind), ky.to(kind)
    score = _scores(
        qx, qy, kx, ky, mask, mb, mn, mt, mj, N,
        r_window, t, r_there, c_window, j, c_there, T, F, J, MASKED, CAUSAL, PRECISION,
    )  # fmt: skip
    norm = tl.load(lse + (r_window * T + t) * H + h, mask=r_there, other=0.0)
    weight = tl.exp(score - norm[:, None])  # (R, C)
    at = back + (r_b * gb + r_n * gn + t * gt)[:, None] + h * gh + e[None, :]
    gx, gy = _load(at, half, cell)
    at = out + (r_window * T + t)[:, None] * D + h * 2 * half + e[None, :]
    ox, oy = _load(at, half, cell)
    total = tl.sum(gx * ox + gy * oy, axis=1)
    gx, gy = gx.to(kind), gy.to(kind)
    vx, vy = _keys(
        fv, fvb, fvn, fvh, fvt, v, vb, vn, vh, vt, k_cos, k_sin,
        c_window, j, c_there, h, e, N, F, half, False,
    )  # fmt: skip
    slope = tl.dot(gx, tl.trans(vx.to(kind)), input_precision=PRECISION)
    slope = tl.dot(gy, tl.trans(vy.to(kind)), slope, input_precision=PRECISION)
    slope = (weight * (slope - total[:, None])).to(kind)  # dL/dscore
    weight = weight.to(kind)
    dx = tl.dot(slope, kx, input_precision=PRECISION) * scale
    dy = tl.dot(slope, ky, input_precision=PRECISION) * scale
    if TURN_Q:
        cos, sin = _phase(q_cos, q_sin, r_place, cell)
        dx, dy = _turned(dx, dy, cos, -sin)
    to = dq + (r_window * dqw + t * dqt)[:, None] + h * 2 * half + e[None, :]
    _store(to, dx, dy, half, cell)
    dkx = tl.dot(tl.trans(slope), qx, input_precision=PRECISION)
    dky = tl.dot(tl.trans(slope), qy, input_precision=PRECISION)
    dvx = tl.dot(tl.trans(weight), gx, input_precision=PRECISION)
    dvy = tl.dot(tl.trans(weight), gy, input_precision=PRECISION)
    inside = c_there[:, None] & (e < half)[None, :]
    inner = h * 2 * half + e[None, :]
    if KEYS:
        where = inside & (j >= F)[:, None]
        x, y = dkx, dky
        if TURN_K:
            cos, sin = _phase(k_cos, k_sin, (j - F)[:, None] * half + e[None, :], where)
            x, y = _turned(dkx, dky, cos, -sin)
        _store(dk + (c_window * dkw + (j - F) * dkt)[:, None] + inner, x, y, half, where)
        _store(dv + (c_window * dvw + (j - F) * dvt)[:, None] + inner, dvx, dvy, half, where)
    if F > 0:
        where = inside & (j < F)[:, None]
        if MORE:
            x, y = _load(
                mk + (c_window * mkw + j * mkt)[:, None] + h * mkh + e[None, :], half, where
            )
            dkx, dky = dkx + x, dky + y
            x, y = _load(
                mv + (c_window * mvw + j * mvt)[:, None] + h * mvh + e[None, :], half, where
            )
            dvx, dvy = dvx + x, dvy + y
        _store(dfk + (c_window * dfkw + j * dfkt)[:, None] + inner, dkx, dky, half, where)
        _store(dfv + (c_window * dfvw + j * dfvt)[:, None] + inner, dvx, dvy, half, where)
