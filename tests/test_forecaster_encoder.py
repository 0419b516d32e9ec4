"""A forecaster without an encoder trains its own, on the series and on nothing else."""

import re

import numpy as np
import pandas as pd
import pytest
import torch
from estimator_setup import TINY, assert_same_weights
from forecast_setup import daily_waves, hours, small_model
from sklearn.base import clone
from sklearn.utils.estimator_checks import estimator_checks_generator

import progmem
from progmem import ConfigError, InputError, ModelFolderError
from progmem.forecasting.own_encoder import tokens_of_a_day

T = 400
QUICK = (*TINY, "train.steps=2")


def quick(**options):
    return progmem.PMTForecaster(**{"context": 48, "settings": QUICK} | options)


def noisy(columns=1):
    noise = np.random.default_rng(5).normal(scale=0.3, size=(T, columns))
    return pd.DataFrame(daily_waves(T, columns) + noise, hours(T))


@pytest.fixture(scope="module")
def fitted():
    forecaster = quick().fit(noisy(2))
    forecaster.predict(6)
    return forecaster


def test_it_needs_nothing_but_a_series_and_beats_the_newest_value():
    table = noisy()
    forecaster = progmem.PMTForecaster(settings=("train.steps=2",)).fit(table)
    found = forecaster.predict(horizon=12)
    assert found.index[0] == table.index[-1] + pd.Timedelta(hours=1) and len(found) == 12
    errors = forecaster.estimate(12).loc["0"]
    assert errors["forecast"] < 0.5 * errors["repeat last"]
    assert isinstance(forecaster.encoder_, progmem.PMT) and forecaster.encoder_.cfg.channels == 1


@pytest.mark.slow
def test_a_fit_depends_on_settings_and_series_alone_and_leaves_random_numbers_alone(fitted, capsys):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    again = quick().fit(noisy(2))
    assert torch.equal(torch.rand(3), expected)
    assert_same_weights(again.encoder_, fitted.encoder_)
    pd.testing.assert_frame_equal(again.predict(6), fitted.predict(6))
    other = quick(seed=1).fit(noisy(2)).encoder_
    weight = fitted.encoder_.tokenizer.conv.weight
    assert not torch.equal(other.tokenizer.conv.weight, weight)
    assert capsys.readouterr() == ("", "")
    assert quick(verbose=True).fit(noisy(2)) and "step 2/2" in capsys.readouterr().out


def test_the_encoder_knows_the_training_part_alone(fitted):
    table = noisy(2)
    table.iloc[240:] *= 7.0
    other = quick().fit(table)
    assert_same_weights(other.encoder_, fitted.encoder_)
    table.iloc[239] *= 7.0
    assert not torch.equal(quick().fit(table).encoder_.stats.scale, fitted.encoder_.stats.scale)


@pytest.mark.slow
def test_a_second_fit_trains_anew_and_a_given_encoder_is_left_as_it_is(fitted):
    forecaster = quick().fit(noisy(1))
    assert_same_weights(forecaster.fit(noisy(2)).encoder_, fitted.encoder_)
    model = small_model(2)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert progmem.PMTForecaster(model, context=30).fit(noisy(2)).encoder_ is model
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_it_is_kept_in_a_folder_with_its_encoder(fitted, tmp_path):
    table = noisy(2)
    expected = fitted.predict(6, table)
    fitted.save(tmp_path / "kept")
    assert sorted(p.name for p in (tmp_path / "kept").iterdir()) == [
        "forecaster.safetensors", "model",
    ]  # fmt: skip
    for encoder in (None, fitted.encoder_):
        again = progmem.PMTForecaster.load(tmp_path / "kept", encoder)
        pd.testing.assert_frame_equal(again.predict(6, table), expected)
    own = progmem.PMTForecaster.load(tmp_path / "kept")
    for folder in ("kept", "copy"):  # one that has its encoder keeps it, also where it was
        own.save(tmp_path / folder)
        last = progmem.PMTForecaster.load(tmp_path / folder)
        pd.testing.assert_frame_equal(last.predict(6, table), expected)
    with pytest.raises(InputError, match="is a folder; name the file to write"):
        again.save(tmp_path / "kept")
    again.fit(table)  # with the encoder it has
    assert_same_weights(again.encoder_, fitted.encoder_)
    again.predict(6)
    again.save(tmp_path / "file")  # that encoder counts as given
    with pytest.raises(InputError, match="was kept without its encoder; give the one"):
        progmem.PMTForecaster.load(tmp_path / "file")
    for place, why in ((tmp_path / "file", "is a file"), (tmp_path, "holds other files")):
        with pytest.raises(ModelFolderError, match=f"{why}; save a forecaster with its encoder in"):
            fitted.save(place)
    (tmp_path / "kept/forecaster.safetensors").unlink()
    with pytest.raises(InputError, match="there is no forecaster in"):
        progmem.PMTForecaster.load(tmp_path / "kept")
    other = quick(seed=1).fit(table)
    other.predict(6)
    other.save(tmp_path / "kept")
    with pytest.raises(InputError, match="was fitted on the features of another model"):
        progmem.PMTForecaster.load(tmp_path / "kept", fitted.encoder_)


