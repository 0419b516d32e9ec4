"""Out of memory: a batch is held in parts, exactly, or one line says what to lower."""

import json
import multiprocessing
import os
import shutil
import signal

import pytest
import torch
from finetune_setup import config, made
from training_setup import FORKED, assert_same_model, run, weights

from progmem.errors import ConfigError, TrainingError
from progmem.training import finetune
from progmem.training.finetune import FinetuneTask
from progmem.training.out_of_memory import explain_oom, explain_shortage
from progmem.training.pmt import PretrainTask
from progmem.training.run_folder import read_parts, write_noted
from progmem.training.trainer import Update, parts_at

EXACT = ("train.precision=64", "model.blocks=1", "train.epochs=null")
SHORT = (*EXACT, "train.steps=6")
FORK = multiprocessing.get_context("fork")


def make_short(monkeypatch, task, *, rows, steps):
    """Memory for ``rows`` at a time in the given steps; the last of it is lost halfway."""
    make_batch, embed = task.make_batch, task.embed
    now = []

    def noted(self, step, **more):
        now[:] = [step]
        return make_batch(self, step, **more)

    def limited(self, learner, batch):
        embedded = embed(self, learner, batch)
        if now[0] in steps and len(batch.lengths) > rows:
            raise torch.OutOfMemoryError("as on a GPU")
        return embedded

    monkeypatch.setattr(task, "make_batch", noted)
    monkeypatch.setattr(task, "embed", limited)


def parts_of(folder):
    return json.loads((folder / "parts.json").read_text())["parts"]


def test_a_short_memory_is_met_by_parts_from_that_step_on_with_the_same_gradients(
    tmp_path, monkeypatch
):
    run(tmp_path / "parts", *SHORT, "train.parts=4")
    said = []
    make_short(monkeypatch, PretrainTask, rows=2, steps=[4])
    run(tmp_path / "short", *SHORT, log=said.append)
    told = [line for line in said if "out of memory" in line]
    assert told == [
        "out of memory; from step 5 on a batch is held in 4 parts, with the same gradients"
    ]
    assert parts_of(tmp_path / "short") == {"4": 4}
    ours, theirs = weights(tmp_path / "short"), weights(tmp_path / "parts")
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=1e-7)  # Adam divides
    make_short(monkeypatch, PretrainTask, rows=2, steps=[0])
    run(tmp_path / "from the first", *SHORT)
    assert_same_model(tmp_path / "from the first", tmp_path / "parts")


@FORKED
@pytest.mark.parametrize("last", [5, pytest.param(7, marks=pytest.mark.slow)])
def test_a_run_that_was_killed_divides_each_step_as_before_though_memory_is_there_again(
    tmp_path, monkeypatch, last
):
    """Kill -9 before there is a checkpoint of the steps in parts, and after."""
    # dropout falls otherwise in parts: they must agree
    settings = (*EXACT, "train.steps=8", "model.dropout=0.2")
    with monkeypatch.context() as short:
        make_short(short, PretrainTask, rows=4, steps=[4, 5])
        run(tmp_path / "whole", *settings)
    make_batch = PretrainTask.make_batch

    def killed(self, step, **more):
        if step == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return make_batch(self, step, **more)

    with monkeypatch.context() as short:
        short.setattr(PretrainTask, "make_batch", killed)
        make_short(short, PretrainTask, rows=4, steps=[4, 5])
        process = FORK.Process(target=run, args=(tmp_path / "killed", *settings))
        process.start()
        process.join()
    assert process.exitcode == -signal.SIGKILL
    shutil.copytree(tmp_path / "killed", tmp_path / "forgot")
    run(tmp_path / "killed", *settings)
    assert_same_model(tmp_path / "killed", tmp_path / "whole")
    (tmp_path / "forgot/parts.json").unlink()  # then nothing says that there were parts
    run(tmp_path / "forgot", *settings)
    with pytest.raises(AssertionError):
        assert_same_model(tmp_path / "forgot", tmp_path / "whole")


@pytest.mark.parametrize("parts", [1, 2])
def test_gradients_that_were_computed_before_memory_ended_do_not_count(
    tmp_path, monkeypatch, parts
):
    settings = (*EXACT, "train.steps=2")
    run(tmp_path / "parts", *settings, f"train.parts={2 * parts}")
    clip, calls = Update.clip, []

    def late(self):
        calls.append(1)
        if len(calls) == 1:
            raise torch.OutOfMemoryError("at the last moment")
        return clip(self)

    monkeypatch.setattr(Update, "clip", late)
    run(tmp_path / "late", *settings, f"train.parts={parts}")
    assert parts_of(tmp_path / "late") == {"0": 2 * parts}
    assert_same_model(tmp_path / "late", tmp_path / "parts")


