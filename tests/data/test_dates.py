"""Dates: what the calendar says of them, which come next, which cannot be used."""

import numpy as np
import pandas as pd
import pytest
from forecast_setup import hours

from progmem.data.arrays import CASES
from progmem.data.dates import (
    COVARIATES,
    Calendar,
    next_dates,
    regular_dates,
    step_of,
    time_covariates,
)
from progmem.data.reader import read, read_with
from progmem.errors import InputError


def test_covariates_are_those_of_a_calendar():
    found = time_covariates(["2016-07-01 00:00", "2021-01-03 13:45", "2024-12-30 23:59"])
    assert len(COVARIATES) == 7
    assert found.tolist() == [
        [0, 0, 4, 1, 183, 7, 26],  # a Friday of a leap year
        [45, 13, 6, 3, 3, 1, 53],  # a Sunday that still belongs to the year before
        [59, 23, 0, 30, 365, 12, 1],  # a Monday that begins the year after
    ]


@pytest.mark.parametrize(
    "dates, following",
    [
        (hours(30), ["2024-01-02 06:00", "2024-01-02 07:00"]),
        (pd.date_range("2024-01-01", periods=14, freq="MS"), ["2025-03-01", "2025-04-01"]),
        (pd.date_range("2024-01-01", periods=10, freq="B"), ["2024-01-15", "2024-01-16"]),
        (pd.date_range("2024-01-01", periods=20, freq="bh"), ["2024-01-03 13:00", "2024-01-03 14"]),
        (["2023-11-15", "2023-12-15", "2024-01-15"], ["2024-02-15", "2024-03-15"]),
        (
            ["2023-11-28 06:00", "2024-02-28 06:00", "2024-05-28 06:00"],
            ["2024-08-28 06:00", "2024-11-28 06:00"],
        ),
        (hours(30).strftime("%Y-%m-%dT%H:%M").tolist(), ["2024-01-02 06:00", "2024-01-02 07:00"]),
        (hours(3).to_numpy().astype("datetime64[s]"), ["2024-01-01 03:00", "2024-01-01 04:00"]),
    ],
)
def test_regular_dates_go_on_as_they_did(dates, following):
    index = regular_dates(dates, len(dates))
    assert next_dates(index, 2).tolist() == pd.DatetimeIndex(following).tolist()


def test_hours_across_a_clock_change_are_regular():
    index = pd.date_range("2024-03-30", periods=40, freq="h", tz="Europe/Oslo")
    assert next_dates(regular_dates(index, 40), 1)[0] == pd.Timestamp("2024-03-31T15:00Z")
    assert time_covariates(index)[24:27, 1].tolist() == [0, 1, 3]


@pytest.mark.parametrize("days", [1, 7])
def test_days_keep_their_hour_when_the_clock_changes_later(days):
    """Whether or not there was a change in the series."""
    whole = pd.date_range("2023-03-01", "2024-05-01", freq=f"{days}D", tz="Europe/Oslo")
    before = whole[(whole > "2023-11-01") & (whole < "2024-03-30")]
    both = whole[whole < "2024-03-30"]
    assert step_of(regular_dates(before, len(before))) == step_of(regular_dates(both, len(both)))
    for index in (before, both):
        assert next_dates(index, 4).tolist() == whole[len(both) : len(both) + 4].tolist()


@pytest.mark.parametrize(
    "dates, message",
    [
        (hours(30)[::-1], "dates must increase: row 1, 2024-01-02 04:00:00, is not after"),
        (hours(30)[[*range(9), 8, *range(9, 29)]], "dates must increase: row 9, "),
        (hours(31).delete(7), r"from 2024-01-01 06:00:00 to 2024-01-01 08:00:00 \(row 7\) is 0 day"
                              "s 02:00:00, the usual step is 0 days 01:00:00; .* put rows of NaN"),
        (hours(46)[[*range(10), *range(26, 46)]], "is 0 days 17:00:00, the usual .* put rows of N"),
        (pd.date_range("2020-01-01", periods=30, freq="LWOM-MON"), "regular: from .* 35 days"),
        (hours(30)[:-1].insert(5, pd.Timestamp("2024-01-01 04:10")), "the usual step is 0 days 01"),
        (range(30), "dates must be dates such as 2024-05-31 12:00, got numbers"),
        (np.arange(30.0), "dates must be dates such as 2024-05-31 12:00, got numbers"),
        (["May"] * 30, "dates must be dates such as 2024-05-31 12:00: "),
        (["2024-03-31T01:00+01:00", "2024-03-31T03:00+02:00"] * 15, "in several offsets from UTC"),
        (["31.5.2024"] * 30, r"31\.5\.2024 is not ISO8601 format\.$"),
        ([*hours(29), None], "the date of row 29 is missing"),
        (np.array(hours(30))[:, None], "dates must be a list or a column, one per sample, got"),
        (pd.Timestamp("2024"), "dates must be a list or a column, .* got 2024-01-01 00:00:00"),
        (hours(29), "give one date per sample: 30 samples, 29 dates"),
    ],
)  # fmt: skip
def test_dates_that_cannot_be_used_are_named(dates, message):
    with pytest.raises(InputError, match=message):
        regular_dates(dates, 30)


