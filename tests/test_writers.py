"""Everything that is written: where the disk is full or may not be written, one line names the file
and what is kept, and nothing is lost or left lying about.

An error is raised by the operating system's own calls, at each of those that write: opening a file
to write, making a folder, renaming.
"""

import errno
import hashlib
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import progmem
from progmem import explore
from progmem.data.recordings import Recording
from progmem.embed import embed
from progmem.errors import WriteError
from progmem.explore.session import Session
from progmem.files import UNFINISHED
from progmem.model import export
from progmem.probes import own_labels
from progmem.probes.own_data import LabelProbe
from progmem.report import record
from progmem.report.html import Section, write_report
from progmem.training import run_folder

ERRORS = {errno.ENOSPC: "No space left", errno.EROFS: "Read-only file", errno.EDQUOT: "uota exceed"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Disk:
    """Counts what writes into a folder, and lets one of these fail."""

    def __init__(self):
        self.folder, self.count, self.fails, self.number = None, 0, None, errno.ENOSPC
        sys.addaudithook(self.hook)  # for good, so there is one for all tests

    def watch(self, folder, *, fails=None, number=errno.ENOSPC):
        self.folder, self.count, self.fails, self.number = folder, 0, fails, number

    def hook(self, event, arguments):
        if self.folder is None or event not in ("open", "os.mkdir", "os.rename"):
            return
        path = arguments[0]
        if not isinstance(path, str | bytes | os.PathLike):
            return
        reads = event == "open" and not (arguments[2] or 0) & WRITING
        told = event == "open" and arguments[1] and os.fsdecode(path).endswith("lock")
        there = event == "os.mkdir" and Path(os.fsdecode(path)).is_dir()
        if reads or told or there or not os.fsdecode(path).startswith(str(self.folder)):
            return  # what a lock says of its holder may be missing
        self.count += 1
        if self.count == self.fails:
            raise OSError(self.number, os.strerror(self.number), path)


DISK = Disk()


@pytest.fixture(scope="module")
def writers():
    """By name: what writes a path, each time with other content."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, 48, 2)).astype(np.float32)
    recordings = [Recording(str(i), values) for i, values in enumerate(x)]
    cfg = progmem.ModelConfig(channels=2, dim=16, heads=2, blocks=1)
    models = [progmem.PMT(cfg) for _ in range(2)]
    probes = [LabelProbe(models[0]).fit(x, (np.arange(6) + i) % 2) for i in range(2)]
    encoders = [
        progmem.PMTEncoder(size="tiny", steps=1, seed=i).fit(x.transpose(0, 2, 1)) for i in range(2)
    ]
    found = [probe.predict(list(x)) for probe in probes]
    one = progmem.ModelConfig(channels=1, size="tiny", patch_stride=1)
    forecasters = [progmem.PMTForecaster(progmem.PMT(one)) for _ in range(2)]
    for forecaster in forecasters:
        forecaster.fit(rng.normal(size=300)).predict(2)

    def stream(path, i):
        made = progmem.Stream(models[0])
        made.push(torch.from_numpy(x[i : i + 1]))
        made.save(path)

    def session(path, i):
        with Session(path) as made:
            made.name("0", i, 20, f"label {len(made.labels)}")

    def exported(path, i):
        models[i].export(path.with_suffix(".pt2"))

    return {
        "a result": lambda path, i: record.write(path, {"rows": [i]}),
        "a result in a new folder": lambda path, i: record.write(path / str(i), {"rows": [i]}),
        "a report": lambda path, i: write_report(path, "T", str(i), [Section("a", "b")]),
        "what a run notes": lambda path, i: run_folder.write_noted(path, {"name": i}),
        "predictions": lambda path, i: own_labels._write(path, recordings, recordings, found[i]),
        "a stream": stream,
        "a session": session,
        "an index": lambda path, i: explore.index(models[i], recordings[:2], path),
        "a model": lambda path, i: models[i].save(path),
        "a probe": lambda path, i: probes[i].save(path),
        "PMTEncoder": lambda path, i: encoders[i].save(path),
        "PMTForecaster": lambda path, i: forecasters[i].save(path),
        "an exported model": exported,
        "embed": lambda path, i: embed(models[i], recordings, path / str(i), log=None),
    }  # fmt: skip


NAMES = ["a result", "a result in a new folder", "a report", "what a run notes", "predictions",
         "a stream", "a session", "an index", "a model", "a probe", "PMTEncoder", "PMTForecaster",
         "an exported model", "embed"]  # fmt: skip


def content(folder):
    """What is in a folder, but for locks that nobody holds and folders that are empty."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def not_compiled(form, example, path):
    path.write_bytes(str(sum(float(p.sum()) for p in form.parameters())).encode())
    return form


@pytest.mark.parametrize("name", NAMES)
def test_what_cannot_be_written_is_one_line_and_loses_nothing(name, writers, tmp_path, monkeypatch):
    monkeypatch.setitem(export.FORMATS, ".pt2", not_compiled)
    assert writers.keys() == {*NAMES}
    write, path = writers[name], tmp_path / "a/path"
    path.parent.mkdir()
    write(path, 0)
    before = content(tmp_path)
    again = tmp_path.parent / f"{tmp_path.name}-counted"
    (again / "a").mkdir(parents=True)
    write(again / "a/path", 0)
    DISK.watch(again)
    write(again / "a/path", 1)
    count = DISK.count
    DISK.watch(None)
    assert count >= 2, "nothing was watched"
    for fails in sorted({*range(1, min(count, 4) + 1), count // 2 + 1, count}):
        number = list(ERRORS)[fails % len(ERRORS)]
        DISK.watch(tmp_path, fails=fails, number=number)
        try:
            with pytest.raises(WriteError) as caught:
                write(path, 1)
        finally:
            DISK.watch(None)
        said = str(caught.value)
        assert caught.value.errno == number and ERRORS[number] in said and "\n" not in said
        assert "a/path" in said and said.endswith(("is kept", "of it is left")), said
        assert content(tmp_path) == before, (fails, said)
        assert not [p for p in tmp_path.rglob(f"{UNFINISHED}*") if not p.name.endswith("lock")]
    write(path, 1)
    assert content(tmp_path) != before
    assert not [*Path(tmp_path).rglob(f"{UNFINISHED}*")]
