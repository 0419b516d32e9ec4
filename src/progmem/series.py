"""A user's series: arrays of any kind are checked and normalised, and missing values masked.

Shapes: B series, L samples, C channels.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from progmem.config import EncoderConfig, is_whole
from progmem.data.dates import COVARIATES, has_calendar
from progmem.errors import InputError

M = TypeVar("M", bound=nn.Module)
PIECE = 2**20  # samples of each series that statistics look at together
LARGEST = 1e15  # after normalisation; squares of larger values would overflow float32


class ChannelStats(nn.Module):
    """Mean and scale of each channel, float64 whatever the model is cast to."""

    mean: Tensor
    scale: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(channels, dtype=torch.float64))
        self.register_buffer("scale", torch.ones(channels, dtype=torch.float64))

    @property
    def moments(self) -> "Moments":
        return Moments(self.mean, self.scale)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "ChannelStats":
        return follow_device(self, fn)


def follow_device(module: M, fn: Callable[[Tensor], Tensor]) -> M:
    """``_apply`` for a module whose buffers follow the model's device, never its dtype."""
    for name, buffer in list(module.named_buffers()):
        setattr(module, name, buffer.to(fn(buffer).device))
    return module


class Moments(NamedTuple):
    """Mean and scale to normalise by: (C,) for all series, or (B, 1, C) for each."""

    mean: Tensor
    scale: Tensor


def normalise(
    values: Tensor, moments: Moments, like: Tensor, *, names: Sequence[str], start: int
) -> tuple[Tensor, Tensor]:
    """Normalised values like ``like`` (dtype and device), 0 where missing, and the observed mask.

    ``values`` is float64 (B, L, C) with NaN for missing. ``names`` and ``start`` identify series
    and samples in the error message about a value that is not finite.
    """
    mean, scale = (t.to(values.device) for t in moments)
    x = (values - mean) / scale  # float64: large offsets keep their small variations
    observed = ~x.isnan()
    most = min(LARGEST, torch.finfo(like.dtype).max)
    bad = x.abs() > most
    if bool(bad.any()):
        b, t, c = bad.nonzero()[0].tolist()
        value = values[b, t, c].item()
        why = "" if np.isinf(value) else f", beyond {most:.0e} after normalisation"
        raise InputError(
            f"{names[b]}, sample {start + t}, channel {c} is {value:g}{why}; "
            "mark missing values by NaN"
        )
    x = torch.where(observed, x, 0.0)
    return x.to(like.device, like.dtype), observed.to(like.device)


class Series:
    """A batch of series as the user gave it: an array (B, L, C) or a list of (L_i, C).

    Only the samples that `cut` returns are copied: a memory-mapped array may be larger than memory.
    """

    arrays: Any  # indexed by series, then by sample

    def __init__(
        self,
        x: Any,
        lengths: Any,
        cfg: EncoderConfig,
        names: Sequence[str] | None = None,
        *,
        columns: Sequence[str] = (),  # what the model calls its channels
    ) -> None:
        if isinstance(x, list | tuple):
            self.names = names or default_names(len(x))
            if lengths is not None:
                raise InputError("lengths goes with an array; a list's series have their own")
            self.arrays = [as_array(s, name) for s, name in zip(x, self.names, strict=True)]
            for name, array in zip(self.names, self.arrays, strict=True):
                if array.ndim != 2:
                    raise InputError(
                        f"{name} must be (time, channels), got shape {tuple(array.shape)}"
                    )
                check_samples(array, cfg.channels, f"{name}: ", columns=columns)
            self.lengths = [len(array) for array in self.arrays]
        else:
            self.arrays = as_array(x, "x")
            shape = tuple(self.arrays.shape)
            if len(shape) != 3:
                hint = "; for one series (time, channels) give [x]" if len(shape) == 2 else ""
                raise InputError(f"x must be (batch, time, channels), got shape {shape}{hint}")
            self.names = names or default_names(shape[0])
            check_samples(self.arrays, cfg.channels, columns=columns)
            self.lengths = check_lengths(lengths, *shape[:2])
        if not len(self.arrays):
            raise InputError("x holds no series; give at least one")
        for i, length in enumerate(self.lengths):
            if length < cfg.patch:
                how = (
                    ""
                    if isinstance(self.arrays, list)
                    else f"; x {shape} is (batch, time, channels)"
                )
                raise InputError(
                    f"{self.names[i]} needs at least {cfg.patch} samples, got {length} "
                    f"(one token is made of that many{how})"
                )
        first = self.arrays[0]
        self.device = first.device if isinstance(first, Tensor) else torch.device("cpu")

    def __len__(self) -> int:
        return len(self.lengths)

    def batches(self, size: int, *, equal_lengths: bool = False) -> Iterator[Sequence[int]]:
        """Rows in batches of at most ``size``, if ``equal_lengths`` of series of one length."""
        groups: dict[int, list[int]] = {}
        for row, length in enumerate(self.lengths):
            groups.setdefault(length if equal_lengths else 0, []).append(row)
        for rows in groups.values():
            for first in range(0, len(rows), size):
                yield rows[first : first + size]

    def own_moments(self, rows: Sequence[int]) -> Moments:
        """Mean and standard deviation of each series, over what is observed; 1 if none varies.

        Where these are not finite, 0 and 1 are used, and `normalise` names the offending value.
        """
        count: Any = 0
        total: Any = 0
        square: Any = 0
        low, high = torch.tensor(torch.inf), torch.tensor(-torch.inf)
        length = max(self.lengths[row] for row in rows)
        pieces = [(start, min(start + PIECE, length)) for start in range(0, length, PIECE)]
        for start, stop in pieces:
            values = self.cut(rows, start, stop)
            count = count + (~values.isnan()).sum(1, keepdim=True)
            total = total + values.nansum(1, keepdim=True)
            low = values.nan_to_num(torch.inf).amin(1, keepdim=True).minimum(low)
            high = values.nan_to_num(-torch.inf).amax(1, keepdim=True).maximum(high)
        mean = total / count.clamp(min=1)  # (B, 1, C)
        for start, stop in pieces:
            square = square + (self.cut(rows, start, stop) - mean).square().nansum(1, keepdim=True)
        scale = (square / count.clamp(min=1)).sqrt()
        finite = scale.isfinite()
        varies = finite & (low < high) & (scale > 0)
        return Moments(torch.where(finite, mean, 0.0), torch.where(varies, scale, 1.0))

    def cut(self, rows: Sequence[int], start: int, stop: int) -> Tensor:
        """Samples ``start`` to ``stop`` of some series, float64, NaN past a series' end."""
        channels = self.arrays[0].shape[-1]
        if isinstance(self.arrays, Tensor) and stop <= min(self.lengths[row] for row in rows):
            return as_float64(self.arrays[torch.tensor(rows), start:stop])  # one copy for all rows
        out = torch.full(
            (len(rows), stop - start, channels), torch.nan, dtype=torch.float64, device=self.device
        )
        for i, row in enumerate(rows):
            piece = self.arrays[row][start : min(stop, self.lengths[row])]
            out[i, : len(piece)] = as_float64(piece)
        return out


