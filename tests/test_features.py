"""One vector from all scales: statistics of tokens by hand and in pieces, and their fitting."""

import math

import numpy as np
import pytest
import torch
from model_setup import make_model, make_series
from probe_setup import waves

import progmem
from progmem.baselines import build
from progmem.detail import CONVOLUTIONS, fit_detail
from progmem.errors import InputError
from progmem.features import FeatureStats, FeatureSummary, all_scales, features_in_all
from progmem.pooling import feature_stats_for, fit_feature_stats, padded, pool
from progmem.whitening import no_whitening


def encoding(tokens, mask):
    """Made tokens (B, K, D), float64, of which those of ``mask`` are there."""
    tokens, mask = torch.tensor(tokens, dtype=torch.float64), torch.tensor(mask, dtype=torch.bool)
    sequence = torch.arange(tokens[:, 0].numel()).double().reshape(tokens[:, 0].shape)
    return progmem.Encoding(
        tokens=tokens, memory=None, sequence=sequence, eos=None, token_mask=mask,
        window_mask=None, token_spans=torch.zeros(tokens.shape[1], 2), window_spans=None,
    )  # fmt: skip


def stats_of(median, scale, channels=2):
    """Statistics of tokens as given, a detail that is fitted to noise, and no whitening."""
    median, scale = (torch.tensor(t, dtype=torch.float64) for t in (median, scale))
    noise = np.random.default_rng(0).normal(size=(4, 30, channels))
    return FeatureStats(
        median, scale, fit_detail(noise), no_whitening(features_in_all(len(median)))
    )


def equal(one, other):
    """Whether two sets of statistics are the same."""
    return all(map(torch.equal, one.tensors().values(), other.tensors().values()))


def sigmoid(value):
    return 1 / (1 + math.exp(-value))


class Given:
    """An encoder whose tokens are the samples of a series; what is NaN is not there."""

    def __init__(self):
        self.encoded = 0

    def encode(self, x):
        self.encoded += len(x)
        longest = max(len(one) for one in x)
        tokens = torch.full((len(x), longest, x[0].shape[1]), torch.nan).double()
        for i, one in enumerate(x):
            tokens[i, : len(one)] = torch.as_tensor(one)
        mask = ~tokens.isnan().any(2)
        return encoding(torch.where(mask[..., None], tokens, 0.0).tolist(), mask.tolist())


