"""Where a page is: a recording, the samples in view, and the stretch that is marked.

Each move gives another place. A page keeps its own, so that two pages can look at two places.
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
        >>> place = Place.whole(0, 1000).marking(100, 150)
        >>> place.next([1000, 400])
        Place(recording=0, first=0, last=1000, start=150, end=200)
    """

    recording: int
    first: int
    last: int
    start: int | None = None
    end: int | None = None

    @classmethod
    def whole(cls, recording: int, length: int) -> "Place":
        return cls(recording, 0, length)

    @classmethod
    def of(cls, kept: Mapping[str, Any] | None, lengths: Sequence[int]) -> "Place":
        """What a browser has kept, if it fits these recordings; else the first one, whole."""
        try:
            place = cls(**dict(kept or {}))
            length = lengths[place.recording]
            whole = 0 <= place.first < place.last <= length
            if whole and (place.marked is None or 0 <= place.marked[0] < place.marked[1] <= length):
                return place
        except (TypeError, IndexError):
            pass
        return cls.whole(0, lengths[0])

    @property
    def marked(self) -> tuple[int, int] | None:
        return None if self.start is None or self.end is None else (self.start, self.end)

    def seeing(self, first: int, last: int, length: int) -> "Place":
        """The same recording from ``first`` to ``last``, as far as it goes."""
        size = max(LEAST_VIEW, min(last - first, length))
        first = max(0, min(first, length - size))
        return self._replace(first=first, last=min(length, first + size))

    def marking(self, start: int, end: int) -> "Place":
        return self._replace(start=start, end=end)

    def unmarked(self) -> "Place":
        return self._replace(start=None, end=None)

    def at(self, recording: int, start: int, end: int, length: int) -> "Place":
        """A stretch of a recording, marked, in the middle of a view about as wide as before."""
        size = max(self.last - self.first, AROUND * (end - start))
        if recording != self.recording:
            size = AROUND * (end - start)
        elif self.first <= start and end <= self.last:
            return self.marking(start, end)
        first = (start + end - size) // 2
        there = self._replace(recording=recording).seeing(first, first + size, length)
        return there.marking(start, end)

    def next(self, lengths: Sequence[int], size: int = 1) -> "Place":
        """The stretch behind the marked one, as long as it; at the end the next recording's first.

        ``size`` is the length where nothing is marked yet.
        """
        if self.marked is None:
            return self._first_in_view(lengths, size)
        start, end = self.marked
        size, recording = end - start, self.recording
        if end + size // 2 >= lengths[recording]:
            recording, end = (recording + 1) % len(lengths), 0
        stop = min(end + size, lengths[recording])
        return self.at(recording, max(0, min(end, stop - 1)), stop, lengths[recording])

    def previous(self, lengths: Sequence[int], size: int = 1) -> "Place":
        """The stretch before the marked one; at the beginning the last of the recording before."""
        if self.marked is None:
            return self._first_in_view(lengths, size)
        start, end = self.marked
        size, recording = end - start, self.recording
        if start - size // 2 <= 0:
            recording = (recording - 1) % len(lengths)
            start = lengths[recording]
        return self.at(recording, max(0, start - size), start, lengths[recording])

    def _first_in_view(self, lengths: Sequence[int], size: int) -> "Place":
        stop = min(self.first + size, lengths[self.recording])
        return self.marking(self.first, stop)
