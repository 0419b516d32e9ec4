"""The built-in sample: smartwatch recordings of shoulder exercises (see sample/README.md).

Shapes: R recordings, L samples, C channels.
"""

from importlib.resources import files
from typing import NamedTuple

import numpy as np

from progmem.data.recordings import Recording

SAMPLING_RATE = 50.0  # samples per second
TEST_SUBJECTS = (8, 9, 10)


class Sample(NamedTuple):
    """Recordings with the exercise and the person of each."""

    recordings: list[Recording]  # R of (L, 6)
    y: np.ndarray  # (R,), exercise
    subject: np.ndarray  # (R,), 1..10
    classes: list[str]
    channels: list[str]


class Windows(NamedTuple):
    """Pieces of equal length cut from recordings."""

    x: np.ndarray  # (windows, L, C)
    y: np.ndarray  # (windows,)


def load_sample() -> Sample:
    """All 140 recordings, float32."""
    path = files("progmem.data") / "sample" / "watch.npz"
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        values = archive["values"].astype(np.float32)
        offsets, y, subject = (archive[name] for name in ("offsets", "y", "subject"))
        classes, channels = archive["classes"].tolist(), archive["channels"].tolist()
    recordings = [
        Recording(f"subject{subject[i]}-{classes[y[i]]}-{i}", values[offsets[i] : offsets[i + 1]])
        for i in range(len(y))
    ]
    return Sample(recordings, y, subject, classes, channels)


def cut_windows(sample: Sample, chosen: np.ndarray, *, length: int, hop: int) -> Windows:
    """Windows of ``length`` samples, ``hop`` apart, of the ``chosen`` (R,) recordings."""
    x, y = [], []
    for i in np.flatnonzero(chosen):
        values = sample.recordings[i].values
        for start in range(0, len(values) - length + 1, hop):
            x.append(values[start : start + length])
            y.append(sample.y[i])
    return Windows(np.stack(x), np.array(y))
