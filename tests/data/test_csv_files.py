"""What a user's .csv files hold: names or samples, gaps or nothing."""

import numpy as np
import pytest

from progmem.data.csv_files import csv_layout
from progmem.data.reader import read
from progmem.errors import InputError


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


@pytest.mark.parametrize(
    "content, message",
    [
        (b"a,b\n1,2\n3,4\n\0\0\0", "it has zero bytes: it is damaged, or not a text in UTF-8"),
        (b"a,b\n1,2\n\0\0\0003,4\n5,6\n", "it has zero bytes"),
        ("a,b\n1,2\n".encode("utf-16-le"), "it has zero bytes"),
        ("a,größe\n1,2\n".encode("latin-1"), "byte 5 is not of a text in UTF-8; save it as UTF-8"),
        (b"a,b\n1,2\n3,4\n5", "it ends amid a line, which has 1 of 2 cells: the file was cut"),
        (b"a,b,c\n1,2,3\n4,5.", "it ends amid a line, which has 2 of 3 cells"),
        (
            b"# a\n# b\na,b\n1,2\n",
            "line 3 has 2 cells, the lines before it have 1: is there a line abo",
        ),
        (b"a;b\n1,5;2\n", r"rows have more .* Or is it separated by ';'\? Say so by sep \("),
        (b"a\tb\n1,5\t2,5,5\n", "rows have more cells .* Or is it separated by '.t'. Say so"),
        (b'a,b\n1,2\n"3,4\n', "a quotation mark in row 2 is never closed"),
        (b"a, a\n1,2\n", "two columns are called 'a'"),
    ],
)
def test_damage_is_named_and_not_taken_for_a_gap(tmp_path, content, message):
    path = tmp_path / "x.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"x.csv cannot be read: {message}"):
        read(path)


def test_white_space_around_the_names_of_columns_is_none_of_them(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("ax, time ,\tay\n1,0,2\n3,1,4\n5,2,6")
    found = read(path)[0]
    assert found.columns == ("ax", "ay") and found.values.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert "column 'time' numbers the samples and is no channel" in read(path).notes[0]


def test_rows_of_unequal_length_that_are_one_series_each_may_end_without_a_line_end(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("5,1,3\n4,5")
    assert [len(r.values) for r in read(path, layout="series,time")] == [3, 3]
