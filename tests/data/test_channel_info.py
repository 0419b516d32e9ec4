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
    whole = index[index.level == "sequence"]
    assert whole[["row", "series", "start", "end"]].values.tolist() == [
        [0, "a", 0, 40], [1, "b", 0, 25],
    ]  # fmt: skip


@pytest.fixture(scope="module")
def dated_model():
    """A model of two channels that was trained with time covariates."""
    model = progmem.PMT(progmem.ModelConfig(channels=9, size="tiny"))
    columns = (*progmem.data.dates.COVARIATES, "load", "heat")
    model.info = ChannelInfo(columns=columns, units=("",) * 9, rate=1 / 3600)
    return model


def test_a_model_with_covariates_says_how_to_give_them(dated_model):
    x = torch.randn(1, 240, 2)
    message = (
        r"9 channels, got 2: the first 7 are the time covariates .* give their dates by dates="
    )
    with pytest.raises(InputError, match=message):
        dated_model.encode(x)
    with pytest.raises(InputError, match=message):
        dated_model.encode([x[0]])
    with pytest.raises(InputError, match=message):
        progmem.Stream(dated_model).push(x)


def test_dates_are_as_good_as_covariates_put_there_by_hand(dated_model):
    x = np.random.default_rng(0).normal(size=(2, 240, 2))
    x[0, 50:70] = np.nan
    later = DATES + pd.Timedelta("31D")
    each = [progmem.data.time_covariates(dates) for dates in (DATES, later)]
    by_hand = np.concatenate([np.stack(each), x], axis=2)
    expected = dated_model.encode(by_hand).tokens
    same = dated_model.encode(np.concatenate([np.stack(each[:1] * 2), x], axis=2)).tokens
    assert torch.equal(dated_model.encode(x, dates=DATES).tokens, same)
    for source in (x, torch.from_numpy(x), list(x)):
        z = dated_model.encode(source, dates=[DATES, later.astype(str).tolist()])
        assert torch.equal(z.tokens, expected)
    half = torch.from_numpy(x).bfloat16()  # in which no day of a year after the 256th is a number
    last = pd.date_range("2024-12-25", periods=240, freq="min")
    covariates = progmem.data.time_covariates(last)
    whole = np.concatenate([np.stack([covariates] * 2), half.double().numpy()], axis=2)
    assert torch.equal(
        dated_model.encode(half, dates=last).tokens, dated_model.encode(whole).tokens
    )
    assert torch.equal(dated_model.encode(by_hand, dates=DATES).tokens, expected)  # not once more
    stream = progmem.Stream(dated_model, batch_size=2)
    parts = [
        stream.push(x[:, i : i + 50], dates=[DATES[i : i + 50], later[i : i + 50]])
        for i in range(0, 240, 50)
    ]
    tokens = torch.cat([part.tokens for part in (*parts, stream.finish())], dim=1)
    torch.testing.assert_close(tokens, expected, atol=1e-5, rtol=0)


def test_recordings_bring_names_and_dates_of_their_own(dated_model):
    x = np.random.default_rng(0).normal(size=(240, 2))
    table = pd.DataFrame(x, DATES, ["load", "heat"])
    found = progmem.read([table, table[:200]])
    z = dated_model.encode(found)
    alone = dated_model.encode(x[None], dates=DATES).tokens
    torch.testing.assert_close(z.tokens[:1], alone, atol=1e-5, rtol=0)
    assert z.channels.columns[-2:] == ("load", "heat")
    for level, spans in (("tokens", z.token_spans), ("memory", z.window_spans)):
        assert (z.times(level, series=1) == DATES[spans[:, 0].numpy()]).all()
    assert torch.equal(dated_model.encode(list(found)).tokens, z.tokens)  # in a list too
    with pytest.raises(InputError, match="has 'heat' where the model has 'load'"):
        dated_model.encode(progmem.read(table[["heat", "load"]]))
    with pytest.raises(InputError, match="bring their own dates; leave dates out"):
        dated_model.encode(found, dates=DATES)


