"""Forecasting: no feature sees the future, and the protocol is the one written as loops."""

import numpy as np
import pytest
import torch
from forecast_setup import LastValues, dated, small_model
from sklearn import linear_model
from sklearn.model_selection import train_test_split

from progmem.baselines.values import Values
from progmem.config import DataConfig
from progmem.data.forecast_sets import HORIZONS, ForecastData, as_forecast
from progmem.data.windows import TrainingWindows
from progmem.errors import InputError
from progmem.probes.forecast import (
    ALPHAS,
    HEADS,
    Origins,
    Ridge,
    choose_ridge,
    forecast_origins,
    probe_forecast,
    ridge_path,
    sliding_features,
    sliding_windows,
)
from progmem.series import ChannelStats

P = 10


def all_origins(x, times):
    instance = np.repeat(np.arange(len(x)), len(times))
    return Origins(instance, np.tile(times, len(x)))


def test_a_feature_is_unchanged_by_what_comes_after_it():
    model = small_model(3).double()
    x = np.random.default_rng(0).normal(size=(1, 40, 3))
    later = x.copy()
    later[:, 21:] += 5
    origins = all_origins(x, np.arange(40))
    before, after = (sliding_features(model, a, origins, padding=P).values for a in (x, later))
    assert torch.equal(before[:21], after[:21])
    assert not torch.isclose(before[21:], after[21:]).all(1).any()


def test_a_feature_is_unchanged_by_what_lies_before_its_window():
    model = small_model(3).double()
    x = np.random.default_rng(0).normal(size=(1, 40, 3))
    earlier = x.copy()
    earlier[:, :9] += 5
    origins = all_origins(x, np.arange(40))
    first, second = (sliding_features(model, a, origins, padding=P).values for a in (x, earlier))
    assert torch.equal(first[9 + P :], second[9 + P :])
    assert not torch.isclose(first[: 9 + P], second[: 9 + P]).all(1).any()


def test_without_an_encoder_a_feature_is_the_window_itself():
    stats = ChannelStats(2)
    stats.mean, stats.scale = torch.tensor([1.0, 0.0]).double(), torch.tensor([2.0, 4.0]).double()
    x = np.array([[[3.0, 4.0], [np.nan, 8.0], [1.0, 2.0]]])
    found = sliding_features(Values(stats), x, all_origins(x, [1, 2]), padding=1)
    assert found.values.tolist() == [[1, 1, 0, 2], [0, 2, 0, 0.5]]
    second = sliding_features(Values(stats, first=1), x, all_origins(x, [2]), padding=1)
    assert second.values.tolist() == [[2, 0.5]]


def test_strided_batches_give_what_a_plain_loop_gives(monkeypatch):
    monkeypatch.setattr("progmem.probes.forecast.MAX_SAMPLES", 7 * (P + 1))
    model = small_model(2).double()
    x = np.random.default_rng(0).normal(size=(2, 30, 2))
    x[0, 15:18] = np.nan
    times = np.array([0, 3, 9, 10, 16, 17, 29])
    found = sliding_features(model, x, all_origins(x, times), padding=P)
    row = 0
    for series in x:
        for t in times:
            window = np.full((P + 1, 2), np.nan)
            past = series[max(0, t - P) : t + 1]
            window[P + 1 - len(past) :] = past
            z = model.encode(window[None])
            torch.testing.assert_close(found.values[row], z.tokens[0, -1].float())
            assert found.observed[row] == (not np.isnan(series[t]).all())
            row += 1


def test_windows_are_a_view():
    x = torch.zeros(1, 1000, 2, dtype=torch.float64)
    view = sliding_windows(x, 200)
    assert view.shape == (1, 1000, 201, 2)
    assert view.untyped_storage().nbytes() == 1200 * 2 * 8


def test_an_encoder_whose_last_token_misses_the_newest_sample_is_refused():
    model = small_model(1, patch=4, patch_stride=3)
    with pytest.raises(
        InputError, match=r"last token of a window of 12 .* ends after 10: .*patch_stride=1"
    ):
        sliding_features(
            model, np.zeros((1, 40, 1)), all_origins(np.zeros((1, 1)), [5]), padding=11
        )


def test_a_ridge_is_the_one_worked_by_hand():
    x = torch.tensor([[-1.0], [0.0], [1.0]]) + 4
    y = torch.tensor([[-2.0], [0.0], [2.0]]) + 5
    (ridge,) = ridge_path(x, y, [2.0])  # 4 / (2 + 2), through the means
    assert ridge.weight.item() == pytest.approx(1) and ridge.bias.item() == pytest.approx(1)
    (ridge,) = ridge_path(10 * x, y, [2.0], standardise=True)  # sd 10 * sqrt(2/3); 3 samples of it
    sd = 10 * (2 / 3) ** 0.5
    assert ridge.weight.item() == pytest.approx((40 / sd) / (3 + 2) / sd)


