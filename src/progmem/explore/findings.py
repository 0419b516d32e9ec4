"""What is found in recordings, for a page: each function of `progmem.explore` asked once.

A page never waits for what takes long: that is worked out one after the other beside it, and the
revision grows when it is there. What labels say is asked again when they have changed.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from progmem import explore
from progmem.data.dates import COVARIATES, has_calendar
from progmem.data.recordings import Recording, columns_of
from progmem.explore import figures
from progmem.explore.figures import Cells, Ribbon
from progmem.explore.labelling import Label
from progmem.explore.place import Place, Stretch
from progmem.explore.session import Change, Session
from progmem.explore.time_axis import TimeAxis

SIMILAR = 10
T = TypeVar("T")
NOTHING = Cells(np.empty((0, 2), dtype=np.int64), np.empty(0))


class Findings:
    """An index, its recordings and the labels of a session."""

    def __init__(
        self, idx: explore.Index, recordings: Sequence[Recording], session: Session
    ) -> None:
        self.idx, self.recordings, self.session = idx, recordings, session
        self.names = [recording.name for recording in recordings]
        self.lengths = [len(recording.values) for recording in recordings]
        self.axes = [TimeAxis(recording) for recording in recordings]
        self.axis_of = dict(zip(self.names, self.axes, strict=True))
        columns = columns_of(recordings) or idx.channels.columns
        units = next((r.units for r in recordings if r.units), idx.channels.units)
        self.channels = [
            (columns[i] if i < len(columns) else f"channel {i}")
            + (f" ({units[i]})" if i < len(units) and units[i] else "")
            for i in range(recordings[0].values.shape[1])
        ]
        first = len(COVARIATES) if has_calendar(columns) else 0
        self.shown = list(range(first, len(self.channels)))  # those that are not a calendar
        self._work: dict[Any, Future[Any]] = {}
        self._found = 0  # pieces of work that are done
        self._locked = threading.Lock()
        self._pools = {wait: ThreadPoolExecutor(1) for wait in (False, True)}

    def close(self) -> None:
        """Begin no more work."""
        for pool in self._pools.values():
            pool.shutdown(cancel_futures=True)

    def begin(self) -> None:
        """Begin to work out what the page shows first, before somebody opens it."""
        self.ribbons(0)
        self.map_figure("states", None)
        self.suggestion()

    @property
    def revision(self) -> int:
        """Grows whenever a page has something new to show."""
        return self.session.revision + self._found

    def stretch(self, place: Place) -> Stretch | None:
        """What is marked, if anything is."""
        if place.marked is None:
            return None
        return Stretch(self.names[place.recording], *place.marked)

    def window_at(self, row: int) -> tuple[int, int, int, int]:
        """The recording of a window by its number, its samples, and the recording's length."""
        number = int(np.searchsorted(self.idx.starts, row, side="right")) - 1
        start, end = self.idx.windows(self.names[number])[row - self.idx.starts[number]]
        return number, int(start), int(end), self.lengths[number]

    def similar(self, stretch: Stretch) -> list[explore.Match]:
        """The stretches that are most like one, nearest first."""
        return explore.search(self.idx, *stretch, k=SIMILAR)

    def ribbons(self, number: int, *, wait: bool = False) -> list[Ribbon]:
        """The rows under a recording; what is not there yet is empty, unless it is waited for."""
        name, classes = self.names[number], self.session.classes
        windows = self.idx.windows(name)
        segments = self._asked(("segments", name), lambda: self.segments(name), wait=wait)
        states = self._states(wait=wait)
        surprise = self._asked(("surprise", name), lambda: self.surprise(name), wait=wait)
        regimes = max((segment.regime for segment in segments or ()), default=-1) + 1
        given = self.session.labels_of(name)
        rows = [
            Ribbon(
                "regime",
                _of_stretches(segments or (), [segment.regime for segment in segments or ()]),
                [f"regime {i + 1}" for i in range(regimes)],
                figures.STATES,
                awaited=segments is None,
            ),
            Ribbon(
                "state",
                Cells(windows, _or_nan(states.labels[name])) if states else NOTHING,
                state_names(states) if states else [],
                figures.STATES[::-1],
                awaited=states is None,
            ),
            Ribbon(
                "surprise",
                NOTHING if surprise is None else Cells(windows, _rank(surprise)),
                awaited=surprise is None,
            ),
            Ribbon(
                "label",
                _of_stretches(given, [classes.index(one.label) for one in given]),
                classes,
                self.colours,
            ),
        ]
        predicted = self.predictions()
        if predicted is not None:
            colours = [self.colour(one) for one in predicted.classes]
            cells = Cells(windows, *most_probable(predicted, name))
            rows.append(Ribbon("predicted", cells, predicted.classes, colours))
        return rows

    def segments(self, name: str) -> list[explore.Segment]:
        """The regimes of a recording; none where nothing is observed."""
        return explore.segment(self.idx, name) if self.idx.observed(name).any() else []

    def surprise(self, name: str) -> np.ndarray:
        return explore.surprise(self.idx, name)

    def predictions(self) -> explore.Predictions | None:
        """What the head says that learned from the labels so far; None with fewer than two."""
        known = self._known()
        if len({one.label for one in known}) < 2:
            return None
        key = "predictions", self.session.revision
        return self._asked(key, lambda: explore.classify(self.idx, known), wait=True)

    def suggestion(self) -> explore.Suggestion | None:
        """The stretch that is most useful to label next, as soon as it is known."""
        key = "suggestion", self.session.revision
        return self._asked(key, lambda: explore.suggest(self.idx, self._known()), wait=False)

    def name(self, stretch: Stretch, label: str) -> str:
        """Give a stretch a label; what was done, in words."""
        self.session.name(*stretch, label)
        return f"labelled {label}" if label else "no label there"

    def undo(self) -> str:
        change = self.session.undo()
        return "nothing to undo" if change is None else f"undone: {_in_words(change)}"

    def counts(self) -> str:
        """How much there is, and how much of it is labelled."""
        known = len(self._known())
        other = len(self.session.labels) - known
        said = f"{len(self.names)} recordings, {len(self.idx)} windows, {known} labels"
        return said + (f", {other} labels of other recordings are kept" if other else "")

    def colour(self, label: str) -> str:
        return self.colours[self.session.classes.index(label)]

    @property
    def colours(self) -> list[str]:
        """That of each class, in the order in which they were first used."""
        return [figures.CLASSES[i % len(figures.CLASSES)] for i in range(len(self.session.classes))]

    def map_figure(self, colour: str, stretch: Stretch | None) -> dict[str, Any]:
        """Windows on a plane, so many that it stays quick, those of ``stretch`` ringed."""
        plane = self._plane()
        if plane is None:
            return figures.awaited_map()
        rows = np.arange(0, len(plane), -(-len(plane) // figures.MAP_POINTS))
        groups, names, colours = self._groups(colour)
        rows = rows[np.isfinite(plane[rows, 0])]  # a gap has no place
        number = np.searchsorted(self.idx.starts, rows, side="right") - 1
        return figures.map_figure(
            plane[rows], groups[rows], names=names, colours=colours,
            texts=[self.names[i] for i in number], numbers=rows, rings=self.rings(stretch),
        )  # fmt: skip

    def rings(self, stretch: Stretch | None) -> list[dict[str, Any]]:
        """Where the windows of a stretch are on the map, as soon as there is one."""
        plane = self._plane()
        if plane is None or stretch is None:
            return []
        here = plane[self.idx.rows(stretch.recording)][self.idx.covered(*stretch)]
        return figures.rings(here[np.isfinite(here[:, 0])])

    def _plane(self) -> np.ndarray | None:
        return self._asked(("map", ""), lambda: np.asarray(explore.map(self.idx)), wait=False)

    def _groups(self, colour: str) -> tuple[np.ndarray, Sequence[str], Sequence[str]]:
        """A group for every window (-1: none), the groups' names and colours."""
        if colour == "recordings":
            return self.idx.recording_of, self.names, figures.CLASSES
        if colour == "states":
            states = self._states(wait=False)
            if states is not None:
                labels = np.concatenate([states.labels[name] for name in self.names])
                return labels, state_names(states), figures.STATES[::-1]
        predicted = self.predictions() if colour == "labels" else None
        if predicted is None:
            return np.full(len(self.idx), -1), [], []
        found = np.concatenate([most_probable(predicted, name)[0] for name in self.names])
        labels = np.where(np.isnan(found), -1, found)
        return labels, predicted.classes, [self.colour(one) for one in predicted.classes]

    def _states(self, *, wait: bool) -> explore.States | None:
        return self._asked(("states", ""), lambda: explore.states(self.idx), wait=wait)

    def _known(self) -> list[Label]:
        """The labels of recordings that are here."""
        names = set(self.names)
        return [one for one in self.session.labels if one.recording in names]

    def _asked(self, key: tuple[str, str | int], find: Callable[[], T], *, wait: bool) -> T | None:
        """What ``find`` gives, which is called once for a key; None until then, unless it waits.

        A key is what is asked for and of what: a recording, or a revision of the labels.
        """
        with self._locked:
            if key not in self._work:
                if isinstance(key[1], int):  # nobody asks for labels as they were
                    self._work = {k: work for k, work in self._work.items() if k[0] != key[0]}
                # what is waited for does not queue behind what takes long
                self._work[key] = self._pools[wait].submit(find)
                if not wait:
                    self._work[key].add_done_callback(self._tell)
            work = self._work[key]
        return work.result() if wait or work.done() else None

    def _tell(self, _: Any) -> None:
        self._found += 1


def state_names(states: explore.States) -> list[str]:
    """What states are called: a number, and how much of all recordings is like that."""
    return [f"state {i + 1}, {share:.0%} of all" for i, share in enumerate(states.share)]


def most_probable(predicted: explore.Predictions, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The number of each window's class and its probability, NaN in gaps."""
    share = predicted.probability(name)
    return np.where(np.isnan(share), np.nan, predicted.probabilities[name].argmax(1)), share


def _of_stretches(stretches: Sequence[Any], numbers: Sequence[int]) -> Cells:
    spans = np.array([(one.start, one.end) for one in stretches], dtype=np.int64)
    return Cells(spans.reshape(-1, 2), np.array(numbers, dtype=np.float64))


def _or_nan(numbers: np.ndarray) -> np.ndarray:
    """Numbers of classes, NaN where there is none."""
    return np.where(numbers < 0, np.nan, numbers)


def _rank(values: np.ndarray) -> np.ndarray:
    """Levels from 0 to 1 by rank; a few odd stretches would leave no colours for the others."""
    there = np.flatnonzero(np.isfinite(values))
    level = np.full(len(values), np.nan)
    level[there[np.argsort(values[there], kind="stable")]] = np.linspace(0, 1, len(there))
    return level


def _in_words(change: Change) -> str:
    one = (change.added or change.removed)[-1]
    return f"{one.label} in {one.recording}" if change.added else "labels that were taken away"
