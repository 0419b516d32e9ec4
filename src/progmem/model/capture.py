"""A call recorded as a CUDA graph: warmed up first, then recorded, on a stream of its own.

What is recorded reads and writes the same memory at every replay, and no Python runs then.
"""

from collections.abc import Callable
from functools import cache
from threading import Lock
from typing import TypeVar

import torch

from progmem import kernels

T = TypeVar("T")

WARM_UP = 3  # libraries choose kernels and take workspace at first use, which no graph may hold
_ALONE = Lock()  # a graph would take in what another thread runs on the same stream


def warm_up(
    call: Callable[[], T], times: int = WARM_UP, *, device: torch.device | None = None
) -> T:
    """Run ``call`` some times where it will be recorded: what it gave last.

    Before that it is run once without our kernels, which are made meanwhile: whatever ``call``
    writes must not matter.
    """
    with torch.cuda.device(device), _ALONE:
        current, side = torch.cuda.current_stream(), _stream(torch.cuda.current_device())
        side.wait_stream(current)
        with torch.cuda.stream(side):
            if kernels.works("cuda"):
                _make_kernels(call, side)
            for _ in range(times):
                result = call()
        current.wait_stream(side)
    return result


def record(
    call: Callable[[], T], *, device: torch.device | None = None
) -> tuple[torch.cuda.CUDAGraph, T]:
    """A graph of ``call``, and what it gives: memory that every replay writes anew."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device), _ALONE:
        side = _stream(torch.cuda.current_device())
        # threads elsewhere go on working
        with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
            result = call()
    return graph, result


def _make_kernels(call: Callable[[], T], side: torch.cuda.Stream) -> None:
    from progmem.kernels.ahead import made_ahead  # needs Triton

    with (
        torch.random.fork_rng([side.device]),
        made_ahead(lambda: torch.cuda.current_stream() == side),
    ):
        call()


@cache
def _stream(device: int) -> torch.cuda.Stream:
    """One for all recordings on a device: libraries keep workspace for each stream."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
