"""The training loop: exact resume, clear refusals, nothing lost."""

import hashlib
import itertools
import json
import math
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock
from training_setup import SETTINGS, made_recordings, small_config

import progmem
from progmem.errors import ConfigError, InputError, TrainingError
from progmem.training import pretrain as loop
from progmem.training import step as one_step
from progmem.training.pretrain import learning_rate, pretrain
from progmem.training.randomness import batch_rows, generator, steps_per_epoch

HERE = Path(__file__).parent


def run(folder, *settings, say=lambda _: None):
    return pretrain(made_recordings(), folder, small_config(*settings), say=say)


def weights(folder):
    return progmem.load(folder / "model").state_dict()


def steps_of(folder):
    return [
        json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()
    ]


def assert_same_model(ours, theirs):
    for name, tensor in weights(ours).items():
        assert torch.equal(tensor, weights(theirs)[name]), name


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """An uninterrupted run, and the losses of its steps."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    run(folder)
    return folder


def test_a_run_leaves_all_that_it_promises(finished):
    assert {p.name for p in finished.iterdir()} >= {
        "config.yaml", "metrics.jsonl", "checkpoints", "model"
    }  # fmt: skip
    steps = steps_of(finished)
    assert steps == list(range(1, len(steps) + 1))
    lines = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert {"loss", "icl", "pcl", "hgcl", "hgcl_tokens", "tokens_bucket_share", "lr"} <= set(
        lines[0]
    )
    assert {"feature_sd", "effective_rank"} <= set(lines[3])
    model = progmem.load(finished / "model")
    assert not torch.equal(model.stats.mean, torch.zeros(2, dtype=torch.float64))
    assert model.encode(made_recordings()[0].values[None]).sequence.isfinite().all()


def test_two_runs_with_one_seed_are_identical_and_another_seed_is_not(finished, tmp_path):
    run(tmp_path / "again")
    assert_same_model(tmp_path / "again", finished)
    run(tmp_path / "other", "train.seed=1")
    name = "blocks.0.layer.qkv.weight"
    assert not torch.equal(weights(tmp_path / "other")[name], weights(finished)[name])


def test_the_first_steps_lose_as_stored():
    """A golden curve: refactoring must not move it. Tolerance: float32 sums in another order."""
    stored = json.loads((HERE / "golden/losses.json").read_text())
    losses = golden_losses()
    assert losses == pytest.approx(stored, rel=1e-3)


def golden_losses():
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "run"
        run(folder, "train.epochs=7")
        lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines][:20]


def start(folder, data, *settings):
    command = [sys.executable, "-m", "progmem", "pretrain", str(data), "-o", str(folder)]
    env = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(progmem.__file__).parents[1]),
    }
    return subprocess.Popen(
        [*command, *SETTINGS, *settings], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def wait_for_step(folder, step, process):
    deadline = time.time() + 60
    while time.time() < deadline and process.poll() is None:
        if (folder / "metrics.jsonl").exists() and len(steps_of_live(folder)) >= step:
            return
        time.sleep(0.005)


def steps_of_live(folder):
    return (folder / "metrics.jsonl").read_text().splitlines()


@pytest.fixture(scope="module")
def long_run(tmp_path_factory):
    """Data on disk and the model of an uninterrupted run over it, in a process of its own."""
    parent = tmp_path_factory.mktemp("long")
    data = parent / "data"
    data.mkdir()
    for recording in made_recordings():
        np.save(data / f"{int(recording.name):03d}.npy", recording.values)
    process = start(parent / "whole", data, "train.epochs=12")
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    return data, parent / "whole"


def kill_and_go_on(tmp_path, long_run, kills, seed):
    data, whole = long_run
    rng = np.random.default_rng(seed)
    total = len(steps_of(whole))
    folder = tmp_path / "broken"
    for step in sorted(rng.integers(1, total, size=kills)):
        process = start(folder, data, "train.epochs=12")
        wait_for_step(folder, int(step), process)
        time.sleep(float(rng.uniform(0, 0.03)))  # also in the midst of a checkpoint
        process.kill()
        process.communicate()
    process = start(folder, data, "train.epochs=12")
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert_same_model(folder, whole)
    assert steps_of(folder) == list(range(1, total + 1))


def test_kill_9_and_the_same_command_again_change_no_bit(tmp_path, long_run):
    kill_and_go_on(tmp_path, long_run, kills=3, seed=0)


@pytest.mark.slow
def test_kill_9_twenty_times_changes_no_bit(tmp_path, long_run):
    kill_and_go_on(tmp_path, long_run, kills=20, seed=1)


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_polite_signal_leaves_a_checkpoint_and_the_usual_exit_code(
    tmp_path, long_run, number, code
):
    data, _ = long_run
    folder = tmp_path / "stopped"
    process = start(folder, data, "train.epochs=12", "train.checkpoint_every=10000")
    wait_for_step(folder, 4, process)
    process.send_signal(number)
    began = time.time()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == code, output
    assert time.time() - began < 5
    assert b"the same command goes on from there" in output
    (note,) = (folder / "checkpoints").glob("*.json")
    assert json.loads(note.read_text())["step"] == len(steps_of(folder))


def test_a_run_with_dropout_resumes_exactly_too(tmp_path):
    run(tmp_path / "whole", "model.dropout=0.3")
    run(tmp_path / "broken", "model.dropout=0.3")
    for file in sorted((tmp_path / "broken/checkpoints").glob("*"))[-2:]:
        file.unlink()
    said = []
    run(tmp_path / "broken", "model.dropout=0.3", say=said.append)
    assert any("going on from step" in line for line in said)
    assert_same_model(tmp_path / "broken", tmp_path / "whole")


def test_a_finished_run_says_so_and_more_epochs_go_on(finished, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(finished, folder)
    shutil.rmtree(folder / "model")  # as if killed between the last checkpoint and the model
    said = []
    run(folder, say=said.append)
    assert any("has finished its" in line for line in said)
    assert_same_model(folder, finished)
    before = len(steps_of(folder))
    run(folder, "train.epochs=5")
    assert len(steps_of(folder)) > before


@pytest.mark.parametrize(
    "settings, message",
    [
        (["train.lr=2e-3"], "begun with other settings: train.lr differ"),
        (["train.epochs=3"], "train.epochs differ; only train.epochs may grow"),
        (["model.blocks=1", "loss.icl=0"], "loss.icl, model.blocks differ"),
    ],
)
def test_a_changed_config_is_refused_with_the_keys(finished, settings, message):
    with pytest.raises(ConfigError, match=message):
        run(finished, *settings)


def test_other_data_are_refused(finished):
    with pytest.raises(ConfigError, match="begun with other data: number of rows, samples differs"):
        pretrain(made_recordings(19), finished, small_config(), say=lambda _: None)


def test_a_busy_folder_is_refused(finished):
    with FileLock(finished / ".lock"), pytest.raises(ConfigError, match="in use by another run"):
        run(finished)


def test_somebody_elses_folder_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match="holds other files"):
        run(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def forge_pickle(path):
    """Code in place of tensors, with a fitting checksum: it must be refused, never run."""

    class Hostile:
        def __reduce__(self):
            return (open, (str(path.parent.parent / "ran"), "w"))

    data = pickle.dumps(Hostile())
    path.write_bytes(data)
    note = json.loads(path.with_suffix(".json").read_text())
    note["sha256"] = hashlib.sha256(data).hexdigest()
    path.with_suffix(".json").write_text(json.dumps(note))


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    "damage",
    [
        lambda p: p.write_bytes(p.read_bytes()[:1000]),
        lambda p: p.write_bytes(b""),
        flip,
        lambda p: p.unlink(),
        lambda p: p.with_suffix(".json").write_text("{"),
        lambda p: p.with_suffix(".json").write_bytes(b"\xff\xfe"),
        lambda p: p.with_suffix(".json").write_text("null"),
        lambda p: forge_pickle(p),
    ],
    ids=["truncated", "empty", "bit", "gone", "note cut", "note bytes", "note null", "pickle"],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(finished, tmp_path, damage):
    folder = tmp_path / "copy"
    shutil.copytree(finished, folder)
    shutil.rmtree(folder / "model")
    newest = max((folder / "checkpoints").glob("*.safetensors"))
    damage(newest)
    said = []
    run(folder, say=said.append)
    assert any(newest.name in line and "damaged and passed over" in line for line in said)
    assert any("going on from step" in line for line in said)
    assert_same_model(folder, finished)
    assert not (folder / "ran").exists()


def test_fifty_flipped_bits_are_all_noticed(finished, tmp_path):
    from progmem.training.checkpoint import newest_checkpoint

    folder = tmp_path / "checkpoints"
    shutil.copytree(finished / "checkpoints", folder)
    newest = max(folder.glob("*.safetensors"))
    good, rng = newest.read_bytes(), np.random.default_rng(0)
    newest_step = newest_checkpoint(folder, say=print).step
    for place in rng.integers(len(good), size=50):
        bad = bytearray(good)
        bad[place] ^= 1 << int(rng.integers(8))
        newest.write_bytes(bytes(bad))
        assert newest_checkpoint(folder, say=lambda _: None).step < newest_step


def test_a_full_disk_keeps_the_old_checkpoint(tmp_path, monkeypatch):
    from progmem.training import checkpoint

    saved = checkpoint.save_checkpoint
    calls = []

    def no_space(_):
        raise OSError(28, "No space left on device")

    def full(folder, step, *rest):
        calls.append(step)
        if len(calls) == 3:
            monkeypatch.setattr(os, "fsync", no_space)
        saved(folder, step, *rest)

    monkeypatch.setattr(checkpoint, "save_checkpoint", full)
    with pytest.raises(OSError, match="No space"):
        run(tmp_path / "run")
    monkeypatch.undo()
    assert checkpoint.newest_checkpoint(tmp_path / "run/checkpoints", say=print).step == calls[1]
    assert not list((tmp_path / "run/checkpoints").glob(".progmem-*"))


def test_a_loss_that_is_not_finite_stops_the_run_by_name(tmp_path, monkeypatch):
    total = one_step.total_loss

    def poisoned(*arguments, **settings):
        loss, parts = total(*arguments, **settings)
        if len(calls) > 7:
            parts["pcl"] = parts["pcl"] * math.nan
            loss = loss * math.nan
        calls.append(1)
        return loss, parts

    calls = []
    monkeypatch.setattr(one_step, "total_loss", poisoned)
    with pytest.raises(TrainingError, match="step 8: pcl is not a finite number; the last good"):
        run(tmp_path / "run")
    from progmem.training.checkpoint import newest_checkpoint

    assert newest_checkpoint(tmp_path / "run/checkpoints", say=print).step == 6


def test_a_gradient_that_is_not_finite_stops_the_run(tmp_path, monkeypatch):
    total = one_step.total_loss

    def poisoned(*arguments, **settings):
        loss, parts = total(*arguments, **settings)
        return loss + (0 * loss).clamp(min=0).sqrt(), parts  # 0, but with a slope of 0 * inf

    monkeypatch.setattr(one_step, "total_loss", poisoned)
    with pytest.raises(TrainingError, match="step 1: gradient is not a finite number"):
        run(tmp_path / "run")


def test_a_collapse_is_warned_about(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "COLLAPSED", 1e9)
    said = []
    run(tmp_path / "run", say=said.append)
    assert sum("have collapsed" in line for line in said) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["icl", "pcl", "hgcl"])
def test_an_objective_alone_teaches_its_scale(tmp_path, name):
    """Over 200 steps positives come closer than negatives, at that objective's scale."""
    off = [f"loss.{other}=0" for other in ("icl", "pcl", "hgcl") if other != name]
    run(tmp_path / "run", *off, "train.epochs=67", "views.preset=gentle")
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    gaps = [json.loads(line)[f"{name}_gap"] for line in lines]
    assert len(gaps) >= 200
    assert np.mean(gaps[190:200]) > np.mean(gaps[:10])


