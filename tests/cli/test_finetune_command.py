"""Training with labels: its command and settings, what is refused, its table."""

import csv
import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from finetune_setup import SHAPE, TINY, config, made
from probe_setup import waves

import progmem
from progmem.cli import main
from progmem.config import LabelConfig, read_config, read_finetune_config
from progmem.data.labels import split_rows
from progmem.errors import ConfigError, InputError
from progmem.probes import comparison
from progmem.report.tables import finetune_table
from progmem.training.classifier import SequenceClassifier
from progmem.training.finetune import finetune
from progmem.training.pretrain import pretrain


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(comparison.BASELINES, "MiniRocket")  # it takes too long
    x, y = waves(24, 0)
    np.save("x.npy", x)
    np.save("y.npy", y)
    np.save("one.npy", np.ones(24))
    np.save("names.npy", np.where(y, "slow", "fast"))
    np.save("rare.npy", np.where(np.arange(24) == 9, "rare", np.where(y, "slow", "fast")))
    np.save("lost.npy", np.where(np.arange(24)[:, None, None] == 3, np.nan, x))
    np.save("wide.npy", np.arange(24 * 180.0).reshape(24, 60, 3))
    np.save("short.npy", np.arange(24 * 6.0).reshape(24, 3, 2))
    np.save("inf.npy", np.where(np.arange(24 * 120).reshape(24, 60, 2) == 7, np.inf, x))
    return tmp_path


