"""Stretches of recordings as tables: which samples, and when that was."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from progmem.explore.time_axis import TimeAxis
from progmem.names import to_cell


def stretch_table(
    axes: Mapping[str, TimeAxis], rows: Sequence[Any], more: Sequence[str]
) -> pd.DataFrame:
    """Rows of a series, a start, an end and ``more``, with the times of start and end.

    A time is a date or seconds, and empty where neither is known. ``axes`` are those of series by
    name; of others no time is known. ``progmem explore --labels`` reads such a table if it has a
    column of labels.
    """
    table = pd.DataFrame(rows, columns=["series", "start", "end", *more])
    times = {key: np.full(len(table), "", dtype=object) for key in ("start", "end")}
    for name, at in table.groupby("series", sort=False).indices.items():
        axis = axes.get(str(name))
        if axis is not None and axis.kind != "sample":
            for key, found in times.items():
                found[at] = axis.texts(table[key].to_numpy()[at])
    for name in ("series", "label", "why"):
        if name in table:
            table[name] = table[name].map(to_cell)
    return table.assign(**{f"{key}_time": found for key, found in times.items()})


def runs(values: np.ndarray) -> list[slice]:
    """Where values stay the same, one NaN as the other."""
    same = (values[1:] == values[:-1]) | ((values[1:] != values[1:]) & (values[:-1] != values[:-1]))
    edges = [0, *(np.flatnonzero(~same) + 1).tolist(), len(values)]
    return [slice(a, b) for a, b in pairwise(edges)]
