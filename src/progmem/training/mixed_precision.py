"""Weights cast once a step under autocast, which by itself would cast one again at every use."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call


def call_with_cast_weights(module: nn.Module, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    """``module(x, ...)``; under autocast on weights that were all cast beforehand."""
    kind = x.device.type
    if not torch.is_autocast_enabled(kind) or torch.compiler.is_compiling():
        return module(x, *args, **kwargs)
    weights = cast_weights(module, torch.get_autocast_dtype(kind))
    return functional_call(module, weights, (x, *args), kwargs)


def cast_weights(module: nn.Module, dtype: torch.dtype) -> dict[str, Tensor]:
    """The parameters of ``module`` by name, the matrices of its linear maps in ``dtype``.

    Gradients reach the module's own parameters. Both ways all are cast by one operation.
    """
    named = {
        f"{name}.weight".removeprefix("."): part.weight
        for name, part in module.named_modules()
        if isinstance(part, nn.Linear)
    }
    cast: tuple[Tensor, ...] = _Cast.apply(dtype, *named.values())  # type: ignore[no-untyped-call]
    return dict(module.named_parameters()) | dict(zip(named, cast, strict=True))


class _Cast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.dtypes = [weight.dtype for weight in weights]
        return _copies(weights, [dtype] * len(weights))

    @staticmethod
    def backward(ctx: Any, *back: Tensor | None) -> tuple[Tensor | None, ...]:
        there = [i for i, gradient in enumerate(back) if gradient is not None]
        found = _copies([g for g in back if g is not None], [ctx.dtypes[i] for i in there])
        known = dict(zip(there, found, strict=True))
        return None, *(known.get(i) for i in range(len(back)))


def _copies(tensors: Any, dtypes: list[torch.dtype]) -> tuple[Tensor, ...]:
    made = [torch.empty_like(t, dtype=d) for t, d in zip(tensors, dtypes, strict=True)]
    if made:
        torch._foreach_copy_(made, list(tensors))
    return tuple(made)
