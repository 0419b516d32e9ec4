"""Attention over a few keys: scores, softmax and weighted sum of one window in registers.

Library kernels are made for hundreds of keys; with the six tokens of a window they spend their
time on padding. Here a program takes one window with all its heads and goes through the keys one
by one. Positions are turned on the way, so nothing is laid out before.

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

MOST_QUERIES, MOST_KEYS, MOST_VALUES = 16, 64, 8192


def takes(q: Tensor, keys: int) -> bool:
    """Whether queries (..., H, T, d) over so many keys are few enough."""
    H, T, d = q.shape[-3:]
    values = _power(H) * _power(T) * 2 * _power(d // 2)
    return T <= MOST_QUERIES and keys <= MOST_KEYS and values <= MOST_VALUES


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
        out, lse = run_forward(Given(*given))
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


def run_forward(given: Given) -> tuple[Tensor, Tensor]:
    """The result as (B, N, T, H, d), so that joining heads moves nothing; log of softmax' sums."""
    q = given.q
    B, N, H, T, d = q.shape
    out = q.new_empty(B, N, T, H, d)
    lse = q.new_empty(B, N, T, H, dtype=torch.float32)
    arguments, sizes = _arguments(given)
    _few_keys_forward[(B * N,)](*arguments, out, lse, d**-0.5, N, **sizes, num_warps=_warps(T))
    return out, lse


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
    B, N, _, T, d = given.q.shape
    if back.stride(-1) != 1:
        back = back.contiguous()
    arguments, sizes = _arguments(given)
    places = [x for t in made for x in (t, t.stride(1), t.stride(2))]
    extra = [x for t in more or made[1:3] for x in (t, t.stride(0), t.stride(2), t.stride(3))]
    _few_keys_backward[(B * N,)](
        *arguments, out, lse, d**-0.5, back, *(back.stride(axis) for axis in (0, 1, 3, 2)),
        *places, *extra, N, **sizes, KEYS=keys, MORE=more is not None, num_warps=_warps(T),
    )  # fmt: skip


