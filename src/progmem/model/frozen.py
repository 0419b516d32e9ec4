"""A module's twin whose weights want no gradient, cast once for many calls."""

import copy
from typing import Any, TypeVar

import torch
from torch import nn

M = TypeVar("M", bound=nn.Module)


def frozen(module: M, dtype: torch.dtype) -> M:
    """``module`` with detached weights, those of its linear maps in ``dtype``."""
    twin = copy.copy(module)
    linear = isinstance(module, nn.Linear)
    parts: dict[str, Any] = {
        name: None if p is None else p.detach().to(dtype) if linear else p.detach()
        for name, p in module._parameters.items()
    }
    twin._parameters = parts
    twin._modules = {
        name: None if child is None else frozen(child, dtype)
        for name, child in module._modules.items()
    }
    return twin
