"""Where the samples of a recording lie on an axis of time: by date, in seconds, or by number.

A date is drawn as milliseconds since 1970 by the clock of the recording's first sample, so that
the axis has no hour twice where clocks are put back. Words and tables have the date itself.

Shapes: L samples.
"""

from typing import Any

import numpy as np
import pandas as pd

from progmem.data.recordings import Recording


class TimeAxis:
    """Positions of samples on an axis, and the sample at a position.

    Example:
        >>> import numpy as np
        >>> from progmem.data.recordings import Recording
        >>> axis = TimeAxis(Recording("walk", np.zeros((500, 1)), rate=50.0))
        >>> axis.at([0, 25]), axis.sample(0.5), axis.text(25)
        (array([0. , 0.5]), 25, '0.5 s')
    """

    def __init__(self, recording: Recording) -> None:
        self.calendar, self.length = recording.calendar, len(recording.values)
        self.kind = "date" if self.calendar else "seconds" if recording.rate else "sample"
        self.first, self.step = 0.0, 1.0
        self.table: np.ndarray | None = None  # (L,), where steps are not equal, as months are not
        if self.calendar is not None:
            self.first = _milliseconds(pd.DatetimeIndex([self.calendar.start]))[0]
            if self.calendar.rate is None:
                self.table = _milliseconds(self.calendar.at(np.arange(self.length)))
            else:
                self.step = 1000 / self.calendar.rate
        elif recording.rate:
            self.step = 1 / recording.rate

    def at(self, samples: Any) -> np.ndarray:
        """Positions of samples, float64; what lies past the end is one step further for each."""
        samples = np.asarray(samples)
        if self.table is None:
            return self.first + samples * self.step
        last = self.length - 1
        step = self.table[-1] - self.table[-2] if last else self.step
        past = np.maximum(samples - last, 0)
        return self.table[np.clip(samples, 0, last)] + past * step

    def sample(self, position: str | float) -> int:
        """The sample nearest to a position, which a browser tells as a number or a date."""
        if isinstance(position, str):
            position = float(_milliseconds(pd.DatetimeIndex([position]))[0])
        if self.table is None:
            found = round((position - self.first) / self.step)
        else:
            found = int(np.abs(self.table - position).argmin())
            found += int(position > self.at(self.length - 1) and found == self.length - 1)
        return max(0, min(self.length, found))

    def text(self, sample: int) -> str:
        """When a sample was taken, in words."""
        return self.texts([sample])[0]

    def texts(self, samples: Any) -> list[str]:
        """When samples were taken, in words."""
        if self.calendar is not None:
            return [_date_text(date) for date in self.dates(samples)]
        seconds = self.kind == "seconds"
        return [f"{one * self.step:.6g} s" if seconds else str(one) for one in samples]

    def duration(self, samples: int) -> str:
        """How long some samples last, in words."""
        if self.kind == "sample" or self.table is not None:
            return f"{samples} samples"
        seconds = samples * self.step / (1000 if self.kind == "date" else 1)
        for name, length in (("days", 86_400), ("h", 3_600), ("min", 60)):
            if seconds >= 2 * length:
                return f"{seconds / length:.3g} {name}"
        return f"{seconds:.3g} s"

    def dates(self, samples: Any) -> Any:
        """The true dates of samples, or their seconds; None where nothing is known of time."""
        samples = np.asarray(samples)
        if self.calendar is not None:
            return self.calendar.at(samples)
        return samples * self.step if self.kind == "seconds" else None


def _date_text(date: pd.Timestamp) -> str:
    """A date without the last zeros of a fraction of a second."""
    whole, _, fraction = str(date).partition(".")
    digits = fraction.rstrip("0") if fraction.isdigit() else fraction  # else a time zone
    return f"{whole}.{digits}" if digits else whole


def _milliseconds(dates: Any) -> np.ndarray:
    naive = dates.tz_localize(None) if dates.tz is not None else dates
    return naive.as_unit("ns").asi8 / 1e6