def test_a_series_without_dates_is_predicted_by_the_numbers_of_its_samples():
    values = noisy().to_numpy()
    forecaster = quick().fit(values)
    found = forecaster.predict(3)
    assert found.index.tolist() == [T, T + 1, T + 2] and found.index.name == "sample"
    newer = forecaster.predict(3, np.concatenate([values, values[:5]]))
    assert newer.index.tolist() == [T + 5, T + 6, T + 7]
    with pytest.raises(InputError, match="steps of 0 days 01:00:00; the forecaster was fitted on"):
        forecaster.predict(3, values, hours(T))
    dated = progmem.PMTForecaster(forecaster.encoder_, context=48).fit(values, hours(T))
    np.testing.assert_array_equal(dated.predict(3), found)  # dates change nothing but the index


def test_a_horizon_before_fit_is_refused():
    with pytest.raises(InputError, match="horizon 3 was not fitted; fitted: none: call fit"):
        quick().predict(3)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"size": "huge"}, "model.size must be one of small, tiny, base, custom, got 'huge'"),
        ({"seed": -1}, "train.seed must be a whole number from 0 up, below 4294967296, got -1"),
        ({"settings": "train.steps=3"}, "settings must be texts such as"),
        ({"settings": ("train.seed=3",)}, "'train.seed=3' in settings is the parameter seed"),
        ({"settings": ("train.step=3",)}, "did you mean 'train.steps'?"),
    ],
)
def test_bad_settings_are_refused_by_fit(options, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        quick(**options).fit(noisy())


@pytest.mark.slow
def test_epochs_in_the_settings_are_in_place_of_the_steps(capsys):
    epochs = quick(settings=(*TINY, "train.epochs=3"), verbose=True)
    epochs.fit(noisy())  # 320 samples cut into 69 windows of 49: two batches of 32
    assert "step 6/6" in capsys.readouterr().out


@pytest.mark.parametrize(
    "step, context, window, expected",
    [
        ("h", 200, 201, (27, 6)),  # a day and as much more as makes the last token end there
        ("15min", 300, 301, (109, 24)),
        ("D", 200, 201, (27, 6)),  # an eighth of the window, and a little
        ("min", 200, 201, (27, 6)),
        ("h", 200, 60, (7, 2)),
        ("h", 1, 2, (1, 1)),
    ],
)
def test_a_token_holds_a_day_where_one_fits(step, context, window, expected):
    dates = pd.date_range("2024-01-01", periods=3000, freq=step)
    found = tokens_of_a_day(dates, context, window)
    assert found == expected
    patch, stride = found
    assert (context + 1 - patch) % stride == 0 and stride <= patch <= window


@pytest.mark.slow
@pytest.mark.parametrize("samples, context", [(340, 200), (12, 3), (10, 1)])
def test_short_series_do_too(samples, context):
    values = np.random.default_rng(0).normal(size=samples).cumsum()
    forecaster = progmem.PMTForecaster(context=context, settings=QUICK)
    assert len(forecaster.fit(values, hours(samples)).predict(1)) == 1


# The others of scikit-learn's checks call fit(X, y) and predict(X), which suits no forecaster.
CHECKS = {
    "check_do_not_raise_errors_in_init_or_set_params", "check_estimator_cloneable",
    "check_estimator_repr", "check_estimator_tags_renamed", "check_get_params_invariance",
    "check_mixin_order", "check_no_attributes_set_in_init",
    "check_parameters_default_constructible", "check_set_params", "check_valid_tag_types",
}  # fmt: skip


def test_scikit_learns_checks_of_parameters_hold(fitted):
    held = set()
    for estimator, check in estimator_checks_generator(progmem.PMTForecaster()):
        if check.func.__name__ in CHECKS:
            check(estimator)
            held.add(check.func.__name__)
    assert held == CHECKS
    again = clone(fitted)
    assert again.get_params() == fitted.get_params() and again.encoder is None
    with pytest.raises(InputError, match="call fit"):
        again.predict(3)
