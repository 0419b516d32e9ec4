"""Trials that are counted: what must not happen does not, and would be seen if it did."""

import sys

import numpy as np
import pytest

from benchmarks import soak
from progmem.errors import InputError
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


@pytest.mark.slow
def test_a_sample_of_all_trials_ends_well(tmp_path, monkeypatch, capsys):
    counts = ["--flips", "150", "--calls", "300", "--samples", "400000"]
    monkeypatch.setattr(sys, "argv", ["soak", *counts, "--out", str(tmp_path)])
    soak.main()
    rows = record.read(tmp_path / "soak/cpu.json")["rows"]
    bad = {
        end: row["ended"][end] for row in rows for end in row.get("ended", {}) if end in soak.BAD
    }
    assert bad and not any(bad.values()), capsys.readouterr().out
    assert rows[-1]["grown_mb"] < 1
