"""Series of any make: every source gives the same recordings."""

import numpy as np
import pandas as pd
import pytest
import torch
from made_tables import LONG, MELTED, UNEQUAL, X, Y, long_table, melted_table, shuffled, ts_text

from progmem.data.arrays import CASES
from progmem.data.options import ReadOptions
from progmem.data.reader import read_with


def read_cases(source, **options):
    """As estimators read: arrays are (cases, channels, time)."""
    return read_with(source, ReadOptions(**options), axes=CASES)


def assert_same(found, series=UNEQUAL, y=Y):
    assert len(found) == len(series)
    for ours, theirs in zip(found.values, series, strict=True):
        np.testing.assert_array_equal(ours, theirs.T)
    if y is None:
        assert found.labels is None
    else:
        np.testing.assert_array_equal(found.labels, y)


@pytest.mark.parametrize(
    "source, expected",
    [
        (X, X),
        (X[:, 0], X[:, :1]),
        (X.astype(np.float32), X.astype(np.float32)),
        (np.ma.masked_array(X.round(), mask=X > 1), np.where(X > 1, np.nan, X.round())),
        (np.ma.masked_array(np.arange(6).reshape(2, 3), mask=np.eye(2, 3)),
         np.array([[[np.nan, 1, 2]], [[3, np.nan, 5]]])),
        (torch.from_numpy(X).requires_grad_(), X),
        (torch.ones(2, 5, dtype=torch.bfloat16), np.ones((2, 1, 5))),
        (torch.arange(6).reshape(2, 3), np.arange(6).reshape(2, 1, 3)),
        (list(X), X),
        (tuple(torch.from_numpy(one) for one in UNEQUAL), UNEQUAL),
        (X[:, 0].tolist(), X[:, :1]),
        ([one[0] for one in UNEQUAL], [one[:1] for one in UNEQUAL]),
        ([np.ma.masked_greater(one, 1) for one in UNEQUAL],
         [np.where(one > 1, np.nan, one) for one in UNEQUAL]),
        (pd.DataFrame(X[:, 2]), X[:, 2:]),
        (pd.DataFrame({"a": [True, False], "b": pd.array([3, None], dtype="Int64")}),
         np.array([[[1, 3]], [[0, np.nan]]])),
    ],
)  # fmt: skip
def test_arrays_lists_tensors_and_wide_tables_are_cases(source, expected):
    assert_same(read_cases(source), expected, None)


DATES = pd.Timestamp("2024-09-28") + pd.to_timedelta(range(7), unit="D")


@pytest.mark.parametrize(
    "table, columns",
    [
        (long_table(), LONG),
        (long_table().drop(columns="t"), {"case": "id", "label": "kind"}),
        (shuffled(long_table()), LONG),
        (long_table().astype({"id": pd.CategoricalDtype([*"abcde"])}), LONG),
        (shuffled(long_table().assign(t=lambda d: DATES[d.t].astype(str))), LONG),
        (shuffled(long_table().assign(t=lambda d: DATES[d.t])), LONG),
        (shuffled(long_table().assign(t=lambda d: d.t.astype(object))), LONG),
        (melted_table(), MELTED),
        (shuffled(melted_table()), MELTED),
        (shuffled(melted_table()).dropna(), MELTED),  # what is not there is missing
        (long_table().set_index(["id", "t"]), {"label": "kind"}),
        (long_table().set_index(["id", "t"]).rename_axis([None, None]), {"label": "kind"}),
        (shuffled(melted_table()).set_index(["id", "t"]),
         {"channel": "axis", "value": "v", "label": "kind"}),
    ],
)  # fmt: skip
def test_long_tables_of_every_make_are_the_same_cases(table, columns):
    before = table.copy(deep=True)
    assert_same(read_cases(table, **columns))
    pd.testing.assert_frame_equal(table, before)
    unlabelled = {name: column for name, column in columns.items() if name != "label"}
    assert_same(read_cases(table.drop(columns="kind"), **unlabelled), UNEQUAL, None)


def test_long_tables_of_equal_cases():
    assert_same(read_cases(long_table(X), **LONG), X)
    assert_same(read_cases(shuffled(melted_table(X)), **MELTED), X)


def test_days_are_in_order_across_months_and_offsets():
    times = ["2024-10-01 00:30+02:00", "2024-09-30 23:00+00:00", "2024-09-30"]
    table = pd.DataFrame({"id": 1, "t": times, "v": [1.0, 2.0, 0.0]})
    (found,) = read_cases(table, case="id", time="t")
    assert found.values.tolist() == [[0], [1], [2]]


@pytest.mark.parametrize("source", [X.copy(), list(X.copy()), torch.from_numpy(X.copy())])
def test_the_callers_series_are_not_changed(source):
    read_cases(source)
    for ours, theirs in zip(source, X, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_files_of_arrays_and_tables_are_read(tmp_path):
    np.save(tmp_path / "x.npy", X)
    assert_same(read_cases(tmp_path / "x.npy", layout="series,channels,time"), X, None)
    assert_same(read_cases([pd.DataFrame(x.T) for x in X]), X, y=None)
    long_table().to_csv(tmp_path / "long.csv", index=False)
    assert_same(read_cases(str(tmp_path / "long.csv"), **LONG))
    pd.DataFrame(X[:, 2]).assign(kind=Y).to_csv(tmp_path / "wide.csv", index=False)
    assert_same(read_cases(tmp_path / "wide.csv", label="kind", layout="series,time"), X[:, 2:])


def test_parquet_files_are_read(tmp_path):
    pytest.importorskip("pyarrow")
    shuffled(melted_table()).to_parquet(tmp_path / "melted.parquet")
    assert_same(read_cases(tmp_path / "melted.parquet", **MELTED))
    long_table().set_index(["id", "t"]).to_parquet(tmp_path / "indexed.parquet")
    assert_same(read_cases(tmp_path / "indexed.parquet", label="kind"))


def test_files_of_the_archives_are_read(tmp_path):
    pytest.importorskip("aeon")
    for series in (X, X[:, :1], UNEQUAL, [one[:1] for one in UNEQUAL]):
        for y in (Y, None):
            (tmp_path / "x.ts").write_text(ts_text(series, y))
            assert_same(read_cases(tmp_path / "x.ts"), series, y)
    lines = ["\t".join(map(str, [i % 2, *row])) for i, row in enumerate(X[:, 0])]
    (tmp_path / "x.tsv").write_text("\n".join(lines) + "\n")
    assert_same(read_cases(tmp_path / "x.tsv"), X[:, :1], [0, 1, 0, 1])
    head = ["@relation made", *(f"@attribute t{i} numeric" for i in range(7))]
    head += ["@attribute target {sit,stand,walk}", "@data"]
    lines = [",".join([*map(str, row), y]) for row, y in zip(X[:, 0], Y, strict=True)]
    (tmp_path / "x.arff").write_text("\n".join([*head, *lines]) + "\n")
    assert_same(read_cases(tmp_path / "x.arff"), X[:, :1])
