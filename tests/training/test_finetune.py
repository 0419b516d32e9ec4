"""Training with labels: what changes, and what must not."""

import json
import math
import shutil
import signal
import threading

import numpy as np
import pytest
import torch
from finetune_setup import config, made, same_weights, without_last_checkpoint

import progmem
from progmem import artifact
from progmem.config import read_config
from progmem.data.labels import draw_labels, split_rows
from progmem.data.recordings import Recording
from progmem.data.windows import TrainingWindows
from progmem.errors import ConfigError, InputError, ModelFolderError
from progmem.pooling import fit_feature_stats
from progmem.provenance import check_test_series
from progmem.report import record
from progmem.training.checkpoint import newest_checkpoint
from progmem.training.classifier import SequenceClassifier
from progmem.training.finetune import FinetuneTask, finetune
from progmem.training.grad_cache import backward_in_parts
from progmem.training.metrics import MetricsLog
from progmem.training.run_folder import history_in, settle_source, trained_on


def test_the_first_loss_is_that_of_a_coin_and_others_are_worked_by_hand():
    """Cross-entropy of one weight, by its formula; the mean is over the batch in any parts."""
    data = made(count=12)
    rows = TrainingWindows(data.recordings, read_config(None).data)
    cfg = config("train.precision=64", "train.batch_size=12")
    model = progmem.PMT(progmem.ModelConfig.for_length(60, 2, dim=16, heads=2, blocks=1)).double()
    learner = SequenceClassifier(model, data.classes, only_head=True)
    labels = torch.from_numpy(data.y)
    task = FinetuneTask(learner, rows, labels, cfg, device=torch.device("cpu"))
    batch = task.make_batch(0)

    def in_parts():
        return backward_in_parts(
            task, learner, batch, parts=5, seed=0, step=0, backward=torch.autograd.backward
        )

    metrics, _ = in_parts()
    assert batch.size == 12 and float(metrics["loss"]) == pytest.approx(math.log(2))
    with torch.no_grad():
        learner.head.weight[1, 3] = 2.0
    learner.zero_grad()
    metrics, _ = in_parts()
    feature = model.encode(np.stack([r.values for r in data.recordings])).sequence[:, 3]
    by_hand = right = slope = 0.0
    for value, label in zip(feature.tolist(), data.y, strict=True):
        fast = 1 / (1 + math.exp(-2.0 * value))
        by_hand -= math.log(fast if label else 1 - fast) / 12
        right += (fast > 0.5) == label
        slope += (fast - label) * value / 12
    assert float(metrics["loss"]) == pytest.approx(by_hand, rel=1e-9)
    assert float(metrics["accuracy"]) == pytest.approx(right / 12)
    assert float(learner.head.weight.grad[1, 3]) == pytest.approx(slope, rel=1e-9)


@pytest.mark.parametrize("encoder", ["pmt", "vanilla"])
def test_what_can_be_told_apart_is_learnt(tmp_path, encoder):
    cfg = config(f"encoder.name={encoder}", "train.epochs=12", "train.lr=2e-3")
    classifier, result = finetune(made(), tmp_path / "run", cfg, log=None)
    assert result["rows"][0]["scores"] == {"accuracy": 1.0, "macro_f1": 1.0, "weighted_f1": 1.0}
    assert classifier.predict(made().test).tolist() == ["slow", "fast"] * 10
    assert record.read(tmp_path / "run/result.json") == result


def test_a_frozen_network_is_unchanged_and_a_free_one_is_not(tmp_path, pretrained):
    """Dropout is off in a frozen network, too: every step sees the same features."""
    before = progmem.load(pretrained / "model")
    head, _ = finetune(
        made(count=30),  # others than it was pretrained on
        tmp_path / "head",
        config("finetune.only_head=true"),
        pretrained=pretrained,
        log=None,
    )
    assert same_weights(head.encoder, before)
    assert head.head.weight.abs().sum() > 0
    assert not head.train().encoder.training
    free, _ = finetune(made(), tmp_path / "free", config(), pretrained=pretrained, log=None)
    assert [seen["labels"] for seen in trained_on(tmp_path / "free")] == [True, False]
    assert not same_weights(free.encoder, before)
    changed = free.encoder.state_dict()
    assert all(torch.equal(changed[f"stats.{n}"], t) for n, t in before.stats.state_dict().items())


