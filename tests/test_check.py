"""What `progmem check` finds in a user's files, and that it says nothing where all is well."""

import json

import numpy as np
import pandas as pd
import pytest

from progmem.check import check, check_lines
from progmem.cli import main
from progmem.data import quality
from progmem.data.quality import inspect
from progmem.data.reader import read
from progmem.data.recordings import Recording
from progmem.model.saving import gpu_or_cpu
from progmem.training.defaults import DEFAULTS


def values(length=3000, channels=3):
    rng = np.random.default_rng(0)
    return rng.normal(size=(length, channels)) * [1, 5, 0.1] + [20, 1000, 0]


def weather(x):
    dates = pd.date_range("2024-01-01", periods=len(x), freq="10min", name="date")
    return pd.DataFrame(x, index=dates, columns=["T", "p", "wv"])


def spoilt():
    x = values()
    x[100:103, 1] = -9999
    x[500:560, 2] = 0
    x[[7, 900, 950], 0] = 500
    return x


def test_nothing_is_odd_in_plain_measurements():
    for x in (
        values(),
        np.random.default_rng(1).standard_cauchy((3000, 1)),
        np.random.default_rng(2).integers(0, 2, (3000, 1)),  # a switch
        np.repeat([0, 1, 0], 1000)[:, None],
        np.random.default_rng(3).exponential(size=(9, 2)),
    ):
        found = inspect(read(x))
        assert [channel.odd for channel in found.channels] == [()] * x.shape[1]
        assert found.missing == [0] and found.copies == [] and found.constant == [()]


@pytest.mark.parametrize("chunk", [7, 2**18])
def test_numbers_that_may_mean_missing_are_found(monkeypatch, chunk):
    monkeypatch.setattr(quality, "CHUNK", chunk)
    temperature, pressure, wind = inspect(read(spoilt())).channels
    assert [(o.value, o.samples, o.longest, o.far) for o in temperature.odd] == [(500, 3, 1, True)]
    assert [(o.value, o.samples, o.longest, o.far) for o in pressure.odd] == [(-9999, 3, 3, True)]
    assert [(o.value, o.samples, o.longest, o.far) for o in wind.odd] == [(0, 60, 60, False)]


@pytest.mark.parametrize("chunk", [7, 2**18])
def test_gaps_copies_constant_and_empty_recordings_are_found(monkeypatch, chunk):
    monkeypatch.setattr(quality, "CHUNK", chunk)
    x = values(200)
    gappy, still, part = x.copy(), x.copy(), x.copy()
    gappy[[3, 4, 5, 9]] = np.nan
    still[:, 1] = 7
    part[0, 0] = np.nan
    empty = np.full((50, 3), np.nan)
    found = inspect([Recording(str(i), v) for i, v in enumerate((x, gappy, still, empty, part, x))])
    assert found.missing == [0, 4, 0, 50, 0, 0] and found.longest_gap == [0, 3, 0, 50, 0, 0]
    assert found.constant[2] == ("channel 1",) and found.copies == [["0", "5"]]
    assert found.channels[0].missing == pytest.approx((4 + 50 + 1) / 1050)


def test_the_report_names_what_a_user_should_look_at(tmp_path):
    weather(spoilt()).assign(still=3.0).to_csv(tmp_path / "a.csv")
    weather(values()).assign(still=3.0).to_csv(tmp_path / "b.csv")
    weather(values()).assign(still=3.0).to_csv(tmp_path / "copy.csv")
    (tmp_path / "readme.pdf").touch()
    found = check(tmp_path)
    text = "\n".join(check_lines(found))
    default = DEFAULTS[gpu_or_cpu()]
    for line in (
        "recordings: 3, samples: 3000 (9000 in all)", "rate: a sample every 600 s",
        "dates: 2024-01-01 00:00:00 to 2024-01-21 19:50:00, 3 of 3 recordings",
        "skipped files that are no recordings: readme.pdf",
        "look at: p is -9999 in 3 samples, up to 3 in a row, far from all others: if that means "
        "missing, read with --missing=-9999",
        "look at: wv is 0 in 60 samples, up to 60 in a row: if that means missing",
        "look at: channels that never vary: still",
        "look at: recordings with the same samples: b, copy",
        "training would see 18 rows of 512 samples and make "
        f"{default.steps} steps of a {default.size} model, about ",
    ):  # fmt: skip
        assert line in text
    assert found["training"]["seconds"] > 0


def test_a_command_prints_lines_or_json(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    weather(spoilt()[:300]).to_csv("a.csv", sep=";")
    assert main(["check", "a.csv", "--sep", ";", "--missing=-9999", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["recordings"] == 1 and found["series"][0]["start"] == "2024-01-01 00:00:00"
    assert [c["name"] for c in found["channels"]] == ["T", "p", "wv"]
    assert found["channels"][1]["odd"] == []
    assert found["training"]["rows"] == 16  # one recording alone is cut
    weather(spoilt()[:100]).to_csv("short.csv")
    assert main(["check", "short.csv", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "training needs at least 2 rows" in found["training"]["refused"]
    np.save("none.npy", np.full((30, 2), np.nan))
    assert main(["check", "none.npy"]) == 0
    out = capsys.readouterr().out
    assert "recordings without an observed value: none" in out
    assert "training would refuse this: " in out
    assert main(["check", "nowhere"]) == 2


def test_what_an_option_repairs_is_told_of_and_the_rest_is_read(tmp_path, monkeypatch, capsys):
    """A file with a row twice and a row left out is reported whole, with both options."""
    monkeypatch.chdir(tmp_path)
    table = weather(values(400))
    pd.concat([table[:200], table[199:300], table[310:]]).to_csv("odd.csv", sep=";")
    assert main(["check", "odd.csv", "--sep=;"]) == 0
    out = capsys.readouterr().out
    assert "look at: refused without --drop-duplicates: odd.csv: date must increase: row 200" in out
    assert "look at: refused without --fill-gaps: odd.csv: dates must be regular: from" in out
    assert "look at: recordings with gaps of up to 10 samples: odd" in out
    again = out.splitlines()[-1].removeprefix("next: progmem ")
    assert again == "pretrain odd.csv --sep=';' --fill-gaps --drop-duplicates -o run"
    assert "samples: 400 (400 in all)" in out
    pd.concat([table[200:], table[:200]]).to_csv("disorder.csv")
    assert main(["check", "disorder.csv"]) == 2  # no option puts it in order
    assert "is not after" in capsys.readouterr().err
