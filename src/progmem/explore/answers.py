"""What the commands do: a question to an index, and a .csv file with the answer and its times."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from progmem import explore
from progmem.data.labels import sample_of
from progmem.data.options import BY_RULE, ReadOptions
from progmem.data.recordings import Recording
from progmem.errors import InputError
from progmem.explore.folder import Index
from progmem.explore.labelling import labels_of_file
from progmem.explore.tables import runs, stretch_table
from progmem.explore.time_axis import TimeAxis
from progmem.files import check_output, check_outside, unfinished
from progmem.names import printable, to_cell
from progmem.progress import Log, progress, silent
from progmem.series import check_count

LABELLED = "with a column label it is a file for --labels of progmem suggest and progmem explore"


def index_files(
    model: Path,
    data: Path,
    out: Path,
    *,
    windows: Path | None = None,
    options: ReadOptions = BY_RULE,
    log: Log | None = print,
) -> None:
    """`progmem.explore.index`, and where each window lies as a table in ``windows``."""
    check_outside(out, data)
    if windows is not None:
        _check(windows, data)
    idx = explore.index(model, data, out, options=options, log=log)
    said = f"{out} ({len(idx.names)} recordings, {len(idx)} windows)"
    if windows is not None:
        axes = _axes(idx)
        tables = (
            stretch_table(axes, [(name, *span) for span in idx.windows(name).tolist()], ())
            for name in idx.names
        )
        _write(windows, tables)
        said += f", {windows} (where each row of its arrays lies)"
    (log or silent)(
        f"written: {said}; next: progmem segment {out} -o segments.csv, or search, states, "
        "surprise, suggest"
    )


def search_file(
    index: Path,
    recording: str,
    start: str,
    end: str,
    out: Path,
    *,
    k: int = 10,
    log: Log | None = print,
) -> None:
    """`progmem.explore.search` for a stretch, whose ends are samples or dates."""
    idx = _open(index, out)
    place = _recordings(idx)[idx.number(printable(recording))]
    stretch = [sample_of(text, place, "the stretch", 0) for text in (start, end)]
    found = explore.search(idx, place.name, *stretch, k=k)
    _write(out, [stretch_table(_axes(idx), found, ("distance",)).round({"distance": 4})])
    (log or silent)(f"written: {out} ({len(found)} stretches, the nearest first); next: {LABELLED}")


def segment_file(
    index: Path,
    out: Path,
    *,
    recording: str | None = None,
    count: int | None = None,
    penalty: float = 1.0,
    log: Log | None = print,
) -> None:
    """`progmem.explore.segment` of all recordings, or of one."""
    idx = _open(index, out)
    axes, number = _axes(idx), 0

    def tables() -> Iterator[pd.DataFrame]:
        nonlocal number
        for name in _each(idx, recording, "segmenting", log):
            found = explore.segment(idx, name, count=count, penalty=penalty)
            number += len(found)
            yield stretch_table(axes, found, ("regime",))

    _write(out, tables())
    (log or silent)(f"written: {out} ({number} regimes); next: {LABELLED}")


def states_file(
    index: Path,
    out: Path,
    *,
    k: int | None = None,
    profile: Path | None = None,
    log: Log | None = print,
) -> None:
    """`progmem.explore.states`, and how the signals of each state are as a table in ``profile``."""
    idx = _open(index, out)
    if profile is not None:
        _check(profile, out)
    with progress(f"grouping {len(idx)} windows", 1, log=log):
        found = explore.states(idx, k)
    axes = _axes(idx)

    def tables() -> Iterator[pd.DataFrame]:
        for name in idx.names:
            spans, state = idx.windows(name), found.labels[name]
            rows = [
                (name, int(spans[part.start, 0]), int(spans[part.stop - 1, 1]), state[part.start])
                for part in runs(state)
                if state[part.start] >= 0
            ]
            yield stretch_table(axes, rows, ("state",))

    _write(out, tables())
    said = f"{out} ({len(found.share)} states)"
    if profile is not None:
        _write(profile, [_profile(idx, found)])
        said += f", {profile} (how the signals of each are)"
    (log or silent)(f"written: {said}; next: progmem suggest {index} -o to_label.csv")


def surprise_file(
    index: Path, out: Path, *, recording: str | None = None, log: Log | None = print
) -> None:
    """`progmem.explore.surprise` of the windows of all recordings, or of one."""
    idx = _open(index, out)
    axes, number = _axes(idx), 0

    def tables() -> Iterator[pd.DataFrame]:
        nonlocal number
        for name in _each(idx, recording, "comparing with what was before", log):
            values = explore.surprise(idx, name)
            there = np.isfinite(values)
            number += int(there.sum())
            rows = [
                (name, *span, f"{value:.4g}")
                for span, value in zip(
                    idx.windows(name)[there].tolist(), values[there], strict=True
                )
            ]
            yield stretch_table(axes, rows, ("surprise",))

    _write(out, tables())
    (log or silent)(
        f"written: {out} ({number} windows); next: progmem search {index} SERIES START END -o "
        "alike.csv tells what is like one"
    )


def suggest_file(
    index: Path,
    out: Path,
    *,
    labels: Path | None = None,
    count: int = 1,
    log: Log | None = print,
) -> None:
    """`progmem.explore.suggest`: one stretch after the other, each as if those before had a label.

    There are fewer where too little is left. The column of labels is empty; with names in it the
    file is one of labels.
    """
    check_count("count", count)
    idx = _open(index, out, labels)
    places = _recordings(idx)
    known: list[Sequence[Any]] = []
    if labels is not None:
        known += labels_of_file(places, index, labels)
    found = list[tuple[Any, ...]]()
    with progress(f"choosing among {len(idx)} windows", count, log=log) as advance:
        for _ in range(count):
            try:
                *stretch, why = explore.suggest(idx, known)
            except InputError:  # nothing is left
                if not found:
                    raise
                break
            known.append((*stretch, ""))
            found.append((*stretch, "", why))
            advance(1)
    _write(out, [stretch_table(_axes(idx), found, ("label", "why"))])
    (log or silent)(
        f"written: {out} ({len(found)} stretches); next: fill in its column label, then progmem "
        f"suggest {index} --labels {out} -o MORE.csv"
    )


def _check(out: Path, *read: Path | None) -> None:
    """Refuse a table that cannot be written, before the work is done."""
    if out.suffix != ".csv":
        raise InputError(f"tables are .csv files, got {out}")
    check_output(out, *read)


def _open(index: Path, out: Path, *read: Path | None) -> Index:
    _check(out, *read)
    return explore.open_index(index)


def _recordings(idx: Index) -> list[Recording]:
    """What an index knows of its recordings: names, lengths and dates, but no channel."""
    return [
        Recording(name, np.empty((length, 0)), rate=idx.channels.rate, calendar=calendar)
        for name, length, calendar in zip(idx.names, idx.lengths, idx.calendars, strict=True)
    ]


def _axes(idx: Index) -> dict[str, TimeAxis]:
    return {recording.name: TimeAxis(recording) for recording in _recordings(idx)}


def _each(idx: Index, recording: str | None, what: str, log: Log | None) -> Iterator[str]:
    """The recordings in which something is observed, or one; how far it is, is told."""
    if recording is not None:
        yield idx.names[idx.number(printable(recording))]
        return
    empty = [name for name in idx.names if not idx.observed(name).any()]
    if log is not None and empty:
        log(f"nothing is observed in {len(empty)} recordings, such as {empty[0]}; left out")
    named = [name for name in idx.names if name not in set(empty)]
    with progress(f"{what}: {len(named)} recordings", len(named), log=log) as advance:
        for name in named:
            yield name
            advance(1)


def _profile(idx: Index, found: explore.States) -> pd.DataFrame:
    """A row for each state and channel, in the units of the channel."""
    columns, units = idx.channels.columns, idx.channels.units
    rows = [
        (state, round(float(found.share[state]), 4),
         to_cell(columns[c] if c < len(columns) else f"channel {c}"),
         to_cell(units[c] if c < len(units) else ""),
         f"{found.mean[state, c]:.6g}", f"{found.deviation[state, c]:.6g}")
        for state in range(len(found.share)) for c in range(found.mean.shape[1])
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=["state", "share", "channel", "unit", "mean", "deviation"])


def _write(out: Path, tables: Iterable[pd.DataFrame]) -> None:
    """Tables one below the other, whole or not at all."""
    with unfinished(out) as new, new.open("w", newline="") as file:
        for i, table in enumerate(tables):
            table.to_csv(file, index=False, header=not i)
