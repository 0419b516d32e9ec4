"""Forecasting one of the paper's series: pretraining on it, its scores, tables and experiments."""

import gzip
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from forecast_setup import dated_file, small_model

from progmem.cli import main
from progmem.config import RunConfig, read_config
from progmem.data import datasets
from progmem.data.forecast_sets import HORIZONS, VARIANTS, forecast_set
from progmem.data.reader import read
from progmem.data.source import open_source
from progmem.data.windows import TrainingWindows
from progmem.errors import InputError
from progmem.losses.pairs import overlapping
from progmem.model.saving import load
from progmem.probes.forecast import probe_forecast
from progmem.report import record
from progmem.report.paper import FORECASTING
from progmem.report.tables import render

ROOT = Path(__file__).parents[2]
TINY = ["model.dim=16", "model.heads=2", "model.blocks=1", "model.patch=1", "model.patch_stride=1",
        "data.longest=201", "data.window=201", "data.hop=20", "train.epochs=1"]  # fmt: skip


@pytest.fixture
def series(tmp_path, monkeypatch):
    """A folder with a small ETTh1 of two columns, and as much of Electricity."""
    files = {
        "ETTh1": dated_file(tmp_path),
        "Electricity": dated_file(tmp_path, first="2012-01-01"),
        "Electricity321": dated_file(tmp_path, columns=("x", "OT"))._replace(
            columns=2, sha256=None
        ),
    }
    monkeypatch.setattr(datasets, "FILES", files)
    monkeypatch.delenv(datasets.DATA_VARIABLE, raising=False)
    return tmp_path


def test_a_series_is_trained_on_with_covariates_and_without_what_comes_later(series):
    (joint,), noted = open_source("ETTh1", series, "official")
    assert joint.values.shape == (260, 9) and noted == {"name": "ETTh1", "split": "official"}
    assert joint.values[30, :7].tolist() == [0, 6, 5, 2, 184, 7, 26]  # 2016-07-02 06:00
    (target,), _ = open_source("ETTh1-uni", series, "official")
    np.testing.assert_array_equal(target.values, joint.values[:, [*range(7), 8]])
    (shifted,), _ = open_source("Electricity-uni", series, "official")
    assert shifted.values[0, :7].tolist() == [0, 0, 6, 1, 1, 1, 52]  # 2012-01-01, a Sunday
    first, second = open_source("Electricity321", series, "official")[0]
    assert first.values.shape == second.values.shape == (260, 8)
    assert (first.name, second.name) == ("Electricity321 x", "Electricity321 OT")
    for ask, message in (
        (
            ("Electricity", series, "official"),
            "Electricity is trained on as Electricity-uni, which",
        ),
        (("ETTh1", series, "validation"), "ETTh1 has its own split by date, and no other"),
    ):
        with pytest.raises(InputError, match=message):
            open_source(*ask)
    with pytest.raises(InputError, match="'HAR' cannot be forecast; known: ETTh1, ETTh1-uni"):
        forecast_set("HAR", series)


def test_training_rows_that_overlap_in_time_never_repel_each_other(series):
    cfg = read_config(None, TINY).data
    rows = TrainingWindows(open_source("ETTh1", series, "official")[0], cfg)
    assert rows.start.tolist() == [0, 20, 40, 59] and set(rows.length.tolist()) == {201}
    share = overlapping(rows.recording, rows.start, rows.length)
    assert share.all()  # of 260 samples every two windows of 201 share some
    two = TrainingWindows(open_source("Electricity321", series, "official")[0], cfg)
    share = overlapping(two.recording, two.start, two.length)
    assert share[:4, :4].all() and not share[:4, 4:].any()  # clients are strangers


