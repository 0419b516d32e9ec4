"""The labels that a person gives to stretches of recordings, on disk after every change.

A stretch has one label at a time: a new one takes its samples from older ones. Every change can be
undone, also after the page was closed. Several pages of one program share a session; another
program is kept out by a lock.
"""

import threading
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from progmem import artifact
from progmem.errors import ArtifactError, InputError
from progmem.explore.labelling import Label
from progmem.files import held, make_folder
from progmem.names import printable

MOST_CHANGES = 10_000  # that can be undone


class Change(NamedTuple):
    """What one action took away and put in its place."""

    removed: tuple[Label, ...]
    added: tuple[Label, ...]


class Session:
    """The labels in ``folder`` and how to take them back.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, Session(folder) as session:
        ...     session.name("night 1", 0, 100, "asleep")
        ...     session.name("night 1", 80, 120, "awake")
        ...     print(*session.labels, sep=chr(10))
        ...     session.undo()
        ...     len(session.labels)
        Label(recording='night 1', start=0, end=80, label='asleep')
        Label(recording='night 1', start=80, end=120, label='awake')
        1
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.path = self.folder / "session.safetensors"
        self.labels: list[Label] = []  # in order of recording and start
        self.changes: list[Change] = []
        self.revision = 0  # grows with every change, so that pages see that there was one
        self._writing = threading.RLock()
        self._open = ExitStack()
        if self.folder.is_file():
            raise InputError(f"{self.folder} is a file; give a folder for the labels")
        make_folder(self.folder)
        self._open.enter_context(held(self.folder / ".lock", self.folder, wait=0))
        try:
            if self.path.exists():
                self._read()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let another program use the folder; everything is on disk already."""
        self._open.close()

    @property
    def classes(self) -> list[str]:
        """The names that are in use, in the order of their first use."""
        found = dict.fromkeys(one.label for change in self.changes for one in change.added)
        present = {one.label for one in self.labels}
        return [name for name in found if name in present] + sorted(present - found.keys())

    def name(self, recording: str, start: int, end: int, label: str) -> None:
        """Give the samples from ``start`` up to ``end`` a label; an empty one takes theirs away."""
        label = printable(label.strip())
        if not 0 <= start < end:
            raise InputError(
                f"a stretch begins at 0 or later and ends after that, got {start}-{end}"
            )
        new = [Label(recording, start, end, label)] if label else []
        with self._writing:
            over = [o for o in self.labels_of(recording) if o.start < end and start < o.end]
            rest = [o._replace(end=start) for o in over if o.start < start]
            rest += [o._replace(start=end) for o in over if o.end > end]
            self._change(Change(tuple(over), (*rest, *new)))

    def add(self, labels: Iterable[Label]) -> int:
        """Take over labels of stretches that have none yet, in one change; how many were."""
        with self._writing:
            new: list[Label] = []
            for one in labels:
                known = [*self.labels_of(one.recording), *(o for o in new if o[0] == one[0])]
                if not any(o.start < one.end and one.start < o.end for o in known):
                    new.append(one)
            if new:
                self._change(Change((), tuple(new)))
            return len(new)

    def undo(self) -> Change | None:
        """Take the last change back; what it was, or None where there is nothing to undo."""
        with self._writing:
            if not self.changes:
                return None
            last = self.changes[-1]
            self._set(_replaced(self.labels, last.added, last.removed), self.changes[:-1])
            return last

    def labels_of(self, recording: str) -> list[Label]:
        return [one for one in self.labels if one.recording == recording]

    def _change(self, change: Change) -> None:
        if set(change.removed) == set(change.added):
            return
        labels = _replaced(self.labels, change.removed, change.added)
        self._set(labels, [*self.changes, change][-MOST_CHANGES:])

    def _set(self, labels: list[Label], changes: list[Change]) -> None:
        """Write first: where the disk is full, the page and the disk still agree."""
        note = {"labels": labels, "changes": changes}
        artifact.write(self.path, "session", {}, note)
        self.labels, self.changes = labels, changes
        self.revision += 1

    def _read(self) -> None:
        try:
            note = artifact.read(self.path, "session").note
            self.labels = _labels(artifact.noted(note, "labels", list, self.path, of=list))
            changes = artifact.noted(note, "changes", list, self.path, of=list)
            self.changes = [Change(*map(tuple, map(_labels, change))) for change in changes]
        except (ArtifactError, TypeError, ValueError) as error:
            raise InputError(
                f"{error}; move {self.path} away, and begin anew with --labels of an exported file"
            ) from error


def _labels(rows: Sequence[Any]) -> list[Label]:
    found = [Label(*row) for row in rows]
    for one in found:
        names = isinstance(one.recording, str) and isinstance(one.label, str)
        if not (names and type(one.start) is int and type(one.end) is int):
            raise ValueError(f"{str(one)[:80]} is no label")
    return found


def _replaced(
    labels: Sequence[Label], removed: Iterable[Label], added: Iterable[Label]
) -> list[Label]:
    gone = set(removed)
    return sorted([*(one for one in labels if one not in gone), *added])