def test_the_statistics_are_those_worked_by_hand():
    z = encoding(
        [[[1.0, -2.0], [3.0, -4.0], [99.0, 99.0]], [[0.0, 0.0]] * 3],
        [[True, True, False], [False, False, False]],
    )
    samples = torch.randn(2, 20, 2).double()
    found = all_scales(z, samples, stats_of([2.0, -2.0], [10.0, 1.0]))
    assert found.shape == (2, 4 * 2 + CONVOLUTIONS)
    share = (sigmoid(-1.0) + sigmoid(1.0)) / 2, (sigmoid(0.0) + sigmoid(-20.0)) / 2
    by_hand = [[0.0, 1.0, 3.0, -2.0, 1.0, 1.0, *share], [2.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]]
    torch.testing.assert_close(
        found[:, :8], torch.tensor(by_hand, dtype=torch.float64), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("sizes", [[30], [1] * 30, [7, 0, 16, 7], [29, 1]])
def test_how_tokens_are_cut_into_pieces_does_not_matter(sizes):
    """Not even far from 0, nor where a series has nothing to give for a while, or ever."""
    tokens = torch.randn(4, 30, 3).double() + torch.tensor([0.0, 1e6, -5.0]).double()
    mask = torch.rand(4, 30) > 0.3
    mask[1, :12], mask[2, 9:], mask[3] = False, False, False
    stats = stats_of([0.0, 1e6, 0.0], [1.0, 2.0, 3.0])
    summary = FeatureSummary(stats, 4, tokens.device, tokens.dtype)
    for part in zip(tokens.split(sizes, dim=1), mask.split(sizes, dim=1), strict=True):
        summary.add_tokens(*part)
    found = summary.statistics().reshape(4, 3, 3)
    for i in range(3):
        there = tokens[i][mask[i]]
        torch.testing.assert_close(found[i, 0], there.amax(0), rtol=0, atol=0)
        torch.testing.assert_close(found[i, 1], there.std(0, correction=0), rtol=0, atol=1e-9)
        share = torch.sigmoid((there - summary.median) / (0.1 * summary.scale)).mean(0)
        torch.testing.assert_close(found[i, 2], share, rtol=0, atol=1e-10)
    assert not found[3].any()


@pytest.mark.parametrize("dtype, atol", [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_batch_mates_padding_and_gaps_change_nothing(dtype, atol):
    model = make_model(6, 3, 2).to(dtype)
    series = [one.to(dtype) for one in make_series(30, gaps=True)]
    stats = fit_feature_stats(model, series).unwhitened  # by which features are their parts
    together = all_scales(model.encode(series), padded(series), stats)
    assert together.dtype == dtype and together.shape == (3, 4 * 16 + CONVOLUTIONS)
    for one, row in zip(series, together, strict=True):
        alone = all_scales(model.encode([one]), one[None], stats)
        torch.testing.assert_close(alone[0], row, rtol=0, atol=atol)
    z = model.encode([series[2]])
    there = z.tokens[0][z.token_mask[0]]
    assert 0 < len(there) < z.tokens.shape[1]
    torch.testing.assert_close(together[2, 16:32], there.amax(0), rtol=0, atol=atol)


def test_half_precision_is_summed_in_float32():
    x = torch.randn(2, 50, 2)
    z = make_model(6, 3, 2).bfloat16().encode(x)
    found = all_scales(z, x, stats_of([0.0] * 16, [1.0] * 16))
    assert found.dtype == torch.float32 and found.isfinite().all()


def test_the_fit_gives_the_median_and_the_spread_of_valid_tokens():
    series = [np.array([[1.0, 5.0], [2.0, 5.0], [np.nan, 1.0]]), np.array([[9.0, 5.0]])]
    median, scale, *_ = fit_feature_stats(Given(), series)
    assert median.tolist() == [2.0, 5.0]
    assert scale[0] == pytest.approx(np.std([1.0, 2.0, 9.0])) and scale[1] == 1.0  # it never varies
    assert median.dtype == scale.dtype == torch.float64


def test_the_spread_of_equal_values_is_not_their_rounding_error():
    equal = np.full((50, 1), 0.1 + 1e5) + 1e-11 * np.arange(50)[:, None]
    assert fit_feature_stats(Given(), [equal]).scale.tolist() == [1.0]


def test_a_fit_takes_some_series_and_tokens_from_all_over_and_always_the_same(monkeypatch):
    monkeypatch.setattr("progmem.pooling.FITTED_SERIES", 5)
    monkeypatch.setattr("progmem.pooling.FITTED_TOKENS", 20)
    x = np.random.default_rng(0).normal(size=(13, 40, 2))
    encoder = Given()
    found = fit_feature_stats(encoder, x)
    median, scale, *_ = found
    assert encoder.encoded == 5 + 2 * 5  # whole, and two stretches of each
    taken = x[::3, ::10].reshape(-1, 2)  # series 0, 3, 6, 9, 12; four tokens of each
    np.testing.assert_allclose(median, np.median(taken, 0))
    np.testing.assert_allclose(scale, taken.std(0))
    again = fit_feature_stats(Given(), list(x))
    assert equal(again, found)


def test_a_bad_series_is_named_as_it_was_counted(monkeypatch):
    monkeypatch.setattr("progmem.pooling.FITTED_SERIES", 5)
    x = np.zeros((10, 60, 2))
    x[4, 7, 1] = np.inf
    model = progmem.PMT(progmem.ModelConfig(channels=2, size="tiny"))
    with pytest.raises(InputError, match=r"series 2, sample 7, .* \(counting one series in 2\)$"):
        fit_feature_stats(model, x)


@pytest.mark.parametrize("name", ["pmt", "vanilla"])
def test_an_encoder_is_never_fitted_on_what_it_is_asked_about(name):
    encoder = build(name, progmem.ModelConfig.for_length(60, 2, dim=16, heads=2, blocks=1))
    x, _ = waves(6, 0)
    with pytest.raises(InputError, match=r"needs feature statistics, .* the pooling sequence"):
        pool(encoder, x, ["sequence", "all"])
    stats = feature_stats_for(encoder, x)
    found = pool(encoder, x[:2], ["all"], stats=stats)["all"]
    np.testing.assert_allclose(
        found, all_scales(encoder.encode(x[:2]), padded(x[:2]), stats), atol=1e-6
    )
    with pytest.raises(InputError, match="no series has an observed value, so feature statistics"):
        feature_stats_for(encoder, np.full_like(x, np.nan))


def test_a_models_own_statistics_are_used_before_others_are_fitted():
    model = progmem.PMT(progmem.ModelConfig.for_length(60, 2, dim=16, heads=2, blocks=1))
    x, _ = waves(6, 0)
    model.feature_stats.set(stats_of([0.5] * 16, [2.0] * 16))
    assert feature_stats_for(model, x).median.tolist() == [0.5] * 16
    own = pool(model, x, ["all"])["all"]
    expected = all_scales(model.encode(x), padded(x), model.feature_stats.values)
    np.testing.assert_allclose(own, expected, atol=1e-6)
    other = pool(model, x, ["all"], stats=fit_feature_stats(model, x))["all"]
    assert not np.allclose(own, other)


def test_the_statistics_of_a_model_are_no_parameters_and_stay_float64():
    model = progmem.PMT(progmem.ModelConfig(channels=2, size="tiny"))
    assert model.feature_stats.values is None and not list(model.feature_stats.parameters())
    model.feature_stats.set(stats_of([1 / 3] * 64, [1.0] * 64))
    kept = model.feature_stats.values
    assert equal(model.bfloat16().feature_stats.values, kept) and kept.median[0] == 1 / 3
    model.feature_stats.set(None)
    assert model.feature_stats.values is None