def test_a_set_and_own_series_are_trained_by_one_command(
    made_sets, files, pretrained, monkeypatch, capsys
):
    where = ["--data-dir", str(made_sets)]
    command = ["finetune", "Wafer", *where, *TINY, "--label-share", "50%"]
    result = "results/finetune/Wafer-0.json"
    assert main([*command, "-o", "wafer", "--result", result]) == 0
    printed = capsys.readouterr().out
    assert "| Wafer | 50% | pmt | scratch | network | test | 1 |" in printed
    kept = json.loads((files / result).read_text())
    assert {"config", "seeds", "label_seeds", "commit", "versions", "device"} <= set(kept)
    assert len(kept["labelled_rows"]) == kept["rows"][0]["learnt"] == 24
    fewer = [*command[:-1], "25%", "--from", "wafer", "-o", "fewer"]  # of labels that are known
    assert main(fewer) == 2
    assert "was trained with the labels of 12 of " in capsys.readouterr().err
    assert main(["results", "finetune"]) == 0
    assert "| Wafer | 50% |" in capsys.readouterr().out
    own = ["finetune", "x.npy", "--labels", "y.npy", "--from", str(pretrained), "--only-head"]
    small = ["train.epochs=2", "train.device=cpu"]
    assert main([*own, "-o", "own", *small]) == 0
    noted = json.loads((files / "own/result.json").read_text())["pretraining"]
    assert noted["settings"]["train"]["seed"] == 0 and "source" in noted
    printed = capsys.readouterr().out
    assert "| x.npy | all | pmt | pretrained | head | nothing | 1 | - |" in printed
    assert "paper's" not in printed  # of own series it says nothing
    assert "each label predicted from the others, in 5 folds" in printed and "pays" in printed
    assert main([*own, "-o", "held", *small, "finetune.validation=0.25"]) == 0
    printed = capsys.readouterr().out
    assert "| head | validation | 1 | " in printed and "6 series held out" in printed
    held = json.loads((files / "held/result.json").read_text())
    compared = held["comparison"]["scores"]
    assert list(compared) == ["finetuned", "trained", "untrained", "raw values"]
    assert compared["finetuned"]["accuracy"] == held["rows"][0]["scores"]["accuracy"]
    assert "comparison" not in kept  # of a data set by name
    use = ["classify", "x.npy", "-o", "p.csv", "--probe", "own", "--model", "own/model"]
    assert main(use) == 0
    rows = list(csv.DictReader((files / "p.csv").read_text().splitlines()))
    classifier = SequenceClassifier.load("own")
    assert [row["label"] for row in rows] == classifier.predict(np.load("x.npy")).tolist()
    scores = np.exp(classifier.scores(np.load("x.npy")))
    expected = (scores / scores.sum(1, keepdims=True)).max(1)
    np.testing.assert_allclose([float(row["probability"]) for row in rows], expected, atol=1e-4)
    assert main([*use[:-1], str(pretrained / "model")]) == 0  # only the head was trained
    assert main([*use[:5], "wafer", "--model", "wafer/model"]) == 2
    assert "model has 1 channels" in capsys.readouterr().err
    assert main([*use[:5], "wafer", *use[6:]]) == 2
    assert "own/model is not the network of wafer; give its model/" in capsys.readouterr().err
    assert main(["embed", "own/model", "x.npy", "-o", "embedded"]) == 0
    probe = ["probe", "classify", "wafer/model", "Wafer", *where, "--split", "validation"]
    assert main(probe) == 2
    assert "official split of Wafer" in capsys.readouterr().err
    assert main(probe[:-2]) == 2
    assert "with the labels of 24 of the 70 series of Wafer" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("x.npy", "x.npy has no labels; give them with --labels"),
        ("x.npy --labels one.npy", "classification needs at least two classes in y, got 1"),
        ("x.npy --labels y.npy --label-share 13", "class 0 has 12 series, 13 labels were asked"),
        (
            "x.npy --labels names.npy --label-share 13",
            "class fast has 12 series, 13 labels were asked",
        ),
        (
            "x.npy --labels y.npy --label-share few",
            "finetune.label_share must be all, a share such as 5%",
        ),
        (
            "x.npy --labels y.npy --label-share 0%",
            "finetune.label_share must be all, a share such as 5%",
        ),
        ("x.npy --labels y.npy --split validation", "split is for data sets by name"),
        ("x.npy --labels gone.npy", "there is no file gone.npy"),
        ("gone.npy --labels y.npy", "there is no gone.npy"),
        ("Waffer", "there is no file or folder Waffer; unknown data set 'Waffer'; did you mean"),
        ("HAR --labels y.npy", "--labels is for own series; HAR has labels of its own"),
        ("Electricity --labels y.npy", "Electricity has no labels; those that have"),
        ("Electricity", "Electricity has no labels; those that have"),
        ("inf.npy --labels y.npy", "channel 1 is inf; mark missing values by NaN"),
        ("inf.npy --labels y.npy finetune.validation=0.9", "inf.0, sample 3, channel 1 is inf"),
        ("short.npy --labels y.npy --from RUN", "short.0 needs at least"),
        ("wide.npy --labels y.npy --from RUN", "model has 2 channels, got 3"),
        ("x.npy --labels y.npy --from nowhere", "--from must name the folder of a finished run"),
        ("x.npy --labels y.npy --from RUN/model", "/model; did you mean"),
        ("x.npy --labels y.npy --from RUN model.blocks=2", "model.blocks is 1 in"),
        ("x.npy --labels y.npy --from RUN encoder.name=vanilla", "cannot become vanilla"),
        ("x.npy --labels y.npy encoder.name=lstm", "encoder.name must be one of pmt, vanilla, "),
        ("x.npy --labels y.npy finetune.encoder=pmt", "is called 'encoder.name' now"),
        ("x.npy --labels y.npy finetune.only_head=2", "finetune.only_head must be true or false"),
        (
            "x.npy --labels y.npy finetune.validation=0.99",
            "none of class 0, which has 12, is left to tr",
        ),
        (
            "x.npy --labels rare.npy finetune.validation=0.1",
            "is left to train on; leave the class out",
        ),
        ("lost.npy --labels y.npy", "series 3 has no observed value; leave it out"),
        ("x.npy --labels y.npy finetune.labels=5%", "is called 'finetune.label_share' now"),
        ("x.npy --labels y.npy finetune.headlr=1", "did you mean 'finetune.head_lr'?"),
        ("x.npy --labels y.npy loss.icl=1", "unknown setting 'loss'"),
        (
            "x.npy --labels y.npy --result r.csv",
            "--result must name the .json file to write, got r.",
        ),
    ],
)
def test_bad_use_gives_one_line_and_changes_nothing(
    arguments, message, files, pretrained, made_sets, capsys
):
    words = [word.replace("RUN", str(pretrained)) for word in arguments.split()]
    assert main(["finetune", *words, "-o", "out", "train.device=cpu"]) == 2
    printed = capsys.readouterr().err
    assert message in printed and printed.count("\n") == 1, printed
    assert not (files / "out").exists()


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(LabelConfig)])
def test_every_setting_refuses_nonsense_by_name(name):
    for nonsense in ("[1]", "nonsense", "-7.5"):
        with pytest.raises(ConfigError, match=f"finetune.{name} must be"):
            config(f"finetune.{name}={nonsense}")


