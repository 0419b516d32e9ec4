"""What the page draws: channels above ribbons on one axis of time, a map of windows, thumbnails.

Figures are the plain dictionaries that plotly draws. However long a recording is, a figure holds a
few thousand points of each channel, chosen so that extremes stay (plotly-resampler), and as many
cells of each ribbon. A gap is a gap in the line.

Shapes: L samples, C channels, N windows.
"""

import base64
import html
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from progmem.explore.time_axis import TimeAxis

POINTS = 1500  # of a channel
CELLS = 500  # of a ribbon
MARGIN = 0.5  # of what is seen is drawn on each side too, so that a pan begins with something
MAP_POINTS = 5000
RINGS = 100  # around points of the map
SHADES = 6  # of a class, by its probability
THUMBNAIL = 150, 62  # pixels
RIBBON = 0.034  # height of a ribbon, as a part of the figure
CLASSES = (
    "#4477aa", "#cc6677", "#228833", "#ddaa33", "#66aacc", "#aa4499", "#997755", "#44aa99",
    "#882255", "#777777",
)  # fmt: skip
STATES = (
    "#a6bddb", "#d9c7a0", "#b5cfb0", "#d8b0b8", "#c0b6d6", "#e3d48d", "#a9d0cf", "#cfb59f",
    "#bfc7cc", "#d3a4c9", "#b9d98a", "#97a9c4",
)  # fmt: skip
INK, FAINT, MARK = "#26323d", "#8a949c", "#e8862e"


class Cells(NamedTuple):
    """What a ribbon shows for windows or stretches: a number for each, and how sure it is."""

    spans: np.ndarray  # (N, 2), samples, in order
    value: np.ndarray  # (N,), a class by its number, or a level from 0 to 1; NaN: nothing
    share: np.ndarray | None = None  # (N,), the probability of a class


class Ribbon(NamedTuple):
    """A row under the channels."""

    name: str
    cells: Cells
    names: Sequence[str] | None = None  # of the classes; None: values are levels
    colours: Sequence[str] = CLASSES
    awaited: bool = False  # it is still being worked out


def signal_figure(
    values: Any,
    axis: TimeAxis,
    view: tuple[int, int],
    *,
    channels: Mapping[int, str],
    ribbons: Sequence[Ribbon],
    marked: tuple[int, int] | None = None,
    key: str = "",
) -> dict[str, Any]:
    """Some channels of a recording (L, C) and the ribbons below, from sample to sample.

    Args:
        channels: the numbers and names of those to draw.
        key: what the figure is of; while it is the same, the browser keeps its own state.
    """
    first, last = view
    reach = round(MARGIN * (last - first))
    drawn = slice(max(0, first - reach), min(len(values), last + reach))
    foot = RIBBON * len(ribbons)
    height = (1 - foot - 0.01) / max(1, len(channels))
    data: list[dict[str, Any]] = []
    layout = _layout(axis, view, key)
    for row, (channel, name) in enumerate(channels.items()):
        at, y = thin(values, channel, drawn)
        ref = "" if row == 0 else str(row + 1)
        data.append(
            {
                "type": "scatter", "mode": "lines", "x": packed(axis.at(at)), "y": packed(y),
                "yaxis": f"y{ref}", "name": html.escape(name), "connectgaps": False,
                "line": {"width": 1, "color": INK},
                "hovertemplate": "%{y:.4g}<extra>%{fullData.name}</extra>",
            }
        )  # fmt: skip
        top = 1 - row * height
        layout[f"yaxis{ref}"] = {
            "domain": [max(0.0, top - 0.94 * height), top], "fixedrange": True, "showgrid": False,
            "zeroline": False, "nticks": 3, "tickfont": {"size": 10, "color": FAINT},
        }  # fmt: skip
        layout["annotations"].append(_note(name, top))
    below = f"y{len(channels) + 1}"
    for row, ribbon in enumerate(reversed(ribbons)):
        data.append(_drawn_ribbon(ribbon, row, axis, drawn, below))
    layout[f"yaxis{len(channels) + 1}"] = {
        "domain": [0, max(foot - 0.005, 0.001)], "fixedrange": True, "showgrid": False,
        "zeroline": False, "range": [-0.5, len(ribbons) - 0.5],
        "tickvals": list(range(len(ribbons))),
        "ticktext": [
            html.escape(ribbon.name) + (" …" if ribbon.awaited else "")
            for ribbon in reversed(ribbons)
        ],
        "tickfont": {"size": 11, "color": INK}, "ticks": "",
    }  # fmt: skip
    if marked is not None:
        start, end = axis.at(np.array(marked)).tolist()
        layout["shapes"].append(
            {
                "type": "rect", "xref": "x", "yref": "paper", "x0": start, "x1": end,
                "y0": 0, "y1": 1, "fillcolor": MARK, "opacity": 0.16, "layer": "above",
                "line": {"width": 0},
            }
        )  # fmt: skip
        for x in (start, end):
            layout["shapes"].append(
                {
                    "type": "line", "xref": "x", "yref": "paper", "x0": x, "x1": x, "y0": 0,
                    "y1": 1, "line": {"width": 1.5, "color": MARK},
                }
            )  # fmt: skip
    return {"data": data, "layout": layout}


