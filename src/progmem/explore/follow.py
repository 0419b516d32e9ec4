"""Lines of numbers as they come, from a file that grows or from standard input, for a live page.

A line is a sample: the numbers of the channels, with commas or spaces between them, or more columns
if the first line names them. An empty cell is a missing value.
"""

import math
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from progmem.data.csv_files import cell_number
from progmem.errors import InputError
from progmem.explore.live import Live
from progmem.names import printable

EVERY = 0.2  # s between two looks at a file
READ = 2**16  # bytes at a time
LONGEST = 2**20  # bytes of a line
INPUT = Path("-")  # standard input


class Lines:
    """Turns lines into samples.

    Example:
        >>> lines = Lines("sensor.csv", ["x", "y"], 2)
        >>> lines.samples([b"time,y,x", b"0,2,1", b"1,,3"]).tolist()
        [[1.0, 2.0], [3.0, nan]]
    """

    def __init__(
        self, name: str, columns: Sequence[str], channels: int, missing: Sequence[object] = ()
    ) -> None:
        self.name, self.columns, self.channels = name, columns, channels
        self.missing = [float(one) for one in missing if isinstance(one, int | float)]
        self.chosen: list[int] | None = None  # the cells that are channels
        self.number = 0  # of the last line

    def samples(self, lines: Sequence[bytes]) -> np.ndarray:
        """Samples (L, C) float32 of whole lines."""
        rows = []
        for line in lines:
            self.number += 1
            text = line.decode("utf-8-sig", errors="replace").strip()
            if not text:
                continue
            cells = [one.strip() for one in (text.split(",") if "," in text else text.split())]
            if self.chosen is None and self._is_header(cells):
                continue
            rows.append(self._sample(cells))
        values = np.array(rows, dtype=np.float32).reshape(-1, self.channels)
        values[np.isin(values, np.array(self.missing, dtype=np.float32))] = np.nan
        return values

    def _is_header(self, cells: list[str]) -> bool:
        """Whether the first line names columns; which cells are channels is known from then on."""
        names = any(cell_number(cell) is None for cell in cells)
        if names and self.columns and set(self.columns) <= set(cells):
            self.chosen = [cells.index(name) for name in self.columns]
        elif len(cells) == self.channels:
            self.chosen = list(range(self.channels))
        else:
            wanted = ", ".join(self.columns) or f"{self.channels} channels"
            raise InputError(
                f"{self.name} has lines of {len(cells)} cells, and the model needs {wanted}; name "
                "them in the first line, or leave the others out"
            )
        return names

    def _sample(self, cells: list[str]) -> list[float]:
        chosen = self.chosen or []
        found = [cell_number(cells[i]) if i < len(cells) else None for i in chosen]
        sample = [x for x in found if x is not None and not math.isinf(x)]
        if len(sample) < self.channels:
            raise InputError(
                f"line {self.number} of {self.name} is no sample of {self.channels} numbers: "
                f"{printable(','.join(cells))[:60]!r}; it is followed no more"
            )
        return sample


def check_source(source: Path) -> None:
    """Refuse what cannot be followed, before anything is worked out."""
    if source != INPUT and not source.is_file():
        raise InputError(f"there is no file {source} to follow; - is standard input")


@contextmanager
def following(live: Live, source: Path, missing: Sequence[object] = ()) -> Iterator[None]:
    """Give ``live`` what comes from a file or from standard input, in the background."""
    stop = threading.Event()
    name = "standard input" if source == INPUT else str(source)
    lines = Lines(name, live.columns, live.channels, missing)

    def follow() -> None:
        try:
            for found in _lines(source, stop):
                values = lines.samples(found)
                if len(values):
                    live.push(values)
            live.said = "" if stop.is_set() else f"{name} has ended"
        except (InputError, OSError) as error:
            live.said = str(error)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        if source != INPUT:  # a read of standard input does not end before a line comes
            thread.join()


def _lines(source: Path, stop: threading.Event) -> Iterator[list[bytes]]:
    """Whole lines, some at a time; a line that is not ended yet is waited for."""
    rest = b""
    for block in _blocks(source, stop):
        *whole, rest = (rest + block).split(b"\n")
        if len(rest) > LONGEST:
            raise InputError(f"{source} has a line of more than {LONGEST:,} bytes; is it text?")
        if whole:
            yield whole


def _blocks(source: Path, stop: threading.Event) -> Iterator[bytes]:
    if source == INPUT:
        while not stop.is_set() and (block := os.read(sys.stdin.fileno(), READ)):
            yield block
        return
    with source.open("rb") as file:
        while not stop.is_set():
            if block := file.read(READ):
                yield block
            elif source.stat().st_size < file.tell():
                raise InputError(f"{source} has become shorter; it is followed no more")
            else:
                stop.wait(EVERY)
