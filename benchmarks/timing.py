"""Time and peak memory of a call, measured the same way in every compute benchmark.

Times are wall-clock medians between two synchronisations, after calls that are not counted: what
a caller waits, launches included. Peak memory is that of the GPU's allocator, weights and inputs
included; on a CPU it is not measured here, `benchmarks.backbone` does so in processes apart.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.results import TABLES
from progmem.ops import cuda_graphs
from progmem.report import record

Call = Callable[[], Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What every compute benchmark takes."""
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=("cuda", "cpu"), default=default)
    parser.add_argument("--repeats", type=int, default=20, help="timed calls, of which the median")
    parser.add_argument("--commit", help="where there is no repository to ask")
    parser.add_argument("--out", type=Path, default=record.RESULTS)


def keep(experiment: str, chosen: argparse.Namespace, result: dict[str, Any]) -> None:
    """Write what was measured to <out>/<experiment>/<device>.json and print its table."""
    found = {**record.environment(chosen.device, chosen.commit), "repeats": chosen.repeats}
    found |= result
    path = record.save(experiment, chosen.device, found, folder=chosen.out)
    print(f"written: {path}\n\n{TABLES[experiment]([found])}")


def synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def seconds_of(call: Call, device: str) -> float:
    """Seconds of one call, until the device has finished it."""
    synchronise(device)
    start = time.perf_counter()
    call()
    synchronise(device)
    return time.perf_counter() - start


def median_seconds(call: Call, device: str, *, repeats: int, warmup: int = 3) -> float:
    for _ in range(warmup):
        call()
    return statistics.median(seconds_of(call, device) for _ in range(repeats))


def peak_mb(call: Call, device: str) -> float | None:
    """Most memory allocated on the GPU during a call, in MB; None on a CPU."""
    if device != "cuda":
        return None
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() / 2**20


def measure(call: Call, device: str, *, repeats: int) -> dict[str, Any]:
    """Median seconds and peak memory of a call."""
    seconds = median_seconds(call, device, repeats=repeats)
    return {"seconds": seconds, "peak_mb": peak_mb(call, device)}


def replayed(call: Call, device: str) -> Call:
    """The call without what launching it costs, for parts too short to time: a CUDA graph of it."""
    if device != "cuda":
        return call
    return cuda_graphs.graphed(call, torch.device(device))


def autocast(device: str) -> AbstractContextManager[Any]:
    """bf16 on a GPU, float32 on a CPU."""
    return torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda")


@contextmanager
def one_core() -> Iterator[None]:
    """torch on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
