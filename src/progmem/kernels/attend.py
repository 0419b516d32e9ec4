"""Attention over few keys, for autograd.

Twin: `progmem.model.attention.attend_plainly`.

Shapes: B series, N windows, H heads, T queries, F first keys, J other keys, d width of a head.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from progmem.kernels import few_keys


def attend(
    q: Tensor,
    first: tuple[Tensor, Tensor] | None,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    *,
    causal: bool,
) -> Tensor:
    """softmax(q k' / sqrt(d)) v, (B, N, H, T, d); shapes as in `few_keys.Given`."""
    if first is None:
        first = k[:, :, :, :0], v[:, :, :, :0]
    out: Tensor = _FewKeys.apply(q, *first, k, v, mask, causal)
    return out.transpose(2, 3)


class _FewKeys(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        ctx.settings = given[6:]
        B, N, H, T, d = given[0].shape
        out = given[0].new_empty(B, N, T, H, d)  # joining the heads then moves nothing
        lse = out.new_empty(B, N, T, H, dtype=torch.float32)
        few_keys.run_forward(few_keys.Given(*given), out=out, lse=lse)
        ctx.save_for_backward(*given[:6], out, lse)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, back: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, out, lse = ctx.saved_tensors
        given = few_keys.Given(*tensors, *ctx.settings)
        keys = ctx.needs_input_grad[3] or ctx.needs_input_grad[4]
        B, N, H, T, d = given.q.shape
        F, J = given.first_k.shape[3], given.k.shape[3] if keys else 0
        made = [given.q.new_empty(B, N, rows, H, d) for rows in (T, F, F, J, J)]
        few_keys.run_backward(given, out=out, lse=lse, back=back, made=made, keys=keys)
        dq, dfk, dfv, dk, dv = (t.transpose(2, 3) for t in made)
        return dq, dfk, dfv, *((dk, dv) if keys else (None, None)), None, None
