"""Whatever goes wrong ends in one line and an exit code; --debug shows where."""

import errno
import os

import pytest
import torch

from progmem.cli import data as commands
from progmem.cli import main
from progmem.errors import ArtifactError, ConfigError, InputError, ModelFolderError, TrainingError

TOLD = [
    (InputError("no such thing"), 2, "no such thing"),
    (ConfigError("no such setting"), 2, "no such setting"),
    (ArtifactError("it is damaged"), 2, "it is damaged"),
    (ModelFolderError("no model"), 2, "no model"),
    (TrainingError("step 3: the loss"), 1, "step 3: the loss"),
    (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "x"), 1, "No space left on device"),
    (KeyboardInterrupt(), 130, "interrupted; of what was being written nothing is left"),
    (BrokenPipeError(errno.EPIPE, "Broken pipe"), 1, "what this prints is no longer read, so it"),
    (MemoryError(), 2, "there is not enough memory: MemoryError; --debug shows where"),
    (MemoryError("of 8 TiB\nin two lines"), 2, "not enough memory: of 8 TiB in two lines; --debug"),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 2, "there is not enough memory"),
    (torch.OutOfMemoryError("CUDA out of memory"), 2, "there is not enough memory"),
    (RecursionError("maximum depth"), 2, "the input is too much: RecursionError: maximum depth"),
    (OverflowError("int too large"), 2, "the input is too much: OverflowError: int too large"),
    (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), 2, "the input is too much: UnicodeDecodeE"),
    (UnicodeEncodeError("utf-8", "\ud800", 0, 1, "bad"), 2, "too much: UnicodeEncodeError"),
    (KeyError("left"), 1, "this is a bug of progmem: KeyError: 'left'; please report it"),
    (AssertionError(), 1, "this is a bug of progmem: AssertionError: AssertionError"),
]


@pytest.mark.parametrize("error, code, message", TOLD, ids=lambda part: type(part).__name__)
def test_any_error_is_one_line_and_debug_shows_where(error, code, message, monkeypatch, capsys):
    def fail(args):
        raise error

    monkeypatch.setattr(commands, "_list", fail)
    assert main(["data", "list"]) == code
    said = capsys.readouterr().err
    assert said.startswith("progmem: ") and message in said and said.count("\n") == 1
    assert main(["--debug", "data", "list"]) == code
    said = capsys.readouterr().err
    assert said.startswith("Traceback") and "raise error" in said
    assert message in said.splitlines()[-1]