@pytest.mark.parametrize("more", [[], ["finetune.label_share=10%"]])
def test_a_network_that_was_changed_has_feature_statistics_of_its_own(tmp_path, pretrained, more):
    """Of all training rows, labelled or not; those of before belong to other tokens."""
    tuned, _ = finetune(made(), tmp_path / "run", config(*more), pretrained=pretrained, log=None)
    own = tuned.encoder.feature_stats.values
    expected = fit_feature_stats(tuned.encoder, [r.values for r in made().recordings])
    assert all(map(torch.equal, own.tensors().values(), expected.tensors().values()))
    assert not torch.equal(own.median, progmem.load(pretrained / "model").feature_stats.median)
    assert torch.equal(progmem.load(tmp_path / "run/model").feature_stats.scale, own.scale)


@pytest.mark.parametrize("more", [[], ["finetune.only_head=true"], ["finetune.views=strong"]])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, pretrained, more):
    cfg, said = config(*more), []
    for name in ("whole", "broken"):
        finetune(made(), tmp_path / name, cfg, pretrained=pretrained, log=None)
    without_last_checkpoint(tmp_path / "broken")
    finetune(made(), tmp_path / "broken", cfg, pretrained=pretrained, log=said.append)
    assert any("going on from step" in line for line in said)
    whole, broken = (SequenceClassifier.load(tmp_path / name) for name in ("whole", "broken"))
    assert same_weights(whole, broken)
    again = []
    finetune(made(), tmp_path / "broken", cfg, pretrained=pretrained, log=again.append)
    assert any("has finished its" in line for line in again)


