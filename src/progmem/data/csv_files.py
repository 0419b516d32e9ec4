"""A user's .csv files as pandas tables, with names above the columns or without."""

import csv
import warnings
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

MISSING = ("", "nan", "-nan", "na", "n/a", "#n/a", "#na", "<na>", "null", "none")  # as in pandas


class Layout(NamedTuple):
    """What the first lines of a file tell."""

    named: bool  # the first holds the names of columns
    several: bool  # columns, so that a blank line is no sample


def layout(path: Path, *, wide: bool = False) -> Layout:
    """Whether the first line of a file holds names: not numbers, or such as count the columns.

    0, 1, 2, … is what pandas writes above a table without names. Above a ``wide`` one, a column a
    sample, any numbers in equal steps can stand: times, or wave lengths. Where the next line goes
    on like that, both are samples.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig", errors="replace") as stream:
            lines = list(islice(csv.reader(stream), 9))
    except csv.Error as error:
        raise ValueError(str(error)) from error
    several = any(len(line) > 1 for line in lines)
    if several:
        lines = [line for line in lines if line]
    first, second = ([_number(cell) for cell in line] for line in [*lines, [], []][:2])
    if None in first:
        return Layout(True, several)
    if len(first) > 1 and lines[0][0] == "" and second and _label(second[0]):  # pandas' index
        return Layout(_counts(first[1:]), several)
    above = _climbs(first) and (wide or _counts(first))
    return Layout(above and second != [] and not _climbs(second), several)


def _climbs(numbers: list[float | None]) -> bool:
    """Whether these are at least three numbers in equal steps upwards."""
    steps = np.diff(np.array(numbers, dtype=float))
    return bool(len(steps) > 1 and steps[0] > 0 and np.allclose(steps, steps[0], atol=0))


def _label(number: float | None) -> bool:
    """Whether a row may be called that: a whole number, or text."""
    return number is None or number.is_integer()


def _counts(numbers: list[float | None]) -> bool:
    return numbers in ([*range(len(numbers))], [*range(1, len(numbers) + 1)])


def _number(cell: str) -> float | None:
    """What a cell holds, NaN if nothing; None if that is no number."""
    try:
        return float("nan") if cell.strip().lower() in MISSING else float(cell)
    except ValueError:
        return None


def read_csv(path: Path, **options: Any) -> "pd.DataFrame":
    """A .csv file as pandas reads it; ValueError where that would mix up or add columns.

    Of rows with more cells than the header pandas by itself takes the first cells for an index, and
    puts every other under the next name; empty cells at the end of rows are dropped instead.
    """
    import pandas as pd

    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)  # it loses cells
        try:
            table = pd.read_csv(path, index_col=False, **options)
        except pd.errors.ParserWarning as error:
            raise ValueError(
                "rows have more cells than the first line: a comma too many, or as decimal sign?"
            ) from error
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
