"""The token gate on a GPU by hand: both sides normalised into one buffer, no sums of gradients.

Twin: `progmem.model.gates.TokenGate`.

Shapes: R rows, D width.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from progmem.kernels import mix, norm_rows
from progmem.kernels.norm_rows import Normed
from progmem.kernels.sums import column_sums


def gated(tokens: Tensor, signal: Tensor, layer: Normed, weight: Tensor, bias: Tensor) -> Tensor:
    """g a + (1 - g) b of ``tokens`` and ``signal`` (..., D), the product in ``weight``'s type."""
    a, b = (x.contiguous().view(-1, x.shape[-1]) for x in (tokens, signal))
    out: Tensor = _Gated.apply(a, b, *layer, weight, bias)  # type: ignore[no-untyped-call]
    return out.view(tokens.shape)


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, a: Tensor, b: Tensor, norm_w: Tensor, norm_b: Tensor, eps: float,
        weight: Tensor, bias: Tensor,
    ) -> Tensor:  # fmt: skip
        R, D = a.shape
        layer = Normed(norm_w, norm_b, eps)
        seen = weight.new_empty(R, 2, D)
        moments = a.new_empty(2, 2, R, dtype=torch.float32)
        for side, x in enumerate((a, b)):
            norm_rows.run_forward(x, layer, out=seen[:, side], moments=moments[side])
        z = seen.view(R, 2 * D) @ weight.T
        ctx.eps = eps
        ctx.save_for_backward(a, b, norm_w, norm_b, weight, bias, seen, moments, z)
        return mix.run_forward(z, bias[None], a, b)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, back: Tensor) -> tuple[Tensor | None, ...]:
        a, b, norm_w, norm_b, weight, bias, seen, moments, z = ctx.saved_tensors
        R, D = a.shape
        dz, *pulls, sums = mix.run_backward(z, bias[None], a, b, back.contiguous())
        d_seen = (dz @ weight).view(R, 2, D)
        layer = Normed(norm_w, norm_b, ctx.eps)
        (da, a_sums), (db, b_sums) = (
            norm_rows.run_backward(d_seen[:, side], pulls[side], x, moments[side], layer)
            for side, x in enumerate((a, b))
        )
        d_norm, d_level, _ = column_sums(torch.cat([a_sums, b_sums]))
        return (
            da, db, d_norm.to(norm_w.dtype), d_level.to(norm_b.dtype), None,
            dz.T @ seen.view(R, 2 * D), column_sums(sums).to(bias.dtype),
        )  # fmt: skip