def test_the_penalty_has_the_least_rmse_plus_mae_not_the_least_mse():
    x, y = torch.tensor([[0.0], [1.0]]), torch.zeros(2, 1)
    uneven = Ridge(1.0, torch.tensor([[3.0]]).double(), torch.zeros(1).double())  # errors 0, 3
    even = Ridge(2.0, torch.zeros(1, 1).double(), torch.tensor([2.0]).double())  # errors 2, 2
    assert choose_ridge([even, uneven], x, y) is uneven
    assert choose_ridge([even, even._replace(alpha=5.0)], x, y).alpha == 2.0


@pytest.mark.parametrize("gappy", [False, True])
def test_ridges_are_those_of_scikit_learn(gappy):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(50, 6)), rng.normal(size=(50, 5))
    if gappy:
        y[rng.random((50, 5)) < 0.3] = np.nan
        y[:, 4] = np.where(np.isnan(y[:, 0]), np.nan, y[:, 1])  # some share their samples
    path = ridge_path(torch.from_numpy(x), torch.from_numpy(y))
    assert [ridge.alpha for ridge in path] == list(ALPHAS)
    for ridge in (path[0], path[-1]):
        for m in range(5):
            rows = ~np.isnan(y[:, m])
            expected = linear_model.Ridge(alpha=ridge.alpha).fit(x[rows], y[rows, m])
            np.testing.assert_allclose(ridge.weight[:, m], expected.coef_, atol=1e-10)
            np.testing.assert_allclose(ridge.bias[m], expected.intercept_, atol=1e-10)


def test_an_output_without_a_value_is_refused():
    with pytest.raises(InputError, match="missing in all of the samples"):
        ridge_path(torch.zeros(3, 1), torch.tensor([[1.0, torch.nan]] * 3))


@pytest.mark.parametrize(
    "rows, bounds, train, others",
    [
        (17420, (8640, 11520, 14400), (8416, 7720), (2856, 2160)),  # ETTh1
        (26304, (15782, 21043, 26304), (15558, 14862), (5237, 4541)),  # Electricity
    ],
)
def test_samples_are_as_many_as_in_the_published_protocol(rows, bounds, train, others):
    data = empty(rows, bounds)
    for horizon, count, other in ((24, train[0], others[0]), (720, train[1], others[1])):
        for part, expected in (("train", count), ("validation", other), ("test", other)):
            origins = forecast_origins(data, part, horizon, padding=200)
            assert len(origins.time) == expected
            start, end = data.bounds[part]
            assert origins.time[0] == start + (200 if part == "train" else 0)
            assert origins.time[-1] + horizon == end - 1


def empty(rows, ends, instances=1):
    starts = (0, *ends)
    parts = ("train", "validation", "test")
    bounds = {part: (starts[i], starts[i + 1]) for i, part in enumerate(parts)}
    x, one = np.zeros((instances, rows, 1)), np.ones((instances, 1))
    return ForecastData("made", x, x, 0 * one, one, ("a",), bounds)


def test_many_samples_are_thinned_as_in_the_published_protocol():
    data = empty(60, (30, 45, 60), instances=3)
    every = forecast_origins(data, "train", 4, padding=P, limit=None)
    some = forecast_origins(data, "train", 4, padding=P, limit=20)
    kept, _ = train_test_split(np.arange(3 * 16), train_size=20, random_state=0)
    assert len(every.time) == 3 * 16
    for found, whole in zip(some, every, strict=True):
        np.testing.assert_array_equal(found, whole[kept])


@pytest.mark.parametrize(
    "form, instances, F", [("joint", 1, 2), ("target", 1, 1), ("instances", 2, 1)]
)
def test_the_protocol_is_the_one_written_as_loops(form, instances, F, monkeypatch):
    monkeypatch.setattr(
        "progmem.probes.forecast.MAX_PREDICTIONS", 5 * 3 * F
    )  # several blocks of the test
    series = dated()
    data = as_forecast(series, "made", form)
    assert data.x.shape == (instances, 120, 7 + F) and data.target.shape == (instances, 120, F)
    found = probe_forecast(LastValues(), data, horizons=[3], padding=P)["scores"]["3"]["ridge"]

    values = series.values[:, 1:] if form == "target" else series.values
    scaled = (values - values[:60].mean(0)) / values[:60].std(0)
    columns = [[c] for c in range(2)] if form == "instances" else [list(range(F))]
    parts = {"train": (P, 60), "validation": (60, 90), "test": (90, 120)}
    X, Y, unit = ({part: [] for part in parts} for _ in range(3))
    for i, mine in enumerate(columns):
        for part, (start, end) in parts.items():
            for t in range(start, end):
                if t + 3 < end:
                    X[part].append(data.x[i, t])
                    Y[part].append([scaled[t + h, c] for h in (1, 2, 3) for c in mine])
                    unit[part].append([values[:60, c].std() for h in (1, 2, 3) for c in mine])
    best = None
    for alpha in ALPHAS:
        ridge = linear_model.Ridge(alpha=alpha).fit(np.float32(X["train"]), Y["train"])
        d = ridge.predict(X["validation"]) - Y["validation"]
        if best is None or (d**2).mean() ** 0.5 + abs(d).mean() < best[0]:
            best = ((d**2).mean() ** 0.5 + abs(d).mean(), alpha, ridge, d)
    d = best[2].predict(X["test"]) - Y["test"]
    assert found["alpha"] == best[1]
    assert found["validation"]["mse"] == pytest.approx((best[3] ** 2).mean(), rel=1e-5)
    raw = d * np.array(unit["test"])
    expected = [(d**2).mean(), abs(d).mean(), (raw**2).mean(), abs(raw).mean()]
    assert list(found["test"].values()) == pytest.approx(expected, rel=1e-5)


