"""A publisher's archive: a zip, perhaps with a zip in it, an unpacked folder, or one file."""

import io
import re
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

import numpy as np

from progmem import guard
from progmem.errors import InputError

Opener = Callable[[], IO[bytes]]
EMPTY = re.compile(r"[,\t] *[,\t]")  # blanks may be many, other separators not
EDGE = re.compile(r"[\s,]+")  # between two cells
HEAD = 2**16  # bytes; the header of a table of 370 clients fits


class Archive(NamedTuple):
    """The files of an archive by their paths in it."""

    path: Path
    members: dict[str, Opener]
    limit: Any = None  # of the memory it may take, as in `progmem.read`

    def first_line(self, member: str) -> str:
        with self.members[member]() as stream:
            lines = stream.read(HEAD).decode("utf-8", errors="replace").splitlines()
        return lines[0].removeprefix("\ufeff") if lines else ""

    def ending_in(self, *endings: str) -> list[str]:
        return [member for member in self.members if member.lower().endswith(endings)]

    def all_of(self, files: list[str]) -> dict[str, str]:
        """The path of each of ``files``, in any folder; missing ones are named in an error.

        Where some occur twice, as in a set beside its corrected version, all are taken from one
        folder, the nearest to the top.
        """
        found = {f: [m for m in self.members if f"/{m}".endswith(f"/{f}")] for f in files}
        missing = [file for file in files if not found[file]]
        if missing:
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            raise InputError(f"{self.path} has no {', '.join(missing[:3])}{more}")
        duplicate = next((places for places in found.values() if len(places) > 1), None)
        if duplicate is None:
            return {file: places[0] for file, places in found.items()}
        folders = ({p.removesuffix(file) for p in places} for file, places in found.items())
        whole = sorted(set.intersection(*folders), key=lambda folder: folder.count("/"))
        if not whole or len({folder.count("/") for folder in whole[:2]}) < len(whole[:2]):
            raise InputError(
                f"{self.path} has {' and '.join(duplicate[:3])}: which is meant? Give its folder"
            )
        return {file: whole[0] + file for file in files}

    def check_cells(self, member: str, text: str) -> None:
        """Refuse a text whose cells would take too much as texts of their own."""
        cells = len(EDGE.findall(text))
        guard.check(self.path, cells * guard.TEXT_CELL, self.limit, f"{cells} cells in {member}")

    def check_columns(self, member: str, sep: str) -> None:
        """Refuse a table of too many columns."""
        with self.members[member]() as stream:
            count = 1 + stream.readline().count(sep.encode())
        guard.check(self.path, count * guard.COLUMN, self.limit, f"{count} columns in {member}")

    def rows(self, member: str) -> list[list[str]]:
        """The cells of a text of rows, separated by blanks, tabs or commas, all rows alike."""
        with self.members[member]() as stream:
            text = stream.read().decode("utf-8-sig", errors="replace")
        self.check_cells(member, text)
        rows: list[list[str]] = []
        for number, line in enumerate(text.splitlines(), 1):
            if EMPTY.search(line):
                raise InputError(
                    f"{member} in {self.path} has an empty cell in line {number}; missing is NaN"
                )
            cells = line.replace(",", " ").split()
            if cells and rows and len(cells) != len(rows[0]):
                raise InputError(
                    f"{member} in {self.path} is ragged: line {number} has {len(cells)} values, "
                    f"the first {len(rows[0])}"
                )
            if cells:
                rows.append(cells)
        if not rows:
            raise InputError(f"{member} in {self.path} is empty")
        return rows

    def numbers(self, member: str, rows: list[list[str]] | None = None) -> np.ndarray:
        """A member's rows, or those given that were made of them, as float64 (rows, columns)."""
        rows = self.rows(member) if rows is None else rows
        try:
            return np.array(rows, dtype=np.float64)
        except ValueError as error:
            raise InputError(f"{member} in {self.path} must hold numbers: {error}") from error


@contextmanager
def open_archive(path: Path, limit: Any = None) -> Iterator[Archive]:
    """The archive at ``path``; a zip in a zip is looked into, one in a folder is not."""
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        yield Archive(path, {f.relative_to(path).as_posix(): _opener(f) for f in files}, limit)
        return
    if not path.is_file():
        raise InputError(f"there is no file or folder {path}")
    if not zipfile.is_zipfile(path):
        if path.suffix.lower() == ".zip":
            raise InputError(f"{path} is not a zip file, or only a part of one")
        yield Archive(path, {path.name: _opener(path)}, limit)
        return
    with zipfile.ZipFile(path) as outer:
        opened = [outer]
        guard.check_zip(path, opened, limit)
        members = _members(outer)
        for name in [name for name in members if name.lower().endswith(".zip")]:
            inner = zipfile.ZipFile(io.BytesIO(outer.read(name)))
            opened.append(inner)
            guard.check_zip(path, opened, limit)
            members |= {f"{name}/{member}": opener for member, opener in _members(inner).items()}
        yield Archive(path, members, limit)


def _opener(file: Path) -> Opener:
    return lambda: file.open("rb")


def _members(packed: zipfile.ZipFile) -> dict[str, Opener]:
    """Files of a zip, without the shadows that macOS puts beside them."""

    def opener(info: zipfile.ZipInfo) -> Opener:
        return lambda: packed.open(info)

    return {
        info.filename: opener(info)
        for info in packed.infolist()
        if not info.is_dir() and not PurePosixPath(info.filename).name.startswith("._")
    }
