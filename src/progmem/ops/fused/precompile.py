"""Kernels compiled in parallel, before they are first launched.

Triton compiles a kernel when it is first launched, one after the other: most of a minute for a
training step on a machine with an empty cache. Before a warm-up the call is therefore run once
without launching anything: every kernel that it would launch is compiled for its arguments, in
threads.
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


class Precompiler:
    """Compiles the kernels whose launch is requested where ``here`` holds, each variant once."""

    def __init__(self, here: Callable[[], bool], pool: Executor) -> None:
        self.here = here
        self.pool = pool
        self.seen: set[tuple[Any, ...]] = set()

    def __call__(self, function: Any, *args: Any, **options: Any) -> None:
        variant = function, *_specialization(function, args, options)
        if variant not in self.seen:
            self.seen.add(variant)
            types = [x.dtype if isinstance(x, Tensor) and _aligned(x) else x for x in args]
            device = torch.cuda.current_device() if torch.cuda.is_available() else -1
            self.pool.submit(_compile, function, types, options, device)


class Kernel:
    """A Triton kernel, launched by ``kernel[grid](...)`` unless kernels are being precompiled."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        precompiler = _precompiler
        if precompiler is not None and precompiler.here():
            return partial(precompiler, self.function)
        launch: Callable[..., Any] = self.function[grid]
        return launch


_precompiler: Precompiler | None = None  # of all threads: backward passes run in other threads


def kernel(*sizes: str) -> Callable[[Callable[..., None]], Kernel]:
    """`triton.jit` of a kernel that is not specialised to the values of ``sizes``."""
    return lambda function: Kernel(triton.jit(function, do_not_specialize=sizes))


@contextmanager
def precompile(here: Callable[[], bool]) -> Iterator[None]:
    """Inside, launches for which ``here`` holds compile their kernels and run nothing.

    Their outputs are not written, so no result may be used. A kernel that cannot be compiled
    raises its error when it is launched later.
    """
    global _precompiler
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        _precompiler = Precompiler(here, pool)
        try:
            yield
        finally:
            _precompiler = None


def _compile(function: Any, types: list[Any], options: dict[str, Any], device: int) -> None:
    with torch.cuda.device(device):
        compiled = function.warmup(*types, grid=(1,), **options)
        # building the launcher puts its file into Triton's cache
        triton.runtime.driver.active.launcher_cls(compiled.src, compiled.metadata)


def _specialization(function: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Iterator[Any]:
    """What Triton specialises a kernel to: types, alignment, and the values of constants."""
    params = {p.name: p for p in function.params}
    for name, x in (dict(zip(params, args, strict=False)) | options).items():
        if name not in params or params[name].is_constexpr:
            yield x
        elif isinstance(x, Tensor):
            yield x.dtype, _aligned(x)
        elif isinstance(x, int) and not params[name].do_not_specialize:
            yield x == 1, x % 16 == 0, x.bit_length() > 31
        else:
            yield type(x)


def _aligned(x: Tensor) -> bool:
    return x.data_ptr() % 16 == 0
