"""How a column is predicted: from token and own values, drawn to a mean or to the newest."""

import numpy as np
import pytest
import torch
from forecast_setup import LastValues, daily_waves, hours

import progmem
from progmem.forecaster import GAPS, fit_column, knowledge, to_the_mean, to_the_newest
from progmem.probes.forecast import Origins, ridge_path

P = 5


def test_what_is_known_is_the_token_and_the_columns_own_values():
    values = torch.arange(1.0, 20, 2).reshape(1, 10, 1)
    values[0, 3] = torch.nan
    token = torch.tensor([[7.0], [8.0]])
    origins = Origins(np.array([0, 0]), np.array([1, 4]))
    found = {
        gaps: knowledge(token, fill(values), origins, context=2) for gaps, fill in GAPS.items()
    }
    assert found["mean"].tolist() == [
        [7, 0, 1, 3],
        [8, 5, 0, 9],
    ]  # 0 before the first, where missing
    assert found["newest"].tolist() == [[7, 0, 1, 3], [8, 5, 5, 9]]


def test_the_newest_value_before_a_gap_of_any_length_is_found():
    nan = torch.nan
    values = torch.tensor([nan, nan, 3, nan, nan, 2, nan]).reshape(1, 7, 1)
    expected = torch.tensor([nan, nan, 3, 3, 3, 2, 2]).reshape(1, 7, 1)
    torch.testing.assert_close(GAPS["newest"](values), expected, equal_nan=True)


def drawn(alpha=3.0):
    x, y = torch.randn(40, 2 + P + 1).double(), torch.randn(40, 3).double()
    return x, y, to_the_newest(x, y, [alpha], P)[0]


def test_ridges_drawn_to_the_newest_value_are_those_of_differences_from_it():
    x, y, found = drawn()
    now = x[:, -1:]
    (plain,) = ridge_path(torch.cat([x[:, :2], x[:, 2:-1] - now, now], 1), y - now, [3.0])
    new = torch.randn(6, 2 + P + 1).double()
    last = new[:, -1:]
    expected = last + plain.predict(torch.cat([new[:, :2], new[:, 2:-1] - last, last], 1))
    torch.testing.assert_close(found.predict(new), expected)


def test_a_heavy_penalty_leaves_the_mean_or_the_newest_value():
    x, y, found = drawn(1e12)
    torch.testing.assert_close(found.predict(x), x[:, -1:] + (y - x[:, -1:]).mean(0))
    (found,) = to_the_mean(x, y, [1e12], P)
    torch.testing.assert_close(found.predict(x), y.mean(0).expand(40, -1))


def test_the_validation_part_chooses_and_both_parts_are_learnt_from():
    torch.manual_seed(0)
    steps = 3 + torch.randn(400).double().cumsum(0)  # a walk: only its newest value tells
    x = steps.unfold(0, P + 1, 1)[:-2]
    y = torch.stack([steps[P + 1 : -1], steps[P + 2 :]], 1)
    parts = (x[:300], x[300:]), (y[:300], y[300:])
    ridge, residual = fit_column(*parts, P)
    (other,) = to_the_newest(x, y, [ridge.alpha], P)
    torch.testing.assert_close(ridge.weight, other.weight)
    (before,) = to_the_newest(x[:300], y[:300], [ridge.alpha], P)
    torch.testing.assert_close(residual, y[300:] - before.predict(x[300:]))


def test_a_walk_is_predicted_about_as_well_as_by_its_newest_value():
    walk = np.random.default_rng(0).normal(size=(800, 3)).cumsum(0)
    ours, stays = progmem.PMTForecaster(LastValues(), context=30).fit(walk, hours(800)).estimate(12)
    assert ours.mse < 1.1 * stays.mse
    waves = daily_waves(800)
    ours, stays = (
        progmem.PMTForecaster(LastValues(), context=30).fit(waves, hours(800)).estimate(12)
    )
    assert ours.mse < 0.1 * stays.mse


def test_a_column_that_is_missing_at_the_end_goes_on_from_its_newest_value():
    rng = np.random.default_rng(0)
    walk = 1000 + rng.normal(size=(800, 2)).cumsum(0)
    gappy = np.where(rng.random((800, 2)) < 0.2, np.nan, walk)
    for seen in (walk, gappy):  # whether or not there were gaps to learn from
        forecaster = progmem.PMTForecaster(LastValues(), context=30).fit(seen, hours(800))
        later = np.concatenate([seen[:-1], [[np.nan, walk[-1, 1]]]])
        assert abs(forecaster.predict(1, later, hours(800))["0"].item() - walk[-2, 0]) < 4
    ours, stays = forecaster.estimate(12)
    assert ours.mse < 1.1 * stays.mse


@pytest.mark.parametrize("kind", ["walk", "noise"])
def test_the_validation_part_chooses_what_stands_for_missing_values(kind, monkeypatch):
    rng = np.random.default_rng(1)
    values = rng.normal(size=(600, 2))
    values = values.cumsum(0) if kind == "walk" else values
    values[rng.random((600, 2)) < 0.3] = np.nan
    found = {}
    for gaps in (*GAPS, "chosen"):
        some = GAPS if gaps == "chosen" else {gaps: GAPS[gaps]}
        monkeypatch.setattr("progmem.forecaster.GAPS", some)
        forecaster = progmem.PMTForecaster(LastValues(), context=30).fit(values[:, :1], hours(600))
        mse, mae = forecaster.estimate(4).ridge
        found[gaps] = mse**0.5 + mae, forecaster.fitted[4].columns[0].gaps
    assert found["chosen"] == min(found["newest"], found["mean"])
    assert found["newest"][0] != found["mean"][0]
