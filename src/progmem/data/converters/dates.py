"""Dates of a table's rows: each must follow the one before in a fixed step."""

from typing import Any

from progmem.errors import InputError


def read_dates(dates: Any, member: str) -> Any:
    """The dates of a column of texts, as an index."""
    import pandas as pd

    try:
        return pd.DatetimeIndex(pd.to_datetime(dates, format="ISO8601"))
    except (ValueError, TypeError) as error:
        raise InputError(
            f"{member} must have dates such as 2016-07-01 00:00:00 in its first column: "
            f"{str(error).splitlines()[0]}"
        ) from error


def check_steps(times: Any, member: str, step: str | None = None) -> None:
    """A missing date and a gap are refused; without ``step`` the first one counts."""
    import pandas as pd

    if len(times) < 2 or times.isna().any():
        raise InputError(f"{member} must have two rows or more, and a date in each")
    steps = times[1:] - times[:-1]
    wanted = pd.Timedelta(step) if step else steps[0]
    wrong = (steps != wanted) | (steps <= pd.Timedelta(0))
    if wrong.any():
        at = int(wrong.argmax())
        raise InputError(
            f"{member} must have a row every {wanted.total_seconds() / 60:g} minutes, but "
            f"{times[at]} is followed by {times[at + 1]}"
        )