def test_a_series_by_name_is_pretrained_on_and_scored(series, monkeypatch, capsys):
    monkeypatch.chdir(series)
    where = ["--data-dir", str(series)]
    assert main(["pretrain", "ETTh1-uni", "-o", "run", *where, *TINY]) == 0
    probe = ["probe", "forecast", "run/model", "ETTh1-uni", *where]
    assert main([*probe, "--horizons", "24", "48"]) == 0
    printed = capsys.readouterr().out
    assert (
        "| ETTh1-uni | 24 | " in printed and "written: results/forecast/ETTh1-uni.json" in printed
    )
    result = json.loads((series / "results/forecast/ETTh1-uni.json").read_text())
    assert {"config", "seeds", "commit", "dirty", "versions", "device", "seconds"} <= set(result)
    assert result["seeds"] == [0] and result["config"]["source"]["name"] == "ETTh1-uni"
    trained, untrained = result["rows"]
    assert (trained["encoder"], untrained["encoder"]) == ("trained", "untrained")
    assert trained["scores"] != untrained["scores"] and trained["padding"] == 200
    assert trained["encoded"] == (260 - 200 - 24) + 2 * (70 - 24)
    assert set(trained["scores"]["48"]) == {"ridge", "ridge, standardised"}
    assert main(["results", "forecast"]) == 0
    assert "| ETTh1-uni | 48 |" in capsys.readouterr().out
    use = ["forecast", "ETTh1-uni", "--model", "run/model", *where]
    assert main([*use, "--horizon", "5", "-o", "next.csv"]) == 0
    lines = (series / "next.csv").read_text().splitlines()
    assert lines[0] == "date,OT,OT 10%,OT 50%,OT 90%" and lines[1].startswith("2016-07-17 16:00:00")
    for arguments, message in (
        ([*probe, "--horizons", "70"], "horizon 70 does not fit into the train part of ETTh1-uni"),
        ([*probe, "--horizons", "0"], "horizon must be a whole number from 1 up, got 0"),
        (["probe", "forecast", "run/model", "ETTh1", "--horizons", "24", *where],
         "ETTh1 has 9 channels with its time covariates, 2 without them, the model has 8; pretrain "
         "on ETTh1"),
    ):  # fmt: skip
        assert main(arguments) == 2
        printed = capsys.readouterr().err
        assert message in printed and printed.count("\n") == 1


def test_a_model_trained_without_covariates_is_probed_and_used_without_them(series, monkeypatch):
    monkeypatch.chdir(series)
    where, bare = ["--data-dir", str(series)], "data.covariates=false"
    assert main(["pretrain", "ETTh1", "-o", "run", *where, *TINY, bare]) == 0
    model = load("run/model", device="auto")  # as the command does
    assert model.cfg.channels == 2
    data = forecast_set("ETTh1", series)
    start, end = data.bounds["train"]
    np.testing.assert_allclose(model.stats.mean.cpu(), data.x[0, start:end, 7:].mean(0), rtol=1e-6)
    seen = data.with_channels(2)
    np.testing.assert_array_equal(seen.x, data.x[..., 7:])
    probe = ["probe", "forecast", "run/model", "ETTh1", *where, "--horizons", "24"]
    assert main([*probe, "-o", "found.json"]) == 0
    row = json.loads(Path("found.json").read_text())["rows"][0]
    expected = probe_forecast(model, seen, horizons=[24])
    mine, theirs = (x["scores"]["24"]["ridge"]["test"] for x in (row, expected))
    assert mine == pytest.approx(theirs)

    lines = [
        "date,a,b",
        *(f"2020-01-{1 + i // 24:02d} {i % 24}:00,{i % 5},{i % 7}" for i in range(300)),
    ]
    Path("own.csv").write_text("\n".join(lines))
    assert main(["pretrain", "own.csv", "-o", "own", *TINY]) == 0  # own files: unless asked for
    assert load("own/model").cfg.channels == 2
    assert main(["embed", "own/model", "own.csv", "-o", "tokens"]) == 0
    assert (
        main(["pretrain", "own.csv", "-o", "dated", *TINY, "data.covariates=true"]) == 0
    )  # 2 values, 9 channels
    nine = ["date," + ",".join("abcdefghi"), *(line + ",0" * 7 for line in lines[1:])]
    Path("nine.csv").write_text("\n".join(nine))
    assert main(["embed", "dated/model", "nine.csv", "-o", "wrong"]) == 2  # 9 values are no 9
    Path("y.csv").write_text("series,label\np,0\nq,1\n")
    Path("two").mkdir()
    for name in "pq":
        Path(f"two/{name}.csv").write_text("\n".join(lines))
    tune = [
        "finetune",
        "two",
        "--labels",
        "y.csv",
        "--from",
        "own",
        "-o",
        "tuned",
        "train.epochs=1",
    ]
    assert main(tune) == 0
    assert load("tuned/model").cfg.channels == 2
    assert main(["embed", "tuned/model", "own.csv", "-o", "tuned-tokens"]) == 0


