"""Two processes do what one does on the same global batch."""

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from training_setup import FORKED, made_recordings, small_config
from two_processes import (
    BATCH,
    HIDE,
    RECORDINGS,
    STEPS,
    SUBSETS,
    begun_by_one,
    divide,
    gradients,
    train_on_labels,
)

import progmem
from progmem.data.windows import TrainingWindows
from progmem.training.checkpoint import newest_checkpoint
from progmem.training.classifier import SequenceClassifier
from progmem.training.distributed import split_rows
from progmem.training.pretrain import pretrain
from progmem.training.randomness import batch_rows


def keep_until(run, step):
    """Make ``run`` one that was killed after ``step``."""
    shutil.rmtree(run / "model")
    later = [p for p in (run / "checkpoints").iterdir() if int(p.stem[-8:]) > step]
    assert later
    for path in later:
        path.unlink()


def under_torchrun(*arguments):
    """Two processes of the helper's script: their exit code, and what they say of errors."""
    helpers = Path(__file__).parents[1] / "helpers"
    paths = [helpers, Path(progmem.__file__).parents[1]]
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, paths))}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*launcher, str(helpers / "two_processes.py"), *map(str, arguments)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200)
    return done.returncode, done.stderr


def forked(out):
    """The same, of processes that are forked from this one; what they say is not kept."""
    process = multiprocessing.get_context("fork").Process(target=divide, args=(out,), daemon=True)
    process.start()
    process.join(200)
    return process.exitcode, "see what they have printed"


def assert_same_tensors(found, expected):
    """Equal but for rounding, which decides where axes of nearly the same size point."""
    found, expected = dict(found), dict(expected)
    measure, remove = (f"feature_stats.whitening_{name}" for name in ("measure", "remove"))
    maps = [tensors.pop(measure) @ tensors.pop(remove) for tensors in (found, expected)]
    torch.testing.assert_close(*maps, rtol=0, atol=1e-4)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-7)  # Adam divides


@pytest.mark.parametrize(
    "start_two",
    [
        pytest.param(forked, marks=FORKED),
        pytest.param(under_torchrun, marks=pytest.mark.slow),
    ],
)
def test_two_processes_equal_one(tmp_path, start_two):
    """Gradients of each objective and of their sum, of uneven parts; short runs without
    and with labels, and one that one process begins, two go on with, and one ends."""
    begun = tmp_path / "begun by one"
    whole = pretrain(made_recordings(RECORDINGS), begun, begun_by_one(), log=None)
    keep_until(begun, 2)
    code, errors = start_two(tmp_path)
    assert code == 0, errors[-3000:]

    theirs, ours = load_file(tmp_path / "gradients.safetensors"), gradients()
    assert theirs.keys() == ours.keys()
    assert {name.split(".")[0] for name in ours} == {"".join(map(str, s)) for s in SUBSETS}
    for name, gradient in ours.items():
        apart = (gradient - theirs[name]).abs().max()
        assert apart <= 1e-10 * gradient.abs().max().clamp(min=1e-3), name

    cfg = small_config(HIDE, "train.precision=64", "train.batch_size=13", "train.epochs=1")
    one = pretrain(made_recordings(RECORDINGS), tmp_path / "one", cfg, log=lambda _: None)
    for run in ("run", "parts"):
        two = progmem.load(tmp_path / run / "model").state_dict()
        assert_same_tensors(two, one.state_dict())

    assert newest_checkpoint(begun / "checkpoints", log=print).step == 4
    keep_until(begun, 3)
    ended = pretrain(made_recordings(RECORDINGS), begun, begun_by_one(), log=None).state_dict()
    assert_same_tensors(ended, whole.state_dict())

    alone = train_on_labels(tmp_path / "alone").state_dict()
    for name, tensor in SequenceClassifier.load(tmp_path / "finetuned").state_dict().items():
        torch.testing.assert_close(tensor, alone[name].to(tensor.dtype), rtol=0, atol=1e-7)


@pytest.mark.slow
def test_two_processes_of_which_one_has_too_little_memory_go_on_in_the_same_parts(tmp_path):
    """It ends, the other cannot go on without it, and the next start of both divides the step."""
    whole = pretrain(
        made_recordings(RECORDINGS), tmp_path / "whole", begun_by_one(), log=None
    ).state_dict()
    run = tmp_path / "run"
    (first, told), (second, errors) = (under_torchrun(run, "short") for _ in range(2))
    assert first and "from step 1 on a batch is held in 2 parts when the" in told
    assert json.loads((run / "parts.json").read_text())["parts"] == {"0": 2}
    assert second == 0, errors
    assert_same_tensors(progmem.load(run / "model").state_dict(), whole)


def test_the_compared_batches_are_of_an_odd_number_of_rows():
    rows = TrainingWindows(made_recordings(RECORDINGS), small_config().data)
    sizes = [len(batch_rows(len(rows), BATCH, 0, number)) for number in STEPS]
    assert sizes == [BATCH, BATCH] and BATCH % 2


def test_rows_are_split_evenly_and_all_of_them():
    for rows in range(2, 20):
        for world in range(1, 6):
            parts = [split_rows(rows, world, rank) for rank in range(world)]
            assert [i for p in parts for i in range(rows)[p]] == list(range(rows))
            sizes = [p.stop - p.start for p in parts]
            assert max(sizes) - min(sizes) <= 1
