"""Kernels for a GPU (Triton), each the twin of a plain torch function that the tests hold it to."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

import torch
from torch import Tensor

_WANTED: ContextVar[bool] = ContextVar("kernels wanted", default=True)


def fit(x: Tensor) -> bool:
    """Whether the kernels can take ``x``; everything else goes through plain torch."""
    return (
        x.is_cuda
        and x.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and x.get_device() == torch.cuda.current_device()  # Triton launches there
        and _WANTED.get()
        and not torch.compiler.is_compiling()
        and works("cuda")
    )


@cache
def works(device: str) -> bool:
    """Whether a kernel can be compiled and run here: that takes Triton, a C compiler, a driver."""
    try:
        from progmem.kernels import norm

        ones = torch.ones(16, device=device)
        norm.norm(ones[None], ones, ones, eps=1e-5, segment=None, dtype=torch.float32).tolist()
    except Exception as error:  # whatever is missing: the plain path is there
        why = str(error).strip().splitlines() or [type(error).__name__]
        warnings.warn(f"no kernels can be made here, so torch's are used: {why[0]}", stacklevel=2)
        return False
    return True


@contextmanager
def plain_torch() -> Iterator[None]:
    """No kernels inside: for comparison."""
    token = _WANTED.set(False)
    try:
        yield
    finally:
        _WANTED.reset(token)