def test_a_folder_of_dated_and_undated_files_must_agree_without_covariates(tmp_path):
    dates = [f"2020-01-01 {i}:00,{i},{i}" for i in range(5)]
    (tmp_path / "a.csv").write_text("\n".join(["date,u,v", *dates]))
    np.save(tmp_path / "b.npy", np.zeros((5, 9)))
    np.save(tmp_path / "b.npy", np.zeros((12, 9)))
    with pytest.raises(InputError, match="same channels: a has 2, b has 9"):
        read(tmp_path)
    np.save(tmp_path / "b.npy", np.zeros((12, 2)))
    assert [r.values.shape[1] for r in read(tmp_path)] == [2, 2]
    with pytest.raises(InputError, match=r"same channels: a has 9, b has 2; .* no time covariates"):
        read(tmp_path).with_covariates()


def test_instances_of_a_made_file_go_through_one_model_and_one_ridge(series, monkeypatch):
    monkeypatch.chdir(series)
    small_model(8, window=40, stride=20).save("model")
    command = ["probe", "forecast", "model", "Electricity321", "--data-dir", str(series)]
    assert main([*command, "--horizons", "24", "-o", "found.json"]) == 0
    (row, _) = json.loads((series / "found.json").read_text())["rows"]
    assert row["encoded"] == 2 * ((260 - 200 - 24) + 2 * (70 - 24))
    test = row["scores"]["24"]["ridge"]["test"]
    assert 0 < test["mse"] < 1 and test["mse_raw"] > test["mse"]  # units of 1 and of 10


@pytest.mark.parametrize(
    "old, new, message",
    [
        (b"2016-07-01 03:00:00,", b"noon,", "dates must be dates such as"),
        (b"2016-07-01 03:00:00,", b"2016-07-01 02:30:00,", "dates must be regular: from"),
        (b"2016-07-01 03:00:00,", b"2016-07-01 03:00:00,a", "must hold numbers; column x does not"),
        (b"2016-07-01 03:00:00,", b"2016-07-01 03:00:00,1,1,", "cannot be read: .*line 5"),
    ],
)
def test_a_file_without_a_checksum_is_refused_by_what_is_wrong_with_it(series, old, new, message):
    path = series / "d.csv.gz"
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()).replace(old, new)))
    with pytest.raises(InputError, match=f"d.csv.gz.*{message}"):
        forecast_set("Electricity321", series)


def made(name, scores, encoder="trained"):
    rows = {
        str(h): {"ridge": {"test": {"mse": mse, "mae": mae}}} for h, (mse, mae) in scores.items()
    }
    return {"set": name, "encoder": encoder, "scores": rows}


def test_a_forecast_table_is_the_one_worked_by_hand(tmp_path):
    scores = {h: (i / 10, i / 5) for i, h in enumerate(HORIZONS)}
    rows = [made("ETTh1-uni", scores), made("ETTh1-uni", {24: (0.5, 1.0)}, "untrained")]
    rows.append(made("ETTh1-uni", {**scores, 24: (0.2, 0.4)}))  # another seed
    record.save("forecast", "ETTh1-uni", {"rows": rows}, folder=tmp_path)
    lines = render("forecast", tmp_path).splitlines()
    assert lines[0] == "| set | H | trained | untrained | paper's PMT | TS2Vec, published |"
    assert lines[2:] == [
        "| ETTh1-uni | 24 | 0.100 ± 0.141 / 0.200 | 0.500 / 1.000 | "
        "0.103 / 0.257 | 0.039 / 0.152 |",
        "| ETTh1-uni | 48 | 0.100 ± 0.000 / 0.200 | - | 0.140 / 0.302 | 0.062 / 0.191 |",
        "| ETTh1-uni | 168 | 0.200 ± 0.000 / 0.400 | - | 0.184 / 0.345 | 0.134 / 0.282 |",
        "| ETTh1-uni | 336 | 0.300 ± 0.000 / 0.600 | - | 0.197 / 0.361 | 0.154 / 0.310 |",
        "| ETTh1-uni | 720 | 0.400 ± 0.000 / 0.800 | - | 0.177 / 0.342 | 0.163 / 0.327 |",
        "| ETTh1-uni | mean | 0.220 ± 0.028 / 0.440 | - | 0.160 / 0.321 | 0.110 / 0.252 |",
        "| Electricity321 | mean | data not available here | data not available here | "
        "0.404 / 0.457 | 0.330 / 0.405 |",
    ]


