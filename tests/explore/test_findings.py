"""What a page shows and writes, without a browser: moves, ribbons, tables, and what is refused."""

import json
import re
from contextlib import closing

import numpy as np
import pandas as pd
import pytest
from page_setup import KIND, made_recordings, small_model

pytest.importorskip("dash")
pytest.importorskip("plotly_resampler")

from progmem import explore
from progmem.cli import main
from progmem.data.recordings import Recordings
from progmem.errors import InputError
from progmem.explore import exports
from progmem.explore.exports import FILES, export
from progmem.explore.findings import Findings
from progmem.explore.page import make_app, moved
from progmem.explore.place import Place, Stretch
from progmem.explore.session import Session
from progmem.explore.start import page_of

NAME = "=<script>alert(1)</script>"


@pytest.fixture(scope="module")
def recordings():
    found = made_recordings()
    return [found[0]._replace(name=NAME, rate=50.0), *(r._replace(rate=50.0) for r in found[1:])]


@pytest.fixture(scope="module")
def idx(recordings, tmp_path_factory):
    folder = tmp_path_factory.mktemp("index") / "index"
    return explore.index(small_model(), Recordings(tuple(recordings)), folder)


@pytest.fixture
def findings(idx, recordings, tmp_path):
    with Session(tmp_path) as session, closing(Findings(idx, recordings, session)) as findings:
        yield findings


def label_two(findings):
    """The first stretch of each kind of the first recording."""
    findings.name(Stretch(NAME, 0, KIND), "slow")
    findings.name(Stretch(NAME, KIND, 2 * KIND), "fast")


def test_a_page_asks_once_for_what_takes_long_and_is_told_when_it_is_there(findings, monkeypatch):
    calls = []
    real = explore.surprise
    monkeypatch.setattr(explore, "surprise", lambda *given: calls.append(given) or real(*given))
    before = findings.revision
    first = {ribbon.name: ribbon for ribbon in findings.ribbons(0)}
    assert first["surprise"].awaited
    assert list(first) == ["regime", "state", "surprise", "label"]
    done = {ribbon.name: ribbon for ribbon in findings.ribbons(0, wait=True)}
    findings.ribbons(0)
    assert len(calls) == 1 and findings.revision > before
    windows = findings.idx.windows(NAME)
    assert not any(ribbon.awaited for ribbon in done.values())
    np.testing.assert_array_equal(done["state"].cells.spans, windows)
    assert np.nanmax(done["surprise"].cells.value) == 1.0
    assert len(done["regime"].cells.spans) == len(findings.segments(NAME))


def test_two_classes_are_predicted_at_once_and_a_change_predicts_again(findings):
    findings.name(Stretch(NAME, 0, KIND), "slow")
    assert findings.predictions() is None and len(findings.ribbons(0)) == 4
    findings.name(Stretch(NAME, KIND, 2 * KIND), "fast")
    shown = findings.ribbons(2)[-1]
    assert shown.name == "predicted" and tuple(shown.names) == ("fast", "slow")
    middle = shown.cells.spans.mean(1) % (2 * KIND) < KIND
    assert np.mean((shown.cells.value == 1) == middle) > 0.85
    findings.undo()
    assert findings.predictions() is None


def test_a_gap_has_no_prediction_no_place_and_no_regime(findings):
    label_two(findings)
    ribbons = {ribbon.name: ribbon.cells for ribbon in findings.ribbons(1, wait=True)}
    at = findings.idx.windows("walk 1").mean(1)
    gap = (at > 780) & (at < 880)
    for name in ("state", "surprise", "predicted"):
        assert np.isnan(ribbons[name].value[gap]).all(), name
    findings._asked("map", 0, lambda: explore.map(findings.idx), wait=True)
    for colour in ("states", "labels", "recordings"):
        drawn = findings.map_figure(colour, Stretch("walk 1", 700, 900))
        numbers = [row for trace in drawn["data"] for row in trace["customdata"]]
        assert not set(np.flatnonzero(gap) + findings.idx.starts[1]) & set(numbers)


