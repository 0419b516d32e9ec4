"""Dates of a table's rows: each must follow the one before in a fixed step."""

from typing import Any

from progmem.errors import InputError


def check_steps(dates: Any, member: str, step: str | None = None) -> Any:
    """The dates read; refused where one is missing or none follows the one before in a step."""
    import pandas as pd

    try:
        times = pd.to_datetime(dates, format="ISO8601")
    except (ValueError, TypeError) as error:
        raise InputError(
            f"{member} must have dates such as 2016-07-01 00:00:00 in its first column: "
            f"{str(error).splitlines()[0]}"
        ) from error
    times = pd.DatetimeIndex(times)
    if len(times) < 2 or times.isna().any():
        raise InputError(f"{member} must have two rows or more, and a date in each")
    steps = times[1:] - times[:-1]
    wanted = pd.Timedelta(step) if step else steps[0]
    wrong = (steps != wanted).nonzero()[0]
    if len(wrong) or wanted <= pd.Timedelta(0):
        at = wrong[0] if len(wrong) else 0
        raise InputError(
            f"{member} must have a row every {wanted.total_seconds() / 60:g} minutes, but "
            f"{times[at]} is followed by {times[at + 1]}"
        )
    return times
