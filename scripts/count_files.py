"""How many files of progmem one pretraining update passes through, and how large its packages are.

    python scripts/count_files.py

The code that is imported is counted. A short run on made recordings trains on the CPU with the
default objectives (PCL is off where spans are hidden). From the end of one of its optimiser steps
to the end of the next, each file with a function that runs is noted, that of the training loop
included. Everything that only the set-up, the end or a checkpoint needs stays out of it, and so
does code that only runs when it is imported.
"""

import contextlib
import sys
import tempfile
from collections import Counter
from io import StringIO
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from torch.optim.optimizer import register_optimizer_step_post_hook

import progmem
from progmem.config import read_config
from progmem.data.recordings import Recording
from progmem.training.pretrain import pretrain

PACKAGE = Path(progmem.__file__).parent
FIRST = 5  # the optimiser step after which the counted update begins
SETTINGS = [
    "model.size=tiny", "train.batch_size=8", "train.epochs=5", "train.device=cpu",
    "train.log_every=1",
]  # fmt: skip


class OneUpdate:
    """An optimiser hook that notes the files of progmem that run between two steps."""

    def __init__(self) -> None:
        self.steps = 0
        self.files: set[Path] = set()

    def __call__(self, *_: Any) -> None:
        self.steps += 1
        if self.steps == FIRST:
            sys.setprofile(self.note)
        elif self.steps == FIRST + 1:
            sys.setprofile(None)

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        for running in (frame, frame.f_back):  # the caller may have begun before the update
            if running is not None:
                path = Path(running.f_code.co_filename)
                if path.is_relative_to(PACKAGE):
                    self.files.add(path)


def passed_through() -> set[Path]:
    rng = np.random.default_rng(0)
    recordings = [Recording(str(i), rng.normal(size=(96 - i, 2))) for i in range(16)]
    recordings[3].values[10:30] = np.nan
    update = OneUpdate()
    hook = register_optimizer_step_post_hook(update)
    try:
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(StringIO()):
            pretrain(recordings, Path(folder) / "run", read_config(None, SETTINGS))
    finally:
        hook.remove()
    assert update.steps > FIRST, "the run ended before the update that is counted"
    return update.files


def main() -> None:
    passed = passed_through()
    files, lines, opened = Counter[str](), Counter[str](), Counter[str]()
    for path in sorted(PACKAGE.rglob("*.py")):
        folder = path.relative_to(PACKAGE).parent
        name = folder.parts[0] if folder.parts else "(top)"
        files[name] += 1
        lines[name] += len(path.read_text().splitlines())
        opened[name] += path in passed
    print(f"{'package':12}  files  lines  in an update")
    for name in sorted(files):
        print(f"{name:12}  {files[name]:5}  {lines[name]:5}  {opened[name]:5}")
    print(f"{'all':12}  {files.total():5}  {lines.total():5}  {opened.total():5}")
    print()
    print(", ".join(sorted(str(path.relative_to(PACKAGE)) for path in passed)))


if __name__ == "__main__":
    main()
