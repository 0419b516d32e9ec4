"""Formats of biosignals and seismology, read by their own libraries: EDF, BDF, WFDB, miniSEED.

Channel names, units, the sampling rate and the start of a recording come with them.

Shapes: L samples, C channels.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from progmem import guard
from progmem.data.dates import Calendar
from progmem.data.options import ReadOptions
from progmem.data.recordings import Recording
from progmem.data.tables import Split
from progmem.errors import InputError

FIXED_HEAD, RECORD_HEAD = 48, 256  # bytes of a miniSEED record that are the same in all; looked at
MOST_BLOCKETTES = 16
SAMPLE_BYTES = {0: 1, 1: 2, 3: 4, 4: 4, 5: 8, 10: 4 / 7, 11: 4 / 7}  # at least, by encoding


class _Channel(NamedTuple):
    name: str
    unit: str
    rate: float
    values: Any  # what `np.asarray` makes (L,)


def read_edf(path: Path, name: str, options: ReadOptions) -> Split:
    """An .edf or .bdf file; of channels with several rates those of the most common one."""
    _refuse_options(path, options)
    import edfio

    bdf = path.suffix.lower() == ".bdf"
    _check_edf(path, options, bdf=bdf)
    with warnings.catch_warnings():  # it says of a file that was cut less than `_check_edf`
        warnings.filterwarnings("ignore", message=".*(data record at the end|data records, but)")
        edf = checked(edfio.read_bdf if bdf else edfio.read_edf, path)
    channels = [
        _Channel(signal.label, signal.physical_dimension, float(signal.sampling_frequency), signal)
        for signal in edf.signals
    ]
    try:
        start = datetime.combine(edf.startdate, edf.starttime)
    except ValueError:  # left out of the file, so that nobody is recognised by it
        start = None
    kept, notes = _of_one_rate(name, channels)
    values = np.stack([channel.values.data for channel in kept], axis=1)  # (L, C)
    return Split([_recording(name, values, kept, start)], None, notes)


def read_wfdb(path: Path, name: str, options: ReadOptions) -> Split:
    """A record of PhysioNet, by its .hea file; its samples lie in files beside it."""
    _refuse_options(path, options)
    import wfdb

    _check_wfdb(path, checked(wfdb.rdheader, str(path.with_suffix(""))), options)
    record = checked(wfdb.rdrecord, str(path.with_suffix("")))
    if record.p_signal is None or not record.p_signal.size:
        raise InputError(f"{path} has no samples")
    rate = float(record.fs)
    channels = [
        _Channel(label, unit or "", rate, None)
        for label, unit in zip(record.sig_name, record.units, strict=True)
    ]
    start = None
    if record.base_date is not None and record.base_time is not None:
        start = datetime.combine(record.base_date, record.base_time)
    return Split([_recording(name, record.p_signal, channels, start)])


def read_miniseed(path: Path, name: str, options: ReadOptions) -> Split:
    """A miniSEED file: one recording for each station, NaN where its traces leave a gap."""
    _refuse_options(path, options)
    import obspy

    _check_miniseed(path)
    stream = checked(obspy.read, str(path), format="MSEED")
    stations: dict[str, list[Any]] = {}
    for trace in stream:
        trace.data = np.asarray(trace.data, dtype=np.float64)
        stations.setdefault(f"{trace.stats.network}.{trace.stats.station}", []).append(trace)
    found, notes = [], []
    for station, traces in stations.items():
        parts = obspy.Stream(traces)
        rates = Counter(trace.stats.sampling_rate for trace in parts)
        rate = max(rates, key=lambda r: (rates[r], r))
        others = sorted({t.id for t in parts if t.stats.sampling_rate != rate})
        if others:
            notes.append(_left_out(name, others, rate))
        parts = obspy.Stream([trace for trace in parts if trace.stats.sampling_rate == rate])
        start = min(trace.stats.starttime for trace in parts)
        span = float(max(trace.stats.endtime for trace in parts) - start)
        samples, several = int(span * rate) + 1, len({trace.id for trace in parts})
        size = sum(trace.data.nbytes for trace in parts)
        what = f"{samples} samples of {several} channels with the gaps between its traces"
        guard.check(str(path), samples * several * guard.CELL, options.limit, what, size=size)
        end = max(trace.stats.endtime for trace in parts)
        parts.merge(method=1, fill_value=np.nan).sort()
        parts.trim(start, end, pad=True, fill_value=np.nan)
        channels = [
            _Channel(f"{t.stats.location}.{t.stats.channel}".lstrip("."), "", rate, None)
            for t in parts
        ]
        values = np.stack([trace.data for trace in parts], axis=1)  # (L, C)
        own = name if len(stations) == 1 else f"{name}.{station}"
        found.append(_recording(own, values, channels, start.datetime))
    return Split(found, None, tuple(notes))


def _check_edf(path: Path, options: ReadOptions, *, bdf: bool) -> None:
    """Refuse a file whose header lists far more samples than it holds, and tell of one cut off."""
    with path.open("rb") as stream:
        head = stream.read(256)
        if head[:8] != (b"\xffBIOSEMI" if bdf else b"0       "):
            raise ValueError(f"its header is not that of {'a BDF' if bdf else 'an EDF'} file")
        try:
            records, signals = int(head[236:244]), int(head[252:256])
            stream.seek(256 + 216 * signals)
            counts = stream.read(8 * signals)
            samples = [int(counts[8 * i : 8 * i + 8]) for i in range(signals)]
        except ValueError as error:
            raise ValueError("its header holds texts where numbers must be") from error
    if min([records, *samples], default=0) < 0 or records * sum(samples) > path.stat().st_size:
        raise ValueError(
            f"its header lists {records} records of {sum(samples)} samples, more than it holds"
        )
    there = (path.stat().st_size - 256 * (1 + signals)) // max(1, sum(samples) * (3 if bdf else 2))
    if there < records:
        warnings.warn(
            f"{path} was cut: of its {records} records {max(0, there)} are whole and read",
            stacklevel=2,
        )
    needed = records * sum(samples) * guard.CELL
    guard.check(path, needed, options.limit, f"{records * sum(samples)} samples")


def _check_wfdb(path: Path, header: Any, options: ReadOptions) -> None:
    """Refuse a header that lists more than its files hold, or files of other folders."""
    segments = [str(name) for name in getattr(header, "seg_name", None) or ()]
    names = {str(name) for name in getattr(header, "file_name", None) or segments}
    outside = sorted(name for name in names if Path(name).name != name)
    if outside:
        raise ValueError(f"it names {outside[0]!r}, which is not a file beside it")
    samples = (header.sig_len or 0) * (header.n_sig or 0)
    beside = [file for file in path.parent.iterdir() if {file.name, file.stem} & names]
    size = sum(file.stat().st_size for file in beside)
    what = f"{header.sig_len} samples of {header.n_sig} channels"
    guard.check(str(path), samples * guard.CELL, options.limit, what, size=size)


def _check_miniseed(path: Path) -> None:
    """Refuse records that list more samples than they hold, which obspy would read beyond them."""
    at, size = 0, path.stat().st_size
    with path.open("rb") as stream:
        while at < size:
            stream.seek(at)
            head = stream.read(RECORD_HEAD)
            if len(head) < FIXED_HEAD or head[6:7] not in b"DRQM":
                raise ValueError(f"there is no data record of miniSEED at byte {at}")
            length, encoding = _record_form(head)
            if not 128 <= length <= size - at:
                raise ValueError(f"the record at byte {at} is cut off, or does not say its length")
            samples, first = _two_bytes(head, 30), _two_bytes(head, 44)
            if samples * SAMPLE_BYTES.get(encoding, 1) > length - first:
                raise ValueError(f"the record at byte {at} lists {samples} samples, and has fewer")
            at += length


def _record_form(head: bytes) -> tuple[int, int]:
    """How long a record is, and how encoded; zeros where no blockette says so."""
    place = _two_bytes(head, 46)
    for _ in range(MOST_BLOCKETTES):
        if not FIXED_HEAD <= place <= len(head) - 8:
            break
        if _two_bytes(head, place) == 1000:
            return 1 << min(head[place + 6], 31), head[place + 4]
        place = _two_bytes(head, place + 2)
    return 0, 0


def _two_bytes(head: bytes, at: int) -> int:
    """A number in a record, which begins by its lower byte where the year would make no sense."""
    year = int.from_bytes(head[20:22], "big")
    return int.from_bytes(head[at : at + 2], "big" if 1900 <= year <= 2500 else "little")


def checked(read: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """What a library reads; whatever it raises for a damaged file becomes a ValueError."""
    try:
        return read(*args, **options)
    except (OSError, ImportError):
        raise
    except Exception as error:
        raise ValueError(" ".join(str(error).split())[:200] or type(error).__name__) from error


def _refuse_options(path: Path, options: ReadOptions) -> None:
    options.refuse_columns(f"a {path.suffix.lower()} file")
    if options.layout is not None:
        raise InputError(
            f"a {path.suffix.lower()} file says itself what its axes are; leave layout out"
        )


def _of_one_rate(name: str, channels: Sequence[_Channel]) -> tuple[list[_Channel], tuple[str, ...]]:
    """The channels of the most common rate, of several such the highest, and what is left out."""
    if not channels:
        raise InputError("it has no signals, only notes")
    rates = Counter(channel.rate for channel in channels)
    rate = max(rates, key=lambda r: (rates[r], r))
    others = [channel.name for channel in channels if channel.rate != rate]
    kept = [channel for channel in channels if channel.rate == rate]
    return kept, (_left_out(name, others, rate),) if others else ()


def _left_out(name: str, channels: Sequence[str], rate: float) -> str:
    return (
        f"{name}: left out {', '.join(channels)}, which have another rate than the {rate:g} "
        "samples a second of most channels"
    )


def _recording(
    name: str, values: np.ndarray, channels: Sequence[_Channel], start: datetime | None
) -> Recording:
    import pandas as pd

    rate = channels[0].rate
    if not 0 < rate < float("inf"):
        raise InputError(f"it says {rate:g} samples a second; the rate must be a number above 0")
    calendar = None if start is None else Calendar(pd.Timestamp(start), 1 / rate)
    return Recording(
        name, values, columns=tuple(c.name for c in channels),
        units=tuple(c.unit for c in channels), rate=rate, calendar=calendar,
    )  # fmt: skip
