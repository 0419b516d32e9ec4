"""Names, units, rate, dates and sentinels travel with a model and with what it writes."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
import torch

import progmem
from progmem.cli import main
from progmem.data.recordings import ChannelInfo, Recording
from progmem.embed import embed
from progmem.errors import InputError, ModelFolderError

SMALL = ["model.dim=8", "model.heads=2", "model.blocks=1", "model.encoder_layers=1",
         "train.steps=1", "train.device=cpu", "data.longest=100", "data.window=60"]  # fmt: skip
DATES = pd.date_range("2024-03-29", periods=240, freq="h", name="date")


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).normal(size=(240, 2))
    x[3, 1] = -9999
    pd.DataFrame(x, DATES, ["load", "heat"]).to_csv("load.csv")
    pd.DataFrame(x[:, ::-1], DATES, ["heat", "load"]).to_csv("swapped.csv")
    return tmp_path


def test_a_model_copied_out_of_its_run_reads_as_it_was_trained(files, capsys):
    command = ["pretrain", "load.csv", "-o", "run", *SMALL, "--missing=-9999"]
    assert main([*command, "data.covariates=true"]) == 0
    shutil.copytree("run/model", "elsewhere/copy")
    model = progmem.load("elsewhere/copy")
    assert model.info.columns[7:] == ("load", "heat") and model.info.has_calendar
    assert model.info.rate == pytest.approx(1 / 3600) and model.info.missing == (-9999,)
    for folder, out in (("run/model", "one"), ("elsewhere/copy", "two")):
        assert main(["embed", folder, "load.csv", "-o", out]) == 0
    assert np.array_equal(np.load("one/tokens.npy"), np.load("two/tokens.npy"))
    assert main(["embed", "elsewhere/copy", "swapped.csv", "-o", "three"]) == 2
    assert "swapped has 'heat' where the model has 'load'" in capsys.readouterr().err


def test_covariates_are_off_unless_asked_for(files):
    assert main(["pretrain", "load.csv", "-o", "run", *SMALL]) == 0
    model = progmem.load("run/model")
    assert model.cfg.channels == 2 and model.info.columns == ("load", "heat")


def test_the_index_of_embeddings_has_real_dates(files):
    assert main(["pretrain", "load.csv", "-o", "run", *SMALL]) == 0
    assert main(["embed", "run/model", "load.csv", "-o", "out"]) == 0
    index = pd.read_csv("out/index.csv", parse_dates=["time"])
    assert list(index.columns) == ["level", "row", "series", "start", "end", "time"]
    for level, kind in (("tokens", "token"), ("memory", "window")):
        rows = index[index.level == level]
        spans = np.load(f"out/{kind}_spans.npy")
        np.testing.assert_array_equal(rows[["start", "end"]], spans)
        assert rows.row.tolist() == list(range(len(spans))) and set(rows.series) == {"load"}
        assert (rows.time.to_numpy() == DATES[spans[:, 0]].to_numpy()).all()
    note = json.loads((files / "out/series.json").read_text())
    assert note["channels"] == ["load", "heat"] and note["starts"] == ["2024-03-29 00:00:00"]
    assert note["sampling_rate"] == pytest.approx(1 / 3600)


@pytest.mark.parametrize("rate, times", [(50.0, [0.0, 0.02]), (None, [np.nan, np.nan])])
def test_without_dates_the_index_has_seconds_or_nothing(tmp_path, monkeypatch, rate, times):
    monkeypatch.setattr("progmem.embed.ROWS", 7)  # in pieces
    model = progmem.PMT(progmem.ModelConfig(channels=1, size="tiny", patch=4, patch_stride=1))
    made = [Recording(name, np.zeros((n, 1)), rate=rate) for name, n in (("a", 40), ("b", 25))]
    embed(model, made, tmp_path / "out", log=lambda _: None)
    index = pd.read_csv(tmp_path / "out/index.csv")
    tokens = index[index.level == "tokens"]
    assert tokens.series.tolist() == ["a"] * 37 + ["b"] * 22
    assert tokens.row.tolist() == list(range(59))
    np.testing.assert_allclose(tokens[tokens.series == "b"].time[:2], times)


def test_a_model_with_covariates_says_how_to_give_them(tmp_path):
    model = progmem.PMT(progmem.ModelConfig(channels=9, size="tiny"))
    columns = (*progmem.data.dates.COVARIATES, "load", "heat")
    model.info = ChannelInfo(columns=columns, units=("",) * 9, rate=1.0)
    model.save(tmp_path / "model")
    model = progmem.load(tmp_path / "model")
    x = torch.randn(1, 240, 2)
    message = (
        r"9 channels, got 2: the first 7 are the time covariates, progmem.data.time_covariates"
    )
    with pytest.raises(InputError, match=message):
        model.encode(x)
    with pytest.raises(InputError, match=message):
        model.encode([x[0]])
    with pytest.raises(InputError, match=message):
        progmem.Stream(model).push(x)
    whole = np.concatenate([progmem.data.time_covariates(DATES), x[0]], axis=1)[None]
    assert model.encode(whole).sequence.shape == (1, 64)


def test_a_damaged_note_of_channels_is_refused(tmp_path, monkeypatch):
    model = progmem.PMT(progmem.ModelConfig(channels=1, size="tiny"))
    model.info = ChannelInfo(columns=(3,))
    model.save(tmp_path / "model")
    with pytest.raises(ModelFolderError, match="columns in its note"):
        progmem.load(tmp_path / "model")