def thin(
    values: Any, channel: int, part: slice, points: int = POINTS
) -> tuple[np.ndarray, np.ndarray]:
    """A few samples of a channel that look like all of ``part``: their numbers and values."""
    y = np.ascontiguousarray(values[part, channel], dtype=np.float32)
    if len(y) <= points or np.isnan(y).all():
        step = max(1, len(y) // points)
        at = np.arange(0, len(y), step)
    else:
        from plotly_resampler.aggregation import MinMaxAggregator  # an extra, slow to load

        at = MinMaxAggregator(nan_policy="omit").arg_downsample(y, n_out=points // 2 * 2)
        at = np.unique(np.asarray(at, dtype=np.int64))  # a gap gives the same sample twice
    return at + part.start, y[at]


def cells_in(cells: Cells, part: slice, count: int = CELLS) -> tuple[np.ndarray, np.ndarray]:
    """Borders of at most ``count`` equal cells of ``part``, and which span each shows.

    A cell shows the last span that begins before its middle; -1 is none. A span too short for that
    is shown by the cell it lies in, so that nothing vanishes from a long view.
    """
    count = max(1, min(count, part.stop - part.start))
    borders = np.linspace(part.start, part.stop, count + 1)
    if not len(cells.spans):
        return borders, np.full(count, -1)
    middle = (borders[:-1] + borders[1:]) / 2
    found = np.searchsorted(cells.spans[:, 0], middle, side="right") - 1
    outside = (found < 0) | (middle >= cells.spans[np.maximum(found, 0), 1])
    found[outside] = -1
    if len(cells.spans) < 4 * count:  # windows are many and without gaps; labels are few
        inside = (cells.spans[:, 1] > part.start) & (cells.spans[:, 0] < part.stop)
        for number in np.flatnonzero(inside):
            cell = int(np.searchsorted(borders, cells.spans[number].mean(), side="right")) - 1
            if 0 <= cell < count and found[cell] == -1:
                found[cell] = number
    return borders, found


def map_figure(
    places: np.ndarray,
    groups: np.ndarray,
    *,
    names: Sequence[str],
    colours: Sequence[str],
    texts: Sequence[str],
    numbers: np.ndarray,
    rings: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """Windows on a plane (N, 2), each in the colour of its group (-1: none).

    Args:
        numbers: the number of each window, which a click on it tells.
        rings: around those in the marked stretch.
    """
    data = []
    for group in [-1, *range(len(names))]:
        rows = np.flatnonzero(groups == group)
        if not len(rows):
            continue
        colour = "#c9ced2" if group < 0 else colours[group % len(colours)]
        data.append(
            {
                "type": "scatter", "mode": "markers", "x": packed(places[rows, 0]),
                "y": packed(places[rows, 1]), "customdata": numbers[rows].tolist(),
                "name": "none" if group < 0 else html.escape(names[group]),
                "text": [html.escape(texts[row]) for row in rows], "hoverinfo": "text+name",
                "marker": {"size": 4, "color": colour, "opacity": 0.75},
            }
        )  # fmt: skip
    return {"data": data, "layout": {**_plane(), "shapes": list(rings)}}


def rings(places: np.ndarray) -> list[dict[str, Any]]:
    """Rings around some places (N, 2) of a map; a browser draws them without the points anew."""
    places = places[:: -(-len(places) // RINGS) or 1]
    return [
        {
            "type": "circle", "xsizemode": "pixel", "ysizemode": "pixel", "xanchor": float(x),
            "yanchor": float(y), "x0": -5, "x1": 5, "y0": -5, "y1": 5,
            "line": {"width": 2, "color": MARK},
        }
        for x, y in places
    ]  # fmt: skip


def awaited_map() -> dict[str, Any]:
    """What stands in the place of a map that is still being worked out."""
    note = {**_note("the map is being worked out …", 1), "font": {"size": 13, "color": FAINT}}
    return {"data": [], "layout": {**_plane(), "annotations": [note]}}


def thumbnail(values: Any, start: int, end: int, *, channels: Sequence[int]) -> str:
    """A small picture of a stretch, as the address of an image that a page can hold."""
    lines, (width, height) = [], THUMBNAIL
    for place, channel in enumerate(channels):
        at, y = thin(values, channel, slice(start, end), 2 * width)
        for points in _polylines(at - start, y, end - start, width, height):
            colour = INK if place == 0 else CLASSES[(place - 1) % len(CLASSES)]
            lines.append(
                f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-opacity=".75" '
                'stroke-width="1"/>'
            )
    picture = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}">{"".join(lines)}</svg>'
    )
    return "data:image/svg+xml;base64," + base64.b64encode(picture.encode()).decode()


def packed(array: np.ndarray) -> dict[str, str]:
    """Numbers as plotly's own script reads them fastest."""
    array = np.ascontiguousarray(array, dtype=np.float64)
    return {"dtype": "f8", "bdata": base64.b64encode(array.tobytes()).decode()}


def _plane() -> dict[str, Any]:
    blank = {"visible": False, "fixedrange": False}
    return {
        "margin": {"l": 4, "r": 4, "t": 4, "b": 4}, "showlegend": False, "dragmode": "pan",
        "xaxis": blank, "yaxis": blank, "uirevision": "map", "hovermode": "closest",
        "plot_bgcolor": "#ffffff", "paper_bgcolor": "#ffffff", "annotations": [],
    }  # fmt: skip


def _layout(axis: TimeAxis, view: tuple[int, int], key: str) -> dict[str, Any]:
    return {
        "margin": {"l": 78, "r": 12, "t": 8, "b": 40}, "showlegend": False, "uirevision": key,
        "hovermode": "x", "plot_bgcolor": "#ffffff", "paper_bgcolor": "#ffffff",
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": INK},
        "selections": [], "shapes": [], "annotations": [],
        "xaxis": {
            "type": "date" if axis.kind == "date" else "linear",
            "range": axis.at(np.array(view)).tolist(), "anchor": "free", "position": 0,
            "ticksuffix": " s" if axis.kind == "seconds" else "", "showgrid": True,
            "gridcolor": "#eef0f1", "zeroline": False,
            "hoverformat": "%Y-%m-%d %H:%M:%S.%3f" if axis.kind == "date" else ".6g",
        },
    }  # fmt: skip


def _note(name: str, top: float) -> dict[str, Any]:
    return {
        "text": html.escape(name), "xref": "paper", "yref": "paper", "x": 0.004, "y": top,
        "xanchor": "left", "yanchor": "top", "showarrow": False, "bgcolor": "rgba(255,255,255,.8)",
        "font": {"size": 11, "color": FAINT},
    }  # fmt: skip


def _drawn_ribbon(
    ribbon: Ribbon, row: int, axis: TimeAxis, drawn: slice, yaxis: str
) -> dict[str, Any]:
    cells = ribbon.cells
    borders, found = cells_in(cells, drawn)
    shown = (found >= 0) & ~np.isnan(np.append(cells.value, np.nan)[found])
    level = np.where(shown, np.append(cells.value, 0)[found], 0.0)
    if ribbon.names is None:
        z, top = np.where(shown, level, np.nan), 1.0
        scale: list[list[Any]] = [[0, "#fbf6ee"], [0.5, "#f0b46a"], [1, "#a33c0f"]]
        texts = [f"{v:.2f}" if s else "" for v, s in zip(level, shown, strict=True)]
    else:
        share = np.ones(len(cells.value)) if cells.share is None else cells.share
        sure = np.where(shown, np.append(share, 0)[found], 0.0)
        shade = np.clip((sure * SHADES).astype(int), 0, SHADES - 1)
        z = np.where(shown, level * SHADES + shade, np.nan)
        top = float(max(1, len(ribbon.names)) * SHADES)
        scale = _scale(ribbon.colours, max(1, len(ribbon.names)))
        texts = [
            "" if not s else ribbon.names[int(v)] + ("" if cells.share is None else f" {p:.0%}")
            for v, p, s in zip(level, sure, shown, strict=True)
        ]
    return {
        "type": "heatmap", "x": packed(_at_parts(axis, borders)), "y": [row - 0.42, row + 0.42],
        "z": [[None if np.isnan(one) else float(one) for one in z]],
        "text": [[html.escape(text) for text in texts]], "zmin": 0, "zmax": top,
        "colorscale": scale, "showscale": False, "yaxis": yaxis, "hoverongaps": False,
        "hovertemplate": f"{html.escape(ribbon.name)}: %{{text}}<extra></extra>",
    }  # fmt: skip


def _at_parts(axis: TimeAxis, borders: np.ndarray) -> np.ndarray:
    """Positions between samples, too."""
    whole = np.floor(borders).astype(np.int64)
    at = axis.at(whole)
    return at + (borders - whole) * (axis.at(whole + 1) - at)


def _scale(colours: Sequence[str], classes: int) -> list[list[Any]]:
    """Steps of colour: each class from faint to full."""
    steps: list[list[Any]] = []
    total = classes * SHADES
    colours = colours or CLASSES  # a ribbon without a class yet
    for number in range(classes):
        red, green, blue = (int(colours[number % len(colours)][i : i + 2], 16) for i in (1, 3, 5))
        for shade in range(SHADES):
            part = 0.25 + 0.75 * shade / (SHADES - 1)
            mixed = (round(255 - part * (255 - one)) for one in (red, green, blue))
            colour = "rgb({},{},{})".format(*mixed)
            place = number * SHADES + shade
            steps += [[place / total, colour], [(place + 1) / total, colour]]
    return steps


def _polylines(at: np.ndarray, y: np.ndarray, length: int, width: int, height: int) -> list[str]:
    """The points of a line, in pieces where values are missing, fitted into a picture."""
    there = np.isfinite(y)
    if not there.any():
        return []
    low, high = float(y[there].min()), float(y[there].max())
    x = 1 + at / max(1, length - 1) * (width - 2)
    up = height - 2 - (y - low) / max(high - low, 1e-12) * (height - 4)
    pieces = np.split(np.arange(len(y)), np.flatnonzero(~there))
    lines = ([i for i in piece if there[i]] for piece in pieces)
    return [" ".join(f"{x[i]:.1f},{up[i]:.1f}" for i in line) for line in lines if line]
