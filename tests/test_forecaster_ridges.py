"""How a column is predicted: from token and own values, drawn to a mean or to the newest."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from forecast_setup import LastValues, daily_waves, hours

import progmem
from progmem.forecasting.ridges import (
    GAPS,
    VALUES_ALONE,
    WITH_ENCODER,
    Column,
    Trial,
    fit_column,
    gain_of_encoder,
    knowledge,
    to_the_mean,
    to_the_newest,
    without_token,
)
from progmem.probes.forecast import Origins, Ridge, ridge_path

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


def test_the_second_part_chooses_and_all_parts_are_learnt_from():
    torch.manual_seed(0)
    steps = 3 + torch.randn(500).double().cumsum(0)  # a walk: only its newest value tells
    x = steps.unfold(0, P + 1, 1)[:-2]
    y = torch.stack([steps[P + 1 : -1], steps[P + 2 :]], 1)
    parts = (x[:300], x[300:400], x[400:]), (y[:300], y[300:400], y[400:])
    (gaps, ridge), choosing, last, thirds = fit_column(*parts, P, gaps="newest")
    assert gaps == "newest"
    (whole,) = to_the_newest(x, y, [ridge.alpha], P)
    torch.testing.assert_close(ridge.weight, whole.weight)
    for end, residual, rows in ((300, choosing, slice(300, 400)), (400, last, slice(400, None))):
        (before,) = to_the_newest(x[:end], y[:end], [ridge.alpha], P)
        torch.testing.assert_close(residual, y[rows] - before.predict(x[rows]))
    (other,) = to_the_newest(x[100:300], y[100:300], [ridge.alpha], P)
    assert thirds[0] == pytest.approx((y[:100] - other.predict(x[:100])).square().mean().item())
    other = (*parts[1][:2], 100 + parts[1][2])  # the last part chooses nothing
    assert fit_column(parts[0], other, P, gaps="newest").column.ridge.alpha == ridge.alpha


def trial(choosing, thirds=(1.0, 1.0, 1.0)):
    column = Column("newest", Ridge(1.0, torch.ones(2, 1), torch.zeros(1)))
    return Trial(column, choosing, choosing, thirds)


@pytest.mark.parametrize(
    "errors, sure, words",
    [
        ([0.9] * 8, True, "error 19.0 ± 0.0 % lower by the encoder"),
        ([0.9, 1.09] * 4, False, "error 0.1 ± 7.1 % lower by the encoder: may be chance"),
        ([1.1] * 8, False, "error 21.0 ± 0.0 % higher by the encoder"),
    ],
)
def test_the_encoder_is_used_where_it_surely_lowers_the_error(errors, sure, words):
    values = trial(torch.ones(80, 1))
    gain = gain_of_encoder(trial(torch.tensor(errors).repeat_interleave(10)[:, None]), values)
    assert gain.sure == sure and str(gain) == words


def test_an_encoder_that_loses_in_another_season_is_not_used():
    values, encoder = torch.ones(80, 1), 0.9 * torch.ones(80, 1)
    for thirds, sure in (((0.9, 1.0, 0.8), True), ((0.5, 1.01, 0.5), False)):
        gain = gain_of_encoder(trial(encoder, thirds), trial(values))
        assert gain.sure == sure
    assert str(gain) == "error 19.0 ± 0.0 % lower by the encoder: not so in other seasons"


def test_nothing_is_sure_of_errors_that_are_missing_or_zero():
    for errors in (torch.full((80, 1), torch.nan), torch.zeros(80, 1)):
        assert not gain_of_encoder(trial(errors), trial(errors)).sure


def test_a_ridge_on_values_alone_does_not_see_the_token():
    found = without_token(trial(torch.ones(80, 1)), 3).column.ridge
    x = torch.randn(6, 5)
    torch.testing.assert_close(found.predict(x), x[:, 3:].sum(1, keepdim=True))


def test_a_walk_is_predicted_about_as_well_as_by_its_newest_value():
    walk = np.random.default_rng(0).normal(size=(800, 3)).cumsum(0)
    found = progmem.PMTForecaster(LastValues(), context=30).fit(walk, hours(800)).estimate(12)
    assert (found["forecast"] < 1.15 * found["repeat last"]).all()
    waves = daily_waves(800)
    found = progmem.PMTForecaster(LastValues(), context=30).fit(waves, hours(800)).estimate(12)
    assert (found["forecast"] < 0.1 * found["repeat last"]).all()


def test_a_column_that_is_missing_at_the_end_goes_on_from_its_newest_value():
    rng = np.random.default_rng(0)
    walk = 1000 + rng.normal(size=(800, 2)).cumsum(0)
    gappy = np.where(rng.random((800, 2)) < 0.2, np.nan, walk)
    for seen in (walk, gappy):  # whether or not there were gaps to learn from
        forecaster = progmem.PMTForecaster(LastValues(), context=30).fit(seen, hours(800))
        later = np.concatenate([seen[:-1], [[np.nan, walk[-1, 1]]]])
        assert abs(forecaster.predict(1, later, hours(800))["0"].item() - walk[-2, 0]) < 4
    found = forecaster.estimate(12)
    assert found["forecast"].mean() < 1.1 * found["repeat last"].mean()


@pytest.mark.parametrize("kind", ["walk", "noise"])
def test_the_part_before_the_last_chooses_what_stands_for_missing_values(kind):
    rng = np.random.default_rng(1)
    values = rng.normal(size=(600, 2))  # the second column is there where the first is missing
    values = values.cumsum(0) if kind == "walk" else values
    values[rng.random(600) < 0.4, 0] = np.nan
    forecaster = progmem.PMTForecaster(LastValues(), context=10).fit(values, hours(600))
    forecaster.estimate(4)
    expected = "newest" if kind == "walk" else "mean"
    assert forecaster.series_[""].fitted[4].columns[0].gaps == expected


class Future:
    """An encoder that knows what comes next, by looking at a table of it."""

    def __init__(self, values):
        self.next = dict(zip(values[:-1, 0].tolist(), values[1:, 0].tolist(), strict=True))

    def encode(self, x):
        z = LastValues().encode(x)
        told = [[self.next.get(float(value), 0.0)] for value in x[:, -1, -1]]
        tokens = z.tokens.clone()
        tokens[:, -1, :1] = torch.tensor(told, dtype=tokens.dtype)
        return z._replace(tokens=tokens) if hasattr(z, "_replace") else replace(z, tokens=tokens)


def test_an_encoder_that_helps_is_used_and_one_that_does_not_is_not():
    values = np.random.default_rng(0).normal(size=(600, 1))
    for encoder, used in ((Future(values), WITH_ENCODER), (LastValues(), VALUES_ALONE)):
        forecaster = progmem.PMTForecaster(encoder, context=10).fit(values, hours(600))
        found = forecaster.estimate(1).iloc[0]
        assert found["used"] == used and found["forecast"] == found[used]
        width = len(forecaster.series_[""].fitted[1].columns[0].ridge.weight) - 11
        token = forecaster.series_[""].fitted[1].columns[0].ridge.weight[:width]
        assert bool(token.any()) == (used == WITH_ENCODER)
