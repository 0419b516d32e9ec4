"""Series that cannot be used: each refusal names what was wrong."""

import io

import numpy as np
import pandas as pd
import pytest
import torch
from made_tables import LONG, MELTED, X, Y, long_table, melted_table, ts_text

from progmem.data.arrays import CASES
from progmem.data.options import ReadOptions
from progmem.data.reader import read_with
from progmem.errors import InputError

NPY = io.BytesIO()
np.save(NPY, X)
WIDE, TABLE, MOLTEN = pd.DataFrame(X[:, 0]), long_table(), melted_table()


@pytest.mark.parametrize(
    "source, columns, message",
    [
        (X[None], {}, r"X must be \(cases, time\) or \(cases, channels, time\), got shape \(1, 4"),
        (X[0, 0], {}, r"X must be \(cases, .* got shape \(7,\)"),
        (3.0, {}, "X must be an array or a list of arrays, got float"),
        (np.array(100.0), {}, "X must be an array or a list of arrays, got a single value"),
        (None, {}, "X must be an array or a list of arrays, got NoneType"),
        (X + 1j, {}, "X must hold real numbers, got dtype complex128"),
        (torch.ones(2, 3, dtype=torch.complex64), {}, "X must hold real numbers, got .* complex64"),
        (np.array([[None, 1]]), {}, "X must hold real numbers, got dtype object"),
        (np.array([["a", "b"]]), {}, "X must hold real numbers, got dtype <U1"),
        (np.ma.array([["a", "b"]]), {}, "X must hold real numbers, got dtype <U1"),
        (np.ma.array(X * 1j), {}, "X must hold real numbers, got dtype complex128"),
        (torch.ones(2, 3).to_sparse(), {}, r"X is a sparse tensor; give its to_dense\(\)"),
        (X[:0], {}, "there are no series; give at least one"),
        (X[..., :0], {}, r"series 0 has no values, got shape \(0, 3\)"),
        ([], {}, "there are no series; give at least one"),
        ([1.0, 2.0], {}, "series 0 must be an array or a list of arrays, got float"),
        ([X[0], X], {}, r"series 1 must be \(time\) or \(channels, time\), got shape \(4"),
        ([X[0], X[1] * 1j], {}, "series 1 must hold real numbers, got dtype complex128"),
        ([X[0], X[1, :2]], {}, r"series 0 has 3, series 1 has 2; a case is \(channels, time\)"),
        ([[[1, 2], [3]]], {}, "series 0 must be an array, got list: .*inhomogeneous"),
        ([X[0], X[1, :, :0]], {}, r"series 1 has no values, got shape \(0, 3\)"),
        (X, {"case": "id"}, "case names a column, but there is no table, got ndarray"),
        (list(X), {"label": "y"}, "label names a column, but there is no table, got a list"),
        (TABLE, {"case": "who"}, "there is no column 'who'; the table has kind, x, id, y, t, z"),
        (TABLE, {**LONG, "label": "y"}, "case d has more than one 'y'"),
        (TABLE.assign(id=7), LONG, "case 7 has more than one 'kind'"),
        (TABLE.assign(kind=TABLE.kind.where(TABLE.t > 0)), LONG, "case d has more than one 'kind'"),
        (TABLE, {"case": "id", "time": "t"}, "values must be real numbers; column kind does not"),
        (TABLE.assign(x=1j), LONG, "values must be real numbers; column x does not"),
        (WIDE.assign(date="2024"), {}, "date must increase: row 1, 2024-.* is there twice; drop_"),
        (TABLE.assign(id=TABLE.id.replace("c", None)), LONG, "column 'id' has missing values"),
        (TABLE.assign(t=TABLE.t.replace(3, np.nan)), LONG, "column 't' has missing values"),
        (MOLTEN.assign(axis=MOLTEN.axis.replace("y", None)), MELTED, "column 'axis' has missing"),
        (TABLE.assign(t=[f"{t}/10/2024" for t in TABLE.t]), LONG,
         "column 't' must hold numbers or dates such as 2024-05-31 12:00, got '0/10/2024' in"),
        (WIDE.assign(date=[20240131, 20240201, 20240202, 20240203]), {},
         "holds numbers that read as dates, such as 20240131; say so by date_format='%Y%m%d'"),
        (WIDE.assign(date=[1, 2, 3, 4]), {"date_format": "%Y%m%d"},
         "column 'date' holds numbers, such as 1, which are not dates written as date_format '%Y"),
        (WIDE.assign(date=["2024-05-31", "2024-06-01", "June", "x"]), {}, "got 'June' in row 2; "),
        (WIDE.assign(date=["1.5.24", "2.5.24", "3.5.24", "x"]), {"date_format": "%d.%m.%y"},
         "got 'x' in row 3; they are not written as date_format '%d.%m.%y'"),
        (TABLE.assign(t=["a", *range(20)]), LONG, "column 't' must hold numbers or dates .* 'a'"),
        (pd.concat([MOLTEN, MOLTEN[8:9]]), MELTED, "case a has channel x twice at t 1"),
        (MOLTEN, {**MELTED, "value": None}, "channel and value go together"),
        (MOLTEN, {**MELTED, "time": None}, "channel and value need time: which samples"),
        (MOLTEN, {**MELTED, "case": None}, "channel and value need case: which rows"),
        (TABLE, {"time": "t"}, "t must increase: row 7, 0, is there twice"),
        (TABLE[["id", "t", "kind"]], LONG, "the table has no column left for the values"),
        (TABLE[["kind"]], {"label": "kind"}, "the table has no column left for the values"),
        (TABLE[:0], LONG, "there are no series; give at least one"),
        (MOLTEN[:0], MELTED, "the table has no column left for the values"),
        (WIDE[:0], {}, "there are no series; give at least one"),
        (pd.DataFrame(), {}, "the table has no column left for the values"),
        (TABLE.set_index(["kind", "id", "t"]), {}, r"must have two levels, .* \['kind', 'id'"),
    ],
)  # fmt: skip
def test_series_that_cannot_be_used_are_named(source, columns, message):
    with pytest.raises(InputError, match=message):
        read_with(source, ReadOptions(**columns), axes=CASES)


