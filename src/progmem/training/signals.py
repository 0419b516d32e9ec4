"""SIGTERM and Ctrl-C: finish the step, keep a checkpoint, leave with the usual exit code."""

import signal
import threading
from types import FrameType


class Stop:
    """While entered, remembers the signal that asked to stop instead of dying of it."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __enter__(self) -> "Stop":
        self.before = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self.before[number] = signal.signal(number, self._remember)
        return self

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.signal = number

    def __exit__(self, *error: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    @property
    def exit_code(self) -> int:
        """143 for SIGTERM, 130 for Ctrl-C."""
        assert self.signal is not None
        return 128 + self.signal