def test_errors_are_means_over_what_is_observed_however_the_test_part_is_cut(monkeypatch):
    data = as_forecast(dated(), "made", "joint")
    data.target[0, 95:112] = np.nan  # some blocks have nothing left, some a part
    found = []
    for at_once in (2**24, 5 * 3 * 2):
        monkeypatch.setattr("progmem.probes.forecast.MAX_PREDICTIONS", at_once)
        scores = probe_forecast(LastValues(), data, horizons=[3], padding=P)["scores"]
        found.append(list(scores["3"]["ridge"]["test"].values()))
    assert found[1] == pytest.approx(found[0], rel=1e-12)


def test_only_what_some_ridge_needs_is_encoded_and_only_once():
    data, encoder = as_forecast(dated(), "made", "joint"), LastValues()
    found = probe_forecast(encoder, data, horizons=[3, 8], padding=P)
    needed = {*range(P, 60 - 3), *range(60, 90 - 3), *range(90, 120 - 3)}
    newest = torch.cat(encoder.seen)[:, -1].tolist()
    assert len(newest) == found["encoded"] == len(needed)
    assert newest == [data.x[0, t].tolist() for t in sorted(needed)]


def test_nothing_that_is_fitted_knows_the_rows_after_its_part():
    clean, poisoned = dated(), dated()
    poisoned.values[90:] = 1e6
    for form in ("joint", "target", "instances"):
        found = []
        for series in (clean, poisoned):
            data = as_forecast(series, "made", form)
            rows = TrainingWindows(data.training_recordings(), DataConfig())
            stats = ChannelStats(rows.channels)
            rows.set_statistics(stats)
            scores = probe_forecast(LastValues(), data, horizons=[3], padding=P)["scores"]["3"]
            fitted = [(scores[head]["alpha"], scores[head]["validation"]) for head in HEADS]
            test = scores["ridge"]["test"]["mse"]
            found.append((fitted, data.mean.tolist(), data.scale.tolist(), stats, test))
        assert found[0][:3] == found[1][:3]
        assert found[1][4] > 1e6 > found[0][4]
        assert torch.equal(found[0][3].mean, found[1][3].mean)
    poisoned.values[60:] = 1e6  # the validation part chooses, but fits nothing
    one, other = (as_forecast(series, "made", "joint") for series in (clean, poisoned))
    np.testing.assert_array_equal(one.mean, other.mean)
    np.testing.assert_array_equal(one.target[:, :60], other.target[:, :60])


def test_instances_share_a_channel_and_are_scaled_each_by_its_own_training_part():
    data = as_forecast(dated(columns=3), "made", "instances")
    np.testing.assert_allclose(data.x[:, :60, 7].mean(1), 0, atol=1e-12)
    np.testing.assert_allclose(data.x[:, :60, 7].std(1), 1)
    names = [recording.name for recording in data.training_recordings()]
    assert names == ["made a", "made b", "made c"]
    joint = as_forecast(dated(columns=3), "made", "joint")
    np.testing.assert_array_equal(joint.x[0, :, 7:], dated(columns=3).values)


@pytest.mark.parametrize(
    "horizon, message",
    [
        (30, "horizon 30 does not fit into the validation part of made: of 30 samples 29 can be a"),
        (50, "horizon 50 does not fit into the train part of made: of 60 samples 49 can be ahead"),
        (0, "horizon must be a whole number from 1 up, got 0"),
    ],
)
def test_a_horizon_longer_than_a_part_is_refused(horizon, message):
    data = as_forecast(dated(), "made", "target")
    with pytest.raises(InputError, match=message):
        probe_forecast(LastValues(), data, horizons=[3, horizon], padding=P)
    assert 720 in HORIZONS
