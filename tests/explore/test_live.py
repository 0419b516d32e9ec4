"""A stream beside recordings: described as they are, held in bounded memory, read line by line."""

import os
import re
import time
from contextlib import closing

import numpy as np
import pytest
from page_setup import KIND, made_recordings, small_model

pytest.importorskip("dash")
pytest.importorskip("plotly_resampler")

from progmem import explore
from progmem.cli import main
from progmem.data.recordings import Recordings
from progmem.errors import InputError
from progmem.explore import follow, live
from progmem.explore.exports import TABLES, export
from progmem.explore.findings import Findings
from progmem.explore.follow import Lines, following
from progmem.explore.live import Live, Tail
from progmem.explore.page import moved
from progmem.explore.place import Place, Stretch
from progmem.explore.session import Session
from progmem.pooling import fit_feature_stats


@pytest.fixture(scope="module")
def model():
    model = small_model()
    model.feature_stats.set(fit_feature_stats(model, [made_recordings(1)[0].values]))
    return model


@pytest.fixture(scope="module")
def recordings():
    return Recordings(tuple(r._replace(rate=50.0) for r in made_recordings()))


@pytest.fixture(scope="module")
def idx(model, recordings, tmp_path_factory):
    return explore.index(model, recordings, tmp_path_factory.mktemp("index") / "index")


@pytest.fixture
def stream(model, idx):
    return Live(model, idx, "sensor")


def lag(stream):
    """Samples that a window waits for: what its convolutions reach to, and windows behind it."""
    return stream._windows.detail.reach + 3 * stream.base.window


@pytest.mark.parametrize("cuts", [[1200], [1, 7, 300, 5, 600], [37] * 40])
def test_a_window_of_a_stream_has_the_vector_that_the_index_has(stream, idx, recordings, cuts):
    values, at = recordings.values[1], 0  # the one with a gap
    for cut in cuts:
        stream.push(values[at : at + cut])
        at += cut
    now = stream.now.idx
    n = len(now.windows("sensor"))
    assert n >= (min(at, 1200) - lag(stream)) // idx.window > 5
    np.testing.assert_allclose(now.vectors("sensor"), idx.vectors("walk 1")[:n], atol=2e-5)
    np.testing.assert_array_equal(now.observed("sensor"), idx.observed("walk 1")[:n])
    np.testing.assert_array_equal(now.windows("sensor"), idx.windows("walk 1")[:n])
    same = explore.search(now, "sensor", 100, 200, k=1)[0]
    assert (same.recording, same.distance) == ("walk 1", pytest.approx(0, abs=1e-3))


def test_however_long_a_stream_is_no_more_than_its_newest_windows_are_held(
    stream, idx, recordings, monkeypatch
):
    monkeypatch.setattr(live, "HELD", 20)
    h = idx.window
    values = np.tile(recordings.values[0], (4, 1))
    for at in range(0, len(values), 100):
        stream.push(values[at : at + 100])
        now = stream.now
        held = now.recording.values.held
        assert len(held) <= 20 * h + lag(stream) + 100
        assert len(now.idx) - len(idx) <= 20
    windows = now.idx.windows("sensor")
    assert len(windows) == 20 and windows[-1, 1] > 4800 - lag(stream)
    first = int(windows[0, 0])
    np.testing.assert_array_equal(now.recording.values[first : first + 9, 1], values[first:][:9, 1])
    assert np.isnan(now.recording.values[0:50, 0]).all()
    found = explore.search(now.idx, "sensor", first + h, first + 3 * h, k=30)
    assert all(one.start >= first for one in found if one.recording == "sensor")
    with pytest.raises(InputError, match=f"of sensor the samples {first} to .* are held"):
        now.idx.covered("sensor", 0, h)


def test_a_part_of_a_tail_is_as_long_as_asked_for():
    tail = Tail(np.arange(20.0, dtype=np.float32).reshape(10, 2), gone=5)
    assert len(tail) == 15
    np.testing.assert_array_equal(tail[slice(3, 8), 1], [np.nan, np.nan, 1, 3, 5])
    assert tail[slice(14, 99), 0].tolist() == [18.0]
    assert len(Tail(np.empty((0, 2), dtype=np.float32), 0)[slice(0, 8), 0]) == 8


