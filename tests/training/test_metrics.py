"""The metrics of a run, and what they warn of."""

import json

import numpy as np
import pytest
import torch
from training_setup import made_recordings, run, small_config

from progmem.training import metrics
from progmem.training.metrics import spread
from progmem.training.pretrain import pretrain


def test_a_collapse_is_warned_about(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics, "COLLAPSED", 1e9)
    said = []
    run(tmp_path / "run", log=said.append)
    assert sum("have collapsed" in line for line in said) == 1


def test_effective_rank_and_spread_of_known_vectors():
    assert spread(torch.ones(9, 4)) == {"feature_sd": 0.0, "effective_rank": 1.0}
    square = torch.tensor([[1.0, 0], [-1, 0], [0, 1], [0, -1]])
    assert spread(square)["effective_rank"] == pytest.approx(2.0)


def test_a_batch_of_one_row_has_no_spread_to_tell_of(tmp_path):
    cfg = small_config("train.batch_size=2", "train.log_every=1", "train.epochs=1")
    pretrain(made_recordings()[:3], tmp_path / "run", cfg, log=lambda _: None)
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    two, one = (json.loads(line) for line in lines)
    assert set(two) - set(one) == {"feature_sd", "effective_rank"}
    assert np.isfinite(list(one.values())).all()


def test_steps_of_seconds_are_told_one_by_one(tmp_path, monkeypatch):
    """Case 8 of the users: no line in 78 s, because only every fiftieth step had one."""
    monkeypatch.setattr(metrics, "SLOW", -1.0)  # as if each step had taken longer than that
    said = []
    run(tmp_path / "run", log=said.append)
    assert said[1].endswith("training ...")
    steps = [line for line in said if line.startswith("step ")]
    assert len(steps) == int(steps[-1].split("/")[1].split()[0])
    assert all("left" in line for line in steps)
