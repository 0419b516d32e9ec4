"""Where a page is: a recording, the samples in view, and the stretch that is marked.

Each move gives another place. A page keeps its own, so that two pages can look at two places. What
is there of a recording is a range of samples: of a stream the first ones are gone.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

LEAST_VIEW = 8  # samples
AROUND = 6  # times the length of a stretch are in view when it is gone to


class Stretch(NamedTuple):
    """A stretch of a recording, in samples."""

    recording: str
    start: int
    end: int


class Place(NamedTuple):
    """A recording by its number, the view ``first`` to ``last``, and what is marked in it, if any.

    Example:
        >>> place = Place.whole(0, range(1000)).marking(100, 150)
        >>> place.next([range(1000), range(400)])
        Place(recording=0, first=0, last=1000, start=150, end=200, at_end=True)
    """

    recording: int
    first: int
    last: int
    start: int | None = None
    end: int | None = None
    at_end: bool = False  # the view ends with the recording, and goes on with it if it grows

    @classmethod
    def whole(cls, recording: int, there: range) -> "Place":
        return cls(recording, there.start, there.stop, at_end=True)

    @classmethod
    def of(cls, kept: Mapping[str, Any] | None, parts: Sequence[range], home: int = 0) -> "Place":
        """What a browser has kept, if it fits these recordings; else recording ``home``, whole."""
        try:
            place = cls(**dict(kept or {}))
            there = parts[place.recording]
            if 0 <= (place.start or 0) < there.start:  # a stream has forgotten it
                place = place.unmarked()
            if 0 <= place.first < there.start < place.last:
                place = place.seeing(place.first, place.last, there)
            pieces = [(place.first, place.last), place.marked or (place.first, place.last)]
            if all(there.start <= first < last <= there.stop for first, last in pieces):
                return place
        except (TypeError, IndexError):
            pass
        return cls.whole(home, parts[home])

    @property
    def marked(self) -> tuple[int, int] | None:
        return None if self.start is None or self.end is None else (self.start, self.end)

    def seeing(self, first: int, last: int, there: range) -> "Place":
        """The same recording from ``first`` to ``last``, as far as it is there."""
        size = max(LEAST_VIEW, min(last - first, len(there)))
        first = max(there.start, min(first, there.stop - size))
        last = min(there.stop, first + size)
        return self._replace(first=first, last=last, at_end=last == there.stop)

    def following(self, there: range, least: int) -> "Place | None":
        """At the end of a stream that has grown, if the view was there before."""
        if not self.at_end:
            return None
        size = max(self.last - self.first, least)
        return self.seeing(there.stop - size, there.stop, there)

    def marking(self, start: int, end: int) -> "Place":
        return self._replace(start=start, end=end)

    def unmarked(self) -> "Place":
        return self._replace(start=None, end=None)

    def at(self, recording: int, start: int, end: int, there: range) -> "Place":
        """A stretch of a recording, marked, in the middle of a view about as wide as before."""
        size = max(self.last - self.first, AROUND * (end - start))
        if recording != self.recording:
            size = AROUND * (end - start)
        elif self.first <= start and end <= self.last:
            return self.marking(start, end)
        first = (start + end - size) // 2
        place = self._replace(recording=recording).seeing(first, first + size, there)
        return place.marking(start, end)

    def next(self, parts: Sequence[range], size: int = 1) -> "Place":
        """The stretch behind the marked one, as long as it; at the end the next recording's first.

        ``size`` is the length where nothing is marked yet.
        """
        if self.marked is None:
            return self._first_in_view(parts, size)
        start, end = self.marked
        size, recording = end - start, self.recording
        if end + size // 2 >= parts[recording].stop:
            recording = (recording + 1) % len(parts)
            end = parts[recording].start
        there = parts[recording]
        stop = min(end + size, there.stop)
        return self.at(recording, max(there.start, min(end, stop - 1)), stop, there)

    def previous(self, parts: Sequence[range], size: int = 1) -> "Place":
        """The stretch before the marked one; at the beginning the last of the recording before."""
        if self.marked is None:
            return self._first_in_view(parts, size)
        start, end = self.marked
        size, recording = end - start, self.recording
        if start - size // 2 <= parts[recording].start:
            recording = (recording - 1) % len(parts)
            start = parts[recording].stop
        there = parts[recording]
        return self.at(recording, max(there.start, start - size), start, there)

    def _first_in_view(self, parts: Sequence[range], size: int) -> "Place":
        stop = min(self.first + size, parts[self.recording].stop)
        return self.marking(self.first, stop)