def test_a_recording_of_nothing_but_gaps_and_one_shorter_than_a_window_are_shown(tmp_path):
    values = made_recordings(1)[0].values
    given = {"good": values, "gaps": np.full((400, 2), np.nan), "short": values[:30]}
    idx = explore.index(small_model(), given, tmp_path / "index")
    recordings = Recordings(tuple(explore.folder.read_with(given)))
    with Session(tmp_path) as session, closing(Findings(idx, recordings, session)) as findings:
        findings.name(Stretch("good", 0, KIND), "slow")
        findings.name(Stretch("good", KIND, 2 * KIND), "fast")
        for number in range(3):
            assert len(findings.ribbons(number, wait=True)) == 5
        for file in FILES:
            export(findings, tmp_path / file)


def test_tables_have_times_and_what_is_written_can_be_labels_again(findings, tmp_path):
    label_two(findings)
    for file in FILES:
        export(findings, tmp_path / file)
    labels = pd.read_csv(tmp_path / "labels.csv")
    assert labels.to_dict("list") == {
        "series": [f"'{NAME}"] * 2, "start": [0, KIND], "end": [KIND, 2 * KIND],
        "label": ["slow", "fast"], "start_time": ["0 s", "4 s"], "end_time": ["4 s", "8 s"],
    }  # fmt: skip
    predicted = pd.read_csv(tmp_path / "predictions.csv")
    assert set(predicted["label"]) == {"slow", "fast"} and (predicted["probability"] > 0.5).all()
    for _, rows in predicted.groupby("series"):
        assert (rows["start"].to_numpy()[1:] >= rows["end"].to_numpy()[:-1]).all()
    segments = pd.read_csv(tmp_path / "segments.csv")
    assert len(segments) == sum(len(findings.segments(name)) for name in findings.names)
    report = (tmp_path / "report.html").read_text()
    assert "<script" not in report and not re.search(r'(src|href)="(?!data:)', report)


def test_labels_of_recordings_that_are_not_here_are_kept(findings):
    label_two(findings)
    findings.session.name("elsewhere", 0, 10, "slow")
    assert "1 labels of other recordings are kept" in findings.counts()
    assert findings.predictions() is not None


def test_clicks_drags_and_keys_lead_to_places(findings):
    place = Place.whole(0, range(1200))
    drag = {"range": {"x": [4.0, 2.0], "y3": [0, 1]}, "points": []}
    assert moved(findings, place, "signal", drag) == place.marking(100, 200)
    zoom = {"xaxis.range[0]": 10.0, "xaxis.range[1]": 20.0}
    assert moved(findings, place, "signal", zoom) == Place(0, 500, 1000)
    assert moved(findings, place, "signal", {"autosize": True}) is None
    assert moved(findings, place, "signal", None) is None
    assert moved(findings, place, "recording", 2) == Place.whole(2, range(1200))
    assert moved(findings, place, "recording", 0) is None
    row = int(findings.idx.starts[2]) + 3
    there = moved(findings, place, "map", {"points": [{"customdata": row}]})
    assert (there.recording, *there.marked) == (2, *findings.idx.windows("walk 2")[3])
    assert moved(findings, place, {"type": "go", "to": "1-40-90"}, 1).marked == (40, 90)
    assert moved(findings, place, {"type": "go", "to": "1-40-90"}, None) is None
    assert moved(findings, Place(0, 500, 1000), "whole", 1) == place
    assert moved(findings, place, "next", 1).marked == (0, 2 * findings.idx.window)


def test_names_are_texts_wherever_the_page_has_them(findings, tmp_path):
    app = make_app(findings, tmp_path)
    with app.server.test_client() as client:
        page = client.get("/").get_data(as_text=True)
    assert "<script>alert" not in page and "alert(1)" in page


