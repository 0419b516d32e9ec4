"""Samples on an axis of time: there and back, by date, second or number."""

import numpy as np
import pandas as pd
import pytest

from progmem.data.dates import Calendar
from progmem.data.recordings import Recording
from progmem.explore.time_axis import TimeAxis

DAY = pd.Timestamp("2024-03-30 23:30")


def recording(**known):
    return Recording("r", np.zeros((100_000, 1), dtype=np.float32), **known)


@pytest.mark.parametrize(
    "known",
    [
        {},
        {"rate": 50.0},
        {"rate": 1 / 3},
        {"calendar": Calendar(DAY, pd.Timedelta("20ms"))},
        {"calendar": Calendar(DAY, 1 / 256)},
        {"calendar": Calendar(DAY.tz_localize("Europe/Oslo"), pd.Timedelta("1s"))},
        {"calendar": Calendar(DAY, "B")},
    ],
)
def test_a_position_gives_the_sample_that_it_was_made_of(known):
    length = 2000 if known.get("calendar", (0, 0))[1] == "B" else 100_000
    axis = TimeAxis(Recording("r", np.zeros((length, 1)), **known))
    samples = np.array([0, 1, 17, length // 2, length - 1, length])
    at = axis.at(samples)
    assert (np.diff(at) > 0).all()
    assert [axis.sample(float(one)) for one in at] == samples.tolist()
    assert axis.sample(at[0] - 1e12) == 0 and axis.sample(at[-1] + 1e12) == length
    if axis.kind == "date":  # as a browser writes what it was told as milliseconds
        texts = [str(pd.Timestamp(one, unit="ms"))[:24] for one in at.round(4)]
        assert [axis.sample(text) for text in texts] == samples.tolist()


def test_a_change_of_the_clock_neither_repeats_an_hour_nor_moves_a_date():
    calendar = Calendar(pd.Timestamp("2024-10-27 00:00", tz="Europe/Oslo"), pd.Timedelta("1h"))
    axis = TimeAxis(recording(calendar=calendar))
    assert np.diff(axis.at(np.arange(6))).tolist() == [3_600_000.0] * 5
    assert axis.text(3) == "2024-10-27 02:00:00+01:00"


def test_words_for_times_and_durations():
    dated = TimeAxis(recording(calendar=Calendar(DAY, pd.Timedelta("20ms"))))
    assert dated.text(1) == "2024-03-30 23:30:00.02" and dated.text(50) == "2024-03-30 23:30:01"
    assert dated.duration(100) == "2 s" and dated.duration(50 * 7200) == "2 h"
    seconds, bare = TimeAxis(recording(rate=50.0)), TimeAxis(recording())
    assert seconds.text(75) == "1.5 s" and seconds.duration(50 * 300) == "5 min"
    assert bare.text(75) == "75" and bare.duration(75) == "75 samples"
    assert dated.dates([0])[0] == DAY and seconds.dates([50])[0] == 1.0
    assert bare.dates([1]) is None