def test_a_page_shows_a_stream_beside_recordings_and_labels_of_it_count(
    stream, idx, recordings, tmp_path, monkeypatch
):
    monkeypatch.setattr(live, "HELD", 40)
    with (
        Session(tmp_path) as session,
        closing(Findings(idx, recordings, session, stream)) as findings,
    ):
        number = findings.home
        assert findings.names[number] == "sensor" and findings.ribbons(number) == []
        stream.push(recordings.values[0][:1000])
        findings.name(Stretch("sensor", 0, KIND), "slow")
        findings.name(Stretch("sensor", KIND, 2 * KIND), "fast")
        ribbons = {one.name: one for one in findings.ribbons(number, wait=True)}
        assert list(ribbons) == ["regime", "state", "surprise", "label", "predicted"]
        state = ribbons["state"].cells
        known = explore.states(idx).labels["walk 0"][: len(state.value)]
        assert np.mean(state.value == known) > 0.9
        predicted = ribbons["predicted"].cells
        kind = predicted.spans.mean(1) % (2 * KIND) < KIND
        assert np.mean((predicted.value == 1) == kind) > 0.8
        before = findings.live_revision, findings.revision
        assert not any(one.awaited for one in findings.ribbons(number))
        for file in TABLES:
            export(findings, tmp_path / file)
        place = Place.whole(number, findings.parts[number])
        stream.push(recordings.values[0][1000:])
        grown = moved(findings, place, "grown", findings.live_revision)
        assert (grown.last, grown.last - grown.first) == (1200, 60 * idx.window)
        assert moved(findings, place._replace(at_end=False), "grown", 9) is None
        assert moved(findings, Place.whole(0, range(1200)), "grown", 9) is None
        findings.ribbons(number)
        wait_for(lambda: findings.live_revision > before[0])  # so that the page draws what is new
        assert findings.revision == before[1]  # and leaves the map as it is
        newer = {one.name: one for one in findings.ribbons(number)}
        assert newer["predicted"].cells.spans[-1, 1] > predicted.spans[-1, 1]
        for _ in range(4):  # until the stretches with labels are forgotten
            stream.push(recordings.values[0])
        assert findings.parts[number].start > 2 * KIND
        assert findings.predictions() is None and "2 labels" in findings.counts()


def test_lines_are_samples():
    def read(text, columns=("x", "y"), channels=2, missing=()):
        return Lines("s", columns, channels, missing).samples(text.encode().split(b"\n")).tolist()

    nan = pytest.approx(float("nan"), nan_ok=True)
    assert read("1,2\n3,4\n") == [[1, 2], [3, 4]]
    assert read("1 2\n\n 3\t4\r") == [[1, 2], [3, 4]]
    assert read("\ufefft,y,x\n0,2,1") == [[1, 2]]
    assert read("a,b\n1,2") == [[1, 2]]
    assert read("1,\nNaN,-999", missing=(-999, "no")) == [[1, nan], [nan, nan]]
    assert read("5\n6", columns=(), channels=1) == [[5], [6]]
    assert read("") == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2,3", "s has lines of 3 cells, and the model needs x, y; name them"),
        ("a,b,c\n1,2,3", "s has lines of 3 cells"),
        ("1,2\n1", "line 2 of s is no sample of 2 numbers: '1'; it is followed no more"),
        ("1,2\n1,two", "line 2 of s is no sample of 2 numbers: '1,two'"),
        ("1,2\n1,inf", "line 2 of s is no sample"),
        ("1,2\n\x1b[2J,<b>", "no sample"),
    ],
)
def test_a_line_that_is_no_sample_is_told_by_its_number(text, message):
    with pytest.raises(InputError, match=re.escape(message)) as told:
        Lines("s", ["x", "y"], 2).samples(text.encode().split(b"\n"))
    assert "\n" not in str(told.value) and "\x1b" not in str(told.value)


def wait_for(what):
    for _ in range(200):
        if what():
            return
        time.sleep(0.02)
    raise AssertionError("it did not come")


def test_a_file_that_grows_is_followed_and_half_a_line_is_waited_for(stream, tmp_path, monkeypatch):
    monkeypatch.setattr(follow, "EVERY", 0.01)
    path = tmp_path / "sensor.csv"
    path.write_text("1,2\n3,4\n5")

    def held():
        return stream.now.recording.values.held.tolist()

    with following(stream, path):
        wait_for(lambda: len(held()) == 2)
        with path.open("a") as file:
            file.write("0,6\n7,8\n")
        wait_for(lambda: len(held()) == 4)
        assert held() == [[1, 2], [3, 4], [50, 6], [7, 8]] and stream.said == ""
        path.write_text("1,2\n")
        wait_for(lambda: stream.said)
        assert stream.said == f"{path} has become shorter; it is followed no more"
    assert len(held()) == 4


def test_standard_input_is_followed_until_it_ends(stream, monkeypatch):
    read, write = os.pipe()
    with open(read) as source:
        monkeypatch.setattr("sys.stdin", source)
        with following(stream, follow.INPUT):
            os.write(write, b"1,2\n3,4\n")
            wait_for(lambda: len(stream.now.recording.values.held) == 2)
            os.close(write)
            wait_for(lambda: stream.said)
            assert stream.said == "standard input has ended"


def test_what_has_no_lines_is_not_gathered_for_ever(stream, tmp_path, monkeypatch):
    monkeypatch.setattr(follow, "LONGEST", 1000)
    (tmp_path / "x").write_bytes(b"\0" * 5000)
    with following(stream, tmp_path / "x"):
        wait_for(lambda: stream.said)
    assert "is it text?" in stream.said


def test_a_model_that_cannot_follow_says_why(idx, model):
    with pytest.raises(InputError, match="an untrained model cannot follow a stream"):
        Live(small_model(), idx, "sensor")
    assert Live(model, idx, "walk 1").name == "walk 1 (live)"


def test_a_file_that_is_not_there_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["explore", "--follow", "nowhere.csv"]) == 2
    errors = capsys.readouterr().err
    assert "there is no file nowhere.csv to follow; - is standard input" in errors
    assert errors.count("\n") == 1
