"""The contrast of predictions: a loop, a closed form, and a value worked out by hand."""

import math

import pytest
import torch

from progmem.baselines.prediction import (
    Predictors,
    draw_present,
    prediction_contrast,
    tokens_ahead,
)
from progmem.training.distributed import OneProcess

ALL = torch.ones(2, 1, dtype=torch.bool)


def loop(predicted, targets, valid, overlap):
    """One exponential at a time."""
    B, S, _ = predicted.shape
    losses = []
    for i in range(B):
        for s in range(S):
            if not valid[i, s]:
                continue
            score = [predicted[i, s] @ targets[j, s] for j in range(B)]
            others = [j for j in range(B) if not overlap[i, j] and valid[j, s]]
            below = sum(math.exp(score[j]) for j in [i, *others])
            losses.append(-math.log(math.exp(score[i]) / below))
    return sum(losses) / len(losses)


def test_it_equals_its_loop():
    predicted, targets = torch.randn(2, 5, 3, 4).double()
    overlap = torch.eye(5, dtype=torch.bool)
    overlap[0, 3] = overlap[3, 0] = True
    valid = torch.ones(5, 3, dtype=torch.bool)
    for _ in range(2):
        found = prediction_contrast(predicted, targets, valid, overlap, OneProcess(5))
        expected = loop(predicted, targets, valid, overlap)
        assert found.item() == pytest.approx(expected, rel=1e-12)
        swapped = loop(targets, predicted, valid, overlap)
        assert found.item() != pytest.approx(swapped, rel=1e-3)
        valid[1, 0] = valid[4, 1] = valid[2] = False  # and again with missing targets


def test_without_a_target_there_is_nothing_to_learn():
    predicted, targets = torch.randn(4, 2, 3, requires_grad=True), torch.randn(4, 2, 3)
    none, eye = torch.zeros(4, 2, dtype=torch.bool), torch.eye(4, dtype=torch.bool)
    loss = prediction_contrast(predicted, targets, none, eye, OneProcess(4))
    loss.backward()
    assert loss == 0 and not predicted.grad.any()


def test_equal_rows_cannot_be_told_apart():
    """The closed form: log B, or log 1 = 0 where all rows share samples."""
    same, there = torch.ones(6, 2, 3), torch.ones(6, 2, dtype=torch.bool)
    eye, all_overlap = torch.eye(6, dtype=torch.bool), torch.ones(6, 6, dtype=torch.bool)
    found = prediction_contrast(same, same, there, eye, OneProcess(6))
    assert found.item() == pytest.approx(math.log(6))
    assert prediction_contrast(same, same, there, all_overlap, OneProcess(6)).item() == 0


def test_a_value_by_hand():
    """Two rows, one step; predictions hit by 1 and miss by 0: log(1 + 1/e)."""
    unit = torch.eye(2)[:, None]
    found = prediction_contrast(unit, unit, ALL, torch.eye(2, dtype=torch.bool), OneProcess(2))
    assert found.item() == pytest.approx(math.log(1 + math.exp(-1)))


def test_a_prediction_sees_up_to_the_present_and_its_targets_are_inside_the_series():
    tokens = torch.tensor([18, 9, 7])
    present = torch.stack([draw_present(torch.tensor(u), tokens, 6) for u in (0.0, 0.5, 0.9999)])
    assert present.tolist() == [[0, 0, 0], [6, 1, 0], [11, 2, 0]]
    x = torch.arange(18.0).expand(3, 18)[..., None]
    assert tokens_ahead(x, present[1], 6)[:, :, 0].tolist() == [
        list(range(7, 13)), list(range(2, 8)), list(range(1, 7)),
    ]  # fmt: skip


def test_each_step_ahead_has_its_own_map():
    predictors = Predictors(5, 4, 3)
    found = predictors(torch.randn(2, 5))
    assert found.shape == (2, 3, 4) and not torch.allclose(found[:, 0], found[:, 1])
