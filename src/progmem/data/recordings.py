"""Recordings and what is known of them: names, channels, units, rate and dates.

Shapes: L samples, C channels.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, overload

import numpy as np

from progmem.data.dates import COVARIATES, Calendar, has_calendar, time_covariates
from progmem.errors import InputError
from progmem.names import SHOWN, first_few, printable


class Recording(NamedTuple):
    """One recording, or a piece of one, with its name."""

    name: str
    values: Any  # (L, C) array, perhaps memory-mapped
    origin: str | None = None  # the recording a piece was cut from
    start: int = 0  # the sample of ``origin`` it begins at
    columns: tuple[str, ...] = ()  # the names of the channels
    units: tuple[str, ...] = ()  # of the channels, "" where it is not known
    rate: float | None = None  # samples per second
    calendar: Calendar | None = None  # the dates of its samples
    whole: Any = None  # all of ``origin``, of a piece


class ChannelInfo(NamedTuple):
    """What a model knows of the channels it was trained on; it is kept with the model."""

    columns: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    rate: float | None = None  # samples per second
    missing: tuple[float | str, ...] = ()  # values that were read as missing ones

    @classmethod
    def of(cls, recordings: Sequence[Recording], missing: Sequence[float | str]) -> "ChannelInfo":
        """What recordings have in common."""
        units = next((recording.units for recording in recordings if recording.units), ())
        rates = {recording.rate for recording in recordings}
        rate = rates.pop() if len(rates) == 1 else None
        return cls(columns_of(recordings), units, rate, tuple(missing))

    @property
    def has_calendar(self) -> bool:
        return has_calendar(self.columns)


@dataclass(frozen=True)
class Recordings(Sequence[Recording]):
    """The recordings of a source, in order, and what else was found there."""

    items: tuple[Recording, ...]
    labels: np.ndarray | None = None  # one for each recording, where the source has them
    notes: tuple[str, ...] = ()  # how columns and shapes were understood, a sentence each
    skipped: tuple[str, ...] = ()  # files that hold no recordings

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, index: int) -> Recording: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Recording, ...]: ...
    def __getitem__(self, index: int | slice) -> Recording | tuple[Recording, ...]:
        return self.items[index]

    def __iter__(self) -> Iterator[Recording]:
        return iter(self.items)

    @property
    def values(self) -> list[Any]:
        """The samples of each recording, (L, C), as `PMT.encode` takes them."""
        return [recording.values for recording in self.items]

    @property
    def names(self) -> list[str]:
        return [recording.name for recording in self.items]

    @property
    def columns(self) -> tuple[str, ...]:
        return columns_of(self.items)

    def with_covariates(self) -> "Recordings":
        """These recordings with their calendar as the first channels."""
        found = with_covariates(self.items)
        check_channels(found, "; a recording without dates has no time covariates")
        return replace(self, items=tuple(found))

    def lines(self) -> list[str]:
        """What was read as what, for a person."""
        return [summarise(self.items), *remarks(self.notes, self.skipped)]


def remarks(notes: Sequence[str], skipped: Sequence[str]) -> list[str]:
    """What was done to files and which were left out, in a few lines however many they are."""
    lines = list(notes[:SHOWN])
    if len(notes) > SHOWN:
        lines.append(f"and {len(notes) - SHOWN} more such notes, all in progmem check --json")
    if skipped:
        lines.append(f"skipped files that are no recordings: {first_few(skipped)}")
    return lines


def with_printable_names(recording: Recording) -> Recording:
    """The recording with names that are safe to show (see `progmem.names`)."""
    columns, units = (tuple(map(printable, texts)) for texts in recording[4:6])
    return recording._replace(name=printable(recording.name), columns=columns, units=units)


def with_covariates(recordings: Sequence[Recording]) -> list[Recording]:
    """Dated recordings with their time covariates as the first channels; others as they are."""
    return [_with_covariates(r) if r.calendar is not None else r for r in recordings]


def _with_covariates(recording: Recording) -> Recording:
    assert recording.calendar is not None
    dates = recording.calendar.at(np.arange(len(recording.values)))
    values = np.concatenate([time_covariates(dates), recording.values], axis=1)
    columns = recording.columns or tuple(map(str, range(recording.values.shape[1])))
    units = recording.units and ("",) * len(COVARIATES) + recording.units
    return recording._replace(values=values, columns=(*COVARIATES, *columns), units=units)


def without_covariates(recordings: Sequence[Recording]) -> list[Recording]:
    """Dated series without their time covariates; others as they are."""
    first = len(COVARIATES)
    return [
        r._replace(values=r.values[:, first:], columns=r.columns[first:], units=r.units[first:])
        if has_calendar(r.columns)
        else r
        for r in recordings
    ]


def check_channels(recordings: Sequence[Recording], more: str = "") -> None:
    """Refuse recordings that do not have the same channels in the same order."""
    first = recordings[0]
    for other in recordings[1:]:
        if other.values.shape[1] != first.values.shape[1]:
            raise InputError(
                f"recordings must have the same channels: {first.name} has "
                f"{first.values.shape[1]}, {other.name} has {other.values.shape[1]}{more}"
            )
    named = [recording for recording in recordings if recording.columns]
    if named:
        check_order(named[0].name, named[0].columns, named[1:])


def summarise(recordings: Sequence[Recording]) -> str:
    """The number, lengths and channels of recordings, in one line."""
    lengths = [len(recording.values) for recording in recordings]
    least, most = min(lengths), max(lengths)
    columns = columns_of(recordings)
    some = ", ".join(columns[:12]) + (", …" if len(columns) > 12 else "")
    return (
        f"recordings: {len(lengths)}, samples: {least if least == most else f'{least} to {most}'}, "
        f"channels: {recordings[0].values.shape[1]}" + (f" ({some})" if columns else "")
    )


def columns_of(recordings: Sequence[Recording]) -> tuple[str, ...]:
    """The names of the channels, from the first file that has them."""
    return next((recording.columns for recording in recordings if recording.columns), ())


def check_order(name: str, columns: Sequence[str], others: Sequence[Recording]) -> None:
    """Refuse recordings with a column of ``name`` in another position: channels would be mixed."""
    for other in others:
        for first, here in zip(columns, other.columns, strict=False):
            if here != first and here in columns:
                raise InputError(
                    f"recordings must have their columns in one order: {other.name} has {here!r} "
                    f"where {name} has {first!r}"
                )
