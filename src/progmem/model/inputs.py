"""From a user's arrays to clean tensors: checks with helpful words, normalisation, missing values.

Shapes: B series, L samples, C channels.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from progmem.config import ModelConfig
from progmem.errors import InputError

LARGEST = 1e15  # after normalisation; squares of larger values would overflow float32


class ChannelStats(nn.Module):
    """Mean and scale of each channel, float64 whatever the model is cast to."""

    mean: Tensor
    scale: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(channels, dtype=torch.float64))
        self.register_buffer("scale", torch.ones(channels, dtype=torch.float64))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "ChannelStats":
        for name, buffer in list(self.named_buffers()):
            setattr(self, name, buffer.to(fn(buffer).device))  # follow the device, never the dtype
        return self


def clean(
    values: Tensor, stats: ChannelStats, like: Tensor, *, rows: Sequence[int], start: int
) -> tuple[Tensor, Tensor]:
    """Normalised values in the dtype and on the device of ``like``, 0 where missing; and where not.

    ``values`` is float64 (B, L, C) with NaN for missing. ``rows`` and ``start`` say which series
    and samples they are, for the message about one that is not finite.
    """
    mean, scale = stats.mean.to(values.device), stats.scale.to(values.device)
    x = (values - mean) / scale  # float64: large offsets keep their small variations
    observed = ~x.isnan()
    most = min(LARGEST, torch.finfo(like.dtype).max)
    bad = x.abs() > most
    if bool(bad.any()):
        b, t, c = bad.nonzero()[0].tolist()
        value = values[b, t, c].item()
        why = "" if np.isinf(value) else f", beyond {most:.0e} after normalisation"
        raise InputError(
            f"series {rows[b]}, sample {start + t}, channel {c} is {value:g}{why}; "
            "mark missing values by NaN"
        )
    x = torch.where(observed, x, 0.0)
    return x.to(like.device, like.dtype), observed.to(like.device)


class Series:
    """A batch of series as the user gave it: an array (B, L, C) or a list of (L_i, C).

    Nothing is copied until it is cut out, so a memory-mapped array may be larger than memory.
    """

    arrays: Any  # indexed by series, then by sample

    def __init__(self, x: Any, lengths: Any, cfg: ModelConfig) -> None:
        if isinstance(x, list | tuple):
            if lengths is not None:
                raise InputError("lengths goes with an array; a list's series have their own")
            self.arrays = [s if isinstance(s, Tensor) else np.asarray(s) for s in x]
            for i, array in enumerate(self.arrays):
                if array.ndim != 2:
                    raise InputError(
                        f"series {i} must be (time, channels), got shape {tuple(array.shape)}"
                    )
                check_samples(array, cfg.channels)
            self.lengths = [len(array) for array in self.arrays]
        else:
            self.arrays = x if isinstance(x, Tensor) else np.asanyarray(x)
            if self.arrays.ndim != 3:
                hint = "; for one series take x[None]" if self.arrays.ndim == 2 else ""
                raise InputError(
                    f"x must be (batch, time, channels), got shape {tuple(self.arrays.shape)}{hint}"
                )
            check_samples(self.arrays, cfg.channels)
            batch, time, _ = self.arrays.shape
            self.lengths = check_lengths(lengths, batch, time)
        if not len(self.arrays):
            raise InputError("x holds no series; give at least one")
        for i, length in enumerate(self.lengths):
            if length < cfg.patch:
                raise InputError(
                    f"series {i} needs at least {cfg.patch} samples, got {length} "
                    "(one token is made of that many)"
                )
        first = self.arrays[0]
        self.device = first.device if isinstance(first, Tensor) else torch.device("cpu")

    def __len__(self) -> int:
        return len(self.lengths)

    def batches(self, size: int, *, equal_lengths: bool = False) -> Iterator[Sequence[int]]:
        """Rows, at most ``size`` at a time; of one length each where that is asked for."""
        groups: dict[int, list[int]] = {}
        for row, length in enumerate(self.lengths):
            groups.setdefault(length if equal_lengths else 0, []).append(row)
        for rows in groups.values():
            for first in range(0, len(rows), size):
                yield rows[first : first + size]

    def cut(self, rows: Sequence[int], start: int, stop: int) -> Tensor:
        """Samples ``start`` to ``stop`` of some series, float64, NaN past a series' end."""
        channels = self.arrays[0].shape[-1]
        out = torch.full(
            (len(rows), stop - start, channels), torch.nan, dtype=torch.float64, device=self.device
        )
        for i, row in enumerate(rows):
            piece = self.arrays[row][start : min(stop, self.lengths[row])]
            out[i, : len(piece)] = as_float64(piece)
        return out


def as_float64(array: Any) -> Tensor:
    if isinstance(array, Tensor):
        return array.detach().to(torch.float64)
    return torch.from_numpy(np.array(array, dtype=np.float64))


def check_samples(array: Any, channels: int) -> None:
    """Refuse anything but real numbers, with the model's channels on the last axis."""
    kind, shape = array.dtype, tuple(array.shape)
    real = not kind.is_complex if isinstance(array, Tensor) else kind.kind in "biuf"
    if not real:
        raise InputError(f"series must be real numbers, got dtype {kind}")
    if shape[-1] != channels:
        hint = ""
        if shape[-2] == channels:
            order = "(batch, time, channels)" if len(shape) == 3 else "(time, channels)"
            hint = f"; the shape is {shape} and should be {order}: transpose?"
        raise InputError(f"model has {channels} channels, got {shape[-1]}{hint}")


def check_lengths(lengths: Any, batch: int, time: int) -> list[int]:
    """The samples of each series, given or all of them."""
    if lengths is None:
        return [time] * batch
    array = np.asarray(lengths)
    if array.shape != (batch,) or array.dtype.kind not in "iu":
        raise InputError(
            f"lengths must be {batch} whole numbers, one a series, "
            f"got shape {array.shape} of {array.dtype}"
        )
    if batch and (array.min() < 0 or array.max() > time):
        raise InputError(f"lengths must be in 0..{time} (the samples of x), got {array.tolist()}")
    return [int(n) for n in array]


def check_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{name} must be a whole number from 1 up, got {value!r}")


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode inside, the mode it had afterwards."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
