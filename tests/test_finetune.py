"""Training with labels: what changes, what must not, and what is refused."""

import dataclasses
import json
import math
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from probe_setup import waves

import progmem
from progmem.cli import main
from progmem.data.labelled import Labelled, choose_parts
from progmem.data.recordings import Recording
from progmem.data.rows import Rows
from progmem.errors import ConfigError, InputError, ModelFolderError
from progmem.finetune_settings import LabelConfig, read_finetune_config
from progmem.probes.labels import draw_labels
from progmem.report.finetune_table import finetune_table
from progmem.settings import read_config
from progmem.training.classifier import Classifier
from progmem.training.finetune import finetune
from progmem.training.monitor import Monitor
from progmem.training.pretrain import pretrain
from progmem.training.supervised_step import SupervisedStep, backward_in_parts

SHAPE = ["model.dim=16", "model.heads=2", "model.blocks=1", "train.batch_size=16"]
TINY = [*SHAPE, "train.epochs=3", "train.checkpoint_every=2", "train.device=cpu"]


def made(test_value=0.0, count=40):
    (x, y), (test, test_y) = waves(count, 0), waves(20, 1)
    recordings = [Recording(str(i), values) for i, values in enumerate(x)]
    test = list(test + np.float32(test_value))
    return Labelled(recordings, y, ("slow", "fast"), test, test_y, {"name": "made"})


def config(*more):
    return read_finetune_config(None, [*TINY, *more])


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pretrained") / "run"
    settings = [*SHAPE, "train.epochs=1", "train.device=cpu", "model.dropout=0.2"]
    pretrain(made().recordings, folder, read_config(None, settings), say=None)
    return folder


def same_weights(ours, theirs):
    ours, theirs = ours.state_dict(), theirs.state_dict()
    assert ours.keys() == theirs.keys()
    return all(torch.equal(ours[name], theirs[name]) for name in ours)


def without_last_checkpoint(folder):
    for file in sorted((folder / "checkpoints").glob("*"))[-2:]:
        file.unlink()


def test_the_first_loss_is_that_of_a_coin_and_others_are_worked_by_hand():
    """Cross-entropy of one weight, by its formula; the mean is over the batch in any parts."""
    data = made(count=12)
    rows = Rows(data.recordings, read_config(None).data)
    cfg = config("train.precision=64", "train.batch_size=12")
    model = progmem.PMT(progmem.ModelConfig.for_length(60, 2, dim=16, heads=2, blocks=1)).double()
    learner = Classifier(model, data.classes, only_head=True).double()
    labels = torch.from_numpy(data.y)
    step = SupervisedStep(learner, rows, labels, cfg, 12, torch.device("cpu"))
    told, _, count = backward_in_parts(step, 0, 5, torch.autograd.backward)
    assert count == 12 and float(told["loss"]) == pytest.approx(math.log(2))
    with torch.no_grad():
        learner.head.weight[1, 3] = 2.0
    learner.zero_grad()
    told, _, _ = backward_in_parts(step, 0, 5, torch.autograd.backward)
    feature = model.encode(np.stack([r.values for r in data.recordings])).sequence[:, 3]
    by_hand = right = slope = 0.0
    for value, label in zip(feature.tolist(), data.y, strict=True):
        fast = 1 / (1 + math.exp(-2.0 * value))
        by_hand -= math.log(fast if label else 1 - fast) / 12
        right += (fast > 0.5) == label
        slope += (fast - label) * value / 12
    assert float(told["loss"]) == pytest.approx(by_hand, rel=1e-9)
    assert float(told["accuracy"]) == pytest.approx(right / 12)
    assert float(learner.head.weight.grad[1, 3]) == pytest.approx(slope, rel=1e-9)


@pytest.mark.parametrize("encoder", ["pmt", "vanilla"])
def test_what_can_be_told_apart_is_learnt(tmp_path, encoder):
    cfg = config(f"finetune.encoder={encoder}", "train.epochs=12", "train.lr=2e-3")
    classifier, result = finetune(made(), tmp_path / "run", cfg, say=None)
    assert result["rows"][0]["scores"] == {"accuracy": 1.0, "macro_f1": 1.0, "weighted_f1": 1.0}
    assert classifier.predict(made().test).tolist() == ["slow", "fast"] * 10
    assert json.loads((tmp_path / "run/result.json").read_text()) == result


