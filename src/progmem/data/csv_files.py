"""Text tables: .csv and .tsv files, packed by gzip or not, as pandas reads them."""

import csv
import gzip
import re
import warnings
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np

from progmem import guard
from progmem.names import from_cell

if TYPE_CHECKING:
    import pandas as pd


MISSING = ("", "nan", "-nan", "na", "n/a", "#n/a", "#na", "<na>", "null", "none")  # as in pandas


class CsvLayout(NamedTuple):
    """What the first lines of a .csv file show."""

    has_header: bool  # the first line holds the names of columns
    several_columns: bool  # then a blank line is no sample


def csv_layout(path: Path, *, wide: bool = False, sep: str = ",", decimal: str = ".") -> CsvLayout:
    """Whether the first line of a file is a header: texts, or numbers that count the columns.

    0, 1, 2, … is what pandas writes above a table without names. The header of a ``wide`` table,
    which has one column per sample, may hold any numbers in equal steps, such as times or wave
    lengths. Where the next line is like that too, both are samples.
    """
    try:
        with _open(path) as stream:
            lines = list(islice(csv.reader(stream, delimiter=sep), 9))
    except csv.Error as error:
        raise ValueError(str(error)) from error
    several = any(len(line) > 1 for line in lines)
    if several:
        lines = [line for line in lines if line]
    first, second = (
        [cell_number(cell.replace(decimal, ".")) for cell in line] for line in [*lines, [], []][:2]
    )
    if None in first:
        return CsvLayout(True, several)
    if (
        len(first) > 1 and lines[0][0] == "" and second and _may_be_row_name(second[0])
    ):  # pandas' index
        return CsvLayout(_is_range(first[1:]), several)
    counts = _evenly_increasing(first) and (wide or _is_range(first))
    return CsvLayout(counts and second != [] and not _evenly_increasing(second), several)


def _open(path: Path) -> IO[str]:
    if path.suffix.lower() == ".gz":
        return gzip.open(path, "rt", newline="", encoding="utf-8-sig", errors="replace")
    return path.open(newline="", encoding="utf-8-sig", errors="replace")


def _evenly_increasing(numbers: list[float | None]) -> bool:
    """Whether these are at least three numbers in equal steps upwards."""
    steps = np.diff(np.array(numbers, dtype=float))
    return bool(len(steps) > 1 and steps[0] > 0 and np.allclose(steps, steps[0], atol=0))


def _may_be_row_name(number: float | None) -> bool:
    """Whether a cell may be the name of a row: a whole number, or text."""
    return number is None or number.is_integer()


def _is_range(numbers: list[float | None]) -> bool:
    return numbers in ([*range(len(numbers))], [*range(1, len(numbers) + 1)])


def cell_number(cell: str) -> float | None:
    """The number in a cell, NaN if it is empty; None if it is not a number."""
    try:
        return float("nan") if cell.strip().lower() in MISSING else float(cell)
    except ValueError:
        return None


def read_csv(path: Path, **options: Any) -> "pd.DataFrame":
    """A .csv file as pandas reads it; ValueError where that would mix up or add columns.

    Where rows have more cells than the header, pandas would take the first cells for an index and
    shift the others by a column. Empty cells at the end of all rows are dropped, as is white space
    around the names of columns.
    """
    import pandas as pd

    _refuse_zero_bytes(path)  # pandas would take a cell that begins by one for an empty one
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)  # it loses cells
        try:
            table = pd.read_csv(path, index_col=False, **options)
        except UnicodeDecodeError as error:
            raise ValueError(
                f"byte {error.start + 1} is not of a text in UTF-8; save it as UTF-8"
            ) from error
        except pd.errors.ParserError as error:
            hint = _other_separator(path, options.get("sep", ","))
            raise ValueError(f"{_why_not_parsed(str(error))}{hint}") from error
        except pd.errors.ParserWarning as error:
            raise ValueError(
                "rows have more cells than the first line: a comma too many, or as decimal sign, "
                f"or a line above the header?{_other_separator(path, options.get('sep', ','))}"
            ) from error
    texts = [i for i, kind in enumerate(table.dtypes) if not pd.api.types.is_numeric_dtype(kind)]
    for i in texts:
        column = table.columns[i]
        if table[column].astype(str).str.startswith("'").any():
            table[column] = table[column].map(from_cell, na_action="ignore")
    table.columns = table.columns.map(
        lambda name: from_cell(name.strip() or name) if isinstance(name, str) else name
    )
    if not table.columns.is_unique:
        twice = table.columns[table.columns.duplicated()][0]
        raise ValueError(f"two columns are called {twice!r}")
    unnamed = table.columns.astype(str).str.startswith("Unnamed: ")
    table = table.loc[:, ~(unnamed & table.isna().all().to_numpy())]  # a comma ends every line
    first = table.iloc[:, 0]
    counting = pd.api.types.is_integer_dtype(first) and first.is_unique
    if first.name == "Unnamed: 0" and counting and len(first) > 1:
        raise ValueError(
            "the first column has no name and a number of its own in each row, as an index; write "
            "the file without it (in pandas: index=False)"
        )
    return table


def _refuse_zero_bytes(path: Path) -> None:
    """They are what a power failure leaves of a file, and a part of texts that are not UTF-8."""
    with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as stream:
        while piece := stream.read(guard.PIECE):
            if b"\0" in piece:
                raise ValueError("it has zero bytes: it is damaged, or not a text in UTF-8")


def _why_not_parsed(error: str) -> str:
    """What pandas says of a table it cannot read, and what may be wrong."""
    if found := re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", error):
        expected, line, saw = found.groups()
        return (
            f"line {line} has {saw} cells, the lines before it have {expected}: is there a line "
            "above the header, or a cell too many?"
        )
    if found := re.search(r"EOF inside string starting at row (\d+)", error):
        return f"a quotation mark in row {found[1]} is never closed"
    return error


def _other_separator(path: Path, sep: str) -> str:
    """A hint, where the first line has marks that often separate cells, and ``sep`` is another."""
    with _open(path) as stream:
        first = stream.readline(guard.PIECE)
    mark = next((mark for mark in ";\t|" if mark in first and mark != sep), None)
    if mark is None:
        return ""
    return f" Or is it separated by {mark!r}? Say so by sep (--sep {mark!r})"


def check_last_line(path: Path, sep: str) -> None:
    """Refuse a table that ends amid a line: with fewer cells than the first, and not ended."""
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - guard.PIECE))
        last = stream.read().splitlines(keepends=True)[-1:]
    with _open(path) as text:
        first = next((line for line in csv.reader(text, delimiter=sep) if line), [])
    if not last or last[0].endswith((b"\n", b"\r")):
        return
    cells = len(next(csv.reader([last[0].decode(errors="replace")], delimiter=sep), []))
    if cells < len(first):
        raise ValueError(
            f"it ends amid a line, which has {cells} of {len(first)} cells: the file was cut; "
            "delete that line if the others are right"
        )
