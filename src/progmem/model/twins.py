"""Twins of a module: the same code on other tensors in place of its weights."""

import copy
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)

USES = 6  # readings of a weight whose gradients are added together with those of all others


def frozen(module: M, dtype: torch.dtype) -> M:
    """``module`` with weights that want no gradient, those of its linear maps in ``dtype``."""

    def change(part: nn.Module, weight: Tensor) -> Tensor:
        return weight.detach().to(dtype) if isinstance(part, nn.Linear) else weight.detach()

    return _twin(module, change)


def cast_once(module: M, dtype: torch.dtype) -> M:
    """``module`` with the matrices of its linear maps in ``dtype``, all cast by one operation.

    Gradients reach the module's own weights: what several uses of a weight hand back is cast and
    added by a few operations for all weights, where autograd would add them one by one.
    """
    linear = (part for part in module.modules() if isinstance(part, nn.Linear))
    matrices = {id(dict(part.named_parameters())["weight"]) for part in linear}
    weights = list(module.parameters())
    types = [dtype if id(weight) in matrices else weight.dtype for weight in weights]
    uses = USES if torch.is_grad_enabled() else 1
    handed: tuple[Tensor, ...] = _Hand.apply(uses, types, *weights)  # type: ignore[no-untyped-call]
    made = {id(weight): handed[i :: len(weights)] for i, weight in enumerate(weights)}
    return _twin(module, lambda _, weight: made[id(weight)])


def for_autocast(module: M, x: Tensor) -> M:
    """``module`` for inputs like ``x``: under autocast each use of a weight would cast it again."""
    kind = x.device.type
    if not torch.is_autocast_enabled(kind):
        return module
    return cast_once(module, torch.get_autocast_dtype(kind))


class _InTurn(dict[str, Any]):
    """Weights by name; of one that was handed out for several uses, each reading takes the next."""

    def __init__(self, weights: Iterable[tuple[str, Any]]) -> None:
        super().__init__(weights)
        self.turn = {name: 0 for name in self}

    def __getitem__(self, name: str) -> Any:
        weight = super().__getitem__(name)
        if not isinstance(weight, tuple):
            return weight
        self.turn[name] += 1
        return weight[self.turn[name] % len(weight)]

    def items(self) -> Any:
        """For lists of weights, in which each is one: always the first of its uses."""
        pairs = super().items()
        return {name: w[0] if isinstance(w, tuple) else w for name, w in pairs}.items()


def _twin(module: M, change: Callable[[nn.Module, Tensor], Any]) -> M:
    twin = copy.copy(module)
    twin._parameters = _InTurn(
        (name, None if weight is None else change(module, weight))
        for name, weight in module._parameters.items()
    )
    twin._modules = {
        name: None if child is None else _twin(child, change)
        for name, child in module._modules.items()
    }
    return twin


class _Hand(torch.autograd.Function):
    """Weights in other types, each once for every use; the way back adds what the uses found."""

    @staticmethod
    def forward(
        ctx: Any, uses: int, types: list[torch.dtype], *weights: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.types = [weight.dtype for weight in weights]
        made = _cast(list(weights), types)
        return tuple(weight.detach() for _ in range(uses) for weight in made)

    @staticmethod
    def backward(ctx: Any, *back: Tensor | None) -> tuple[Tensor | None, ...]:
        count = len(ctx.types)
        given = [(i % count, g) for i, g in enumerate(back) if g is not None]
        cast = _cast([g for _, g in given], [ctx.types[i] for i, _ in given])
        found: list[list[Tensor]] = [[] for _ in range(count)]
        for (i, _), g in zip(given, cast, strict=True):
            found[i].append(g)
        total = {i: parts[0] for i, parts in enumerate(found) if parts}
        for use in range(1, USES):
            again = [i for i in total if len(found[i]) > use]
            if again:
                more = [found[i][use] for i in again]
                added = torch._foreach_add([total[i] for i in again], more)
                total.update(zip(again, added, strict=True))
        return None, None, *(total.get(i) for i in range(count))


def _cast(tensors: list[Tensor], types: list[torch.dtype]) -> list[Tensor]:
    """Every tensor in its type, all that are not yet by one operation."""
    made = [
        t if t.dtype == kind else torch.empty_like(t, dtype=kind)
        for t, kind in zip(tensors, types, strict=True)
    ]
    others = [(new, old) for new, old in zip(made, tensors, strict=True) if new is not old]
    if others:
        torch._foreach_copy_([new for new, _ in others], [old for _, old in others])
    return made