@pytest.mark.parametrize(
    "name, content, columns, message",
    [
        ("x.npy", None, {}, "there is no .*x.npy; give a .npy, "),
        ("x.txt", b"1", {}, "x.txt must end in one of .npy, .npz, .csv, .tsv, .parquet, "),
        ("x.npy", b"", {}, "x.npy cannot be read: No data left"),
        ("x.npy", b"nonsense", {}, "x.npy cannot be read: .* begins with text: is it a .csv file"),
        (
            "x.npy",
            NPY.getvalue(),
            {"label": "y"},
            "x.npy: label names a column, .* got a .npy file",
        ),
        ("x.csv", b"", {}, "x.csv cannot be read: No columns"),
        (
            "x.csv",
            b"a\n1,5\n",
            {},
            "x.csv cannot be read: rows have more cells than the first l",
        ),
        ("x.csv", b"a,b\n1,x\n", {}, "x.csv: values must be real numbers; column b does not hold"),
        (
            "x.csv",
            b"a,b\n1,2\n",
            {"label": "y"},
            "x.csv: there is no column 'y'; the table has a, b",
        ),
        ("x.parquet", b"nonsense", {}, "x.parquet cannot be read: "),
        ("x.ts", b"nonsense", {}, "x.ts: there are no series"),
        ("x.ts", ts_text(X, Y).encode()[:-60] + b"?x", {}, "x.ts cannot be read: "),
        (
            "x.ts",
            ts_text(X, Y).encode(),
            {"label": "y"},
            "x.ts: label names a column, .* a .ts file",
        ),
        ("x.tsv", b"", {}, "x.tsv cannot be read: No columns"),
        ("x.arff", b"", {}, "x.arff: there are no series"),
        (
            "x.arff",
            b"@relation x\n@attribute ax numeric\n@ATTRIBUTE ay REAL\n@data\n1,2\n3,4\n",
            {},
            "x.arff: its last attribute is no class such as {a,b}, but ay REAL: a series is a row",
        ),
    ],
)
def test_files_that_cannot_be_used_are_named(tmp_path, name, content, columns, message):
    needed = {"parquet": "pyarrow", "ts": "aeon", "tsv": "aeon", "arff": "aeon"}
    pytest.importorskip(needed.get(name.split(".")[1], "numpy"))
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_with(tmp_path / name, ReadOptions(**columns))
