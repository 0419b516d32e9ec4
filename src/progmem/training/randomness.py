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


def steps_per_epoch(rows: int, batch_size: int) -> int:
    """An epoch of two batches or more has whole ones only, a smaller one has two equal halves."""
    return rows // batch_size if rows >= 2 * batch_size else -(-rows // batch_size)


def total_steps(rows: int, train: TrainConfig) -> int:
    """Steps of a whole run; a batch is at most all rows."""
    if train.steps is not None:
        return train.steps
    assert train.epochs is not None and train.batch_size is not None  # defaults are filled in
    return train.epochs * steps_per_epoch(rows, min(train.batch_size, rows))


def batch_rows(rows: int, batch_size: int, seed: int, step: int) -> Tensor:
    """Rows of the global batch at ``step``: each epoch is a fresh order of all rows.

    Those of less than two batches are split evenly: a batch of the rest, one row perhaps, would
    have nothing that it could be told from.
    """
    steps = steps_per_epoch(rows, batch_size)
    epoch, place = divmod(step, steps)
    order = torch.randperm(rows, generator=generator(seed, epoch, "order"))
    if rows < 2 * batch_size:
        return order.tensor_split(steps)[place]
    return order[place * batch_size : (place + 1) * batch_size]
