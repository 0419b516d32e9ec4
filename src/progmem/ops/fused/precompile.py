"""Kernels made side by side, before they are first run.

Triton makes a kernel when it is first launched: one after the other, most of a minute for a
training step on a machine that never made them. So whoever is about to warm something up runs it
once with nothing launched: every kernel it would launch is made, in threads, for what it is given.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import triton
from torch import Tensor


class Making:
    """Makes what is launched where ``here`` holds, each kind of it once."""

    def __init__(self, here: Callable[[], bool], pool: Executor) -> None:
        self.here = here
        self.pool = pool
        self.begun: set[tuple[Any, ...]] = set()

    def __call__(self, function: Any, *given: Any, **options: Any) -> None:
        kind = function, *_kinds(function, given, options)
        if kind not in self.begun:
            self.begun.add(kind)
            types = [x.dtype if isinstance(x, Tensor) and _aligned(x) else x for x in given]
            device = torch.cuda.current_device() if torch.cuda.is_available() else -1
            self.pool.submit(_make, function, types, options, device)


class Kernel:
    """A compiled function as Triton's, launched by ``kernel[grid](...)``."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        making = _making
        if making is not None and making.here():
            return partial(making, self.function)
        launch: Callable[..., Any] = self.function[grid]
        return launch


_making: Making | None = None  # every thread's: backward passes run in threads of their own


def kernel(*sizes: str) -> Callable[[Callable[..., None]], Kernel]:
    """`triton.jit` for what is launched; other values of ``sizes`` make no kernel of their own."""
    return lambda function: Kernel(triton.jit(function, do_not_specialize=sizes))


@contextmanager
def made_ahead(here: Callable[[], bool]) -> Iterator[None]:
    """Launches inside for which ``here`` holds make their kernels and run nothing.

    What they would have written stays as it was, so nothing that comes of it may be used. What
    cannot be made says so when it is launched.
    """
    global _making
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        _making = Making(here, pool)
        try:
            yield
        finally:
            _making = None


def _make(function: Any, types: list[Any], options: dict[str, Any], device: int) -> None:
    with torch.cuda.device(device):
        made = function.warmup(*types, grid=(1,), **options)
        triton.runtime.driver.active.launcher_cls(made.src, made.metadata)  # its file is kept


def _kinds(function: Any, given: tuple[Any, ...], options: dict[str, Any]) -> Iterator[Any]:
    """What kernels are made for: types, and values of constants."""
    known = {p.name: p for p in function.params}
    for name, x in (dict(zip(known, given, strict=False)) | options).items():
        if name not in known or known[name].is_constexpr:
            yield x
        elif isinstance(x, Tensor):
            yield x.dtype, _aligned(x)
        elif isinstance(x, int) and not known[name].do_not_specialize:
            yield x == 1, x % 16 == 0, x.bit_length() > 31
        else:
            yield type(x)


def _aligned(x: Tensor) -> bool:
    return x.data_ptr() % 16 == 0
