"""Out of memory, in one line: what was needed, what is free, what to lower."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from progmem.errors import TrainingError

ADVICE = "lower train.batch_size, or set train.parts to 2 or more: the same gradients, less memory"


@contextmanager
def explain_oom(device: torch.device) -> Iterator[None]:
    """Turn a failed allocation inside into a line that helps."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        free, whole = torch.cuda.mem_get_info(device)
        held = torch.cuda.memory_allocated(device)
        asked = re.search(r"Tried to allocate ([0-9.]+ \w+)", str(error))
        more = f"{asked.group(1)} more were needed, " if asked else ""
        raise TrainingError(
            f"out of memory on {torch.cuda.get_device_name(device)}: {more}{_gib(free)} of "
            f"{_gib(whole)} are free, this run holds {_gib(held)}; {ADVICE}"
        ) from error
    except RuntimeError as error:  # the CPU's allocator has no error of its own
        asked = re.search(r"you tried to allocate (\d+) bytes", str(error))
        if asked is None:
            raise
        raise TrainingError(
            f"out of memory: {_gib(int(asked.group(1)))} more were needed; {ADVICE}"
        ) from error


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