def _warps(queries: int) -> int:
    return 8 if queries > 2 else 4


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
        "T_": _power(T), "H_": _power(H), "half_": _power(d // 2),
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
def _scores(qx, qy, kx, ky, seen, j, mj, t, T: tl.constexpr, MASKED: tl.constexpr):
    """q k_j of all heads and queries, -inf where the query may not look: (H, T)."""
    score = tl.sum(qx * kx[:, None, :] + qy * ky[:, None, :], axis=2)
    if MASKED:
        open = tl.load(seen + j * mj, mask=t < T, other=1)
        score = tl.where((open != 0)[None, :], score, float("-inf"))
    return score


@triton.jit
def _take(score, vx, vy, most, total, ox, oy):
    """One more key in a running softmax."""
    above = tl.maximum(most, score)
    shift = tl.where(above == float("-inf"), 0.0, above)
    fade, weight = tl.exp(most - shift), tl.exp(score - shift)
    ox = ox * fade[:, :, None] + weight[:, :, None] * vx[:, None, :]
    oy = oy * fade[:, :, None] + weight[:, :, None] * vy[:, None, :]
    return above, total * fade + weight, ox, oy


@triton.jit
def _few_keys_forward(
    q, qb, qn, qh, qt, fk, fkb, fkn, fkh, fkt, fv, fvb, fvn, fvh, fvt,
    k, kb, kn, kh, kt, v, vb, vn, vh, vt, mask, mb, mn, mt, mj,
    q_cos, q_sin, k_cos, k_sin, out, lse, scale, N,
    T: tl.constexpr, F: tl.constexpr, J: tl.constexpr, H: tl.constexpr, half: tl.constexpr,
    T_: tl.constexpr, H_: tl.constexpr, half_: tl.constexpr,
    MASKED: tl.constexpr, TURN_Q: tl.constexpr, TURN_K: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    window = tl.program_id(0).to(tl.int64)
    b, n = window // N, window % N
    h, t, e = tl.arange(0, H_), tl.arange(0, T_), tl.arange(0, half_)
    pair = (h[:, None] < H) & (e[None, :] < half)  # (H, half)
    cell = pair[:, None, :] & (t < T)[None, :, None]  # (H, T, half)
    at = q + b * qb + n * qn + h[:, None, None] * qh + t[None, :, None] * qt + e[None, None, :]
    qx, qy = _load(at, half, cell)
    if TURN_Q:
        where = (t < T)[:, None] & (e < half)[None, :]
        q_c, q_s = _phase(q_cos, q_sin, t[:, None] * half + e[None, :], where)
        qx, qy = _turned(qx, qy, q_c[None], q_s[None])
    qx, qy = qx * scale, qy * scale
    seen = mask + b * mb + n * mn + t * mt
    most = tl.full((H_, T_), float("-inf"), tl.float32)
    total = tl.zeros((H_, T_), tl.float32)
    ox = tl.zeros((H_, T_, half_), tl.float32)
    oy = tl.zeros((H_, T_, half_), tl.float32)
    k_at = fk + b * fkb + n * fkn + h[:, None] * fkh + e[None, :]
    v_at = fv + b * fvb + n * fvn + h[:, None] * fvh + e[None, :]
    for j in tl.static_range(F):
        kx, ky = _load(k_at + j * fkt, half, pair)
        vx, vy = _load(v_at + j * fvt, half, pair)
        score = _scores(qx, qy, kx, ky, seen, j, mj, t, T, MASKED)
        most, total, ox, oy = _take(score, vx, vy, most, total, ox, oy)
    k_at = k + b * kb + n * kn + h[:, None] * kh + e[None, :]
    v_at = v + b * vb + n * vn + h[:, None] * vh + e[None, :]
    for j in range(J):
        kx, ky = _load(k_at + j * kt, half, pair)
        vx, vy = _load(v_at + j * vt, half, pair)
        if TURN_K:
            cos, sin = _phase(k_cos, k_sin, j * half + e, e < half)
            kx, ky = _turned(kx, ky, cos[None], sin[None])
        score = _scores(qx, qy, kx, ky, seen, F + j, mj, t, T, MASKED)
        if CAUSAL:
            score = tl.where((j <= t + J - T)[None, :], score, float("-inf"))
        most, total, ox, oy = _take(score, vx, vy, most, total, ox, oy)
    D: tl.constexpr = H * 2 * half
    place = window * T * D + t[None, :, None] * D + h[:, None, None] * 2 * half + e[None, None, :]
    _store(out + place, ox / total[:, :, None], oy / total[:, :, None], half, cell)
    row = window * T * H + t[None, :] * H + h[:, None]
    tl.store(lse + row, most + tl.log(total), mask=(h < H)[:, None] & (t < T)[None, :])


@triton.jit
def _pull(score, norm, total, vx, vy, gx, gy, inside):
    """The weight of a key and dL/dscore, (H, T) both."""
    weight = tl.where(inside, tl.exp(score - norm), 0.0)
    slope = tl.sum(gx * vx[:, None, :] + gy * vy[:, None, :], axis=2)
    return weight, weight * (slope - total)


@triton.jit
def _spread(weight, x, y):
    """Sum over the queries of weight (H, T) times rows (H, T, half)."""
    return tl.sum(weight[:, :, None] * x, axis=1), tl.sum(weight[:, :, None] * y, axis=1)


@triton.jit
def _few_keys_backward(
    q, qb, qn, qh, qt, fk, fkb, fkn, fkh, fkt, fv, fvb, fvn, fvh, fvt,
    k, kb, kn, kh, kt, v, vb, vn, vh, vt, mask, mb, mn, mt, mj,
    q_cos, q_sin, k_cos, k_sin, out, lse, scale,
    back, gb, gn, gh, gt,
    dq, dqw, dqt, dfk, dfkw, dfkt, dfv, dfvw, dfvt, dk, dkw, dkt, dv, dvw, dvt,
    mk, mkw, mkt, mkh, mv, mvw, mvt, mvh, N,
    T: tl.constexpr, F: tl.constexpr, J: tl.constexpr, H: tl.constexpr, half: tl.constexpr,
    T_: tl.constexpr, H_: tl.constexpr, half_: tl.constexpr,
    MASKED: tl.constexpr, TURN_Q: tl.constexpr, TURN_K: tl.constexpr, CAUSAL: tl.constexpr,
    KEYS: tl.constexpr, MORE: tl.constexpr,
):  # fmt: skip
    window = tl.program_id(0).to(tl.int64)
    b, n = window // N, window % N
    h, t, e = tl.arange(0, H_), tl.arange(0, T_), tl.arange(0, half_)
    D: tl.constexpr = H * 2 * half
    pair = (h[:, None] < H) & (e[None, :] < half)
    cell = pair[:, None, :] & (t < T)[None, :, None]
    at = q + b * qb + n * qn + h[:, None, None] * qh + t[None, :, None] * qt + e[None, None, :]
    qx, qy = _load(at, half, cell)
    if TURN_Q:
        where = (t < T)[:, None] & (e < half)[None, :]
        q_c, q_s = _phase(q_cos, q_sin, t[:, None] * half + e[None, :], where)
        qx, qy = _turned(qx, qy, q_c[None], q_s[None])
    qx, qy = qx * scale, qy * scale
    at = back + b * gb + n * gn + h[:, None, None] * gh + t[None, :, None] * gt + e[None, None, :]
    gx, gy = _load(at, half, cell)
    place = window * T * D + t[None, :, None] * D + h[:, None, None] * 2 * half + e[None, None, :]
    ox, oy = _load(out + place, half, cell)
    total = tl.sum(gx * ox + gy * oy, axis=2)  # (H, T)
    inside = (h < H)[:, None] & (t < T)[None, :]
    norm = tl.load(lse + window * T * H + t[None, :] * H + h[:, None], mask=inside, other=0.0)
    seen = mask + b * mb + n * mn + t * mt
    dx = tl.zeros((H_, T_, half_), tl.float32)
    dy = tl.zeros((H_, T_, half_), tl.float32)
    to = h[:, None] * 2 * half + e[None, :]
    k_at = fk + b * fkb + n * fkn + h[:, None] * fkh + e[None, :]
    v_at = fv + b * fvb + n * fvn + h[:, None] * fvh + e[None, :]
    for j in tl.static_range(F):
        kx, ky = _load(k_at + j * fkt, half, pair)
        vx, vy = _load(v_at + j * fvt, half, pair)
        score = _scores(qx, qy, kx, ky, seen, j, mj, t, T, MASKED)
        weight, slope = _pull(score, norm, total, vx, vy, gx, gy, inside)
        dx += slope[:, :, None] * kx[:, None, :]
        dy += slope[:, :, None] * ky[:, None, :]
        kx, ky = _spread(slope, qx, qy)
        vx, vy = _spread(weight, gx, gy)
        if MORE:
            x, y = _load(mk + window * mkw + j * mkt + h[:, None] * mkh + e[None, :], half, pair)
            kx, ky = kx + x, ky + y
            x, y = _load(mv + window * mvw + j * mvt + h[:, None] * mvh + e[None, :], half, pair)
            vx, vy = vx + x, vy + y
        _store(dfk + window * dfkw + j * dfkt + to, kx, ky, half, pair)
        _store(dfv + window * dfvw + j * dfvt + to, vx, vy, half, pair)
    k_at = k + b * kb + n * kn + h[:, None] * kh + e[None, :]
    v_at = v + b * vb + n * vn + h[:, None] * vh + e[None, :]
    for j in range(J):
        kx, ky = _load(k_at + j * kt, half, pair)
        vx, vy = _load(v_at + j * vt, half, pair)
        if TURN_K:
            cos, sin = _phase(k_cos, k_sin, j * half + e, e < half)
            kx, ky = _turned(kx, ky, cos[None], sin[None])
        score = _scores(qx, qy, kx, ky, seen, F + j, mj, t, T, MASKED)
        if CAUSAL:
            score = tl.where((j <= t + J - T)[None, :], score, float("-inf"))
        weight, slope = _pull(score, norm, total, vx, vy, gx, gy, inside)
        dx += slope[:, :, None] * kx[:, None, :]
        dy += slope[:, :, None] * ky[:, None, :]
        if KEYS:
            kx, ky = _spread(slope, qx, qy)
            vx, vy = _spread(weight, gx, gy)
            if TURN_K:
                kx, ky = _turned(kx, ky, cos[None], -sin[None])
            _store(dk + window * dkw + j * dkt + to, kx, ky, half, pair)
            _store(dv + window * dvw + j * dvt + to, vx, vy, half, pair)
    dx, dy = dx * scale, dy * scale
    if TURN_Q:
        dx, dy = _turned(dx, dy, q_c[None], -q_s[None])
    to = t[None, :, None] * dqt + h[:, None, None] * 2 * half + e[None, None, :]
    _store(dq + window * dqw + to, dx, dy, half, cell)