def test_effective_rank_and_spread_of_known_vectors():
    from progmem.training.monitor import health

    assert health(torch.ones(9, 4)) == {"feature_sd": 0.0, "effective_rank": 1.0}
    square = torch.tensor([[1.0, 0], [-1, 0], [0, 1], [0, -1]])
    assert health(square)["effective_rank"] == pytest.approx(2.0)


def with_inf():
    recordings = made_recordings()
    recordings[2].values[7, 1] = -np.inf
    return recordings


@pytest.mark.parametrize(
    "recordings, settings, error, message",
    [
        (made_recordings()[:1], [], InputError, "at least 2 rows to tell apart, got 1"),
        (
            made_recordings(),
            ["model.channels=3"],
            ConfigError,
            "model.channels is 3, the recordings",
        ),
        (made_recordings(), ["model.slots=0"], ConfigError, "loss.pcl needs memory"),
        (made_recordings(), ["model.patch=40"], InputError, "needs at least 40 samples, got 39"),
        (with_inf(), [], InputError, "2, sample 7, channel 1 is -inf; mark missing values by NaN"),
    ],
)
def test_what_cannot_be_trained_is_refused(recordings, settings, error, message, tmp_path):
    with pytest.raises(error, match=message):
        pretrain(recordings, tmp_path / "run", small_config(*settings))
    assert not (tmp_path / "run").exists()


