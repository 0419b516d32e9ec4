"""Seasons that dates have, and forecasts that repeat them."""

import numpy as np
import pandas as pd
import pytest

from progmem.forecasting.naive import repeat, seasonal_periods


@pytest.mark.parametrize(
    "step, count, expected",
    [
        ("h", 2000, (24, 168)),
        ("15min", 3000, (96, 672)),
        ("D", 900, (7, 365)),
        ("B", 600, (5, 261)),
        ("MS", 60, (12,)),
        ("W", 300, (52,)),
        ("s", 9000, (60, 3600)),
        ("YS", 40, ()),
        ("h", 30, (24,)),
    ],
)
def test_the_seasons_of_dates_are_days_weeks_and_years(step, count, expected):
    dates = pd.date_range("2023-01-02", periods=count, freq=step)
    found = seasonal_periods(dates, count)
    assert len(found) == len(expected) and np.allclose(found, expected, atol=1)


def test_without_dates_and_beyond_the_longest_there_is_no_season():
    assert seasonal_periods(pd.RangeIndex(500), 100) == ()
    assert seasonal_periods(pd.date_range("2024", periods=500, freq="h"), 100) == (24,)


def test_what_is_repeated_was_known_at_the_moment():
    values = np.arange(20.0)
    assert repeat(values, np.array([9]), 5).tolist() == [[9.0] * 5]
    assert repeat(values, np.array([9, 10]), 5, period=3).tolist() == [
        [7, 8, 9, 7, 8],
        [8, 9, 10, 8, 9],
    ]
    values[8] = np.nan
    assert repeat(values, np.array([9]), 3, period=3).tolist() == [[7, 7, 9]]
