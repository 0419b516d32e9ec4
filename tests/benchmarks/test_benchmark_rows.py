"""Experiments of rows: each is trained in a folder of its own and says what it measured."""

import argparse
import dataclasses
import json
import subprocess
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from forecast_setup import dated_file

from benchmarks import cue, forecast, linear_probe, supervised
from benchmarks.pages import FORECASTS
from benchmarks.side_by_side import run_rows, training_folder
from progmem.config import read_config, run_config
from progmem.data import datasets
from progmem.legacy import current_settings
from progmem.report import record
from progmem.training.defaults import fill_defaults

ROOT = Path(__file__).parents[2]


def test_other_settings_or_another_commit_never_go_on_with_the_weights_of_a_row(tmp_path):
    one = training_folder(tmp_path, "a-0", {"lr": 1}, "abc")
    assert one == training_folder(tmp_path, "a-0", {"lr": 1}, "abc")
    others = [
        training_folder(tmp_path, "a-1", {"lr": 1}, "abc"),
        training_folder(tmp_path, "a-0", {"lr": 2}, "abc"),
        training_folder(tmp_path, "a-0", {"lr": 1}, "abd"),
    ]
    assert len({one, *others}) == 4


def test_a_row_is_made_again_for_another_commit_or_other_data_and_else_taken_up(
    tmp_path, monkeypatch
):
    made = []

    def process(command, **_):
        made.append(command[2:])
        return SimpleNamespace(returncode=0, stdout=f'loading\n{{"number": {len(made)}}}\n')

    monkeypatch.setattr(subprocess, "run", process)
    monkeypatch.setattr("benchmarks.side_by_side.record.environment", lambda: {"commit": None})

    def rows(**facts):
        given = {"work": tmp_path, "at_once": 1, "commit": None} | facts
        found = run_rows("benchmarks.made", ["a", "b"], argparse.Namespace(**given), ["--epochs"])
        return [row["number"] for row in found]

    assert rows() == [1, 2] == rows()
    assert rows(commit="abc") == [3, 4] == rows(commit="abc")
    assert rows(commit="abd", data_dir=tmp_path) == [5, 6] and rows() == [1, 2]
    assert made[0] == ["benchmarks.made", "--row", "a", "--epochs"]
    assert made[4][4:] == ["--commit", "abd", "--data-dir", str(tmp_path)]


@pytest.mark.slow
def test_cues_and_labels_are_measured_by_their_benchmarks(made_sets, tmp_path, monkeypatch):
    monkeypatch.setattr(cue, "FINAL", 92)
    tiny = ["model.dim=16", "model.heads=2", "model.blocks=1", "model.patch=8",
            "train.epochs=1", "train.device=cpu"]  # fmt: skip
    chosen = argparse.Namespace(
        work=tmp_path / "work", out=tmp_path, data_dir=made_sets, commit="abc", split="official",
        small=False, settings=[*tiny, "model.window=3", "model.stride=3"],
    )  # fmt: skip
    cue.measure("no-pcl-carry-1", chosen)
    result = json.loads((tmp_path / "cue/FordA-no-pcl-carry-1.json").read_text())
    assert result["commit"] == "abc" and result["config"]["run"]["loss"]["pcl"] == 0
    assert result["config"]["run"]["train"]["seed"] == 1
    chosen.small = True
    chosen.settings = ["encoder.dim=8", "encoder.hidden=4", "train.steps=1", "train.device=cpu"]
    cue.measure("softclt-0", chosen)
    result = record.read(tmp_path / "cue_small/FordA-softclt-0.json")
    assert result["config"]["run"]["encoder"]["distance"] == "euclidean"
    chosen.settings = tiny
    supervised.measure("Wafer-vanilla-2", chosen)
    result = json.loads((tmp_path / "finetune/Wafer-vanilla-2.json").read_text())
    assert result["commit"] == "abc" and result["seeds"] == [2]
    assert result["rows"][0]["encoder"] == "vanilla" and result["rows"][0]["labels"] == "all"
    assert len(list((tmp_path / "work/runs").iterdir())) == 3


def test_frozen_baselines_are_read_out_by_their_benchmark(made_sets, tmp_path):
    chosen = argparse.Namespace(
        work=tmp_path / "work", out=tmp_path, data_dir=made_sets, commit="abc", device="cpu",
        settings=["encoder.dim=8", "train.epochs=1", "train.batch_size=8"],
    )  # fmt: skip
    found = linear_probe.measure("HAR-simclr-1", chosen)
    result = record.read(tmp_path / "linear_probe/HAR-simclr-1.json")
    assert result["commit"] == "abc" and result["config"]["encoder"]["dim"] == 8
    rows = result["rows"]
    assert [row["scores"]["accuracy"] for row in rows] == found["accuracy"]
    assert [(row["weights"], row["features"], row["size"]) for row in rows] == [
        (weights, kind, size)
        for weights in ("trained", "untrained")
        for kind, size in (("all tokens", 18 * 8), ("sequence", 8))
    ]
    for row, accuracy in zip(rows, (0.905, 0.8, 0.5, 0.25), strict=True):
        row["scores"]["accuracy"] = [accuracy]
    assert linear_probe.linear_probe_table([result]).splitlines()[2] == (
        f"| HAR | simclr | 1 epochs | {result['device']} | 90.5 | 50.0 | 80.0 | 25.0 | 81.0 |"
    )


