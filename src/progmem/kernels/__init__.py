"""Kernels for a GPU (Triton), each the twin of a plain torch function that the tests hold it to."""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

_INSTALLED = importlib.util.find_spec("triton") is not None
_WANTED: ContextVar[bool] = ContextVar("kernels wanted", default=True)


def fit(x: Tensor) -> bool:
    """Whether the kernels can take ``x``; everything else goes through plain torch."""
    return (
        _INSTALLED
        and x.is_cuda
        and x.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and _WANTED.get()
        and not torch.compiler.is_compiling()
    )


@contextmanager
def plain_torch() -> Iterator[None]:
    """No kernels inside: for comparison."""
    token = _WANTED.set(False)
    try:
        yield
    finally:
        _WANTED.reset(token)
