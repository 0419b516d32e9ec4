"""Dates that are given with series in memory: a calendar for each, and its time covariates.

Shapes: B series, L samples, C channels.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from progmem.data.dates import COVARIATES, Calendar, read_dates, regular_dates, time_covariates
from progmem.data.recordings import ChannelInfo, Recording, Recordings, check_order
from progmem.errors import InputError
from progmem.series import as_array

if TYPE_CHECKING:
    import pandas as pd


class DatedSeries(NamedTuple):
    """Series as a model sees them, and when their samples were taken."""

    x: Any
    calendars: tuple[Calendar | None, ...] | None  # of each series; None: no dates were given
    names: list[str] | None = None  # of recordings


def with_dates(x: Any, dates: Any, info: ChannelInfo, channels: int) -> DatedSeries:
    """Series of a batch (B, L, C) or a list, or recordings, which bring their own dates.

    A model that sees time covariates gets them before the values, where these stand alone.

    Args:
        dates: one for each sample, the same for all series, or a list of such for each.
        info: what the model knows of its ``channels``.
    """
    if isinstance(x, list | tuple) and x and all(isinstance(one, Recording) for one in x):
        x = Recordings(tuple(x))
    if isinstance(x, Recordings):
        if dates is not None:
            raise InputError("recordings bring their own dates; leave dates out")
        calendars = tuple(recording.calendar for recording in x)
        bare = info.has_calendar and x[0].values.shape[1] + len(COVARIATES) == channels
        check_order("the model", info.columns[len(COVARIATES) if bare else 0 :], x)
        if bare and all(calendar is not None for calendar in calendars):
            x = x.with_covariates()
        return DatedSeries(x.values, calendars, x.names)
    if dates is None:
        return DatedSeries(x, None)
    several = isinstance(x, list | tuple)
    series = [as_array(one, f"series {i}") for i, one in enumerate(x)] if several else x
    lengths = [len(one) for one in series] if several else [as_array(x, "x").shape[1]] * len(x)
    indices = [
        regular_dates(one, n) for one, n in zip(each_of(dates, len(x)), lengths, strict=True)
    ]
    calendars = tuple(Calendar.of(index) for index in indices)
    if not several:
        return DatedSeries(before_values(as_array(x, "x"), indices, info, channels), calendars)
    parts = [
        before_values(one[None], [index], info, channels)[0]
        for one, index in zip(series, indices, strict=True)
    ]
    return DatedSeries(parts, calendars)


def chunk_with_dates(chunk: Any, dates: Any, info: ChannelInfo, channels: int) -> Any:
    """A chunk (B, L, C) of a stream with the time covariates of its ``dates`` before its values."""
    if dates is None:
        return chunk
    if not info.has_calendar:
        raise InputError("this model sees no dates; leave them out")
    indices = [read_dates(one) for one in each_of(dates, chunk.shape[0])]
    for index in indices:
        L, some = chunk.shape[1], ", of which some are missing" if index.hasnans else ""
        if len(index) != L or some:
            raise InputError(
                f"give one date for each of the {L} samples of a chunk, got {len(index)}{some}"
            )
    return before_values(chunk, indices, info, channels)


def each_of(dates: Any, count: int) -> Sequence[Any]:
    """The dates of each of ``count`` series: a list of as many, or the same for all."""
    lists = isinstance(dates, list | tuple)
    if not lists or not len(dates) or isinstance(dates[0], str) or not hasattr(dates[0], "__len__"):
        return [dates] * count
    if len(dates) != count:
        raise InputError(f"give dates for each of the {count} series, or for all, got {len(dates)}")
    return list(dates)


def before_values(
    x: Any, indices: "Sequence[pd.DatetimeIndex]", info: ChannelInfo, channels: int
) -> Any:
    """``x`` (B, L, C) with time covariates as its first channels, where the model sees them."""
    if not info.has_calendar or x.ndim != 3 or x.shape[-1] + len(COVARIATES) != channels:
        return x
    covariates = np.stack([time_covariates(index) for index in indices])  # (B, L, 7)
    if not isinstance(x, Tensor):
        return np.concatenate([covariates, x], axis=-1)
    # float64: a day of the year is no number of bfloat16
    return torch.cat([torch.as_tensor(covariates, device=x.device), x.detach().double()], dim=-1)
