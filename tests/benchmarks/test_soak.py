"""Trials that are counted: what must not happen does not, and would be seen if it did."""

import hashlib
import re
import sys
import time
from functools import partial

import numpy as np
import pytest

from benchmarks import soak, soak_writers
from progmem.errors import InputError
from progmem.files import write_file
from progmem.report import record


def test_a_silent_change_and_an_unclean_answer_would_be_seen(tmp_path, capsys):
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    before = soak.digest(path.read_bytes())
    assert soak._outcome(path.read_bytes, before) == "same"
    path.write_bytes(b"abd")
    assert soak._outcome(path.read_bytes, before) == "silent"

    def refuse(odd):
        raise InputError(str(odd))

    for call, end in (
        (refuse, "refused"), (np.asarray, "answered"), (np.log, "unclean"), (str.lower, "unclean"),
    ):  # fmt: skip
        assert soak._answer(call, np.zeros(2)) == end
    assert "unclean: TypeError" in capsys.readouterr().out


def test_odd_series_are_of_every_kind_and_the_same_each_time():
    first, again = (
        [soak.odd_series(np.random.default_rng([0, i]), (3, 48, 2)) for i in range(300)]
        for _ in range(2)
    )
    assert [type(odd) for odd in first] == [type(odd) for odd in again]
    assert len({type(odd) for odd in first}) >= 9
    dtypes = {odd.dtype.str for odd in first if isinstance(odd, np.ndarray)}
    assert {"<f2", ">f4", "|O", "|b1", "<M8[s]"} <= dtypes


def test_a_writer_that_loses_something_would_be_seen(tmp_path):
    def read(path):
        assert path.read_text() in "abc"

    def halting(path):
        path.write_text("half")
        time.sleep(600)  # until it was seen, however late that is; then it is killed

    def failing(path):
        raise OSError("no")

    good = [partial(lambda text, path: write_file(path, text.encode()), text) for text in "abc"]
    other = [lambda path: write_file(path, b"d")] * 2
    for write, told in (
        (good, None),
        ([halting, halting, good[2]], "meanwhile AssertionError"),
        ([*other, good[2]], "AssertionError"),
        ([failing, *good[1:]], "exit codes"),
        ([lambda path: path.unlink(missing_ok=True)] * 2 + good[2:], "gone|No such file"),
        ([lambda path: None] * 2 + good[2:], "it holds something else"),
    ):
        known = [hashlib.sha256(b"." + text).hexdigest() for text in (b"a", b"b", b"c")]
        lost = soak_writers._race(
            soak_writers.Writers(write, read), known, before=True, kill_after=None
        )
        assert (lost is None) if told is None else re.search(told, lost), lost


def test_the_table_adds_up_what_several_seeds_have_found():
    def found(seed, silent, mb):
        row = {"part": "crafted files", "what": "npy", "ended": {"read": 3, "slow": silent},
               "most_mb": mb, "most_seconds": 0.1}  # fmt: skip
        return {"config": {"part": "crafted"}, "seeds": [seed], "rows": [row]}

    table = soak.soak_table([found(0, 0, 7), found(1, 2, 5)])
    assert table.splitlines()[2] == (
        "| crafted files | npy | 8 | 6 read; at most 7 MB, 0.1 s | 2 slow |"
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of libraries that read recordings
def test_a_sample_of_all_trials_ends_well(tmp_path, monkeypatch, capsys):
    counts = ["--flips=150", "--crafted=40", "--calls=300", "--races=12", "--stream=400000"]
    monkeypatch.setattr(sys, "argv", ["soak", *counts, "--out", str(tmp_path)])
    soak.main()
    found = {part: record.read(tmp_path / f"soak/{part}-0.json")["rows"] for part in soak.PARTS}
    ended = [row["ended"] for rows in found.values() for row in rows if "ended" in row]
    bad = [end for one in ended for end in soak.BAD if one.get(end)]
    assert len(ended) > 50 and not bad, capsys.readouterr()
    assert found["stream"][0]["grown_mb"] < 1
