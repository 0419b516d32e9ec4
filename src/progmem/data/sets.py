"""The content of a data set once it is loaded.

Shapes: R series, L samples, C channels. Arrays are (cases, channels, time), as in aeon and sktime.
"""

from dataclasses import dataclass

import numpy as np

from progmem.data.recordings import Recording


@dataclass(frozen=True)
class LabelledSet:
    """Training and test series with their classes.

    Where it is known, ``recording`` says which recording a series was cut from and ``start`` at
    which sample: series that share samples must not be used as negatives of each other.
    """

    name: str
    split: str
    X_train: np.ndarray  # (R, C, L)
    y_train: np.ndarray  # (R,), 0 .. classes - 1
    X_test: np.ndarray
    y_test: np.ndarray
    classes: tuple[str, ...]  # what the numbers in y mean
    recording_train: np.ndarray | None = None  # (R,)
    start_train: np.ndarray | None = None  # (R,)
    recording_test: np.ndarray | None = None
    start_test: np.ndarray | None = None

    def training_recordings(self) -> list[Recording]:
        """The training series, without labels, as `pretrain` takes them."""
        series = self.X_train.transpose(0, 2, 1)  # (R, L, C)
        if self.recording_train is None or self.start_train is None:
            return [Recording(str(i), values) for i, values in enumerate(series)]
        places = zip(self.recording_train.tolist(), self.start_train.tolist(), strict=True)
        return [
            Recording(str(i), values, origin, start)
            for i, (values, (origin, start)) in enumerate(zip(series, places, strict=True))
        ]


@dataclass(frozen=True)
class DatedSeries:
    """One multichannel series with dates and the bounds of its parts."""

    name: str
    values: np.ndarray  # (L, C) float64
    columns: tuple[str, ...]
    dates: np.ndarray  # (L,) datetime64
    target: str  # the column of univariate forecasting
    bounds: dict[str, tuple[int, int]]  # train, validation, test: [start, end) in samples
