"""Runs that are killed, stopped, damaged or out of disk: nothing is lost."""

import contextlib
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from unittest.mock import ANY

import numpy as np
import pytest
import torch
import yaml
from torch import nn
from training_setup import FORKED, SETTINGS, assert_same_model, made_recordings, run, steps_of

import progmem
from progmem import artifact
from progmem.cli import main
from progmem.training import checkpoint
from progmem.training.checkpoint import newest_checkpoint


def start(folder, data, *settings):
    command = [sys.executable, "-m", "progmem", "pretrain", str(data), "-o", str(folder)]
    env = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(progmem.__file__).parents[1]),
    }
    return subprocess.Popen(
        [*command, *SETTINGS, *settings], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


class Forked:
    """What `start` gives, of a process that is forked from this one and need not load torch."""

    def __init__(self, folder, data, *settings):
        self.output = folder.with_suffix(".txt")
        command = ["pretrain", str(data), "-o", str(folder), *SETTINGS, *settings]
        self.process = multiprocessing.get_context("fork").Process(
            target=self.run, args=(command,), daemon=True
        )
        self.process.start()
        self.poll = lambda: self.process.exitcode
        self.send_signal = lambda number: os.kill(self.process.pid, number)

    def run(self, command):
        warnings.simplefilter("default")
        with self.output.open("w") as file, contextlib.redirect_stdout(file):
            sys.exit(main(command))

    def communicate(self, timeout):
        self.process.join(timeout)
        self.returncode = self.process.exitcode
        return self.output.read_bytes(), None


def wait_for_step(folder, step, process):
    deadline = time.time() + 60
    while time.time() < deadline and process.poll() is None:
        if (folder / "metrics.jsonl").exists() and len(steps_of_live(folder)) >= step:
            return
        time.sleep(0.005)


def steps_of_live(folder):
    return (folder / "metrics.jsonl").read_text().splitlines()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Recordings on disk."""
    folder = tmp_path_factory.mktemp("data")
    for recording in made_recordings():
        np.save(folder / f"{int(recording.name):03d}.npy", recording.values)
    return folder


@pytest.mark.slow
def test_kill_9_twenty_times_and_the_same_command_again_change_no_bit(tmp_path, data):
    whole = tmp_path / "whole"
    process = start(whole, data, "train.epochs=12")
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    rng = np.random.default_rng(1)
    total = len(steps_of(whole))
    folder = tmp_path / "broken"
    for step in sorted(rng.integers(1, total, size=20)):
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


@pytest.mark.parametrize(
    "start, number, code",
    [
        pytest.param(Forked, signal.SIGTERM, 143, marks=FORKED),
        pytest.param(start, signal.SIGTERM, 143, marks=pytest.mark.slow),
        pytest.param(start, signal.SIGINT, 130, marks=pytest.mark.slow),
    ],
)
def test_a_polite_signal_leaves_a_checkpoint_and_the_usual_exit_code(
    tmp_path, data, start, number, code
):
    folder, started = tmp_path / "stopped", time.time()
    process = start(folder, data, "train.epochs=12", "train.checkpoint_every=10000")
    wait_for_step(folder, 4, process)
    process.send_signal(number)
    began = time.time()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == code, output
    # on a busy machine it may take as long as it took to start
    assert time.time() - began < max(5, began - started)
    assert b"the same command goes on from there" in output
    assert newest_checkpoint(folder / "checkpoints", log=print).step == len(steps_of(folder))
    assert len(list((folder / "checkpoints").iterdir())) == 1


@pytest.mark.slow
def test_a_run_with_dropout_resumes_exactly_too(tmp_path):
    run(tmp_path / "whole", "model.dropout=0.3")
    run(tmp_path / "broken", "model.dropout=0.3")
    max((tmp_path / "broken/checkpoints").iterdir()).unlink()
    said = []
    run(tmp_path / "broken", "model.dropout=0.3", log=said.append)
    assert any("going on from step" in line for line in said)
    assert_same_model(tmp_path / "broken", tmp_path / "whole")


def test_a_finished_run_says_so_and_more_epochs_go_on(finished, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(finished, folder)
    shutil.rmtree(folder / "model")  # as if killed between the last checkpoint and the model
    said = []
    run(folder, log=said.append)
    assert any("has finished its" in line for line in said)
    assert_same_model(folder, finished)
    before = len(steps_of(folder))
    run(folder, "train.epochs=5")
    assert len(steps_of(folder)) > before


def test_how_often_a_run_is_saved_and_told_of_may_change_when_it_goes_on(finished, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(finished, folder)
    shutil.rmtree(folder / "model")
    *older, newest = sorted((folder / "checkpoints").iterdir())
    for path in (newest, *older[1:]):
        path.unlink()
    said = []
    run(folder, "train.checkpoint_every=2", "train.log_every=1", log=said.append)
    assert any("going on from step 6" in line for line in said)
    assert_same_model(folder, finished)
    assert steps_of(folder) == steps_of(finished)
    kept = {int(path.stem[-8:]) for path in (folder / "checkpoints").iterdir()}
    assert kept == {8, 10, 12}
    noted = yaml.safe_load((folder / "config.yaml").read_text())["train"]
    assert noted["checkpoint_every"] == 2 and noted["log_every"] == 1


@pytest.mark.slow
def test_a_run_counted_in_steps_is_that_of_its_epochs_and_more_steps_go_on(finished, tmp_path):
    total = max(steps_of(finished))
    by_steps = ("train.epochs=null", f"train.steps={total}")
    run(tmp_path / "run", *by_steps)
    assert_same_model(tmp_path / "run", finished)
    noted = yaml.safe_load((tmp_path / "run/config.yaml").read_text())["train"]
    assert noted["steps"] == total and "epochs" not in noted
    max((tmp_path / "run/checkpoints").iterdir()).unlink()  # broken off: it goes on to the same
    run(tmp_path / "run", *by_steps)
    assert_same_model(tmp_path / "run", finished)
    run(tmp_path / "run", "train.epochs=null", f"train.steps={total + 4}")
    assert max(steps_of(tmp_path / "run")) == total + 4


def pickled(path):
    """Code in place of tensors: it must be refused, never run."""

    class Hostile:
        def __reduce__(self):
            return (open, (str(path.parent.parent / "ran"), "w"))

    path.write_bytes(pickle.dumps(Hostile()))


def forge(path, **changes):
    """Another note under a checksum that fits: whole, but not what was saved."""
    found = artifact.read(path, "checkpoint")
    artifact.write(path, "checkpoint", found.tensors, found.note | changes)


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


DAMAGES = {
    "truncated": lambda p: p.write_bytes(p.read_bytes()[:1000]),
    "empty": lambda p: p.write_bytes(b""),
    "bit": flip,
    "pickle": pickled,
    "step": lambda p: forge(p, step=100),
    "step text": lambda p: forge(p, step="12"),
    "facts": lambda p: forge(p, facts=None),
    "kind": lambda p: artifact.write(p, "model", {}, {"step": 12, "facts": {}}),
    "renamed": lambda p: min(p.parent.iterdir()).rename(p),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_found(finished, tmp_path, damage):
    folder = tmp_path / "run" / "checkpoints"
    shutil.copytree(finished / "checkpoints", folder)
    *_, before, newest = sorted(folder.glob("*.safetensors"))
    good = newest_checkpoint(folder, log=print)
    older = artifact.read(before, "checkpoint")
    damage(newest)
    said = []
    found = newest_checkpoint(folder, log=said.append)
    assert any(newest.name in line and "damaged and passed over" in line for line in said)
    assert found.step == older.note["step"] < good.step
    assert all(torch.equal(t, older.tensors[name]) for name, t in found.tensors.items())
    assert not (folder.parent / "ran").exists()


@pytest.mark.parametrize("damage", [flip, pickled])
def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(finished, tmp_path, damage):
    folder = tmp_path / "copy"
    shutil.copytree(finished, folder)
    shutil.rmtree(folder / "model")
    newest = max((folder / "checkpoints").glob("*.safetensors"))
    damage(newest)
    said = []
    run(folder, log=said.append)
    assert any(newest.name in line and "damaged and passed over" in line for line in said)
    assert any("going on from step" in line for line in said)
    assert_same_model(folder, finished)
    assert steps_of(folder) == steps_of(finished)  # those made again are there once
    assert not (folder / "ran").exists()


def test_fifty_flipped_bits_are_all_noticed(finished, tmp_path):
    folder = tmp_path / "checkpoints"
    shutil.copytree(finished / "checkpoints", folder)
    newest = max(folder.glob("*.safetensors"))
    good, rng = newest.read_bytes(), np.random.default_rng(0)
    newest_step = newest_checkpoint(folder, log=print).step
    for place in rng.integers(len(good), size=50):
        bad = bytearray(good)
        bad[place] ^= 1 << int(rng.integers(8))
        newest.write_bytes(bytes(bad))
        assert newest_checkpoint(folder, log=lambda _: None).step < newest_step


def test_a_flipped_bit_in_step_or_facts_is_damage_not_other_data(finished, tmp_path):
    folder = tmp_path / "checkpoints"
    shutil.copytree(finished / "checkpoints", folder)
    newest = max(folder.iterdir())
    good, newest_step = newest.read_bytes(), newest_checkpoint(folder, log=print).step
    place, end = (good.index(text) for text in (b'step\\"', b"learner."))
    for at in range(place, end, 3):
        bad = bytearray(good)
        bad[at] ^= 4
        newest.write_bytes(bytes(bad))
        assert newest_checkpoint(folder, log=lambda _: None).step < newest_step


def test_damaged_checkpoints_do_not_drive_out_the_new_ones(finished, tmp_path):
    """All that is kept is damaged: what is made after it stays, whatever its step."""
    folder = tmp_path / "copy"
    shutil.copytree(finished, folder)
    damaged = sorted((folder / "checkpoints").iterdir())
    for path in damaged:
        flip(path)
    learner = nn.Linear(1, 1)
    optimizer = torch.optim.AdamW(learner.parameters())
    for step in (1, 2):
        checkpoint.save_checkpoint(folder / "checkpoints", step, learner, optimizer, {"rows": 1})
    assert newest_checkpoint(folder / "checkpoints", log=pytest.fail) == (2, ANY, {"rows": 1})


@pytest.mark.parametrize(
    "other, message",
    [
        (nn.Linear(2, 1), r"weight has shape \(1, 1\) and torch.float32, not \(1, 2\)"),
        (nn.Linear(1, 1).double(), "weight has shape .* torch.float64"),
        (nn.Linear(1, 1, bias=False), "missing or unknown tensors bias"),
    ],
)
def test_a_whole_checkpoint_of_another_network_is_refused_in_one_line(tmp_path, other, message):
    learner = nn.Linear(1, 1)
    optimizer = torch.optim.AdamW(learner.parameters())
    learner(torch.ones(1)).backward()
    optimizer.step()
    checkpoint.save_checkpoint(tmp_path, 1, learner, optimizer, {})
    found = newest_checkpoint(tmp_path, log=pytest.fail)
    with pytest.raises(progmem.ConfigError, match="the checkpoint of step 1 is not of this run"):
        checkpoint.restore(found, other, optimizer)
    with pytest.raises(progmem.ConfigError, match=message):
        checkpoint.restore(found, other, optimizer)
    found.tensors["optimizer.weight.exp_avg"] = torch.ones(3, 3)
    with pytest.raises(progmem.ConfigError, match=r"exp_avg of weight has shape \(3, 3\)"):
        checkpoint.restore(found, learner, optimizer)


def test_a_full_disk_keeps_the_old_checkpoint(tmp_path, monkeypatch):
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
    assert checkpoint.newest_checkpoint(tmp_path / "run/checkpoints", log=print).step == calls[1]
    assert not list((tmp_path / "run/checkpoints").glob(".progmem-*"))
