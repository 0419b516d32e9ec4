"""Randomness as a pure function of (seed, step, purpose), so that a resumed run is exact."""

import hashlib

import torch
from torch import Tensor

from progmem.config import TrainConfig


def generator(
    seed: int, step: int, purpose: str, device: torch.device | str = "cpu"
) -> torch.Generator:
    """A generator for one purpose at one step, unrelated to every other."""
    return torch.Generator(device).manual_seed(mixed_seed(seed, step, purpose))


def mixed_seed(seed: int, step: int, purpose: str) -> int:
    digest = hashlib.sha256(f"{seed} {step} {purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def whole_batch(rows: int, batch_size: int) -> int:
    """Rows of every batch: all, if they are few, and half of those of less than two batches.

    A batch of what is left over, one row perhaps, would have nothing that it could be told from.
    """
    if rows >= 2 * batch_size:
        return batch_size
    return rows if rows <= batch_size else max(2, rows // 2)


def steps_per_epoch(rows: int, batch_size: int) -> int:
    return rows // whole_batch(rows, batch_size)


def total_steps(rows: int, train: TrainConfig) -> int:
    """Steps of a whole run."""
    if train.steps is not None:
        return train.steps
    assert train.epochs is not None and train.batch_size is not None  # defaults are filled in
    return train.epochs * steps_per_epoch(rows, train.batch_size)


def batch_rows(rows: int, batch_size: int, seed: int, step: int) -> Tensor:
    """Rows of the global batch at ``step``: each epoch is a fresh order, less what is left over."""
    B = whole_batch(rows, batch_size)
    epoch, place = divmod(step, rows // B)
    order = torch.randperm(rows, generator=generator(seed, epoch, "order"))
    return order[place * B : (place + 1) * B]