def test_two_dates_show_no_step():
    with pytest.raises(InputError, match="at least 3 samples"):
        regular_dates(hours(2), 2)


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_csv_file_with_dates_is_read_with_its_covariates(tmp_path, end):
    path = tmp_path / "load.csv"
    text = "kW,date\n1.5,2024-02-29 22:00\n,2024-02-29 23:00\n2,2024-03-01 00:00\n"
    path.write_text(text + end)
    (recording,) = read(path).with_covariates()
    np.testing.assert_array_equal(recording.values[:, :7], time_covariates(
        ["2024-02-29 22:00", "2024-02-29 23:00", "2024-03-01 00:00"]))  # fmt: skip
    np.testing.assert_array_equal(recording.values[:, 7], [1.5, np.nan, 2])


@pytest.mark.parametrize(
    "text, message",
    [
        ("date\n2024-01-01\n2024-01-02\n", "load has no column beside 'date'"),
        ("date,a\n2024-01-01,1\n2024-01-02,1\n2024-01-04,1\n2024-01-05,1\n2024-01-09,1\n",
         "load.csv: dates must be regular: from 2024-01-02 00:00:00 to 2024-01-04"),
        ("date,a\n2024-01-04,1\n2024-01-05,1\n2024-01-08,1\n2024-01-09,1\n2024-01-11,1\n",
         "load.csv: dates are working days without 1 of them, the first 2024-01-10; put rows of"),
        ("date,a\n2024-01-05,1\n2024-01-08,1\n2024-01-10,1\n2024-01-13,1\n",
         "load.csv: dates must be regular: from 2024-01-08"),
        ("date,a\n2024-01-01,x\n2024-01-02,1\n2024-01-03,1\n", "column a does not"),
    ],
)  # fmt: skip
def test_a_csv_file_whose_dates_cannot_be_used_is_named(text, message, tmp_path):
    (tmp_path / "load.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        read(tmp_path / "load.csv")


@pytest.mark.parametrize(
    "start, step, texts",
    [
        ("2024-03-29", pd.Timedelta(hours=12), ["2024-03-29 00:00:00", "2024-03-30 00:00:00"]),
        ("2024-03-29", 0.5, ["2024-03-29 00:00:00.000000000", "2024-03-29 00:00:01.000000000"]),
        ("2024-03-29 00:00:00.25", 1.0, ["2024-03-29 00:00:00.250000000"]),
        ("2024-01-31", "ME", ["2024-01-31 00:00:00", "2024-03-31 00:00:00"]),
        (
            pd.Timestamp("2024-10-27 00:30Z").tz_convert("Europe/Oslo"), pd.Timedelta(minutes=30),
            ["2024-10-27 02:30:00+02:00", "2024-10-27 02:30:00+01:00"],
        ),
    ],
)  # fmt: skip
def test_dates_of_a_recording_have_one_form_whichever_samples_they_are_of(start, step, texts):
    calendar = Calendar(pd.Timestamp(start), step)
    assert calendar.texts(np.array([0, 2]))[: len(texts)] == texts
    for sample, text in zip((0, 2), texts, strict=False):
        assert calendar.texts(np.array([sample])) == [text]


@pytest.mark.parametrize(
    "date_format, freq",
    [("%Y%m%d", "D"), ("%d%m%Y", "D"), ("%y%m%d", "D"), ("%Y%m%d%H%M", "h"), ("%Y", "YS")],
)
def test_dates_that_are_written_as_numbers_are_read_by_their_format(tmp_path, date_format, freq):
    """01022024 is a number that has lost its zero; that it is the 1st of February stays."""
    dates = pd.date_range("2024-01-25", periods=12, freq=freq)
    table = pd.DataFrame({"date": dates.strftime(date_format), "kW": np.arange(12)})
    table.to_csv(tmp_path / "x.csv", index=False)
    assert pd.read_csv(tmp_path / "x.csv")["date"].dtype == np.int64
    found = read(tmp_path / "x.csv", date_format=date_format)[0]
    assert found.columns == ("kW",)
    assert found.calendar.at(np.arange(12)).tolist() == dates.tolist()


def test_numbers_that_are_not_written_as_the_format_says_are_refused():
    table = pd.DataFrame({"date": [20240131.12, 20240131.13, 20240131.14], "kW": 1.0})
    with pytest.raises(InputError, match=r"'date' holds numbers, such as 20240131\.12, which"):
        read(table, date_format="%Y%m%d.%H%M")  # the minutes have lost a zero


@pytest.mark.parametrize(
    "index",
    [pd.timedelta_range(0, periods=6, freq="s"), pd.Index(np.arange(6.0), name="Time")],
    ids=["of timedeltas", "called time"],
)
def test_an_index_of_times_is_the_time_of_the_rows(index):
    table = pd.DataFrame({"a": np.arange(6.0), "b": 1.0}, index)
    (found,) = read_with(table, axes=CASES)  # and not six cases
    assert found.columns == ("a", "b") and found.values.shape == (6, 2)
    with pytest.raises(InputError, match="samples are missing, the usual step is 1; fill_gaps"):
        read(table.drop(index[3]))
    name = str(index.name or "date")
    with pytest.raises(InputError, match=f"has times as its index and a column '{name}'; drop one"):
        read(table.assign(**{name: 0}))
