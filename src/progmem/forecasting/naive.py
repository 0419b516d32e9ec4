"""Forecasts that anyone can make: repeat the newest value, or that of a day or a week ago.

Shapes: T samples, n moments, H horizon.
"""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd


def seasonal_periods(dates: "pd.DatetimeIndex | pd.RangeIndex", longest: int) -> tuple[int, ...]:
    """The samples of a day, a week and a year, the first two that have 2 to ``longest`` of them.

    Where none does, those of a minute and an hour; without dates nothing is known of seasons.
    """
    import pandas as pd

    if isinstance(dates, pd.RangeIndex):
        return ()

    def fitting(seasons: "list[pd.DateOffset]") -> list[int]:
        ends = [dates[0] + season for season in seasons]
        counts = [int((dates < end).sum()) for end in ends if end <= dates[-1]]
        return [count for count in counts if 2 <= count <= longest]

    offset = pd.DateOffset
    found = fitting([offset(days=1), offset(weeks=1), offset(years=1)])
    return tuple((found or fitting([offset(minutes=1), offset(hours=1)]))[:2])


def repeat(values: np.ndarray, times: np.ndarray, horizon: int, *, period: int = 1) -> np.ndarray:
    """Forecasts (n, H) of values (T,) at moments ``times``: the newest ``period`` of them, again.

    A value that is missing is the newest one before it.
    """
    import pandas as pd

    filled = pd.Series(values).ffill().to_numpy()
    ahead = np.arange(1, horizon + 1)
    back = -(-ahead // period) * period  # whole periods, so that nothing after the moment is seen
    return np.asarray(filled[times[:, None] + ahead - back])
