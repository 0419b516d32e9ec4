"""The cue: a Hann-tapered burst in one channel, upstream of the window that the state is read from.

Its size is a share of the channel's own spread outside its span. So it is the same cue before and
after a normalisation by fixed statistics, and nothing outside its span tells of it.

The burst is the taper itself. A wave under it would be a task of another difficulty for every set:
FordA is loud around 0.05 cycles a sample, and five cycles there escape even a matched filter.

Shapes: R series, L samples, C channels, V samples of a cue.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from progmem.errors import InputError

WIDTH = 0.2  # of the length
STRENGTH = 0.5  # largest value, in standard deviations of the channel outside the span
SHORTEST = 3  # samples that show a taper
GAPS = (0.0, 0.1, 0.25, 0.5)  # of the length, from the cue's end to the final window


class Span(NamedTuple):
    """Samples [start, end)."""

    start: int
    end: int


def place_cues(length: int, final: int, gaps: Sequence[float] = GAPS) -> list[Span]:
    """Where the cue lies for each gap before the final window, which begins at sample ``final``."""
    width = round(WIDTH * length)
    if width < SHORTEST:
        raise InputError(
            f"a cue of {WIDTH:.0%} of {length} samples is shorter than {SHORTEST}; series need "
            f"{round(SHORTEST / WIDTH)} samples or more"
        )
    spans = []
    for gap in gaps:
        end = final - round(gap * length)
        if end < width:
            raise InputError(
                f"a cue of {width} samples and a gap of {gap:g} x {length} samples do not fit "
                f"before the final window, which begins at sample {final}; use a model with "
                "shorter windows (model.window)"
            )
        spans.append(Span(end - width, end))
    assert all(0 <= span.start < span.end <= final for span in spans)
    return spans


def insert_cues(x: np.ndarray, span: Span, *, channel: np.ndarray) -> np.ndarray:
    """Copies of series (R, L, C), float64, each with the cue at ``span`` of its channel (R,)."""
    width = span.end - span.start
    taper = np.sin(np.pi * (np.arange(width) + 0.5) / width) ** 2  # (V,), Hann
    out = np.array(x, dtype=np.float64)
    spread = spread_outside(x, span, channel=channel)
    if not spread.all():
        row = int(np.flatnonzero(spread == 0)[0])
        raise InputError(
            f"series {row}, channel {channel[row]} does not vary outside the cue, so a cue of "
            f"{STRENGTH:g} of its standard deviation is nothing; leave the series out"
        )
    out[np.arange(len(x)), span.start : span.end, channel] += STRENGTH * spread[:, None] * taper
    return out


def spread_outside(x: np.ndarray, span: Span, *, channel: np.ndarray) -> np.ndarray:
    """Standard deviation (R,) of each series' channel outside ``span``, 0 where it is flat."""
    rows = np.arange(len(x))
    outside = np.delete(x, np.s_[span.start : span.end], axis=1)[rows, :, channel]  # (R, L - V)
    outside = outside.astype(np.float64)
    there = ~np.isnan(outside)
    count = np.maximum(there.sum(1, keepdims=True), 1)
    mean = np.where(there, outside, 0).sum(1, keepdims=True) / count
    return np.sqrt((np.where(there, outside - mean, 0) ** 2).sum(1) / count[:, 0])