@pytest.mark.slow
def test_forecasts_are_measured_by_their_benchmark(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets, "FILES", {"ETTh1": dated_file(tmp_path)})
    monkeypatch.setattr(forecast, "probe_forecast", partial(forecast.probe_forecast, horizons=[24]))
    tiny = ["model.dim=16", "model.heads=2", "model.blocks=1", "train.device=cpu"]
    short = {e: "train.steps=2" if "default" in e else "train.epochs=1" for e in forecast.ENCODERS}
    given = {e: [*tiny, short[e]] for e in forecast.ENCODERS}
    small = ("encoder.dim=8", "encoder.depth=2", "train.steps=2", "data.window=100",
             "train.device=cpu")  # fmt: skip
    given |= {e: [*small] for e in forecast.METHODS}
    cfgs = {e: forecast.settings("ETTh1-uni", e, 1, own) for e, own in given.items()}
    assert all(cfg.train.seed == 1 for cfg in cfgs.values())
    rows = {
        e: forecast.measure("ETTh1-uni", e, cfg, tmp_path, tmp_path / e) for e, cfg in cfgs.items()
    }
    assert {row["seed"] for row in rows.values()} == {1}
    assert {row["encoder"] for row in rows.values()} == set(forecast.ENCODERS.values())
    assert all(set(row["scores"]) == {"24"} for row in rows.values())
    scores = {e: json.dumps(row["scores"]) for e, row in rows.items()}
    assert scores.pop("untrained_default") == scores["untrained_bare"]  # the same tokens
    assert len(set(scores.values())) == len(scores)
    others = {e: row["config"] for e, row in rows.items() if e in forecast.METHODS}
    assert {config["encoder"]["name"] for config in others.values()} == set(others)
    assert all(config["encoder"]["channels"] == 8 for config in others.values())
    without_frame = {"values", *others}
    models = {e: row["config"]["model"] for e, row in rows.items() if e not in without_frame}
    seen = {e: (model["channels"], model["patch"]) for e, model in models.items()}
    assert {e: found for e, found in seen.items() if e.startswith("trained")} == {
        "trained": (8, 1), "trained_bare": (1, 1), "trained_day": (1, 96),
        "trained_default": (1, 1),
    }  # fmt: skip
    assert all(models[f"un{e}"] == models[e] for e in models if e.startswith("trained"))
    assert {e for e, model in models.items() if "predictor" in model} == {
        "trained_default", "untrained_default"
    }  # fmt: skip
    assert (tmp_path / "trained/model").is_dir() and not (tmp_path / "untrained").exists()


@pytest.mark.parametrize("name", forecast.SETS)
def test_kept_forecasts_are_of_the_settings_in_experiments(name):
    kept = json.loads((ROOT / f"results/forecast/{name}.json").read_text())["config"]
    labels = {e: label for e, label in forecast.ENCODERS.items() if label in kept}
    may_be_missing = {"trained_default", "untrained_default", *forecast.METHODS}
    assert forecast.ENCODERS.keys() - labels.keys() <= may_be_missing
    for encoder, label in labels.items():
        run = run_config(current_settings(kept[label]["run"]))  # it has no seed: that is a row's
        assert run == forecast.settings(name, encoder, 0, [], device="cuda"), label


@pytest.mark.parametrize("name", forecast.SETS)
def test_the_kind_of_tokens_on_the_front_page_has_the_least_error_on_the_validation_part(name):
    errors = {}
    for row in json.loads((ROOT / f"results/forecast/{name}.json").read_text())["rows"]:
        kind = row["encoder"].partition("trained, ")[2]
        if row["encoder"].startswith("trained"):
            found = [heads["ridge"]["validation"]["mse"] for heads in row["scores"].values()]
            errors.setdefault(kind, []).append(sum(found) / len(found))
    means = {kind: sum(found) / len(found) for kind, found in errors.items()}
    assert min(means, key=means.get) == FORECASTS[name][0], means


@pytest.mark.parametrize("name", forecast.SETS)
def test_forecasts_by_the_default_recipe_set_nothing_but_tokens_windows_and_steps(name):
    cfg = forecast.settings(name, "trained_default", 3, [], device="cuda")
    default = fill_defaults(read_config(None, ["train.seed=3"]), 201, device="cuda", begun={})
    short = dataclasses.replace(default.train, steps=100)
    assert (cfg.views, cfg.loss, cfg.train) == (default.views, default.loss, short)
    assert (cfg.train.batch_size, cfg.views.hide > 0) == (256, True)
    tuned = "trained_day" if name == "ETTh1" else "trained_bare"
    same_tokens = forecast.settings(name, tuned, 3, [])
    assert (cfg.model, cfg.data) == (same_tokens.model, same_tokens.data)
    assert cfg == forecast.settings(name, "untrained_default", 3, [], device="cuda")
    few = forecast.settings(name, "trained_default", 3, ["train.steps=2"], device="cpu")
    assert (few.train.steps, few.train.batch_size) == (2, 32)


def test_rows_of_forecasts_join_those_of_the_same_settings(tmp_path):
    def row(encoder, seed, mse, lr):
        return {"encoder": encoder, "seed": seed, "mse": mse, "config": {"lr": lr}}

    path = tmp_path / "set.json"
    before = [row("untrained", 1, 1, 0.1), row("trained", 0, 2, 0.1), row("values", 0, 3, 0.1)]
    record.write(path, forecast.with_rows_before(before, path))
    new = [row("trained", 1, 4, 0.2), row("untrained", 0, 5, 0.1), row("untrained", 1, 6, 0.1)]
    found = forecast.with_rows_before(new, path)
    assert [(r["encoder"], r["seed"], r["mse"]) for r in found["rows"]] == [
        ("trained", 1, 4), ("untrained", 0, 5), ("untrained", 1, 6), ("values", 0, 3),
    ]  # fmt: skip
    assert found["seeds"] == [0, 1] and found["config"]["trained"] == {"lr": 0.2}