def test_parts_become_more_again_and_none_is_below_those_of_the_settings(tmp_path, monkeypatch):
    make_short(monkeypatch, PretrainTask, rows=2, steps=[2])
    run(tmp_path / "run", *SHORT, "train.parts=2")
    make_short(monkeypatch, PretrainTask, rows=1, steps=[5])
    run(tmp_path / "run", *EXACT, "train.steps=7", "train.parts=2")
    assert parts_of(tmp_path / "run") == {"2": 4}  # the steps before were not repeated
    (tmp_path / "run/checkpoints").rename(tmp_path / "lost")
    run(tmp_path / "run", *EXACT, "train.steps=7", "train.parts=2")
    assert parts_of(tmp_path / "run") == {"2": 4, "5": 8}
    divided = read_parts(tmp_path / "run")
    assert [parts_at(step, divided, 2) for step in range(7)] == [2, 2, 4, 4, 4, 8, 8]


def test_a_training_with_labels_is_divided_too(tmp_path, monkeypatch):
    finetune.finetune(
        made(), tmp_path / "parts", config("train.epochs=1", "train.parts=4"), log=None
    )
    said = []
    make_short(monkeypatch, FinetuneTask, rows=4, steps=[0])
    finetune.finetune(made(), tmp_path / "short", config("train.epochs=1"), log=said.append)
    assert any("from step 1 on a batch is held in 4 parts" in line for line in said)
    heads = [(tmp_path / name / "head.safetensors").read_bytes() for name in ("parts", "short")]
    assert heads[0] == heads[1]


def test_where_one_row_is_too_much_a_line_says_what_to_lower(tmp_path, monkeypatch):
    make_short(monkeypatch, PretrainTask, rows=0, steps=[4])
    with pytest.raises(TrainingError, match=r"^out of memory; lower train.batch_size, data.window"):
        run(tmp_path / "run", *SHORT)
    assert not (tmp_path / "run/parts.json").exists()  # a larger machine need not divide anything
    other = RuntimeError("another")
    monkeypatch.setattr(PretrainTask, "losses", lambda *_: (_ for _ in ()).throw(other))
    with pytest.raises(RuntimeError, match="another"):
        run(tmp_path / "other", *SHORT)


@pytest.mark.parametrize(
    "noted, message",
    [
        ({"parts": [1]}, "parts in .*parts.json must be a mapping"),
        ({"parts": {"x": 1}}, "parts.json is damaged: it must say how many parts"),
        ({"parts": {"3": 0}}, "parts.json is damaged: it must say how many parts"),
    ],
)
def test_damaged_notes_of_parts_are_refused(tmp_path, noted, message):
    write_noted(tmp_path / "parts.json", noted)
    with pytest.raises(ConfigError, match=message):
        read_parts(tmp_path)
    content = (tmp_path / "parts.json").read_bytes()
    (tmp_path / "parts.json").write_bytes(content.replace(b"parts", b"party"))
    with pytest.raises(ConfigError, match="is damaged"):
        read_parts(tmp_path)


def test_running_out_of_memory_says_what_to_lower():
    needed = r"out of memory: \d+\.\d GiB more were needed; lower train.batch_size, data.window or"
    with pytest.raises(TrainingError, match=needed), explain_oom(torch.device("cpu")):
        torch.empty(2**50)
    with pytest.raises(RuntimeError, match="another"), explain_oom(torch.device("cpu")):
        raise RuntimeError("another")


def test_a_failed_allocation_is_found_behind_the_error_that_it_led_to():
    cpu = torch.device("cpu")
    for error, told in (
        (RuntimeError("you tried to allocate 3145728 bytes"), "3.0 MiB more were needed"),
        (torch.OutOfMemoryError("x"), "out of memory"),
        (RuntimeError("CUDA error: out of memory\nSearch for it"), "out of memory"),
        (RuntimeError("x"), None),
    ):
        try:
            try:
                raise error
            finally:
                raise RuntimeError("the capture failed")
        except RuntimeError as later:
            found = explain_shortage(later, cpu)
        assert (found is None) if told is None else (told in found)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_running_out_of_gpu_memory_says_how_much_there_is():
    device = torch.device("cuda", 0)
    with pytest.raises(TrainingError, match=r"GiB of .* GiB are free"), explain_oom(device):
        torch.empty(2**45, device=device)