def test_the_papers_averages_are_those_it_prints():
    printed = {
        "ETTh1-uni": {"PMT": (0.160, 0.322), "SoftCLT": (0.162, 0.309), "TS2Vec": (0.110, 0.252)},
        "Electricity-uni": {"PMT": (0.468, 0.417), "SoftCLT": (0.483, 0.423),
                            "TS2Vec": (0.486, 0.425)},
        "ETTh1": {"PMT": (0.728, 0.626), "SoftCLT": (0.742, 0.636), "TS2Vec": (0.788, 0.646)},
        "Electricity321": {"PMT": (0.404, 0.457), "SoftCLT": (0.505, 0.528),
                            "TS2Vec": (0.330, 0.405)},
    }  # fmt: skip
    assert set(FORECASTING) == set(VARIANTS) == set(printed)
    for name, by_method in printed.items():
        for method, expected in by_method.items():
            assert tuple(FORECASTING[name][method]) == HORIZONS
            mean = np.mean(list(FORECASTING[name][method].values()), axis=0)
            assert mean == pytest.approx(expected, abs=0.0011), (name, method)


@pytest.mark.parametrize("name", VARIANTS)
def test_the_experiments_are_as_they_say(name):
    day = {"ETTh1": 48, "ETTh1-uni": 96, "Electricity-uni": 24}.get(name)
    chosen = 48 if name == "ETTh1" else 1  # the patch that the validation part prefers
    kinds = {"": (1, True), "-bare": (1, False), "-day": (day, False), "-default": (chosen, False)}
    for kind, (patch, covariates) in kinds.items():
        path = ROOT / f"experiments/forecast/{name}{kind}.yaml"
        if name == "Electricity321" and kind:
            assert not path.exists()
            continue
        cfg = read_config(path)
        assert (cfg.model["patch"], cfg.model["patch_stride"]) == (patch, 1)
        assert cfg.data.window == 201 and (cfg.data.covariates is not False) is covariates
        if kind == "-default":
            default = RunConfig()
            assert (cfg.views, cfg.loss) == (default.views, default.loss)
            assert cfg.train == replace(default.train, steps=100)
        else:
            assert cfg.views.time_warp == cfg.views.crop == 0 < cfg.views.jitter_strong
        assert f"pretrain {name} " in path.read_text()
        assert f"-c experiments/forecast/{path.name}" in path.read_text()


@pytest.mark.parametrize("method", ["ts2vec", "softclt"])
@pytest.mark.parametrize("name, steps", [("ETTh1", 600), ("ETTh1-uni", 200),
                                         ("Electricity-uni", 600)])  # fmt: skip
def test_the_experiments_with_ts2vec_are_as_published(name, steps, method):
    path = ROOT / f"experiments/forecast/{name}-{method}.yaml"
    cfg = read_config(path)
    assert cfg.encoder["name"] == method and cfg.data.covariates
    assert (cfg.train.steps, cfg.train.batch_size, cfg.train.lr) == (steps, 8, 1e-3)
    assert f"-c experiments/forecast/{path.name}" in path.read_text()


@pytest.mark.skipif("PROGMEM_DATA" not in os.environ, reason="needs the published files")
@pytest.mark.parametrize(
    "name, channels, mean, sd",
    [("ETTh1-uni", 8, 17.128, 9.176), ("ETTh1", 14, 17.128, 9.176),
     ("Electricity-uni", 8, 24.507, 24.156)],
)  # fmt: skip
def test_published_series_are_scaled_by_their_training_part(name, channels, mean, sd):
    data = forecast_set(name)
    assert data.x.shape[::2] == (1, channels)
    assert data.mean[0, -1] == pytest.approx(mean, abs=1e-3)
    assert data.scale[0, -1] == pytest.approx(sd, abs=1e-3)
    start, end = data.bounds["train"]
    trained = torch.from_numpy(data.target[0, start:end])
    torch.testing.assert_close(trained.std(0, correction=0), torch.ones(channels - 7).double())