def test_settings_can_be_shown_and_read_back(tmp_path, capsys):
    arguments = ["finetune", "x.npy", "-o", "run", "--print-config", "--label-share", "5%"]
    assert main([*arguments, "--only-head", "train.lr=1e-3"]) == 0
    (tmp_path / "shown.yaml").write_text(capsys.readouterr().out)
    again = read_finetune_config(tmp_path / "shown.yaml")
    assert again.finetune.label_share == "5%" and again.finetune.only_head
    assert again.run.train.lr == 1e-3 and again.run.train.epochs == 50


@pytest.mark.parametrize("name", ["FordA", "FordB", "HAR", "Wafer"])
def test_the_experiments_are_as_they_say(name):
    path = Path(__file__).parents[2] / f"experiments/supervised/{name}.yaml"
    cfg = read_finetune_config(path)
    assert cfg.run.model == {"size": "small"}
    assert cfg.finetune == LabelConfig(views="weak" if name == "HAR" else "none")
    assert f"finetune {name} " in path.read_text() and str(path.name) in path.read_text()


def test_other_labels_other_weights_and_other_settings_are_refused(tmp_path, pretrained):
    out, cfg = tmp_path / "run", config()
    finetune(made(), out, cfg, log=None)
    with pytest.raises(ConfigError, match=r"other settings: finetune\.label_share differ"):
        finetune(made(), out, config("finetune.label_share=50%"), log=None)
    with pytest.raises(ConfigError, match="begun with other data: labels differ"):
        finetune(made()._replace(y=1 - made().y), out, cfg, log=None)
    start = tmp_path / "start"
    finetune(made(), start, cfg, pretrained=pretrained, log=None)
    with pytest.raises(ConfigError, match="begun on made after recordings without a name, not on"):
        finetune(made(), start, config("model.dropout=0.2"), log=None)
    moved = [r._replace(values=r.values + 1) for r in made().recordings]
    with pytest.raises(ConfigError, match="other data: means and scales, content differ"):
        finetune(made()._replace(recordings=moved), start, cfg, pretrained=pretrained, log=None)
    other = shutil.copytree(pretrained, tmp_path / "other")
    model = progmem.load(other / "model")
    torch.nn.init.zeros_(model.encoder.cls)
    model.save(other / "model")
    with pytest.raises(ConfigError, match="first weights differ"):
        finetune(made(), start, cfg, pretrained=other, log=None)


def test_a_run_of_0_1_0_goes_on_although_its_setting_had_another_name(tmp_path):
    finetune(made(), tmp_path, config(), log=None)
    written = (tmp_path / "config.yaml").read_text()
    _, settings = written.split("\n", 1)  # below the digest, which 0.1.0 had not
    (tmp_path / "config.yaml").write_text(settings.replace("label_share:", "labels:"))
    finetune(made(), tmp_path, config(), log=None)
    assert (tmp_path / "config.yaml").read_text() == written
    with pytest.raises(ConfigError, match=r"other settings: finetune\.label_share differ"):
        finetune(made(), tmp_path, config("finetune.label_share=50%"), log=None)