def test_a_frozen_network_is_unchanged_and_a_free_one_is_not(tmp_path, pretrained):
    """Dropout is off in a frozen network, too: every step sees the same features."""
    before = progmem.load(pretrained / "model")
    head, _ = finetune(
        made(),
        tmp_path / "head",
        config("finetune.only_head=true"),
        pretrained=pretrained,
        say=None,
    )
    assert same_weights(head.encoder, before)
    assert head.head.weight.abs().sum() > 0
    assert not head.train().encoder.training
    free, _ = finetune(made(), tmp_path / "free", config(), pretrained=pretrained, say=None)
    assert not same_weights(free.encoder, before)
    changed = free.encoder.state_dict()
    assert all(torch.equal(changed[f"stats.{n}"], t) for n, t in before.stats.state_dict().items())


@pytest.mark.parametrize("more", [[], ["finetune.only_head=true"], ["finetune.views=strong"]])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, pretrained, more):
    cfg, said = config(*more), []
    for name in ("whole", "broken"):
        finetune(made(), tmp_path / name, cfg, pretrained=pretrained, say=None)
    without_last_checkpoint(tmp_path / "broken")
    finetune(made(), tmp_path / "broken", cfg, pretrained=pretrained, say=said.append)
    assert any("going on from step" in line for line in said)
    whole, broken = (Classifier.load(tmp_path / name) for name in ("whole", "broken"))
    assert same_weights(whole, broken)
    again = []
    finetune(made(), tmp_path / "broken", cfg, pretrained=pretrained, say=again.append)
    assert any("has finished its" in line for line in again)


