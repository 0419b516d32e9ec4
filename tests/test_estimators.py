"""PMTEncoder: scikit-learn's contract, and that it is the model and the training run it wraps."""

import dataclasses
import inspect
import os
import pickle
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from estimator_setup import TINY, assert_same_weights, made, small
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator, parametrize_with_checks

import progmem
from progmem import ConfigError, InputError, PMTEncoder
from progmem.config import RunConfig, read_config
from progmem.detail import CONVOLUTIONS
from progmem.estimators import LEVELS, run_settings
from progmem.features import all_scales
from progmem.model.encode import consecutive
from progmem.pooling import POOLINGS, pool
from progmem.training import pretrain, trainer

# Where scikit-learn's checks and series part: a table of other columns must be refused there, a
# series of another length is welcome here. Everything else in these checks comes before and holds.
OTHER_LENGTHS = {
    "check_n_features_in_after_fitting": "does not check for consistency between input number",
    "check_transformer_general": "does not raise an error when the number of features in transform",
}


def ragged():
    return [x[:, : 40 - 3 * (i % 3)] for i, x in enumerate(made())]


@pytest.fixture(scope="module")
def fitted():
    return small().fit(made())


# They compare features of a subset relative to each value, which rounding fails where a value is
# near 0: with this seed none is.
@parametrize_with_checks([small(seed=1)])
def test_scikit_learns_checks_hold(estimator, check):
    reason = OTHER_LENGTHS.get(check.func.__name__)
    if reason is None:
        check(estimator)
    else:
        with pytest.raises(AssertionError, match=reason):
            check(estimator)


def test_progmem_alone_does_not_wait_for_what_loads_slowly():
    slow = {"sklearn", "lightning", "pandas"}
    code = f"import progmem, sys; sys.exit(bool({slow} & sys.modules.keys()))"
    env = os.environ | {"PYTHONPATH": str(Path(progmem.__file__).parents[1])}
    assert subprocess.run([sys.executable, "-c", code], env=env).returncode == 0
    with pytest.raises(AttributeError, match="no attribute 'PMTDecoder'"):
        _ = progmem.PMTDecoder


def test_the_defaults_are_those_of_a_run():
    defaults, run = PMTEncoder(), RunConfig()
    for name in ("batch_size", "seed", "device"):
        assert getattr(defaults, name) == getattr(run.train, name)
    assert defaults.lr is None and run_settings(defaults).train.lr == run.train.lr
    open_ones = ("epochs", "steps", "batch_size")  # decided by the device
    assert all(getattr(run_settings(defaults).train, name) is None for name in open_ones)
    assert "size" not in run_settings(defaults).model
    assert run_settings(PMTEncoder(steps=7)).train == dataclasses.replace(
        run_settings(defaults).train, steps=7
    )
    assert defaults.views == inspect.signature(type(run.views)).parameters["preset"].default


def test_a_search_over_a_pipeline_finds_which_series_go_up():
    X, y = made(40, 1, 24), np.arange(40) % 2
    X = X + np.where(y, 3.0, -3.0)[:, None, None] * np.arange(24)
    pipeline = make_pipeline(small(epochs=3, lr=1e-3), LogisticRegression())
    grid = {"pmtencoder__seed": [0, 1], "pmtencoder__views": ["gentle"]}
    search = GridSearchCV(pipeline, grid, cv=2).fit(X[:, 0], y)
    assert search.best_score_ > 0.9
    encoder = search.best_estimator_[0]
    assert encoder.views == "gentle" and encoder.n_features_in_ == 24 and encoder.channels_ == 1
    assert not hasattr(clone(encoder), "model_")
    assert clone(encoder).get_params() == encoder.get_params()


