"""Operations that have a fused form on a GPU, and the one place that chooses between the forms.

An operation is a function of tensors. Its body is plain torch: what a CPU runs, what exports and
compiles, and what the tests trust. `with_fused` names the form made of Triton kernels, a function
of the same signature in `progmem.ops.fused`, and what it supports. Nothing else knows which runs.
"""

import importlib
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, wraps
from typing import Any, Literal, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
T = TypeVar("T")
Backend = Literal["auto", "plain", "interpreted"]

_BACKEND: ContextVar[Backend] = ContextVar("backend", default="auto")
_EXCLUDED: ContextVar[frozenset[str]] = ContextVar("excluded", default=frozenset())


def with_fused(
    name: str,
    *,
    supports: str | None = None,
    decides: Callable[..., Tensor] = lambda x, *_, **__: x,
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Give a plain operation its fused form.

    Args:
        name: "module.function" in `progmem.ops.fused`.
        supports: the function of that module that says whether the fused form takes these
            arguments; None: it takes everything.
        decides: the tensor whose device and type decide; by default the first argument.
    """
    module, function = name.split(".")

    def decorate(plain: Callable[P, T]) -> Callable[P, T]:
        @wraps(plain)
        def choose(*args: P.args, **kwargs: P.kwargs) -> T:
            if not use_fused(decides(*args, **kwargs)) or module in _EXCLUDED.get():
                return plain(*args, **kwargs)
            kernels = _module(module)
            if supports is not None and not getattr(kernels, supports)(*args, **kwargs):
                return plain(*args, **kwargs)
            form: Callable[P, T] = getattr(kernels, function)
            return form(*args, **kwargs)

        return choose

    return decorate


def use_fused(x: Tensor) -> bool:
    """Whether kernels can take tensors like ``x``."""
    if torch.compiler.is_compiling() or x.dtype == torch.float64:
        return False
    backend = _BACKEND.get()
    if backend != "auto":
        return backend == "interpreted"
    # Triton launches on the current device
    return x.is_cuda and x.get_device() == torch.cuda.current_device() and kernels_work("cuda")


@contextmanager
def use_backend(backend: Backend, *, without: Collection[str] = ()) -> Iterator[None]:
    """Inside, only plain torch is used, or, for tests, kernels in Triton's interpreter on a CPU.

    ``without`` names modules of `progmem.ops.fused` that are not used, for comparison.
    """
    tokens = _BACKEND.set(backend), _EXCLUDED.set(frozenset(without))
    try:
        yield
    finally:
        _BACKEND.reset(tokens[0])
        _EXCLUDED.reset(tokens[1])


@cache
def kernels_work(device: str) -> bool:
    """Whether a kernel can be compiled and run here: that takes Triton, a C compiler, a driver."""
    try:
        ones = torch.ones(1, 16, device=device)
        _module("gated_mix").gated_mix(ones, ones, ones, ones).tolist()
    except Exception as error:  # whatever is missing, the plain form works
        why = str(error).strip().splitlines() or [type(error).__name__]
        warnings.warn(
            f"no kernels can be compiled here, so plain torch is used: {why[0]}", stacklevel=2
        )
        return False
    return True


def left_open(size: int) -> bool:
    """Whether ``size`` may be any number: a model is being exported for every length."""
    return isinstance(size, torch.SymInt)


def compute_dtype(weight: Tensor) -> torch.dtype:
    """The type that a product with ``weight`` is computed in: its own, or autocast's."""
    kind = weight.device.type
    if torch.is_autocast_enabled(kind) and weight.dtype != torch.float64:
        return torch.get_autocast_dtype(kind)
    return weight.dtype


@cache
def _module(name: str) -> Any:
    """Import a module of kernels on first use: Triton is not available everywhere."""
    return importlib.import_module(f"progmem.ops.fused.{name}")
