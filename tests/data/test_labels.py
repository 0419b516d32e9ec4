"""Files of labels: of recordings or of pieces of them, by samples or dates."""

import csv

import numpy as np
import pandas as pd
import pytest

import progmem
from progmem.cli import main
from progmem.data.labels import label_series, origins_of
from progmem.data.reader import read
from progmem.errors import InputError
from progmem.probes import comparison, own_data


def dated_waves(folder, recordings=4, length=400):
    """Recordings whose first half is slow and whose second half is fast, by the minute."""
    folder.mkdir()
    time = np.arange(length)
    speed = np.where(time < length // 2, 0.1, 0.8)
    dates = pd.date_range("2024-01-01", periods=length, freq="min")
    rng = np.random.default_rng(0)
    for i in range(recordings):
        x = np.sin(np.cumsum(speed) + i)[:, None] + 0.1 * rng.normal(size=(length, 2))
        table = pd.DataFrame(x, columns=["a", "b"]).assign(date=dates)
        table.to_csv(folder / f"r{i}.csv", index=False)


PIECES = [(0, 90, "slow"), (100, 190, "slow"), (210, 300, "fast"), (310, "", "fast")]


def pieces_csv(path, *, dated=False):
    lines = ["series,start,end,label"]
    first = pd.Timestamp("2024-01-01")
    for i in range(4):
        for start, end, label in PIECES:
            if dated:
                start = first + pd.Timedelta(minutes=start)
                end = end and first + pd.Timedelta(minutes=end)
            lines.append(f"r{i},{start},{end},{'' if i == 3 else label}")
    path.write_text("\n".join(lines))


def test_pieces_of_recordings_are_labelled_by_samples_or_dates(tmp_path):
    dated_waves(tmp_path / "many")
    recordings = read(tmp_path / "many")
    found = []
    for dated in (False, True):
        pieces_csv(tmp_path / "labels.csv", dated=dated)
        found.append(label_series(recordings, tmp_path / "many", tmp_path / "labels.csv"))
    for series in found:
        assert [r.name for r in series.recordings[:4]] == [
            "r0[0:90]", "r0[100:190]", "r0[210:300]", "r0[310:400]"
        ]  # fmt: skip
        assert series.labels.tolist() == ["slow", "slow", "fast", "fast"] * 3 + [""] * 4
        assert origins_of(series.recordings).tolist() == [f"r{i}" for i in range(4) for _ in PIECES]
    piece = found[1].recordings[5]
    np.testing.assert_array_equal(piece.values, recordings[1].values[100:190])
    assert (piece.start, str(piece.calendar.start)) == (100, "2024-01-01 01:40:00")


@pytest.mark.parametrize(
    "text, message",
    [
        ("series,start,end,label\nr0,5,3,a\n", r"row 1: r0 has samples 0 to 400, .* from 5 to 3"),
        ("series,start,end,label\nr0,,401,a\n", "r0 has samples 0 to 400, got .* from 0 to 401"),
        (
            "series,start,end,label\nr0,\u00b2,9,a\n",
            "'\u00b2' is neither a number of a sample nor a d",
        ),
        ("series,start,end,label\nrx,0,3,a\n", "names 'rx', which is not in"),
        (
            "series,start,label\nr0,noon,a\n",
            "row 1: 'noon' is neither a number of a sample nor a d",
        ),
        ("start,end,label\n0,3,a\n", "has pieces, but no column 'series'"),
        ("series,start,end,label\nr0,0,3,a\nr0,0,3,b\n", r"names r0\[0:3\] more than once"),
    ],
)
def test_pieces_that_cannot_be_are_named(tmp_path, text, message):
    dated_waves(tmp_path / "many", 1)
    (tmp_path / "labels.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        label_series(read(tmp_path / "many"), tmp_path / "many", tmp_path / "labels.csv")


@pytest.mark.parametrize("head", ["series,label", "series, label", '"series","label"'])
def test_white_space_and_quotation_marks_are_no_part_of_labels_or_of_their_name(tmp_path, head):
    """People write a blank after a comma, and R writes quotation marks."""
    for name in "abc":
        np.save(tmp_path / f"{name}.npy", np.zeros((50, 2)))
    path = tmp_path / "labels.csv"
    path.write_text(f"{head}\na, run\nb,run \nc, \n")
    found = read(tmp_path)
    assert found.names == ["a", "b", "c"] and found.skipped == ("labels.csv",)
    assert label_series(found, tmp_path, path).labels.tolist() == ["run", "run", ""]


def test_a_date_needs_a_recording_with_dates(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((50, 2)))
    (tmp_path / "labels.csv").write_text("series,start,label\nx,2024-01-01,a\n")
    with pytest.raises(InputError, match="'2024-01-01' is no number of a sample, and x has no dat"):
        label_series(read(tmp_path / "x.npy"), tmp_path / "x.npy", tmp_path / "labels.csv")


def test_pieces_are_classified_and_folds_keep_a_recording_together(tmp_path, monkeypatch, capsys):
    progmem.PMT(progmem.ModelConfig(channels=2, size="tiny")).save(tmp_path / "model")
    monkeypatch.delitem(comparison.BASELINES, "MiniRocket")  # which takes too long
    dated_waves(tmp_path / "many")
    pieces_csv(tmp_path / "labels.csv")
    monkeypatch.chdir(tmp_path)
    seen = []
    real = own_data.draw_folds
    monkeypatch.setattr(own_data, "draw_folds", lambda y, r: seen.append(r) or real(y, r))
    arguments = ["many", "--labels", "labels.csv", "--model", "model", "-o", "p.csv"]
    assert main(["classify", *arguments]) == 0
    assert "12 labelled series, 2 classes" in capsys.readouterr().out
    with open("p.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 16 and list(rows[-1].values())[:3] == ["r3", "310", "400"]
    assert [row["label"] for row in rows] == ["slow", "slow", "fast", "fast"] * 4
    assert seen[0].tolist() == [f"r{i}" for i in range(3) for _ in PIECES]