def test_sigterm_leaves_a_checkpoint_from_which_the_same_call_goes_on(tmp_path, monkeypatch):
    assert threading.current_thread() is threading.main_thread()  # else nobody would listen
    noted = Monitor.step

    def interrupted(self, step, *rest):
        noted(self, step, *rest)
        if step == 3:
            signal.raise_signal(signal.SIGTERM)

    cfg, said = config("train.checkpoint_every=100"), []
    monkeypatch.setattr(Monitor, "step", interrupted)
    with pytest.raises(SystemExit) as stopped:
        finetune(made(), tmp_path / "stopped", cfg, say=said.append)
    monkeypatch.undo()
    assert stopped.value.code == 143 and "the same command goes on from there" in said[-1]
    (note,) = (tmp_path / "stopped/checkpoints").glob("*.json")
    kept = (tmp_path / "stopped/metrics.jsonl").read_text().splitlines()
    assert 3 <= json.loads(note.read_text())["step"] == len(kept) < 6
    assert not (tmp_path / "stopped/result.json").exists()
    for name in ("stopped", "whole"):
        finetune(made(), tmp_path / name, cfg, say=lambda _: None)
    assert same_weights(*(Classifier.load(tmp_path / name) for name in ("stopped", "whole")))
    lines = (tmp_path / "stopped/metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in lines]
    assert [line["step"] for line in steps] == [1, 2, 3, 4, 5, 6]
    assert {"loss", "accuracy", "lr"} <= set(steps[0])


def test_test_rows_change_nothing_that_is_trained(tmp_path):
    """Markers of a million in every test row."""
    runs = [
        finetune(made(value), tmp_path / str(value), config("finetune.labels=25%"), say=None)
        for value in (0.0, 1e6)
    ]
    (clean, one), (marked, other) = runs
    assert same_weights(clean, marked)
    assert one["labelled_rows"] == other["labelled_rows"]
    assert one["rows"][0]["scores"] != other["rows"][0]["scores"]  # the markers were really there


def test_rows_held_out_are_scored_and_neither_they_nor_test_rows_are_learnt_from(tmp_path):
    runs = []
    for value in (0.0, 1e6):
        data = made()
        parts = choose_parts(data, labels="all", label_seed=0, validation=0.2)
        assert sorted([*parts.known, *parts.held_out]) == list(range(40))
        assert np.bincount(data.y[parts.held_out]).tolist() == [4, 4]
        for row in parts.held_out:
            values = data.recordings[row].values + np.float32(value)
            data.recordings[row] = data.recordings[row]._replace(values=values)
        data = data._replace(test=[np.full((60, 2), 1e6, dtype=np.float32)] * 20)
        cfg = config("finetune.validation=0.2")
        runs.append(finetune(data, tmp_path / str(value), cfg, say=None))
    assert same_weights(runs[0].classifier, runs[1].classifier)
    row = runs[0].result["rows"][0]
    assert row["scored"] == "validation" and row["learnt"] == 32


def test_whole_recordings_are_held_out_where_they_are_known():
    data = made()
    pieces = [r._replace(origin=f"r{i // 4}") for i, r in enumerate(data.recordings)]
    parts = choose_parts(
        data._replace(recordings=pieces), labels="all", label_seed=0, validation=0.2
    )
    names = [{pieces[i].origin for i in rows} for rows in (parts.known, parts.held_out)]
    assert not names[0] & names[1] and len(parts.held_out) == 8


def test_few_labels_are_the_draws_of_the_probe():
    data = made()
    parts = choose_parts(data, labels="25%", label_seed=3, validation=0.0)
    assert parts.learnt.tolist() == draw_labels(data.y, 0.25, 3).tolist()
    assert len(parts.known) == 40


def test_the_head_has_its_own_rate_and_the_schedule_of_the_run(tmp_path, monkeypatch):
    seen, step = [], torch.optim.AdamW.step

    def kept(self, *rest, **more):
        seen.append([group["lr"] for group in self.param_groups])
        return step(self, *rest, **more)

    monkeypatch.setattr(torch.optim.AdamW, "step", kept)
    finetune(made(), tmp_path / "run", config("train.lr=1e-3", "finetune.head_lr=4e-3"), say=None)
    for rates in seen:
        assert rates == pytest.approx([rates[0], rates[0], 4 * rates[0], 4 * rates[0]])
    assert seen[0][0] > seen[-1][0]


@pytest.mark.parametrize("kind", ["none", "weak", "strong"])
def test_views_are_shown_and_are_new_every_step(kind):
    """Of rows that are all the same, so that their order cannot matter."""
    recordings = [made().recordings[0]] * 16
    rows, cfg = Rows(recordings, read_config(None).data), config(f"finetune.views={kind}")
    shape = progmem.ModelConfig.for_length(60, 2, dim=16, heads=2, blocks=1)
    learner = Classifier(progmem.PMT(shape), ("slow", "fast"), only_head=False)
    labels = torch.arange(16) % 2
    step = SupervisedStep(learner, rows, labels, cfg, 16, torch.device("cpu"))
    first, second, again = (step.make(number).x for number in (0, 1, 0))
    assert torch.equal(first, again)
    assert torch.equal(first, second) == (kind == "none")


def test_a_saved_classifier_predicts_the_same_and_notices_a_strange_head(tmp_path):
    classifier, _ = finetune(made(), tmp_path / "run", config(), say=None)
    again = Classifier.load(tmp_path / "run")
    with pytest.raises(InputError, match="series 1 has no observed value; leave it out"):
        again.predict([np.zeros((60, 2)), np.full((60, 2), np.nan)])
    x = made().test
    np.testing.assert_allclose(again.scores(x), classifier.scores(x), atol=1e-6)
    finetune(made(), tmp_path / "other", config("train.seed=1"), say=None)
    (tmp_path / "run/head.json").write_bytes((tmp_path / "other/head.json").read_bytes())
    with pytest.raises(ModelFolderError, match="head is damaged or of another version"):
        Classifier.load(tmp_path / "run")
    data = (tmp_path / "other/head.safetensors").read_bytes()
    (tmp_path / "run/head.safetensors").write_bytes(data)
    with pytest.raises(ModelFolderError, match="head belongs to another network"):
        Classifier.load(tmp_path / "run")


def test_a_model_without_memory_and_series_cut_into_windows_are_trained(tmp_path):
    data = made()
    long = [r._replace(values=np.tile(r.values, (4, 1))) for r in data.recordings]
    cfg = config("model.slots=0", "data.longest=100", "data.window=60", "train.epochs=1")
    _, result = finetune(data._replace(recordings=long), tmp_path / "run", cfg, say=None)
    assert len((tmp_path / "run/metrics.jsonl").read_text()) == 0  # say=None keeps none
    assert result["config"]["model"]["slots"] == 0


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x, y = waves(24, 0)
    np.save("x.npy", x)
    np.save("y.npy", y)
    np.save("one.npy", np.ones(24))
    np.save("names.npy", np.where(y, "slow", "fast"))
    np.save("rare.npy", np.where(np.arange(24) == 9, "rare", np.where(y, "slow", "fast")))
    np.save("lost.npy", np.where(np.arange(24)[:, None, None] == 3, np.nan, x))
    np.save("wide.npy", np.zeros((24, 60, 3)))
    np.save("short.npy", np.zeros((24, 3, 2)))
    np.save("inf.npy", np.where(np.arange(24 * 120).reshape(24, 60, 2) == 7, np.inf, x))
    return tmp_path


def test_a_set_and_own_series_are_trained_by_one_command(
    made_sets, files, pretrained, monkeypatch, capsys
):
    where = ["--data-dir", str(made_sets)]
    command = ["finetune", "Wafer", *where, *TINY, "--labels", "50%"]
    result = "results/finetune/Wafer-0.json"
    assert main([*command, "-o", "wafer", "--result", result]) == 0
    printed = capsys.readouterr().out
    assert "| Wafer | 50% | pmt | scratch | network | test | 1 |" in printed
    kept = json.loads((files / result).read_text())
    assert {"config", "seeds", "label_seeds", "commit", "versions", "device"} <= set(kept)
    assert len(kept["labelled_rows"]) == kept["rows"][0]["learnt"] == 24
    assert main(["results", "finetune"]) == 0
    assert "| Wafer | 50% |" in capsys.readouterr().out
    own = ["finetune", "x.npy", "--y", "y.npy", "--from", str(pretrained), "--only-head"]
    small = ["train.epochs=2", "train.device=cpu"]
    assert main([*own, "-o", "own", *small]) == 0
    noted = json.loads((files / "own/result.json").read_text())["pretraining"]
    assert noted["settings"]["train"]["seed"] == 0 and "source" in noted
    printed = capsys.readouterr().out
    assert "| x.npy | all | pmt | pretrained | head | nothing | 1 | - | - |" in printed
    assert main([*own, "-o", "held", *small, "finetune.validation=0.25"]) == 0
    assert "| head | validation | 1 | " in capsys.readouterr().out
    assert main(["embed", "own/model", "x.npy", "-o", "embedded"]) == 0
    probe = ["probe", "classify", "wafer/model", "Wafer", *where, "--split", "validation"]
    assert main(probe) == 2
    assert "official split of Wafer" in capsys.readouterr().err
    assert main(probe[:-2]) == 2
    assert "wafer/model was trained on labels of Wafer" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("x.npy", "x.npy has no labels; give them with --y"),
        ("x.npy --y one.npy", "classification needs at least two classes in y, got 1"),
        ("x.npy --y y.npy --labels 13", "class 0 has 12 series, 13 labels were asked"),
        ("x.npy --y names.npy --labels 13", "class fast has 12 series, 13 labels were asked"),
        ("x.npy --y y.npy --labels few", "finetune.labels must be all, a share such as 5%"),
        ("x.npy --y y.npy --labels 0%", "finetune.labels must be all, a share such as 5%"),
        ("x.npy --y y.npy --split validation", "split is for data sets by name"),
        ("x.npy --y gone.npy", "there is no file gone.npy"),
        ("gone.npy --y y.npy", "there is no gone.npy"),
        ("Waffer", "there is no file or folder Waffer; unknown data set 'Waffer'; did you mean"),
        ("HAR --y y.npy", "--y is for own series; HAR has labels of its own"),
        ("Electricity --y y.npy", "Electricity has no labels; those that have"),
        ("Electricity", "Electricity has no labels; those that have"),
        ("inf.npy --y y.npy", "channel 1 is inf; mark missing values by NaN"),
        ("inf.npy --y y.npy finetune.validation=0.9", "inf.0, sample 3, channel 1 is inf"),
        ("short.npy --y y.npy --from RUN", "series 0 needs at least"),
        ("wide.npy --y y.npy --from RUN", "model has 2 channels, got 3"),
        ("x.npy --y y.npy --from nowhere", "--from must name the folder of a finished run"),
        ("x.npy --y y.npy --from RUN model.blocks=2", "model.blocks is 1 in"),
        ("x.npy --y y.npy --from RUN finetune.encoder=vanilla", "is trained from scratch"),
        ("x.npy --y y.npy finetune.encoder=lstm", "must be one of pmt, vanilla, got 'lstm'"),
        ("x.npy --y y.npy finetune.only_head=2", "finetune.only_head must be true or false"),
        (
            "x.npy --y y.npy finetune.validation=0.99",
            "none of class 0, which has 12, is left to le",
        ),
        (
            "x.npy --y rare.npy finetune.validation=0.1",
            "is left to learn from; leave the class out",
        ),
        ("lost.npy --y y.npy", "series 3 has no observed value; leave it out"),
        ("x.npy --y y.npy finetune.headlr=1", "did you mean 'finetune.head_lr'?"),
        ("x.npy --y y.npy loss.icl=1", "unknown setting 'loss'"),
        ("x.npy --y y.npy --result r.csv", "--result must name the .json file to write, got r."),
    ],
)
def test_bad_use_gives_one_line_and_changes_nothing(
    arguments, message, files, pretrained, made_sets, capsys
):
    words = [str(pretrained) if word == "RUN" else word for word in arguments.split()]
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
    arguments = ["finetune", "x.npy", "-o", "run", "--print-config", "--labels", "5%"]
    assert main([*arguments, "--only-head", "train.lr=1e-3"]) == 0
    (tmp_path / "shown.yaml").write_text(capsys.readouterr().out)
    again = read_finetune_config(tmp_path / "shown.yaml")
    assert again.finetune.labels == "5%" and again.finetune.only_head
    assert again.run.train.lr == 1e-3 and again.run.train.epochs == 50