def test_fit_trains_as_pretrain_does_and_transform_encodes_as_the_model_does(fitted, tmp_path):
    X = made()
    X[3, :, 5:35] = np.nan  # a whole window
    z = fitted.model_.encode(X.transpose(0, 2, 1))
    every, sequence, tokens, memory = (fitted.transform(X, level) for level in LEVELS)
    assert every.dtype == sequence.dtype == tokens.dtype == memory.dtype == np.float32
    np.testing.assert_array_equal(sequence, z.sequence)
    samples = torch.from_numpy(X.transpose(0, 2, 1))
    expected = all_scales(z, samples, fitted.model_.feature_stats.values)
    np.testing.assert_allclose(every, expected, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(fitted.transform(X), every)
    np.testing.assert_array_equal(np.isnan(tokens[:, 0]), ~z.token_mask)
    np.testing.assert_array_equal(np.nan_to_num(tokens), z.tokens.transpose(1, 2))
    assert np.isnan(tokens).any() and np.isnan(memory).any()
    n, D = z.memory.shape[2:]
    for slot in range(n):
        ours = memory[:, slot * D : (slot + 1) * D].transpose(0, 2, 1)
        np.testing.assert_array_equal(ours[z.window_mask], z.memory[:, :, slot][z.window_mask])
        assert np.isnan(ours[~z.window_mask]).all()

    recordings = [pretrain.Recording(str(i), x.T) for i, x in enumerate(made())]
    settings = [*TINY, "train.epochs=1", "train.batch_size=16", "train.device=cpu"]
    run = pretrain.pretrain(recordings, tmp_path / "run", read_config(None, settings), log=None)
    assert_same_weights(run, fitted.model_)


def test_series_of_unequal_length_give_lists_of_their_own_lengths(fitted):
    X = ragged()
    encoder = small().fit(X)
    assert encoder.n_features_in_ == encoder.channels_ == 2
    assert encoder.transform(X).shape == (12, 32 + CONVOLUTIONS)
    for level in ("tokens", "memory"):
        together = encoder.transform(X, level)
        for one, x in zip(together, X, strict=True):
            np.testing.assert_allclose(one, encoder.transform(x[None], level)[0], atol=1e-5)
    assert fitted.transform(made(length=90)).shape == (12, 32 + CONVOLUTIONS)  # fitted on 40


@pytest.mark.parametrize(
    "lengths, rows",
    [
        ([4, 4, 4], [[0, 1], [2]]),
        ([4, 5, 4, 2], [[0, 1], [2, 3]]),
        ([2, 2, 2, 9], [[0, 1, 2], [3]]),
        ([9, 2, 11, 30], [[0], [1], [2], [3]]),  # padded to 9, two would be 18 samples
    ],
)
def test_cases_go_together_as_far_as_their_samples_do_padded(lengths, rows):
    assert [list(some) for some in consecutive(lengths, most=10)] == rows


def test_swapped_axes_are_asked_about():
    with pytest.warns(UserWarning, match=r"40 channels of at most 2 time .* swap its last two"):
        small().fit(made().transpose(0, 2, 1))


def test_more_cases_than_go_at_once_are_the_same_cases(fitted, monkeypatch):
    monkeypatch.setattr("progmem.estimators.samples_at_once", lambda like, cfg: 64 * 40 + 1)
    X = made(150)
    X[140, 1, 7] = 1e300
    with pytest.raises(InputError, match=r"cases 128 to 149: series 12, sample 7, channel 1"):
        fitted.transform(X)
    np.testing.assert_allclose(
        fitted.transform(X[:140])[70:], fitted.transform(X[70:140]), atol=1e-6
    )


def test_whatever_holds_the_same_series_gives_the_same_features():
    X = made(channels=1)
    X[2, 0, 5:9] = np.nan
    flat, gaps = X[:, 0], np.isnan(X)
    wide = pd.DataFrame(flat)
    long = wide.stack(future_stack=True).to_frame()  # indexed by case and time
    masked = np.ma.masked_array(np.where(gaps, 0.0, X), gaps)
    expected = small().fit_transform(X)
    for same in (flat, flat.tolist(), torch.tensor(X), wide, list(X), long, masked):
        before = pickle.dumps(same)
        np.testing.assert_array_equal(small().fit(same).transform(same), expected)
        assert pickle.dumps(same) == before


def test_a_tables_columns_are_remembered_until_the_next_fit():
    wide = pd.DataFrame(made(channels=1)[:, 0]).rename(columns="t{}".format)
    encoder = small().fit(wide)
    with pytest.raises(ValueError, match="feature names should match"):
        encoder.transform(wide[wide.columns[::-1]])
    assert not hasattr(encoder.fit(wide.to_numpy().tolist()), "feature_names_in_")


def test_a_fit_depends_on_parameters_and_data_alone_and_leaves_random_numbers_alone(fitted, capsys):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    again = small().fit(made(), y=np.arange(12))
    assert torch.equal(torch.rand(3), expected)
    assert_same_weights(again.model_, fitted.model_)
    other = small(seed=1).fit(made())
    assert not np.array_equal(other.transform(made()), fitted.transform(made()))
    assert capsys.readouterr() == ("", "")
    small(verbose=True).fit(made())
    assert "step 1/1" in capsys.readouterr().out


@pytest.mark.slow
def test_fits_in_threads_are_those_of_one_after_the_other():
    def features(seed):
        encoder = small(seed=seed, epochs=4, settings=(*TINY, "model.dropout=0.2"))
        return encoder.fit(made()).transform(made())

    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(features, range(4)))
    np.testing.assert_array_equal(together, [features(seed) for seed in range(4)])


