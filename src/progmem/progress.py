"""What a command is doing and how long it will take: a bar on a terminal, elsewhere lines."""

import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Log = Callable[[str], None]  # takes a line of text
Advance = Callable[[int], None]  # takes how many more pieces are done
EVERY = 5.0  # seconds between two lines


def silent(text: str) -> None:
    """A log that says nothing."""


def is_first_process() -> bool:
    """Whether this is the one of several processes that speaks, by what torchrun has told it."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def progress(what: str, total: int, *, log: Log | None, begun: bool = False) -> Iterator[Advance]:
    """Say that ``total`` pieces of work begin; call what it gives with how many more are done.

    With ``log`` None nothing is said. On a terminal `print` is in place of a bar. With ``begun``
    it was said before that they begin.
    """
    if log is None or total < 1:
        yield lambda count: None
        return
    bar = make_bar(0, total, what) if log is print else None
    if bar is None:
        yield _Lines(what, total, log, begun=begun).advance
        return
    try:
        yield lambda count: bar.advance(0, count)
    finally:
        bar.stop()


class _Lines:
    """A line at the beginning, and then one every few seconds."""

    def __init__(self, what: str, total: int, log: Log, *, begun: bool) -> None:
        self.what, self.total, self.log, self.done = what, total, log, 0
        self.began = self.said = time.perf_counter()
        if not begun:
            log(f"{what} ...")

    def advance(self, count: int) -> None:
        self.done += count
        now = time.perf_counter()
        if now - self.said >= EVERY and 0 < self.done < self.total:
            self.said = now
            left = (now - self.began) / self.done * (self.total - self.done)
            self.log(f"{self.what}: {self.done} of {self.total}, about {duration(left)} left")


def duration(seconds: float) -> str:
    """Seconds as a person says them: whole ones, or from two up minutes or hours."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def make_bar(first: int, total: int, what: str = "") -> Any:
    """A bar of rich at ``first`` of ``total``; None where there is no terminal or no rich."""
    terminal = sys.stdout is not None and sys.stdout.isatty()  # None if it is closed
    if importlib.util.find_spec("rich") is None or not terminal:
        return None
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, TextColumn("{task.description}"))
    bar.add_task(what, total=total, completed=first)
    bar.start()
    return bar