def test_an_encoding_knows_seconds_where_it_knows_no_dates(dated_model):
    model = progmem.PMT(progmem.ModelConfig(channels=1, size="tiny"))
    z = model.encode(np.zeros((1, 40, 1)))
    assert z.channels is None and z.calendars is None
    with pytest.raises(InputError, match="neither dates nor a rate are known"):
        z.times()
    with pytest.raises(InputError, match=r"level must be tokens or memory, .* got 'sequence'"):
        z.times("sequence")
    model.info = ChannelInfo(("load",), ("kW",), 50.0)
    assert model.encode(np.zeros((1, 40, 1))).times()[:2].tolist() == [0, 0.04]
    z = model.encode(np.zeros((1, 40, 1)), dates=DATES[:40])  # a model without covariates
    assert z.times()[1] == DATES[2] and z.channels.units == ("kW",)
    stream = progmem.Stream(model)
    assert stream.push(np.zeros((1, 40, 1))).channels == model.info
    with pytest.raises(InputError, match="this model sees no dates; leave them out"):
        stream.push(np.zeros((1, 40, 1)), dates=DATES[:40])


@pytest.mark.parametrize(
    "dates, message",
    [
        (DATES[:100], "give one date per sample: 240 samples, 100 dates"),
        (DATES.delete(7).append(DATES[-1:] + pd.Timedelta("1h")), "dates must be regular"),
        (range(240), "dates must be dates such as .* got numbers"),
        ([DATES, DATES, DATES], "dates for each of the 2 series, or for all, got 3"),
    ],
)
def test_dates_that_do_not_fit_are_refused(dated_model, dates, message):
    with pytest.raises(InputError, match=message):
        dated_model.encode(np.zeros((2, 240, 2)), dates=dates)


def test_dates_of_a_chunk_that_do_not_fit_are_refused(dated_model):
    stream = progmem.Stream(dated_model)
    with pytest.raises(InputError, match="each of the 9 samples of a chunk, got 3"):
        stream.push(np.zeros((1, 9, 2)), dates=DATES[:3])
    with pytest.raises(InputError, match="got 2, of which some are missing"):
        stream.push(np.zeros((1, 2, 2)), dates=pd.DatetimeIndex([None, DATES[0]]))
    assert stream.samples == 0


def test_a_damaged_note_of_channels_is_refused(tmp_path, monkeypatch):
    model = progmem.PMT(progmem.ModelConfig(channels=1, size="tiny"))
    model.info = ChannelInfo(columns=(3,))
    model.save(tmp_path / "model")
    with pytest.raises(ModelFolderError, match="columns in its note"):
        progmem.load(tmp_path / "model")


def test_an_estimator_knows_what_its_tables_call_the_channels(files, tmp_path):
    table = pd.read_csv("load.csv", index_col="date", parse_dates=True).replace(-9999, np.nan)
    settings = tuple(text for text in SMALL if text.startswith(("model", "data")))
    encoder = progmem.PMTEncoder(steps=1, device="cpu", settings=settings).fit(table)
    encoder.save("kept")
    assert progmem.load("kept/model").info.columns == ("load", "heat")
    assert progmem.load("kept/model").info.rate == pytest.approx(1 / 3600)
    asks = (*settings, "data.covariates=true")
    dated = progmem.PMTEncoder(steps=1, device="cpu", settings=asks).fit(table)
    assert dated.model_.info.has_calendar and dated.model_.cfg.channels == 9
    assert dated.transform(table).shape == encoder.transform(table).shape
    with pytest.raises(InputError, match="fitted on 9 channels, got 2; 7 of them come from dates"):
        dated.transform([table.to_numpy().T])


def test_a_run_is_an_encoder_that_reads_as_it_was_trained(files):
    command = ["pretrain", "load.csv", "-o", "run", *SMALL, "--missing=-9999"]
    assert main([*command, "data.covariates=true"]) == 0
    assert main(["embed", "run/model", "load.csv", "-o", "out"]) == 0
    encoder = progmem.PMTEncoder.from_run("run")
    for file in ("load.csv", "swapped.csv"):  # the channels are put into their order by name
        sequence = encoder.transform(file, level="sequence")
        np.testing.assert_allclose(sequence, np.load("out/sequence.npy"), atol=1e-6)