def test_sigterm_leaves_a_checkpoint_from_which_the_same_call_goes_on(tmp_path, monkeypatch):
    assert threading.current_thread() is threading.main_thread()  # else nobody would listen
    written = MetricsLog.write

    def interrupted(self, step, *rest):
        written(self, step, *rest)
        if step == 3:
            signal.raise_signal(signal.SIGTERM)

    cfg, said = config("train.checkpoint_every=100"), []
    monkeypatch.setattr(MetricsLog, "write", interrupted)
    with pytest.raises(SystemExit) as stopped:
        finetune(made(), tmp_path / "stopped", cfg, log=said.append)
    monkeypatch.undo()
    assert stopped.value.code == 143 and "the same command goes on from there" in said[-1]
    kept_step = newest_checkpoint(tmp_path / "stopped/checkpoints", log=print).step
    kept = (tmp_path / "stopped/metrics.jsonl").read_text().splitlines()
    assert 3 <= kept_step == len(kept) < 6
    assert not (tmp_path / "stopped/result.json").exists()
    for name in ("stopped", "whole"):
        finetune(made(), tmp_path / name, cfg, log=lambda _: None)
    assert same_weights(
        *(SequenceClassifier.load(tmp_path / name) for name in ("stopped", "whole"))
    )
    lines = (tmp_path / "stopped/metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in lines]
    assert [line["step"] for line in steps] == [1, 2, 3, 4, 5, 6]
    assert {"loss", "accuracy", "lr"} <= set(steps[0])


def test_test_rows_change_nothing_that_is_trained(tmp_path):
    """Markers of a million in every test row."""
    runs = [
        finetune(made(value), tmp_path / str(value), config("finetune.label_share=25%"), log=None)
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
        parts = split_rows(data, label_share="all", label_seed=0, validation=0.2)
        assert sorted([*parts.train, *parts.held_out]) == list(range(40))
        assert np.bincount(data.y[parts.held_out]).tolist() == [4, 4]
        for row in parts.held_out:
            values = data.recordings[row].values + np.float32(value)
            data.recordings[row] = data.recordings[row]._replace(values=values)
        data = data._replace(test=[np.full((60, 2), 1e6, dtype=np.float32)] * 20)
        cfg = config("finetune.validation=0.2")
        runs.append(finetune(data, tmp_path / str(value), cfg, log=None))
    assert same_weights(runs[0].classifier, runs[1].classifier)
    row = runs[0].result["rows"][0]
    assert row["scored"] == "validation" and row["learnt"] == 32


def test_whole_recordings_are_held_out_where_they_are_known():
    data = made()
    pieces = [r._replace(origin=f"r{i // 4}") for i, r in enumerate(data.recordings)]
    parts = split_rows(
        data._replace(recordings=pieces), label_share="all", label_seed=0, validation=0.2
    )
    names = [{pieces[i].origin for i in rows} for rows in (parts.train, parts.held_out)]
    assert not names[0] & names[1] and len(parts.held_out) == 8


def test_few_labels_are_the_draws_of_the_probe():
    data = made()
    parts = split_rows(data, label_share="25%", label_seed=3, validation=0.0)
    assert parts.labelled.tolist() == draw_labels(data.y, 0.25, 3).tolist()
    assert len(parts.train) == 40


def test_the_head_has_its_own_rate_and_the_schedule_of_the_run(tmp_path, monkeypatch):
    seen, step = [], torch.optim.AdamW.step

    def kept(self, *rest, **more):
        seen.append([group["lr"] for group in self.param_groups])
        return step(self, *rest, **more)

    monkeypatch.setattr(torch.optim.AdamW, "step", kept)
    finetune(made(), tmp_path / "run", config("train.lr=1e-3", "finetune.head_lr=4e-3"), log=None)
    for rates in seen:
        assert rates == pytest.approx([rates[0], rates[0], 4 * rates[0], 4 * rates[0]])
    assert seen[0][0] > seen[-1][0]


@pytest.mark.parametrize("kind", ["none", "weak", "strong"])
def test_views_are_shown_and_are_new_every_step(kind):
    """Of rows that are all the same, so that their order cannot matter."""
    recordings = [made().recordings[0]] * 16
    rows, cfg = (
        TrainingWindows(recordings, read_config(None).data),
        config(f"finetune.views={kind}"),
    )
    shape = progmem.ModelConfig.for_length(60, 2, dim=16, heads=2, blocks=1)
    learner = SequenceClassifier(progmem.PMT(shape), ("slow", "fast"), only_head=False)
    labels = torch.arange(16) % 2
    task = FinetuneTask(learner, rows, labels, cfg, device=torch.device("cpu"))
    first, second, again = (task.make_batch(number).x for number in (0, 1, 0))
    assert torch.equal(first, again)
    assert torch.equal(first, second) == (kind == "none")


def test_what_a_run_and_those_before_it_have_seen_is_known(tmp_path):
    one, two, three = (tmp_path / name for name in ("one", "two", "three"))
    for folder, before in ((one, None), (two, one), (three, two)):
        folder.mkdir()
        noted = {"name": "x.npy"} if before else {"name": "Epilepsy", "split": "paper_table"}
        settle_source(folder, noted | ({"after": trained_on(before)} if before else {}), [])
    old = progmem.PMT(progmem.ModelConfig(channels=1, size="tiny"))
    old.history = None  # as of a model that 0.1.0 saved
    rows = np.arange(5, dtype=np.uint64)
    for folder in (one, three):
        history = history_in(folder, old)
        check_test_series(history, rows, rows, name="Epilepsy", split="paper_table")
        check_test_series(history, rows, rows, name="Wafer", split="official")
        with pytest.raises(InputError, match="trained on the paper_table split of Epilepsy"):
            check_test_series(history, rows, rows, name="Epilepsy", split="recording")
    with pytest.raises(ConfigError, match=r"begun on x\.npy after x\.npy, not on x\.npy;"):
        settle_source(three, {"name": "x.npy"}, [])


def test_a_run_begun_before_columns_were_noted_goes_on_and_notes_them(tmp_path):
    named = [Recording("a", None, columns=("load", "heat"))]
    settle_source(tmp_path, {"name": "a.csv"}, [])
    settle_source(tmp_path, {"name": "a.csv"}, named)
    assert trained_on(tmp_path)[0]["columns"] == ["load", "heat"]
    with pytest.raises(ConfigError, match="begun on columns load, heat, not on columns load;"):
        settle_source(tmp_path, {"name": "a.csv"}, [named[0]._replace(columns=("load",))])


def test_a_saved_classifier_predicts_the_same_and_notices_a_strange_head(tmp_path):
    classifier, _ = finetune(made(), tmp_path / "run", config(), log=None)
    again = SequenceClassifier.load(tmp_path / "run")
    with pytest.raises(InputError, match="series 1 has no observed value; leave it out"):
        again.predict([np.zeros((60, 2)), np.full((60, 2), np.nan)])
    x = made().test
    np.testing.assert_allclose(again.scores(x), classifier.scores(x), atol=1e-6)
    finetune(made(), tmp_path / "other", config("train.seed=1"), log=None)
    shutil.copy(tmp_path / "other/head.safetensors", tmp_path / "run/head.safetensors")
    with pytest.raises(ModelFolderError, match="head belongs to another network"):
        SequenceClassifier.load(tmp_path / "run")


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tuned") / "run"
    finetune(made(), folder, config("train.epochs=1"), log=None)
    return folder


def forge(path, note=None, **tensors):
    """Another content under a checksum that fits: whole, but not what was saved."""
    found = artifact.read(path, "classifier head")
    tensors = found.tensors | tensors
    artifact.write(path, "classifier head", tensors, found.note | (note or {}))


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[data.index(at)] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda p: p.unlink(), "head.safetensors cannot be read: No such file"),
        (lambda p: p.write_bytes(b""), "head.safetensors cannot be read as a classifier head"),
        (lambda p: flip(p, b"slow"), "head.safetensors is damaged"),  # the name of a class
        (lambda p: artifact.write(p, "stream", {}, {}), "it is a stream"),
        (lambda p: forge(p, {"encoder": "0"}), "its head belongs to another network"),
        (lambda p: forge(p, {"classes": [1, 2]}), "its head: classes in its note is"),
        (lambda p: forge(p, {"classes": ["a"] * 3}), "has 3 classes and not as many outputs"),
        (lambda p: forge(p, bias=torch.ones(2, dtype=torch.int64)), "not as many outputs"),
        (lambda p: forge(p, weight=torch.ones(2, 3)), r"its head: weight has shape \(2, 3\)"),
        (lambda p: forge(p, more=torch.ones(2, 3)), "its head: missing or unknown tensors more"),
    ],
)
def test_a_damaged_or_strange_head_is_refused_in_one_line(tuned, tmp_path, damage, message):
    folder = tmp_path / "run"
    shutil.copytree(tuned, folder)
    damage(folder / "head.safetensors")
    with pytest.raises(ModelFolderError, match=f"{folder} is not a finetuned run: .*{message}"):
        SequenceClassifier.load(folder)


def test_a_model_without_memory_and_series_cut_into_windows_are_trained(tmp_path):
    data = made()
    long = [r._replace(values=np.tile(r.values, (4, 1))) for r in data.recordings]
    cfg = config("model.slots=0", "data.longest=100", "data.window=60", "train.epochs=1")
    _, result = finetune(data._replace(recordings=long), tmp_path / "run", cfg, log=None)
    assert len((tmp_path / "run/metrics.jsonl").read_text()) == 0  # log=None keeps none
    assert result["config"]["model"]["slots"] == 0
