"""What the page writes: labels, predictions and segments as tables, and a report in one file.

A table has a row for each stretch: its series, its samples ``start`` up to ``end``, and when that
was, in dates or seconds where these are known. `progmem.explore` and ``--labels`` read labels.csv.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from progmem.errors import InputError
from progmem.explore.figures import CLASSES, INK, Ribbon, cells_in, thin
from progmem.explore.findings import Findings, most_probable
from progmem.explore.stretches import STRETCH
from progmem.explore.tables import runs, stretch_table
from progmem.files import check_output, write_file
from progmem.report.html import Section, write_report

DRAWN = 12  # recordings of a report
CHANNELS = 6  # of each
TOP = 10  # rows of a table of a report


def export(findings: Findings, path: Path) -> None:
    """Write labels.csv, predictions.csv, segments.csv or report.html, whole or not at all."""
    check_output(path)
    if path.name == "report.html":
        _write_report(findings, path)
        return
    table = TABLES[path.name](findings)
    write_file(path, table.to_csv(index=False).encode())


def labels_table(findings: Findings) -> pd.DataFrame:
    """Every label, also those of recordings that are not here."""
    rows = [(*one[:3], one.label) for one in findings.session.labels]
    return stretch_table(findings.axis_of, rows, ("label",))


def predictions_table(findings: Findings) -> pd.DataFrame:
    """What each stretch is predicted to be: neighbouring windows of one class are one."""
    idx = findings.idx
    predicted = findings.predictions(idx)
    if predicted is None:
        raise InputError("there are no predictions yet: label stretches of two classes first")
    rows: list[Any] = []
    for name in idx.names:
        label, share = most_probable(predicted, name)
        spans = idx.windows(name)
        for part in runs(label):
            if not np.isnan(label[part.start]):
                span = int(spans[part.start, 0]), int(spans[part.stop - 1, 1])
                what = predicted.classes[int(label[part.start])]
                rows.append((name, *span, what, round(float(share[part].mean()), 4)))
    return stretch_table(findings.axis_of, rows, ("label", "probability"))


def segments_table(findings: Findings) -> pd.DataFrame:
    """Every regime of every recording."""
    rows = [segment for name in findings.names for segment in findings.segments(name)]
    return stretch_table(findings.axis_of, rows, ("regime",))


TABLES: dict[str, Callable[[Findings], pd.DataFrame]] = {
    "labels.csv": labels_table,
    "predictions.csv": predictions_table,
    "segments.csv": segments_table,
}
FILES = (*TABLES, "report.html")


def _write_report(findings: Findings, path: Path) -> None:
    """Pictures and tables of what was found and labelled, in one file."""
    given, sections = labels_table(findings), list[Section]()
    classes = findings.session.classes
    if classes:
        said = given.assign(samples=given["end"] - given["start"]).groupby("label")["samples"]
        rows = [["label", "stretches", "samples"]]
        rows += [[str(name), str(len(one)), str(int(one.sum()))] for name, one in said]
        sections.append(Section("Labels", "What was labelled by hand.", table=rows))
    if findings.predictions() is not None:
        predicted = predictions_table(findings)
        samples = (predicted["end"] - predicted["start"]).groupby(predicted["label"]).sum()
        share = samples / samples.sum()
        rows = [["label", "share of all samples"]]
        rows += [[str(name), f"{100 * one:.1f} %"] for name, one in share.items()]
        text = "What a head says that learned from these labels, about all recordings."
        sections.append(Section("Predicted", text, table=rows))
    sections.append(
        Section(
            "What is unlike the rest",
            "The largest surprise, as the page has it, in units of the median of the recording.",
            table=_surprising(findings),
        )
    )
    shown = _most_labelled(findings)[:DRAWN]
    for number in shown:
        axis, there = findings.axes[number], findings.parts[number]
        text = f"{axis.duration(len(there))} from {axis.text(there.start)} on."
        sections.append(Section(findings.names[number], text, _picture(findings, number)))
    left = len(findings.names) - len(shown)
    lead = findings.counts() + (f"; pictures of {DRAWN}, {left} are left out" if left else "")
    write_report(path, "What was found in recordings", f"{lead}.", sections)


def _most_labelled(findings: Findings) -> list[int]:
    """Recordings by their numbers, those with most labels first."""
    counts = [len(findings.session.labels_of(name)) for name in findings.names]
    return sorted(range(len(counts)), key=lambda number: -counts[number])


def _surprising(findings: Findings) -> list[list[str]]:
    found: list[tuple[float, str, int, int]] = []
    idx = findings.idx
    for name in idx.names:
        spans, values = idx.windows(name), findings.surprise(name, idx)
        values = np.where(np.isfinite(values), values, 0.0)
        for _ in range(TOP):
            i = int(values.argmax())
            if not values[i] > 0:
                break
            found.append((float(values[i]), name, int(spans[i, 0]), int(spans[i, 1])))
            values[max(0, i - STRETCH + 1) : i + STRETCH] = 0.0  # they have windows in common
    rows = [["series", "from", "to", "surprise"]]
    for value, name, start, end in sorted(found, reverse=True)[:TOP]:
        axis = findings.axes[findings.names.index(name)]
        rows.append([name, axis.text(start), axis.text(end), f"{value:.3g}"])
    return rows


def _picture(findings: Findings, number: int) -> Figure:
    """Channels above ribbons, as on the page."""
    values, axis = findings.recordings[number].values, findings.axes[number]
    ribbons, there = findings.ribbons(number, wait=True), findings.parts[number]
    whole = slice(there.start, there.stop)
    channels = findings.shown[:CHANNELS]
    figure = Figure(figsize=(10, 0.9 * len(channels) + 0.28 * len(ribbons) + 0.5), dpi=100)
    heights = [3.0] * len(channels) + [0.9] * len(ribbons)
    rows = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0]
    scale = axis.at(np.array([whole.start, whole.stop]))
    for row, channel in zip(rows, channels, strict=False):
        at, y = thin(values, channel, whole)
        row.plot(axis.at(at), y, color=INK, linewidth=0.6)
        row.set_ylabel(findings.channels[channel], rotation=0, ha="right", parse_math=False)
        row.tick_params(labelsize=7)
    for row, ribbon in zip(rows[len(channels) :], ribbons, strict=True):
        row.imshow(_painted(ribbon, whole), aspect="auto", extent=(*scale, 0, 1))
        row.set_yticks([])
        row.set_ylabel(ribbon.name, rotation=0, ha="right", va="center")
    ticks = np.linspace(whole.start, whole.stop, 5).astype(int)
    rows[-1].set_xticks(axis.at(ticks), [axis.text(tick) for tick in ticks], fontsize=7)
    rows[-1].set_xlim(*scale)
    figure.tight_layout(h_pad=0.1)
    return figure


def _painted(ribbon: Ribbon, part: slice) -> np.ndarray:
    """A row of colours (1, cells, 4), transparent where there is nothing."""
    cells = ribbon.cells
    _, found = cells_in(cells, part)
    value = np.append(cells.value, np.nan)[found]
    there = ~np.isnan(value)
    colours = np.zeros((1, len(value), 4))
    if ribbon.names is None:
        colours[0, there] = colormaps["Oranges"](value[there])
        return colours
    table = np.array([to_rgba(colour) for colour in ribbon.colours or CLASSES])
    colours[0, there] = table[value[there].astype(int) % len(table)]
    if cells.share is not None:
        colours[0, there, 3] = 0.25 + 0.75 * cells.share[found[there]]
    return colours
