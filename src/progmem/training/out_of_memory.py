"""What is said of a failed allocation: how much was free, and what to lower.

Where a batch can be held in more parts, `progmem.training.trainer` goes on with these instead.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import torch

from progmem.errors import TrainingError

ADVICE = "lower train.batch_size, data.window or model.size"


@contextmanager
def explain_oom(device: torch.device) -> Iterator[None]:
    """Turn a failed allocation inside into an error with advice."""
    try:
        yield
    except RuntimeError as error:
        raise_explained(error, device)


def raise_explained(error: RuntimeError, device: torch.device) -> NoReturn:
    """Raise a failed allocation as an error with advice, and any other as it is."""
    shortage = explain_shortage(error, device)
    if shortage is None:
        raise error
    raise TrainingError(f"{shortage}; {ADVICE}") from error


def explain_shortage(error: BaseException | None, device: torch.device) -> str | None:
    """What an error says of memory, if it is a failed allocation or was raised while one ended."""
    # a stream or a library's handle that finds no memory has a more general error
    if isinstance(error, torch.OutOfMemoryError) or "CUDA error: out of memory" in str(error):
        if device.type != "cuda":
            return "out of memory"
        free, whole = torch.cuda.mem_get_info(device)
        held = torch.cuda.memory_allocated(device)
        asked = re.search(r"Tried to allocate ([0-9.]+ \w+)", str(error))
        more = f"{asked.group(1)} more were needed, " if asked else ""
        return (
            f"out of memory on {torch.cuda.get_device_name(device)}: {more}{_gib(free)} of "
            f"{_gib(whole)} are free, this run holds {_gib(held)}"
        )
    # the CPU's allocator has no error of its own
    asked = re.search(r"you tried to allocate (\d+) bytes", str(error))
    if asked is not None:
        return f"out of memory: {_gib(int(asked.group(1)))} more were needed"
    # a capture that ends by this error has one of its own to tell
    return None if error is None else explain_shortage(error.__context__, device)


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 // 10 else f"{count / 2**20:.1f} MiB"