def test_ctrl_c_ends_a_fit_as_it_ends_other_python(monkeypatch):
    def interrupt(*_):
        signal.raise_signal(signal.SIGINT)
        return 1e-3

    monkeypatch.setattr(trainer, "learning_rate", interrupt)
    with pytest.raises(KeyboardInterrupt):
        small(epochs=3).fit(made())


@pytest.mark.parametrize(
    "params, message",
    [
        ({"size": "huge"}, "model.size must be one of small, tiny, base, custom, got 'huge'"),
        ({"level": "token"}, "level must be one of all, sequence, tokens, memory, got 'token'"),
        ({"epochs": 0}, "train.epochs must be a whole number from 1 up or null, got 0"),
        ({"epochs": 1.5}, "train.epochs must be a whole number from 1 up or null, got 1.5"),
        ({"epochs": None, "steps": 0}, "train.steps must be a whole number from 1 up or null, got"),
        ({"steps": 3}, "train.epochs is 1 and train.steps is 3; give one of them"),
        ({"batch_size": 1}, "train.batch_size must be a whole number from 2 up or null, got 1"),
        ({"lr": -1.0}, "train.lr must be a number above 0, got -1.0"),
        ({"views": "wild"}, "must be one of hidden, gentle, medium, strong, got 'wild'"),
        ({"seed": None}, "train.seed must be a whole number from 0 up, below 4294967296, got 'Non"),
        ({"seed": 2**32}, "train.seed must be a whole number from 0 up, below 4294967296, got 42"),
        ({"device": "tpu"}, "train.device must be one of auto, cpu, cuda, got 'tpu'"),
        ({"settings": "loss.pcl=0"}, "settings must be texts such as"),
        ({"settings": ("model.dims=3",)}, "did you mean 'model.dim'?"),
        ({"settings": ("train.seed=3",)}, "'train.seed=3' in settings is the parameter seed"),
        (
            {"settings": (*TINY, "model.slots=0", "loss.pcl=0"), "level": "memory"},
            "level memory needs a model with memory, and model.slots is 0",
        ),
    ],
)  # fmt: skip
def test_bad_parameters_are_taken_in_and_refused_by_fit(params, message):
    encoder = small(**params)
    with pytest.raises(ConfigError, match=re.escape(message)):
        encoder.fit(made())
    assert not hasattr(encoder, "model_")


