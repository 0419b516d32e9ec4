"""Recordings of people with a class for each sample, for benchmarks of the explorer.

The built-in sample has a recording for each exercise of a person. The windows of HAR are put
together again to bouts of one activity, and the bouts of a person's session, one after the other,
are a recording. A splice is made of pieces of one person's recordings, so that its boundaries are
known. A model is trained without labels on people of whom nothing is asked, on a CPU.

Shapes: L samples, C channels.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from progmem.config import read_config
from progmem.data.converters.har import bouts
from progmem.data.datasets import load_labelled
from progmem.data.recordings import Recording
from progmem.data.sample import SAMPLING_RATE, TEST_SUBJECTS, load_sample
from progmem.demo import SETTINGS
from progmem.explore.tables import runs
from progmem.model.pmt import PMT
from progmem.training.pretrain import pretrain

RATE = SAMPLING_RATE  # of both sets, samples per second
PIECES = 6  # of a splice
SHORTEST, LONGEST = 5.0, 15.0  # seconds of a piece


class Known(NamedTuple):
    """A recording, the class of each of its samples, and whose it is."""

    recording: Recording
    classes: np.ndarray  # (L,)
    person: int


class Archive(NamedTuple):
    """Recordings of people to train on without labels, and of people who are held out."""

    name: str
    training: list[Known]
    held_out: list[Known]

    def trained_model(self, folder: Path) -> PMT:
        """A tiny model by the default recipe; training goes on where it was interrupted."""
        recordings = [one.recording for one in self.training]
        settings = [*SETTINGS, "model.size=tiny", "train.device=cpu"]
        return pretrain(recordings, folder / self.name, read_config(None, settings))


def sample_archive() -> Archive:
    """The built-in sample: seven people to train on, three who are held out."""
    sample = load_sample()
    known = [
        Known(recording, np.full(len(recording.values), label), int(person))
        for recording, label, person in zip(
            sample.recordings, sample.y, sample.subject, strict=True
        )
    ]
    return Archive(
        "sample",
        [one for one in known if one.person not in TEST_SUBJECTS],
        [one for one in known if one.person in TEST_SUBJECTS],
    )


def har_archive(data_dir: Path | None) -> Archive:
    """HAR by its official split: 21 people to train on, nine who are held out."""
    data = load_labelled("HAR", data_dir)
    parts = []
    for x, y, recording in (
        (data.X_train, data.y_train, data.recording_train),
        (data.X_test, data.y_test, data.recording_test),
    ):
        assert recording is not None
        parts.append(_sessions(x.transpose(0, 2, 1), y, recording))
    return Archive("HAR", *parts)


def _sessions(x: np.ndarray, y: np.ndarray, recording: np.ndarray) -> list[Known]:
    """A recording for each session of a person, from windows (R, L, C) that overlap."""
    bout, start = bouts(x, recording)
    found = []
    for name in dict.fromkeys(recording.tolist()):
        values, classes = [], []
        for number in np.unique(bout[recording == name]):
            rows = np.flatnonzero(bout == number)
            hops = np.diff(start[rows])
            parts = [x[row, :hop] for row, hop in zip(rows[:-1], hops, strict=True)]
            values += [*parts, x[rows[-1]]]
            classes.append(np.full(start[rows[-1]] + x.shape[1], y[rows[0]]))
        whole = Recording(name, np.concatenate(values))
        found.append(Known(whole, np.concatenate(classes), int(name.split("-")[0])))
    return found


def splices(known: Sequence[Known], count: int, seed: int) -> list[Known]:
    """``count`` splices of each person: pieces of which no two neighbours are of one class."""
    rng = np.random.default_rng(seed)
    found = []
    for person in dict.fromkeys(one.person for one in known):
        pieces = [  # stretches of one class
            (one, part)
            for one in known if one.person == person for part in runs(one.classes)
            if part.stop - part.start >= SHORTEST * RATE
        ]  # fmt: skip
        for number in range(count):
            values, classes = list[np.ndarray](), list[np.ndarray]()
            while len(values) < PIECES:
                one, part = pieces[rng.integers(len(pieces))]
                if classes and one.classes[part.start] == classes[-1][0]:
                    continue
                most = min(part.stop - part.start, int(LONGEST * RATE))
                length = int(rng.integers(int(SHORTEST * RATE), most + 1))
                first = int(rng.integers(part.start, part.stop - length + 1))
                values.append(one.recording.values[first : first + length])
                classes.append(one.classes[first : first + length])
            recording = Recording(f"person {person}, {number}", np.concatenate(values))
            found.append(Known(recording, np.concatenate(classes), person))
    return found
