"""Electricity Transformer Temperature: a csv of dates and seven columns, kept byte for byte."""

from pathlib import PurePosixPath

from progmem.data.converters.archive import Archive
from progmem.data.dates import by_date
from progmem.errors import InputError

COLUMNS = ("date", "HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT")


def find(archive: Archive) -> list[str]:
    """Named by their files, for all ETT files have the same columns."""
    return [PurePosixPath(member).stem for member in _files(archive)]


def read(archive: Archive, name: str) -> bytes:
    import pandas as pd

    member = next(member for member in _files(archive) if PurePosixPath(member).stem == name)
    archive.check_columns(member, ",")
    with archive.members[member]() as stream:
        text = stream.read()
    with archive.members[member]() as stream:
        try:
            table = pd.read_csv(stream)
        except ValueError as error:  # ragged rows
            raise InputError(f"{member} cannot be read: {str(error).splitlines()[0]}") from error
    if tuple(table.columns) != COLUMNS:
        missing = [column for column in COLUMNS if column not in table.columns]
        reason = f"has no {', '.join(missing)}" if missing else f"has {', '.join(table.columns)}"
        raise InputError(f"{member} must have the columns {', '.join(COLUMNS)}; it {reason}")
    for column in COLUMNS[1:]:
        if not pd.api.types.is_numeric_dtype(table[column]) or table[column].isna().any():
            raise InputError(f"{member} must have a number in every row of column {column}")
    by_date(table, member)  # refuses gaps
    return text


def _files(archive: Archive) -> list[str]:
    """Tables with at least half of the columns: one that lacks some is named later."""
    csv = archive.ending_in(".csv")
    return [m for m in csv if len(set(archive.first_line(m).split(",")) & set(COLUMNS)) >= 4]