def test_the_experiment_is_as_it_says():
    cfg = read_finetune_config(Path(__file__).parent.parent / "experiments/supervised.yaml")
    assert cfg.finetune == LabelConfig() and cfg.run.model == {"size": "small"}


def test_other_labels_other_weights_and_other_settings_are_refused(tmp_path, pretrained):
    out, cfg = tmp_path / "run", config()
    finetune(made(), out, cfg, say=None)
    with pytest.raises(ConfigError, match=r"other settings: finetune\.labels differ"):
        finetune(made(), out, config("finetune.labels=50%"), say=None)
    with pytest.raises(ConfigError, match="begun with other data: labels differ"):
        finetune(made()._replace(y=1 - made().y), out, cfg, say=None)
    start = tmp_path / "start"
    finetune(made(), start, cfg, pretrained=pretrained, say=None)
    shape = ["model.dropout=0.2"]
    with pytest.raises(ConfigError, match="first weights differ"):
        finetune(made(), start, config(*shape), say=None)


def test_a_test_series_with_infinite_values_is_refused_before_the_training(tmp_path):
    data = made()
    data.test[3][5, 1] = np.inf
    with pytest.raises(InputError, match="test series 3, sample 5, channel 1 is inf"):
        finetune(data, tmp_path / "run", config(), say=None)
    assert not (tmp_path / "run").exists()


def test_a_folder_of_another_kind_of_run_is_refused(tmp_path, pretrained):
    with pytest.raises(ConfigError, match=r"not a run of this kind: .* unknown setting 'loss'"):
        finetune(made()._replace(noted={}), pretrained, config(), say=None)
    finetune(made()._replace(noted={}), tmp_path / "tuned", config(), say=None)
    with pytest.raises(ConfigError, match=r"not a run of this kind: .* unknown setting 'finetune'"):
        pretrain(made().recordings, tmp_path / "tuned", read_config(None, SHAPE), say=None)


def test_a_label_that_is_alone_in_its_class_is_refused_where_it_would_be_held_out():
    data = made()
    alone = np.where(np.arange(40) == 0, 0, 1)
    with pytest.raises(InputError, match="none of class slow, which has 1, is left to learn"):
        choose_parts(data._replace(y=alone), labels="all", label_seed=0, validation=0.2)


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