@pytest.mark.parametrize(
    "X, message",
    [
        (made(channels=5), "^fitted on 2 channels, got 5$"),
        (made(length=2, channels=40), "^fitted on 2 channels, got 40; .*swap its last two axes"),
        (made()[:, 0], "^fitted on 2 channels, got 1$"),
        ([], "^there are no series; give at least one"),
        (torch.zeros(0, 2, 40), "^there are no series; give at least one"),
        (made(length=3), "series 0 needs at least 5 samples, got 3"),
        ([np.full((2, 40), np.inf)], "sample 0, channel 0 is inf"),
        (np.where(np.arange(40) == 7, -np.inf, made()), "series 0, sample 7, channel 0 is -inf"),
        (torch.zeros(2, 2, 40).to_sparse(), "^X is a sparse tensor; give its to_dense()"),
        (np.full((2, 2, 40), "a"), "^dtype='numeric' is not compatible with .*strings"),
        (np.zeros(40), "^Expected 2D array, got 1D array instead: "),
    ],
)
def test_series_that_do_not_fit_are_refused_by_transform(fitted, X, message):
    with pytest.raises(InputError, match=message):
        fitted.transform(X)


def test_other_bad_calls_say_what_is_wrong(fitted, tmp_path):
    with pytest.raises(InputError, match="at least 2 cases to tell apart, got n_samples=1"):
        small().fit(made(1))
    assert small().fit(made(1, 1, 3000)).channels_ == 1  # long enough to be cut into rows
    with pytest.raises(ConfigError, match="level must be one of"):
        fitted.transform(made(), "windows")
    without = small(settings=(*TINY, "model.slots=0", "loss.pcl=0")).fit(made())
    with pytest.raises(ConfigError, match="level memory needs a model with memory"):
        without.transform(made(), "memory")
    for call in (lambda: small().transform(made()), lambda: small().save(tmp_path / "new")):
        with pytest.raises(NotFittedError):
            call()


def test_a_long_tables_channels_may_come_in_another_order(fitted):
    index = pd.MultiIndex.from_product([range(6), range(40)], names=["case", "time"])
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(240, 2)), index=index, columns=["a", "b"])
    encoder = small().fit(table)
    np.testing.assert_array_equal(encoder.transform(table[["b", "a"]]), encoder.transform(table))
    with pytest.raises(InputError, match=r"fitted on the channels \['a', 'b'\], got \['a', 'c'\]"):
        encoder.transform(table.rename(columns={"b": "c"}))
    deeper = pd.concat({"site": table}, names=["site"])
    with pytest.raises(InputError, match=r"must have two levels, case and time, got \['site'"):
        small().fit(deeper)


@pytest.mark.parametrize("level, width", [("all", 32 + CONVOLUTIONS), ("sequence", 8)])
def test_columns_have_names_in_a_table(level, width):
    encoder = small(level=level).set_output(transform="pandas").fit(made())
    assert list(encoder.get_feature_names_out()) == [f"pmtencoder{i}" for i in range(width)]
    table = encoder.transform(made())
    assert table.shape == (len(made()), width) and table.columns[0] == "pmtencoder0"


def test_an_encoder_without_token_statistics_says_what_it_can_give():
    encoder = small().fit(made())
    encoder.model_.feature_stats.set(None)
    with pytest.raises(ConfigError, match=r"level all needs .*fit it again, or give level='seq"):
        encoder.transform(made())
    assert encoder.transform(made(), "sequence").shape == (12, 8)


@pytest.mark.slow
def test_scikit_learns_own_run_of_its_checks_agrees():
    reason = "a series of another length than in fit is welcome in transform"
    expected = dict.fromkeys(OTHER_LENGTHS, reason)
    check_estimator(small(seed=1), expected_failed_checks=expected, on_skip=None)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_pooling_is_in_place_of_a_level(pooling):
    X = made()
    encoder = small(pooling=pooling).fit(X)
    found = encoder.transform(X)
    expected = pool(encoder.model_, list(X.transpose(0, 2, 1)), [pooling])[pooling]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert len(encoder.get_feature_names_out()) == found.shape[1]
    assert encoder.transform(X, level="tokens").ndim == 3  # what is asked for is given


def test_a_pooling_that_is_none_is_refused():
    for params, message in (
        ({"pooling": "best"}, "pooling must be one of sequence, mean_tokens, max_tokens"),
        ({"pooling": "mean_memory", "settings": (*TINY, "model.slots=0", "loss.pcl=0")},
         "mean_memory needs a model with memory"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=message):
            small(**params).fit(made())