def test_data_smaller_than_a_batch_work_with_a_word(tmp_path):
    said = []
    run(tmp_path / "run", "train.batch_size=100", say=said.append)
    assert any("fewer than train.batch_size 100" in line for line in said)
    assert steps_of(tmp_path / "run") == [1, 2, 3, 4]


@pytest.mark.parametrize("normalise", ["series", "none"])
def test_other_normalisations_train(tmp_path, normalise):
    model = run(tmp_path / "run", f"model.normalise={normalise}", "train.epochs=1")
    assert torch.equal(model.stats.scale, torch.ones(2, dtype=torch.float64))


def test_every_epoch_sees_every_row_once_in_a_new_order():
    assert steps_per_epoch(100, 30) == 3 and steps_per_epoch(50, 30) == 2
    epochs = [
        torch.cat([batch_rows(50, 30, 7, step) for step in (2 * e, 2 * e + 1)]) for e in (0, 1)
    ]
    assert all(sorted(e.tolist()) == list(range(50)) for e in epochs)
    assert not torch.equal(*epochs)


def test_generators_differ_by_seed_step_and_purpose():
    draws = {
        torch.rand(1, generator=generator(*key)).item()
        for key in [(0, 0, "a"), (0, 0, "b"), (0, 1, "a"), (1, 0, "a"), (0, 10, "a"), (0, 1, "0 a")]
    }
    assert len(draws) == 6


def test_the_learning_rate_warms_up_and_ends_low():
    cfg = small_config("train.lr=1e-3", "train.lr_end=1e-5", "train.warmup=0.1")
    rates = [learning_rate(step, 100, cfg) for step in range(100)]
    assert rates[0] == pytest.approx(1e-4) and max(rates) == rates[9] == pytest.approx(1e-3)
    assert rates[-1] == pytest.approx(1e-5)
    assert all(a > b for a, b in itertools.pairwise(rates[10:]))


def test_vectors_do_not_decay():
    from progmem.training.learner import Learner, parameter_groups

    model = progmem.PMT(progmem.ModelConfig(channels=2, size="tiny"))
    learner = Learner(model, small_config().loss)
    decay, keep = (g["params"] for g in parameter_groups(learner, 0.05))
    names = {id(p): n for n, p in learner.named_parameters()}
    assert all(names[id(p)].endswith("weight") for p in decay)
    kept = {names[id(p)].rsplit(".", 1)[-1] for p in keep}
    assert {"reset", "bias", "cls", "segments", "segment", "gamma", "skip_gate", "taps"} <= kept