def as_array(x: Any, name: str) -> Any:
    """A tensor as it is, anything else as an array of numbers; masked values become NaN."""
    if isinstance(x, Tensor):
        if x.is_nested:
            raise InputError(f"{name} is a nested tensor; give list(x.unbind())")
        if x.layout is not torch.strided:
            raise InputError(f"{name} is a sparse tensor; give its to_dense()")
        return x
    try:
        array = np.asanyarray(x)
        if isinstance(array, np.ma.MaskedArray) and array.dtype.kind in "biufO":
            array = np.ma.filled(array.astype(np.float64), np.nan)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be an array, got {type(x).__name__}: {error}") from error
    if array.ndim == 0:
        what = "a single value" if isinstance(x, np.ndarray) else type(x).__name__
        raise InputError(f"{name} must be an array or a list of arrays, got {what}")
    return array


def as_float64(array: Any) -> Tensor:
    if isinstance(array, Tensor):
        return array.detach().to(torch.float64)
    return torch.from_numpy(np.array(array, dtype=np.float64))


def check_samples(
    array: Any, channels: int, name: str = "", *, columns: Sequence[str] = ()
) -> None:
    """Refuse anything but real numbers, with the model's channels on the last axis."""
    kind, shape = array.dtype, tuple(array.shape)
    real = not kind.is_complex if isinstance(array, Tensor) else kind.kind in "biuf"
    if not real:
        raise InputError(
            f"{name}series must be real numbers, got dtype {kind}; "
            "leave out times and texts, mark missing values by NaN"
        )
    if shape[-1] != channels:
        hint = ""
        if shape[-2] == channels:
            order = "(batch, time, channels)" if len(shape) == 3 else "(time, channels)"
            hint = f"; the shape is {shape} and should be {order}: transpose?"
        elif has_calendar(columns) and shape[-1] + len(COVARIATES) == channels:
            hint = (
                f": the first {len(COVARIATES)} are the time covariates of the samples; give their "
                "dates by dates="
            )
        raise InputError(f"{name}model has {channels} channels, got {shape[-1]}{hint}")


def check_lengths(lengths: Any, batch: int, time: int) -> list[int]:
    """The samples of each series, given or all of them."""
    if lengths is None:
        return [time] * batch
    try:
        array = np.asarray(lengths)
    except ValueError:  # ragged
        array = np.empty(())
    if array.shape != (batch,) or array.dtype.kind not in "iu":
        raise InputError(
            f"lengths must be {batch} whole numbers, one a series, "
            f"got shape {array.shape} of {array.dtype}"
        )
    if batch and (array.min() < 0 or array.max() > time):
        raise InputError(
            f"lengths must be from 0 to {time} (the samples of x), got {array.tolist()}"
        )
    return [int(n) for n in array]


def default_names(count: int) -> list[str]:
    """Names for series that have none."""
    return [f"series {i}" for i in range(count)]


def check_tensor(x: Tensor, cfg: EncoderConfig) -> None:
    """Refuse what `forward` cannot take. Only shapes are checked, so that it can be traced."""
    if x.dim() != 3:
        raise InputError(f"x must be (batch, time, channels), got shape {tuple(x.shape)}")
    check_samples(x, cfg.channels)
    if x.shape[1] < cfg.patch:
        raise InputError(f"x needs at least {cfg.patch} samples, got {x.shape[1]}")


def check_finite(sequence: Tensor, names: Sequence[str]) -> None:
    """Refuse to return NaN: a value that is not finite always reaches the sequence vector."""
    bad = ~sequence.isfinite().all(1)
    if bool(bad.any()):
        raise InputError(
            f"{names[int(bad.nonzero()[0])]} gave values that are not finite in "
            f"{sequence.dtype}; use a float32 or bfloat16 model, or rescale the data"
        )


def check_count(name: str, value: Any) -> None:
    if not is_whole(value) or value < 1:
        raise InputError(f"{name} must be a whole number from 1 up, got {value!r}")
