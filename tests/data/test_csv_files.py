"""What a user's .csv files hold: names or samples, gaps or nothing."""

import numpy as np
import pytest

from progmem.data.csv_files import csv_layout
from progmem.data.reader import read


@pytest.mark.parametrize(
    "text, named",
    [
        ("a,b\n1,2\n", True),
        ("1,b\n1,2\n", True),
        ("1.5,2\n3,4\n", False),
        ("nan,\n1,2\n", False),
        ("NA,1.2,null\n1,2,3\n", False),  # as R and pandas write what is missing
        ("\n1\n", False),  # a gap
        ("0,1,2\n.3,.1,.2\n", True),  # pandas above a table without names
        ("1,2,3\n.3,.1,.2\n", True),
        ("0,1,2\n3,4,5\n", False),  # so do the values
        ("0,1,2\n", False),
        ("0,1\n.3,.1\n", False),  # two numbers may be anything
        ("5,6,7\n.3,.1,.2\n", False),
        ("0,1,5\n.3,.1,.2\n", False),
        ("0,10,20\n.3,.1,.2\n", False),
        (",0\n0,.5\n", True),  # with an index
        (",0,1\n7,.5,.2\n", True),
        (",0\n2024-01-01,.5\n", True),
        (",0\n.3,.5\n", False),
        (",5\n0,.5\n", False),
        ('""\n1\n2\n', False),  # pandas' way to write a gap of one column
        ("2,1,0\n.3,.1,.2\n", False),
        ("\n\na,b\n1,2\n", True),
        ("\ufeffa\n1\n", True),
        ("", False),
    ],
)
def test_the_first_line_of_a_table_is_known_for_what_it_is(tmp_path, text, named):
    path = tmp_path / "x.csv"
    path.write_text(text, encoding="utf-8")
    assert csv_layout(path).has_header is named


@pytest.mark.parametrize(
    "first, named",
    [("0,.5,1", True), ("1100,1102,1104", True), ("0,1e-9,5e-9", False), ("3,2,1", False)],
)
def test_above_a_wide_table_may_stand_times(tmp_path, first, named):
    path = tmp_path / "x.csv"
    path.write_text(f"{first}\n.3,.1,.2\n.5,.4,.1\n")
    assert csv_layout(path, wide=True).has_header is named
    assert [r.values.shape for r in read(path, layout="series,time")] == [(3, 1)] * (3 - named)


def test_a_blank_line_is_a_gap_of_one_channel_and_nothing_of_several(tmp_path):
    path = tmp_path / "x.csv"
    for text, expected in (
        ("1\n\n3\n", [[1], [np.nan], [3]]),
        ("a\n1\n\n", [[1], [np.nan]]),
        ("a,b\n1,2\n\n3,4\n\n", [[1, 2], [3, 4]]),
        ("1,2\n,\n3,4\n", [[1, 2], [np.nan, np.nan], [3, 4]]),
        ("a,b,\n1,2,\n3,,\n", [[1, 2], [3, np.nan]]),  # a comma ends every line
    ):
        path.write_text(text)
        np.testing.assert_array_equal(read(path)[0].values, expected)
