"""The trainer: its updates, its optimiser, and what it leaves behind."""

import itertools
import math

import pytest
import torch
from training_setup import run, small_config

import progmem
from progmem.errors import TrainingError
from progmem.training import pretrain
from progmem.training.checkpoint import newest_checkpoint
from progmem.training.pretrain import Learner
from progmem.training.trainer import freeze_unreached, learning_rate, parameter_groups


def test_a_loss_that_is_not_finite_stops_the_run_by_name(tmp_path, monkeypatch):
    total = pretrain.total_loss

    def poisoned(*arguments, **settings):
        loss, parts = total(*arguments, **settings)
        if len(calls) > 7:
            parts["pcl"] = parts["pcl"] * math.nan
            loss = loss * math.nan
        calls.append(1)
        return loss, parts

    calls = []
    monkeypatch.setattr(pretrain, "total_loss", poisoned)
    with pytest.raises(TrainingError, match="step 8: pcl is not a finite number; the last good"):
        run(tmp_path / "run")
    assert newest_checkpoint(tmp_path / "run/checkpoints", say=print).step == 6


def test_a_gradient_that_is_not_finite_stops_the_run(tmp_path, monkeypatch):
    total = pretrain.total_loss

    def poisoned(*arguments, **settings):
        loss, parts = total(*arguments, **settings)
        return loss + (0 * loss).clamp(min=0).sqrt(), parts  # 0, but with a slope of 0 * inf

    monkeypatch.setattr(pretrain, "total_loss", poisoned)
    with pytest.raises(TrainingError, match="step 1: gradient is not a finite number"):
        run(tmp_path / "run")


def test_the_learning_rate_warms_up_and_ends_low():
    cfg = small_config("train.lr=1e-3", "train.lr_end=1e-5", "train.warmup=0.1")
    rates = [learning_rate(step, 100, cfg.train) for step in range(100)]
    assert rates[0] == pytest.approx(1e-4) and max(rates) == rates[9] == pytest.approx(1e-3)
    assert rates[-1] == pytest.approx(1e-5)
    assert all(a > b for a, b in itertools.pairwise(rates[10:]))


def test_matrices_decay_and_vectors_do_not():
    model = progmem.PMT(progmem.ModelConfig(channels=2, size="tiny"))
    learner = Learner(model, small_config().loss)
    groups = parameter_groups(learner, 0.05)
    assert [group["weight_decay"] for group in groups] == [0.05, 0.0]
    decay, keep = (group["params"] for group in groups)
    names = {id(p): n for n, p in learner.named_parameters()}
    assert len(decay) > 20 and all(names[id(p)].endswith("weight") for p in decay)
    kept = {names[id(p)].rsplit(".", 1)[-1] for p in keep}
    assert {"reset", "bias", "cls", "segments", "segment", "gamma", "skip_gate", "taps"} <= kept


def test_parameters_that_no_objective_reaches_are_frozen_and_have_no_gradient():
    both = torch.nn.ModuleDict({"used": torch.nn.Linear(3, 2), "idle": torch.nn.Linear(3, 2)})
    freeze_unreached(both, lambda: both["used"](torch.ones(4, 3)).sum())
    assert {name: p.requires_grad for name, p in both.named_parameters()} == {
        "used.weight": True, "used.bias": True, "idle.weight": False, "idle.bias": False
    }  # fmt: skip
    assert all(p.grad is None for p in both.parameters())
