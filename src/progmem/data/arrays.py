"""Recordings from arrays and lists in memory or in a file: which axis is time.

Shapes: B series, L samples, C channels.
"""

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from progmem.data.dates import Calendar, regular_dates
from progmem.data.recordings import Recording
from progmem.errors import InputError
from progmem.series import as_array

LAYOUTS = (
    "time", "time,channels", "channels,time", "series,time", "series,time,channels",
    "series,channels,time", "long",
)  # fmt: skip


class Axes(NamedTuple):
    """What the axes of an array are where nobody says."""

    three: str
    two: str
    item: str  # an array of two axes in a list, which is one recording
    table: str  # a table without cases and dates


FILES = Axes("series,time,channels", "time,channels", "time,channels", "time,channels")
CASES = Axes("series,channels,time", "series,time", "channels,time", "series,time")


def check_layout(layout: str | None) -> None:
    if layout is not None and layout not in LAYOUTS:
        raise InputError(f"layout must be one of {' | '.join(LAYOUTS)}, got {layout!r}")


def split_array(
    array: Any, name: str, layout: str | None, axes: Axes, *, in_list: bool = False
) -> list[Recording]:
    """The recordings of an array, by ``layout`` or else by ``axes``.

    Where nobody says, an array of a file with more channels than samples is refused.
    """
    array = as_numbers(array, name)
    chosen = layout or _default(array, name, axes, in_list=in_list)
    letters = chosen.split(",")
    if len(letters) != array.ndim or chosen == "long":
        raise InputError(f"{name} has shape {array.shape}, which is not ({', '.join(letters)})")
    if layout is None and axes is FILES:
        _refuse_ambiguous(name, array.shape, chosen)
    series = "series" in letters
    if series and not array.size:  # one of them is enough to refuse
        array = array[:1]
    rest = [letter for letter in letters if letter != "series"]
    if rest == ["time"]:
        array = array[..., None]
    elif rest == ["channels", "time"]:
        array = array.swapaxes(-1, -2)
    if not series:
        return [Recording(name, array)]
    return [Recording(f"{name}.{i}" if name else f"series {i}", a) for i, a in enumerate(array)]


def _default(array: np.ndarray, name: str, axes: Axes, *, in_list: bool) -> str:
    known = {1: "time", 2: axes.item if in_list else axes.two, 3: axes.three}
    if in_list:
        known.pop(3)
    elif axes is CASES:
        known.pop(1)
    if array.ndim not in known:
        forms = [f"({', '.join(text.split(','))})" for text in known.values()]
        text = " or ".join(forms)
        text = text.replace("series", "cases") if axes is CASES else text
        raise InputError(f"{name or 'X'} must be {text}, got shape {array.shape}")
    return known[array.ndim]


def _refuse_ambiguous(name: str, shape: tuple[int, ...], layout: str) -> None:
    if len(shape) > 1 and shape[-1] > shape[-2] > 0:
        other = "series,time" if len(shape) == 2 else "series,channels,time"
        raise InputError(
            f"{name or 'the array'} has shape {shape}: more channels than samples if it is "
            f"({layout.replace(',', ', ')}), as arrays are read; say layout={layout!r} if so, or "
            f"layout={other!r} (--layout {layout} or {other})"
        )


def as_numbers(source: Any, name: str) -> np.ndarray:
    """An array, a tensor or a list as an array of real numbers; masked values become NaN."""
    array = as_array(source, name or "X")
    if isinstance(array, Tensor):
        array = array.detach().cpu()
        array = np.asarray(array.float() if array.dtype == torch.bfloat16 else array)
    if array.dtype.kind not in "biuf":
        raise InputError(f"{name or 'X'} must hold real numbers, got dtype {array.dtype}")
    return array


def mask_sentinels(recordings: Sequence[Recording], missing: Sequence[float]) -> list[Recording]:
    """The recordings with NaN where a value is one of ``missing``."""
    if not missing:
        return list(recordings)
    found = []
    for recording in recordings:
        values = np.array(recording.values, dtype=np.result_type(recording.values, np.float32))
        values[np.isin(values, np.array(missing, dtype=values.dtype))] = np.nan
        found.append(recording._replace(values=values))
    return found


SERIES_DIMS = ("series", "case", "cases", "instance", "instances", "sample", "batch")
TIME_DIMS = ("time", "date", "datetime", "timestamp", "t")


def from_xarray(source: Any, layout: str | None) -> list[Recording]:
    """The recordings of a DataArray or of a Dataset whose variables are channels, by names."""
    xarray: Any = sys.modules["xarray"]
    if isinstance(source, xarray.Dataset):
        source = source.to_array("channel")
    dims = [str(dim) for dim in source.dims]
    if layout is not None:
        if len(layout.split(",")) != len(dims):
            raise InputError(f"the array has the dimensions {dims}, which is not ({layout})")
        roles = dict(zip(layout.split(","), dims, strict=True))
        series, time, channels = (roles.get(r) for r in ("series", "time", "channels"))
    else:
        series = next((dim for dim in dims if dim.lower() in SERIES_DIMS), None)
        time = next((dim for dim in dims if dim.lower() in TIME_DIMS), None)
        rest = [dim for dim in dims if dim not in (series, time)]
        if time is None or len(rest) > 1:
            raise InputError(
                f"the array has the dimensions {dims}: call one of them time and, where there are "
                "several recordings, one series, or say layout='series,time,channels'"
            )
        channels = rest[0] if rest else None
    order = [dim for dim in (series, time, channels) if dim is not None]
    array = as_numbers(source.transpose(*order).to_numpy(), str(source.name or "X"))
    array = array if channels is not None else array[..., None]
    array = array if series is not None else array[None]  # (B, L, C)
    columns = tuple(map(str, source[channels].values)) if channels in source.coords else ()
    units = source.attrs.get("units")
    names = [f"series {i}" for i in range(len(array))]
    if series is None:
        names = [str(source.name or "series 0")]
    elif series in source.coords:
        names = [str(name) for name in source[series].values]
    calendar = None
    if time in source.coords and source[time].dtype.kind == "M":
        calendar = Calendar.of(regular_dates(source[time].values, array.shape[1]))
    return [
        Recording(
            name, values, columns=columns, units=(str(units),) * values.shape[1] if units else (),
            rate=calendar.rate if calendar is not None else None, calendar=calendar,
        )
        for name, values in zip(names, array, strict=True)
    ]  # fmt: skip
