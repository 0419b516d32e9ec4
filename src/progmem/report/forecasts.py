"""How a forecast is shown: the errors of its last part as a table, and a picture.

Shapes: n columns of a series.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.dates import ConciseDateFormatter
from matplotlib.figure import Figure

from progmem.report.figures import COLOURS

if TYPE_CHECKING:
    import pandas as pd

ROWS = 12  # of a printed table; of more columns their means are shown
PANELS = 12  # of a picture
FACTS = ("used", "why", "coverage")


def estimate_lines(estimate: "pd.DataFrame", *, share: float, interval: float) -> list[str]:
    """What `PMTForecaster.estimate` gives for a list of horizons, as lines to print.

    Args:
        share: of the series that its last part is.
        interval: how much of the values the quantiles are meant to hold.
    """
    ways = [name for name in estimate.columns if name not in FACTS]
    shown, means = estimate, len(estimate) > ROWS
    if means:
        shown = estimate.groupby(level="horizon", sort=False)[[*ways, "coverage"]].mean()
        counts = estimate.groupby(level="horizon", sort=False)["used"].value_counts()
        shown["used"] = [
            ", ".join(f"{used} {n}" for used, n in counts[h].items()) for h in shown.index
        ]
    covers = f"{100 * interval:.0f} % interval covers"
    table = [[*map(str, shown.index.names), "used", *ways, covers]]
    for key, row in shown.iterrows():
        place = key if isinstance(key, tuple) else (key,)
        errors = ["-" if np.isnan(row[way]) else f"{row[way]:.3f}" for way in ways]
        held = "-" if np.isnan(row["coverage"]) else f"{100 * row['coverage']:.1f} %"
        table.append([*map(str, place), row["used"], *errors, held])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    words = len(table[0]) - len(ways) - 1  # columns of text
    mean = f", means of {len(estimate) // len(shown)} columns" if means else ""
    lines = [f"on the last {100 * share:.0f} %, mean squared error in standard deviations{mean}:"]
    for cells in table:
        aligned = [
            cell.ljust(width) if i < words else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        lines.append("  " + "  ".join(aligned).rstrip())
    lines.append(
        f"what is used was chosen on the {100 * share:.0f} % before, where the encoder must surely "
        "lower the error:"
    )
    if means:
        return [*lines[:-1], f"{lines[-1][:-1]} (it says so for each column in Python)"]
    return lines + [
        f"  {' '.join(map(str, key if isinstance(key, tuple) else (key,)))}: {row['why']}"
        for key, row in estimate.iterrows()
    ]


def forecast_plot(past: "dict[str, pd.DataFrame]", predicted: "pd.DataFrame") -> Figure:
    """The end of each column and what is predicted to follow, with the outermost quantiles.

    Args:
        past: the series by name, as `PMTForecaster` was fitted on.
        predicted: by series, horizon and date.
    """
    panels = [(name, column) for name, table in past.items() for column in table.columns][:PANELS]
    figure = Figure(figsize=(8, 1 + 2 * len(panels)), layout="constrained")
    for axis, (name, column) in zip(
        figure.subplots(len(panels), 1, squeeze=False)[:, 0], panels, strict=True
    ):
        ahead: Any = predicted.loc[name]
        horizons = sorted(set(ahead.index.get_level_values(0)))
        recent = past[name][column].iloc[-3 * max(horizons) :]
        axis.plot(recent.index, recent, color="black", lw=0.8, label="observed")
        named = str(column)
        bands = [one for one in ahead.columns if one.startswith(f"{named} ") and one[-1] == "%"]
        for i, horizon in enumerate(reversed(horizons)):  # the shorter above the longer
            now, colour = ahead.loc[horizon], COLOURS[i % len(COLOURS)]
            axis.plot(now.index, now[named], color=colour, lw=1.2, label=f"{horizon} ahead")
            if len(bands) > 1:
                axis.fill_between(
                    now.index, now[bands[0]], now[bands[-1]], color=colour, alpha=0.2, lw=0
                )
        axis.set_title(f"{name} {named}".strip(), fontsize=9, parse_math=False)  # $ is a letter
        axis.tick_params(labelsize=7)
        if recent.index.dtype.kind == "M":  # whole dates at each mark would overlap
            formatter: Any = ConciseDateFormatter  # which has no types
            axis.xaxis.set_major_formatter(formatter(axis.xaxis.get_major_locator()))
    figure.axes[0].legend(fontsize=7, ncols=4, loc="upper left")
    return figure
