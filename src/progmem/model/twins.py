"""Twins of a module: the same code on other tensors in place of its weights."""

import copy
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


def frozen(module: M, dtype: torch.dtype) -> M:
    """``module`` with weights that want no gradient, those of its linear maps in ``dtype``."""

    def change(part: nn.Module, weight: Tensor) -> Tensor:
        return weight.detach().to(dtype) if isinstance(part, nn.Linear) else weight.detach()

    return _twin(module, change)


def cast_once(module: M, dtype: torch.dtype) -> M:
    """``module`` with the matrices of its linear maps in ``dtype``, all cast by one operation.

    Gradients reach the module's own weights, all cast back by one operation too.
    """
    linear = (part for part in module.modules() if isinstance(part, nn.Linear))
    matrices = list({id(part.weight): part.weight for part in linear}.values())
    cast: tuple[Tensor, ...] = _Cast.apply(dtype, *matrices)  # type: ignore[no-untyped-call]
    made = {id(weight): other for weight, other in zip(matrices, cast, strict=True)}
    return _twin(module, lambda _, weight: made.get(id(weight), weight))


def for_autocast(module: M, x: Tensor) -> M:
    """``module`` for inputs like ``x``: under autocast each use of a weight would cast it again."""
    kind = x.device.type
    if not torch.is_autocast_enabled(kind):
        return module
    return cast_once(module, torch.get_autocast_dtype(kind))


def _twin(module: M, change: Callable[[nn.Module, Tensor], Tensor]) -> M:
    twin = copy.copy(module)
    weights: dict[str, Any] = {
        name: None if weight is None else change(module, weight)
        for name, weight in module._parameters.items()
    }
    twin._parameters = weights
    twin._modules = {
        name: None if child is None else _twin(child, change)
        for name, child in module._modules.items()
    }
    return twin


class _Cast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.own = weights[0].dtype
        made = [torch.empty_like(weight, dtype=dtype) for weight in weights]
        torch._foreach_copy_(made, list(weights))
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *back: Tensor | None) -> tuple[Tensor | None, ...]:
        given = [g for g in back if g is not None]
        made = [torch.empty_like(g, dtype=ctx.own) for g in given]
        if made:
            torch._foreach_copy_(made, given)
        found = iter(made)
        return None, *(None if g is None else next(found) for g in back)
