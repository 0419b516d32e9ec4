"""LayerNorm of rows, with what comes before and after it: one pass over the rows each way.

Twin: `progmem.model.attention.Norm`.

Shapes: R rows, D width.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from progmem.kernels.norm_rows import Normed, are_windows, backward_of_rows, forward_of_rows
from progmem.kernels.sums import column_sums


def norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    eps: float,
    segment: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """LN(x) + segment in ``dtype``, for ``x`` (..., D)."""
    y: Tensor = _Norm.apply(x, None, None, weight, bias, segment, eps, dtype, False)
    return y


def through(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    eps: float,
    segment: Tensor | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """``x`` itself for whoever else needs it, and `norm` of it: gradients meet on the way back."""
    both: tuple[Tensor, Tensor]
    both = _Norm.apply(x, None, None, weight, bias, segment, eps, dtype, True)
    return both


def add_norm(
    x: Tensor,
    more: Tensor,
    shift: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    eps: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """x + more + shift (D,) in the wider type of x and more (..., D), and LN of it in ``dtype``."""
    both: tuple[Tensor, Tensor] = _Norm.apply(x, more, shift, weight, bias, None, eps, dtype, False)
    return both


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        more: Tensor | None,
        shift: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        segment: Tensor | None,
        eps: float,
        dtype: torch.dtype,
        passed: bool,
    ) -> Tensor | tuple[Tensor, Tensor]:
        x = x if more is not None and are_windows(x) else x.contiguous()
        more = None if more is None else more.contiguous()
        layer = Normed(weight, bias, eps)
        total, y, moments = forward_of_rows(x, more, shift, layer, segment, dtype)
        ctx.types = x.dtype, None if more is None else more.dtype
        ctx.segment = segment is not None
        ctx.save_for_backward(total, weight, bias, moments, shift)
        if more is None and not passed:
            return y
        return (total.detach() if passed else total), y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *back: Tensor) -> tuple[Tensor | None, ...]:
        total, weight, bias, moments, shift = ctx.saved_tensors
        params = any(ctx.needs_input_grad[2:6])
        dx, d_more, sums = backward_of_rows(
            total, weight, moments, back[-1].contiguous(),
            None if len(back) == 1 else back[0].contiguous(), *ctx.types, params=params,
        )  # fmt: skip
        dw = db = d_shift = None
        if params:
            dw, db, d_shift = column_sums(sums)
            dw, db = dw.to(weight.dtype), db.to(bias.dtype)
            d_shift = None if shift is None else d_shift.to(shift.dtype)
        return dx, d_more, d_shift, dw, db, db if ctx.segment else None, None, None, None