def post(app, output, inputs, state=()):
    """What a browser asks for when the first of ``inputs`` has changed."""
    given = [{"id": i, "property": p, "value": v} for (i, p), v in inputs]
    body = {
        "output": output,
        "outputs": [
            {"id": part.rpartition(".")[0], "property": part.rpartition(".")[2].split("@")[0]}
            for part in output.strip(".").split("...")
        ],
        "inputs": given,
        "changedPropIds": [f"{given[0]['id']}.{given[0]['property']}"],
        "state": [{"id": i, "property": p, "value": v} for (i, p), v in state],
    }
    with app.server.test_client() as client:
        answer = client.post("/_dash-update-component", json=body)
    assert answer.status_code == 200, answer.get_data(as_text=True)
    return json.loads(answer.get_data(as_text=True))


def test_what_goes_wrong_is_the_last_line_of_the_page(findings, tmp_path, monkeypatch):
    app = make_app(findings, tmp_path)

    def refuse(*_, **__):
        raise InputError("the index has no recording 'x'")

    monkeypatch.setattr(explore, "search", refuse)
    answer = post(
        app,
        "..similar.children...marked.children..",
        [(("stretch", "data"), [NAME, 0, 100])],
        [(("channels", "value"), [0])],
    )
    assert answer["sideUpdate"]["message"]["children"] == "the index has no recording 'x'"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "which recordings\\? Give them after nowhere"),
        (["nowhere", "X.npy"], "there is no model folder nowhere"),
        (["model", "one.npy"], "model has 2 channels, got 1"),
        (["model", "X.npy", "--labels", "other.csv"], "names 'stranger', which is not in X.npy"),
        (["model", "X.npy", "-o", "X.npy"], "X.npy is a file; give a folder"),
        (["model", "."], "progmem-explore lies in ., whose files are read as recordings"),
        (["model", "X.npy", "--port", "70000"], "--port must be a number from 0 to 65535"),
    ],
)
def test_bad_use_of_the_command_is_one_line(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small_model().save("model")
    np.save("X.npy", made_recordings(1, 400)[0].values)
    np.save("one.npy", np.zeros((400, 1), dtype=np.float32))
    (tmp_path / "other.csv").write_text("series,start,end,label\nstranger,0,9,x\n")
    assert main(["explore", *arguments]) == 2
    errors = capsys.readouterr().err
    assert re.search(message, errors) and errors.count("\n") == 1


def test_labels_of_a_file_and_of_an_earlier_page_are_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small_model().save("model")
    np.save("X.npy", made_recordings(1, 400)[0].values)
    (tmp_path / "labels.csv").write_text("series,start,end,label\nX,0,100,slow\nX,100,,fast\n")
    options = {"port": 0, "labels": tmp_path / "labels.csv"}
    for _ in range(2):
        with page_of(tmp_path / "model", tmp_path / "X.npy", tmp_path / "out", **options):
            pass
    with Session(tmp_path / "out") as session:
        assert [tuple(one) for one in session.labels] == [
            ("X", 0, 100, "slow"), ("X", 100, 400, "fast"),
        ]  # fmt: skip


def test_another_model_makes_the_index_anew_and_keeps_the_labels(tmp_path):
    np.save(tmp_path / "X.npy", made_recordings(1, 400)[0].values)
    (tmp_path / "labels.csv").write_text("series,start,end,label\nX,0,100,slow\n")
    said: list[str] = []
    for name, options in [("one", {"labels": tmp_path / "labels.csv"}), ("other", {})]:
        model = small_model()
        model.save(tmp_path / name)
        out = tmp_path / "out"
        with page_of(tmp_path / name, tmp_path / "X.npy", out, port=0, log=said.append, **options):
            pass
    assert any("index is of another model; it is made anew" in line for line in said)
    with Session(tmp_path / "out") as session:
        assert [tuple(one) for one in session.labels] == [("X", 0, 100, "slow")]


def test_a_report_names_what_is_surprising_once(findings):
    rows = exports._surprising(findings)[1:]
    assert 1 < len(rows) <= exports.TOP
    apart = explore.STRETCH * findings.idx.window / 50  # s
    starts = [(name, float(start.removesuffix(" s"))) for name, start, *_ in rows]
    for i, (name, start) in enumerate(starts):
        assert all(abs(start - s) >= apart - 1e-6 for n, s in starts[:i] if n == name)