def test_a_test_series_with_infinite_values_is_refused_before_the_training(tmp_path):
    data = made()
    data.test[3][5, 1] = np.inf
    with pytest.raises(InputError, match="test series 3, sample 5, channel 1 is inf"):
        finetune(data, tmp_path / "run", config(), log=None)
    assert not (tmp_path / "run").exists()


def test_a_folder_of_another_kind_of_run_is_refused(tmp_path, pretrained):
    with pytest.raises(ConfigError, match=r"not a run of this kind: .* unknown setting 'loss'"):
        finetune(made()._replace(source={}), pretrained, config(), log=None)
    finetune(made()._replace(source={}), tmp_path / "tuned", config(), log=None)
    with pytest.raises(ConfigError, match=r"not a run of this kind: .* unknown setting 'finetune'"):
        pretrain(made().recordings, tmp_path / "tuned", read_config(None, SHAPE), log=None)


def test_a_label_that_is_alone_in_its_class_is_refused_where_it_would_be_held_out():
    data = made()
    alone = np.where(np.arange(40) == 0, 0, 1)
    with pytest.raises(InputError, match="none of class slow, which has 1, is left to train on"):
        split_rows(data._replace(y=alone), label_share="all", label_seed=0, validation=0.2)


def made_result(accuracy, *, seed=0, label_seed=0, start="scratch", name="HAR", **changed):
    row = {"set": name, "split": "official", "encoder": "pmt", "start": start, "trained": "network",
           "labels": "all", "learnt": 9, "scored": "test"}  # fmt: skip
    row |= changed
    row["scores"] = {"accuracy": accuracy, "macro_f1": accuracy - 0.1, "weighted_f1": accuracy}
    settings = {"train": {"seed": seed}, "finetune": {"label_seed": label_seed}}
    return {"config": settings, "pretraining": None, "rows": [row]}


def test_runs_that_began_with_other_data_are_not_averaged():
    def begun_with(name, seed):
        settings = {"train": {"seed": seed}}
        result = made_result(0.5, start="pretrained")
        return result | {"pretraining": {"settings": settings, "source": {"name": name}}}

    results = [begun_with("FordA", 0), begun_with("FordA", 1), begun_with("FordB", 0)]
    lines = finetune_table(results).splitlines()[2:]
    assert [line.split(" | ")[6] for line in lines] == ["2", "1"]


def test_results_of_0_1_0_are_averaged_with_those_of_today():
    old, new = made_result(0.5), made_result(0.7, seed=1)
    old["config"]["finetune"]["labels"] = new["config"]["finetune"]["label_share"] = "all"
    (line,) = finetune_table([old, new]).splitlines()[2:]
    assert "| 2 | 60.0" in line


def test_the_table_averages_seeds_and_sets_the_paper_beside_what_it_measured():
    results = [
        made_result(0.9, seed=0), made_result(0.8, seed=1), made_result(0.7, start="pretrained"),
        made_result(0.5, name="FordB", split="validation"), made_result(0.6, encoder="vanilla"),
    ]  # fmt: skip
    assert "| FordB (validation) | all | pmt |" in finetune_table(results)
    assert [line.split(" | ", 4)[4] for line in finetune_table(results).splitlines()[2:]] == [
        "network | test | 2 | 85.0 ± 7.1 / 75.0 | 97.8 / 98.0 |",
        "network | test | 1 | 70.0 / 60.0 | - |",
        "network | test | 1 | 50.0 / 40.0 | - |",
        "network | test | 1 | 60.0 / 50.0 | 97.7 / 97.9 |",
    ]
