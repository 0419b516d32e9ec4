"""Attention over a few keys: scores, softmax and weighted sum of one window in registers.

Library kernels are made for hundreds of keys; with the six tokens of a window they spend their
time on padding. Here a program takes one head of one window and goes through the keys one by one.
Positions are turned on the way, so nothing is laid out before.

Twin: `progmem.model.attention.attend_plainly`.

Shapes: B series, N windows, H heads, T queries, F first keys, J other keys, d width of a head,
whose halves make the pairs that are turned; sizes with _ are rounded up to powers of two.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from progmem.model.rotary import Turn

MOST_QUERIES, MOST_KEYS, WIDEST = 16, 64, 128  # WIDEST: of a head


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
    _few_keys_forward[(B * N, H)](*arguments, out, lse, d**-0.5, N, **sizes, num_warps=1)


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
    sizes |= {"F_": _power(max(1, sizes["F"])), "J_": _power(sizes["J"])}
    warps = max(1, sizes["J_"] // 8) if keys else 1  # so that a key's gradients stay in registers
    _few_keys_backward[(B * N, H)](
        *arguments, out, lse, d**-0.5, back, *(back.stride(axis) for axis in (0, 1, 3, 2)),
        *places, *extra, N, **sizes, KEYS=keys, MORE=more is not None, num_warps=warps,
    )  # fmt: skip


def _power(x: int) -> int:
    return int(triton.next_power_of_2(x))


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
    sizes = {
        "T": T, "F": first_k.shape[3], "J": k.shape[3], "H": H, "half": d // 2,
        "T_": _power(T), "half_": _power(d // 2),
        "MASKED": mask is not None, "TURN_Q": q_turn is not None, "TURN_K": k_turn is not None,
        "CAUSAL": causal,
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
def _few_keys_forward(
    q, qb, qn, qh, qt, fk, fkb, fkn, fkh, fkt, fv, fvb, fvn, fvh, fvt,
    k, kb, kn, kh, kt, v, vb, vn, vh, vt, mask, mb, mn, mt, mj,
    q_cos, q_sin, k_cos, k_sin, out, lse, scale, N,
    T: tl.constexpr, F: tl.constexpr, J: tl.constexpr, H: tl.constexpr, half: tl.constexpr,
    T_: tl.constexpr, half_: tl.constexpr,
    MASKED: tl.constexpr, TURN_Q: tl.constexpr, TURN_K: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    window, h = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, n = window // N, window % N
    t, e = tl.arange(0, T_), tl.arange(0, half_)
    cell = (t < T)[:, None] & (e < half)[None, :]  # (T, half)
    at = q + b * qb + n * qn + h * qh + t[:, None] * qt + e[None, :]
    place = t[:, None] * half + e[None, :]
    qx, qy = _load_turned(at, q_cos, q_sin, place, cell, half, TURN_Q)
    qx, qy = qx * scale, qy * scale
    seen = mask + b * mb + n * mn + t * mt
    first_k = fk + b * fkb + n * fkn + h * fkh + e
    first_v = fv + b * fvb + n * fvn + h * fvh + e
    other_k = k + b * kb + n * kn + h * kh + e
    other_v = v + b * vb + n * vn + h * vh + e
    most = tl.full((T_,), float("-inf"), tl.float32)
    total = tl.zeros((T_,), tl.float32)
    ox = tl.zeros((T_, half_), tl.float32)
    oy = tl.zeros((T_, half_), tl.float32)
    for j in tl.static_range(F + J):  # unrolled: loads of later keys need not wait
        if j < F:
            kx, ky = _load(first_k + j * fkt, half, e < half)
            vx, vy = _load(first_v + j * fvt, half, e < half)
        else:
            place = (j - F) * half + e
            kx, ky = _load_turned(
                other_k + (j - F) * kt, k_cos, k_sin, place, e < half, half, TURN_K
            )
            vx, vy = _load(other_v + (j - F) * vt, half, e < half)
        score = tl.sum(qx * kx[None, :] + qy * ky[None, :], axis=1)  # (T,)
        if MASKED:
            open = tl.load(seen + j * mj, mask=t < T, other=1)
            score = tl.where(open != 0, score, float("-inf"))
        if CAUSAL:
            score = tl.where(j - F <= t + J - T, score, float("-inf"))
        above = tl.maximum(most, score)
        shift = tl.where(above == float("-inf"), 0.0, above)
        fade, weight = tl.exp(most - shift), tl.exp(score - shift)
        ox = ox * fade[:, None] + weight[:, None] * vx[None, :]
        oy = oy * fade[:, None] + weight[:, None] * vy[None, :]
        total = total * fade + weight
        most = above
    D: tl.constexpr = H * 2 * half
    place = window * T * D + t[:, None] * D + h * 2 * half + e[None, :]
    _store(out + place, ox / total[:, None], oy / total[:, None], half, cell)
    tl.store(lse + window * T * H + t * H + h, most + tl.log(total), mask=t < T)


@triton.jit
def _few_keys_backward(
    q, qb, qn, qh, qt, fk, fkb, fkn, fkh, fkt, fv, fvb, fvn, fvh, fvt,
    k, kb, kn, kh, kt, v, vb, vn, vh, vt, mask, mb, mn, mt, mj,
    q_cos, q_sin, k_cos, k_sin, out, lse, scale,
    back, gb, gn, gh, gt,
    dq, dqw, dqt, dfk, dfkw, dfkt, dfv, dfvw, dfvt, dk, dkw, dkt, dv, dvw, dvt,
    mk, mkw, mkt, mkh, mv, mvw, mvt, mvh, N,
    T: tl.constexpr, F: tl.constexpr, J: tl.constexpr, H: tl.constexpr, half: tl.constexpr,
    T_: tl.constexpr, F_: tl.constexpr, J_: tl.constexpr, half_: tl.constexpr,
    MASKED: tl.constexpr, TURN_Q: tl.constexpr, TURN_K: tl.constexpr, CAUSAL: tl.constexpr,
    KEYS: tl.constexpr, MORE: tl.constexpr,
):  # fmt: skip
    """First the queries' gradient, key by key; then the keys', query by query."""
    window, h = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, n = window // N, window % N
    t, e = tl.arange(0, T_), tl.arange(0, half_)
    D: tl.constexpr = H * 2 * half
    cell = (t < T)[:, None] & (e < half)[None, :]
    q_at = q + b * qb + n * qn + h * qh + e
    g_at = back + b * gb + n * gn + h * gh + e
    o_at = out + window * T * D + h * 2 * half + e
    l_at = lse + window * T * H + h
    m_at = mask + b * mb + n * mn
    place = t[:, None] * half + e[None, :]
    rows = q_at[None, :] + t[:, None] * qt
    qx, qy = _load_turned(rows, q_cos, q_sin, place, cell, half, TURN_Q)
    qx, qy = qx * scale, qy * scale
    gx, gy = _load(g_at[None, :] + t[:, None] * gt, half, cell)
    ox, oy = _load(o_at[None, :] + t[:, None] * D, half, cell)
    total = tl.sum(gx * ox + gy * oy, axis=1)  # (T,)
    norm = tl.load(l_at + t * H, mask=t < T, other=float("inf"))
    first_k = fk + b * fkb + n * fkn + h * fkh + e
    first_v = fv + b * fvb + n * fvn + h * fvh + e
    other_k = k + b * kb + n * kn + h * kh + e
    other_v = v + b * vb + n * vn + h * vh + e
    dx = tl.zeros((T_, half_), tl.float32)
    dy = tl.zeros((T_, half_), tl.float32)
    for j in tl.static_range(F + J):
        if j < F:
            kx, ky = _load(first_k + j * fkt, half, e < half)
            vx, vy = _load(first_v + j * fvt, half, e < half)
        else:
            place = (j - F) * half + e
            kx, ky = _load_turned(
                other_k + (j - F) * kt, k_cos, k_sin, place, e < half, half, TURN_K
            )
            vx, vy = _load(other_v + (j - F) * vt, half, e < half)
        weight = tl.exp(tl.sum(qx * kx[None, :] + qy * ky[None, :], axis=1) - norm)
        if MASKED:
            weight = tl.where(
                tl.load(m_at + t * mt + j * mj, mask=t < T, other=1) != 0, weight, 0.0
            )
        if CAUSAL:
            weight = tl.where(j - F <= t + J - T, weight, 0.0)
        slope = weight * (tl.sum(gx * vx[None, :] + gy * vy[None, :], axis=1) - total)
        dx += slope[:, None] * kx[None, :]
        dy += slope[:, None] * ky[None, :]
    dx, dy = dx * scale, dy * scale
    if TURN_Q:
        cos, sin = _phase(q_cos, q_sin, t[:, None] * half + e[None, :], cell)
        dx, dy = _turned(dx, dy, cos, -sin)
    to = dq + window * dqw + t[:, None] * dqt + h * 2 * half + e[None, :]
    _store(to, dx, dy, half, cell)
    if F > 0:
        j = tl.arange(0, F_)
        where = (j < F)[:, None] & (e < half)[None, :]
        kx, ky = _load(first_k[None, :] + j[:, None] * fkt, half, where)
        vx, vy = _load(first_v[None, :] + j[:, None] * fvt, half, where)
        dkx, dky, dvx, dvy = _of_keys(
            kx, ky, vx, vy, j, j < F, q_at, qt, g_at, gt, o_at, l_at, m_at, mt, mj,
            q_cos, q_sin, e, scale, T, 0, 0, H, half, F_, half_, MASKED, TURN_Q, False,
        )  # fmt: skip
        if MORE:
            x, y = _load(mk + window * mkw + j[:, None] * mkt + h * mkh + e[None, :], half, where)
            dkx, dky = dkx + x, dky + y
            x, y = _load(mv + window * mvw + j[:, None] * mvt + h * mvh + e[None, :], half, where)
            dvx, dvy = dvx + x, dvy + y
        inner = h * 2 * half + e[None, :]
        _store(dfk + window * dfkw + j[:, None] * dfkt + inner, dkx, dky, half, where)
        _store(dfv + window * dfvw + j[:, None] * dfvt + inner, dvx, dvy, half, where)
    if KEYS:
        j = tl.arange(0, J_)
        where = (j < J)[:, None] & (e < half)[None, :]
        place = j[:, None] * half + e[None, :]
        rows = other_k[None, :] + j[:, None] * kt
        kx, ky = _load_turned(rows, k_cos, k_sin, place, where, half, TURN_K)
        vx, vy = _load(other_v[None, :] + j[:, None] * vt, half, where)
        dkx, dky, dvx, dvy = _of_keys(
            kx, ky, vx, vy, j, j < J, q_at, qt, g_at, gt, o_at, l_at, m_at, mt, mj,
            q_cos, q_sin, e, scale, T, F, J - T, H, half, J_, half_, MASKED, TURN_Q, CAUSAL,
        )  # fmt: skip
        if TURN_K:
            cos, sin = _phase(k_cos, k_sin, place, where)
            dkx, dky = _turned(dkx, dky, cos, -sin)
        inner = h * 2 * half + e[None, :]
        _store(dk + window * dkw + j[:, None] * dkt + inner, dkx, dky, half, where)
        _store(dv + window * dvw + j[:, None] * dvt + inner, dvx, dvy, half, where)


@triton.jit
def _of_keys(
    kx, ky, vx, vy, j, there, q_at, qt, g_at, gt, o_at, l_at, m_at, mt, mj,
    q_cos, q_sin, e, scale,
    T: tl.constexpr, FIRST: tl.constexpr, LAG: tl.constexpr, H: tl.constexpr, half: tl.constexpr,
    J_: tl.constexpr, half_: tl.constexpr,
    MASKED: tl.constexpr, TURN_Q: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Gradients of keys and values (J, half), key number ``FIRST + j`` of the mask."""
    dkx = tl.zeros((J_, half_), tl.float32)
    dky = tl.zeros((J_, half_), tl.float32)
    dvx = tl.zeros((J_, half_), tl.float32)
    dvy = tl.zeros((J_, half_), tl.float32)
    D: tl.constexpr = H * 2 * half
    for t in tl.static_range(T):
        qx, qy = _load_turned(q_at + t * qt, q_cos, q_sin, t * half + e, e < half, half, TURN_Q)
        qx, qy = qx * scale, qy * scale
        gx, gy = _load(g_at + t * gt, half, e < half)
        ox, oy = _load(o_at + t * D, half, e < half)
        weight = tl.sum(kx * qx[None, :] + ky * qy[None, :], axis=1) - tl.load(l_at + t * H)
        weight = tl.where(there, tl.exp(weight), 0.0)  # (J,)
        if MASKED:
            open = tl.load(m_at + t * mt + (FIRST + j) * mj, mask=there, other=0)
            weight = tl.where(open != 0, weight, 0.0)
        if CAUSAL:
            weight = tl.where(j <= t + LAG, weight, 0.0)
        slope = tl.sum(vx * gx[None, :] + vy * gy[None, :], axis=1) - tl.sum(gx * ox + gy * oy)
        slope = weight * slope
        dkx += slope[:, None] * qx[None, :]
        dky += slope[:, None] * qy[None, :]
        dvx += weight[:, None] * gx[None, :]
        dvy += weight[:, None] * gy[None, :]
    return dkx, dky, dvx, dvy
