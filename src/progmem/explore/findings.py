"""What is found in recordings, for a page: each function of `progmem.explore` asked once.

A page never waits for what takes long: that is worked out one after the other beside it, and the
revision grows when it is there. What labels say is asked again when they have changed.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import numpy as np

from progmem import explore
from progmem.data.dates import COVARIATES, has_calendar
from progmem.data.recordings import Recording, columns_of
from progmem.explore import figures
from progmem.explore.figures import Cells, Ribbon
from progmem.explore.folder import Index
from progmem.explore.labelling import Label
from progmem.explore.live import Live, LiveIndex
from progmem.explore.place import Place, Stretch
from progmem.explore.session import Change, Session
from progmem.explore.stretches import means_around
from progmem.explore.time_axis import TimeAxis

SIMILAR = 10
LATER = 0.5  # s that a suggestion waits, so that predictions are drawn first
LIVE_EVERY = {"surprise": 2, "segments": 20}  # windows of a stream until it is asked again
T = TypeVar("T")
NOTHING = Cells(np.empty((0, 2), dtype=np.int64), np.empty(0))


class Work(NamedTuple):
    """Something that is worked out, or was."""

    version: Any  # of what it depends on
    result: Future[Any]
    former: Any = None  # what stands in its place until it is there


class Findings:
    """An index, its recordings, the labels of a session, and a stream if one is followed."""

    def __init__(
        self,
        idx: Index,
        recordings: Sequence[Recording],
        session: Session,
        live: Live | None = None,
    ) -> None:
        self.base, self.session, self.live = idx, session, live
        self._recordings = list(recordings)
        self.names = [r.name for r in recordings] + ([live.name] if live else [])
        self.home = 0 if live is None else len(recordings)  # what a page shows first
        self._axes = [TimeAxis(recording) for recording in recordings]
        columns = columns_of(recordings) or idx.channels.columns
        units = next((r.units for r in recordings if r.units), idx.channels.units)
        self.channels = [
            (columns[i] if i < len(columns) else f"channel {i}")
            + (f" ({units[i]})" if i < len(units) and units[i] else "")
            for i in range(recordings[0].values.shape[1])
        ]
        first = len(COVARIATES) if has_calendar(columns) else 0
        self.shown = list(range(first, len(self.channels)))  # those that are not a calendar
        self._work: dict[Any, Work] = {}
        self._found = 0  # pieces of work that are done
        self._found_live = 0  # of those that are about a stream
        self._locked, self._closed = threading.Lock(), threading.Event()
        self._pools = {wait: ThreadPoolExecutor(1) for wait in (False, True)}

    def close(self) -> None:
        """Begin no more work."""
        self._closed.set()
        for pool in self._pools.values():
            pool.shutdown(cancel_futures=True)

    @property
    def idx(self) -> Index:
        return self.base if self.live is None else self.live.now.idx

    @property
    def recordings(self) -> list[Recording]:
        return self._recordings + ([self.live.now.recording] if self.live else [])

    @property
    def parts(self) -> list[range]:
        """The samples of each recording; of a stream those that are held."""
        found = [range(len(recording.values)) for recording in self._recordings]
        if self.live is not None:
            values = self.live.now.recording.values
            found.append(range(values.gone, len(values)))
        return found

    @property
    def axes(self) -> list[TimeAxis]:
        return self._axes + ([TimeAxis(self.live.now.recording)] if self.live else [])

    @property
    def axis_of(self) -> dict[str, TimeAxis]:
        return dict(zip(self.names, self.axes, strict=True))

    def begin(self) -> None:
        """Begin to work out what the page shows first, before somebody opens it."""
        self.ribbons(self.home)
        self.map_figure("states", None)
        self.suggestion()

    @property
    def revision(self) -> int:
        """Grows whenever a page has something new to show."""
        return self.session.revision + self._found + bool(self.live and self.live.said)

    @property
    def live_revision(self) -> int:
        """Grows whenever there is something new about a stream."""
        return self._found_live + (self.parts[-1].stop if self.live else 0)

    def stretch(self, place: Place) -> Stretch | None:
        """What is marked, if anything is."""
        if place.marked is None:
            return None
        return Stretch(self.names[place.recording], *place.marked)

    def window_at(self, row: int) -> tuple[int, int, int, range]:
        """The recording of a window of the map, its samples, and those of the recording."""
        number = int(np.searchsorted(self.base.starts, row, side="right")) - 1
        start, end = self.base.windows(self.names[number])[row - self.base.starts[number]]
        return number, int(start), int(end), self.parts[number]

    def similar(self, stretch: Stretch) -> list[explore.Match]:
        """The stretches that are most like one, nearest first."""
        return explore.search(self.idx, *stretch, k=SIMILAR)

    def ribbons(self, number: int, *, wait: bool = False) -> list[Ribbon]:
        """The rows under a recording; what is not there yet is empty, unless it is waited for."""
        name, classes, idx = self.names[number], self.session.classes, self.idx
        if name not in idx.names:
            return []  # a stream without a window
        windows = idx.windows(name)
        last = int(windows[-1, 1]) // idx.window if self._is_live(name) else None
        segments = self._follows("segments", name, last, wait, lambda: self.segments(name, idx))
        surprise = self._follows(
            "surprise", name, last, wait, lambda: (windows, self.surprise(name, idx))
        )
        states = self._states(wait=wait)
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
                Cells(windows, _or_nan(states.of(idx, name))) if states else NOTHING,
                state_names(states.found) if states else [],
                figures.STATES[::-1],
                awaited=states is None,
            ),
            Ribbon(
                "surprise",
                NOTHING if surprise is None else Cells(surprise[0], _rank(surprise[1])),
                awaited=surprise is None,
            ),
            Ribbon(
                "label",
                _of_stretches(given, [classes.index(one.label) for one in given]),
                classes,
                self.colours,
            ),
        ]
        predicted = self.predictions(idx)
        if predicted is not None:
            colours = [self.colour(one) for one in predicted.classes]
            cells = Cells(windows, *most_probable(predicted, name))
            rows.append(Ribbon("predicted", cells, predicted.classes, colours))
        return rows

    def segments(self, name: str, idx: Index | None = None) -> list[explore.Segment]:
        """The regimes of a recording; none where nothing is observed."""
        idx = idx or self.idx
        seen = name in idx.names and idx.observed(name).any()
        return explore.segment(idx, name) if seen else []

    def surprise(self, name: str, idx: Index | None = None) -> np.ndarray:
        return explore.surprise(idx or self.idx, name)

    def predictions(self, idx: Index | None = None) -> explore.Predictions | None:
        """What the head says that learned from the labels so far; None with fewer than two."""
        idx = idx or self.idx
        known = self._known(idx)
        if len({one.label for one in known}) < 2:
            return None
        gone = idx.gone if isinstance(idx, LiveIndex) else 0
        version = self.session.revision, gone, len(idx)
        return self._asked("predictions", version, lambda: explore.classify(idx, known), wait=True)

    def suggestion(self) -> explore.Suggestion | None:
        """The stretch that is most useful to label next, as soon as it is known."""
        known = self._known(self.base)

        def find() -> explore.Suggestion:
            self._closed.wait(LATER if known else 0)
            return explore.suggest(self.base, known)

        return self._asked("suggestion", self.session.revision, find)

    def name(self, stretch: Stretch, label: str) -> str:
        """Give a stretch a label; what was done, in words."""
        self.session.name(*stretch, label)
        return f"labelled {label}" if label else "no label there"

    def undo(self) -> str:
        change = self.session.undo()
        return "nothing to undo" if change is None else f"undone: {_in_words(change)}"

    def counts(self) -> str:
        """How much there is, and how much of it is labelled."""
        here = set(self.names)
        known = sum(one.recording in here for one in self.session.labels)
        other = len(self.session.labels) - known
        said = f"{len(self.names)} recordings, {len(self.idx)} windows, {known} labels"
        said += f", {other} labels of other recordings are kept" if other else ""
        return said + (f"; {self.live.said}" if self.live and self.live.said else "")

    def colour(self, label: str) -> str:
        return self.colours[self.session.classes.index(label)]

    @property
    def colours(self) -> list[str]:
        """That of each class, in the order in which they were first used."""
        return [figures.CLASSES[i % len(figures.CLASSES)] for i in range(len(self.session.classes))]

    def map_figure(self, colour: str, stretch: Stretch | None) -> dict[str, Any]:
        """Windows on a plane, so many that it stays quick, those of ``stretch`` ringed.

        A stream has no place there: what is like it has.
        """
        plane = self._plane()
        if plane is None:
            return figures.awaited_map()
        rows = np.arange(0, len(plane), -(-len(plane) // figures.MAP_POINTS))
        groups, names, colours = self._groups(colour)
        rows = rows[np.isfinite(plane[rows, 0])]  # a gap has no place
        number = np.searchsorted(self.base.starts, rows, side="right") - 1
        return figures.map_figure(
            plane[rows], groups[rows], names=names, colours=colours,
            texts=[self.names[i] for i in number], numbers=rows, rings=self.rings(stretch),
        )  # fmt: skip

    def map_version(self, colour: str) -> list[Any]:
        """What the map depends on, beside what is marked; while it is the same, so is the map."""
        there = [self._plane() is not None, self._states(wait=False) is not None]
        return [colour, *there, self.session.revision if colour == "labels" else 0]

    def rings(self, stretch: Stretch | None) -> list[dict[str, Any]]:
        """Where the windows of a stretch are on the map, as soon as there is one."""
        plane = self._plane()
        if plane is None or stretch is None or self._is_live(stretch.recording):
            return []
        here = plane[self.base.rows(stretch.recording)][self.base.covered(*stretch)]
        return figures.rings(here[np.isfinite(here[:, 0])])

    def _plane(self) -> np.ndarray | None:
        return self._asked("map", 0, lambda: np.asarray(explore.map(self.base)))

    def _groups(self, colour: str) -> tuple[np.ndarray, Sequence[str], Sequence[str]]:
        """A group for every window of the map (-1: none), the groups' names and colours."""
        names = self.base.names
        if colour == "recordings":
            return self.base.recording_of, names, figures.CLASSES
        if colour == "states":
            states = self._states(wait=False)
            if states is not None:
                labels = np.concatenate([states.found.labels[name] for name in names])
                return labels, state_names(states.found), figures.STATES[::-1]
        predicted = self.predictions() if colour == "labels" else None
        if predicted is None:
            return np.full(len(self.base), -1), [], []
        found = np.concatenate([most_probable(predicted, name)[0] for name in names])
        labels = np.where(np.isnan(found), -1, found)
        return labels, predicted.classes, [self.colour(one) for one in predicted.classes]

    def _states(self, *, wait: bool) -> "KnownStates | None":
        return self._asked("states", 0, lambda: KnownStates(self.base), wait=wait)

    def _is_live(self, name: str) -> bool:
        return self.live is not None and name == self.live.name

    def _known(self, idx: Index) -> list[Label]:
        """The labels of what is in the index; of a stream those that are held."""
        there = dict(zip(self.names, self.parts, strict=True))
        if isinstance(idx, LiveIndex):
            there[idx.names[-1]] = range(idx.gone, idx.gone + idx.lengths[-1])
        parts = {name: there[name] for name in idx.names}
        return [
            one
            for one in self.session.labels
            if one.recording in parts
            and parts[one.recording].start <= one.start
            and one.end <= parts[one.recording].stop
        ]

    def _follows(
        self, what: str, name: str, last: int | None, wait: bool, find: Callable[[], T]
    ) -> T | None:
        """What is asked about a recording; of a stream now and then, and the latest until then."""
        version = 0 if last is None else last // LIVE_EVERY[what]
        return self._asked((what, name), version, find, wait=wait, latest=last is not None)

    def _asked(
        self, key: Any, version: Any, find: Callable[[], T], *, wait: bool = False,
        latest: bool = False,
    ) -> T | None:  # fmt: skip
        """What ``find`` gives, which is called once for a version; None until then, or it waits.

        Args:
            key: what is asked for, and of what.
            version: of what it depends on; nobody asks for an older one.
            latest: until it is there, that of an older version is given.
        """
        with self._locked:
            work = self._work.get(key)
            if work is None or (work.version != version and (wait or work.result.done())):
                # what is waited for does not queue behind what takes long
                future = self._pools[wait].submit(find)
                former = work.result if work is not None and latest else None
                self._work[key] = work = Work(version, future, former)
                if not wait:
                    future.add_done_callback(self._tell_live if latest else self._tell)
        if wait or (work.result.done() and (latest or work.version == version)):
            return work.result.result()
        former = work.former
        return former.result() if former is not None and former.done() else None

    def _tell(self, _: Any) -> None:
        self._found += 1

    def _tell_live(self, _: Any) -> None:
        self._found_live += 1


class KnownStates:
    """The states of recordings, and those of windows that came later."""

    def __init__(self, idx: Index) -> None:
        self.found = explore.states(idx)
        means = {name: means_around(idx, name) for name in idx.names}
        self.centres = np.stack([
            np.concatenate([means[name][labels == i] for name, labels in self.found.labels.items()])
            .mean(0)
            for i in range(len(self.found.share))
        ])  # fmt: skip

    def of(self, idx: Index, name: str) -> np.ndarray:
        """The state of each window of a recording, -1 where a gap is."""
        if name in self.found.labels:
            return self.found.labels[name]
        x = means_around(idx, name)
        apart = np.square(self.centres).sum(1) - 2 * x @ self.centres.T
        return np.where(idx.observed(name), apart.argmin(1), -1)


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
