"""Out of memory: what is said, and the batch that is held in more parts from that step on.

A batch in parts has the same gradients but for rounding (grad_cache.py). The folder of a run says
from which step on there are how many, so that each step is divided again as it was divided before.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from progmem.config import check_mapping, is_whole
from progmem.errors import ConfigError, TrainingError
from progmem.training.run_folder import read_noted, write_noted

FILE = "parts.json"
ADVICE = "lower train.batch_size, data.window or model.size"


class PartsBySteps:
    """Into how many parts each process divides its rows of a batch, step by step.

    Args:
        folder: of the run.
        parts: as configured, which there are at least.
    """

    def __init__(self, folder: Path, parts: int) -> None:
        self.path, self.parts = folder / FILE, parts
        self.begun = _read(self.path)  # parts by the step they began with

    def at(self, step: int) -> int:
        """The parts of ``step`` (from 0)."""
        return max([self.parts, *(n for begun, n in self.begun.items() if begun <= step)])

    def begin(self, step: int, parts: int) -> None:
        """Note that there are ``parts`` from ``step`` on, in this run and when it goes on."""
        self.begun[step] = parts
        write_noted(self.path, {"parts": {str(s): n for s, n in sorted(self.begun.items())}})


def _read(path: Path) -> dict[int, int]:
    noted = check_mapping(read_noted(path).get("parts", {}), f"parts in {path}")
    if not all(str(s).isdigit() and is_whole(n) and n > 0 for s, n in noted.items()):
        raise ConfigError(f"{path} is damaged: it must say how many parts there are by steps")
    return {int(step): n for step, n in noted.items()}


@contextmanager
def explain_oom(device: torch.device) -> Iterator[None]:
    """Turn a failed allocation inside into an error with advice."""
    try:
        yield
    except RuntimeError as error:
        shortage = explain_shortage(error, device)
        if shortage is None:
            raise
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
