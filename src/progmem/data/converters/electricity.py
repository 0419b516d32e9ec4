"""UCI ElectricityLoadDiagrams20112014, LD2011_2014.txt: quarter-hours of 370 clients, by hours.

TS2Vec's recipe: the four values of an hour are summed, the one at 01:00 belonging to the hour that
began at 00:00; clients that have used nothing by ``USED_BY`` are left out; hours from 2012 on stay.
"""

import io
from typing import Any

from progmem.data.converters.archive import Archive
from progmem.data.dates import read_dates, regular_dates, step_of
from progmem.errors import InputError

USED_BY = 8920  # the row of hours: 16:00 on 7 January 2012
FIRST = "2012-01-01"
STEP = "15min"
PIECE = 4 * 2000  # rows read at once; the file begins at 00:15, so hours stay whole


def find(archive: Archive) -> list[str]:
    return ["Electricity321"] if _files(archive) else []


def read(archive: Archive, name: str) -> bytes:
    """A csv of dates and clients, named as in the file."""
    import pandas as pd

    hours = _hours(archive, _files(archive)[0])
    if len(hours) <= USED_BY or hours.index[-1] < pd.Timestamp(FIRST):
        raise InputError(
            f"{archive.path} must reach past {FIRST} and hour {USED_BY}; its {len(hours)} hours "
            f"end at {hours.index[-1]}"
        )
    used = hours.iloc[: USED_BY + 1].sum() != 0
    kept = hours.loc[FIRST:, used]
    text = io.StringIO()
    kept.to_csv(text, index_label="date", date_format="%Y-%m-%d %H:%M:%S", lineterminator="\n")
    return text.getvalue().encode()


def _hours(archive: Archive, member: str) -> Any:
    """Sums by the hour they end in, a piece of the 700 MB at a time."""
    import pandas as pd

    archive.check_columns(member, ";")
    sums, dates = [], []
    with archive.members[member]() as stream:
        try:
            pieces = pd.read_csv(
                stream, sep=";", decimal=",", index_col=0, chunksize=PIECE,
                float_precision="round_trip",
            )  # fmt: skip
            for piece in pieces:
                if not len(piece):
                    raise InputError("there are no rows below the header")
                bad = [c for c in piece if not pd.api.types.is_numeric_dtype(piece[c])]
                bad += [c for c in piece if c not in bad and piece[c].isna().any()]
                if bad:
                    raise InputError(f"there must be a number in every row of {bad[0]}")
                ends = read_dates(piece.index)
                dates.append(ends)
                sums.append(piece.groupby(ends.ceil("h") - pd.Timedelta("1h")).sum())
            times = regular_dates(dates[0].append(dates[1:]), sum(map(len, dates)))
            if step_of(times) != pd.Timedelta(STEP):
                raise InputError(f"there must be a row every {STEP}, the step is {step_of(times)}")
        except ValueError as error:  # ragged rows too
            raise InputError(f"{member}: {str(error).splitlines()[0]}") from error
    return pd.concat(sums).groupby(level=0).sum()


def _files(archive: Archive) -> list[str]:
    texts = archive.ending_in(".txt", ".csv")
    return [m for m in texts if '"MT_001"' in archive.first_line(m).split(";")]
