"""What varies within a series is scaled down, and nothing else."""

import numpy as np
import pytest
import torch
from model_setup import make_model

import progmem
from progmem.pooling import fit_feature_stats, pool
from progmem.probes.classify import classify
from progmem.whitening import AXES, draw_stretches, fit_whitening, no_whitening


def pairs(count=400, features=30, noisy=3):
    """Two stretches of series: the same but for noise in the first features."""
    source = torch.Generator().manual_seed(0)
    own = torch.randn(count, features, generator=source, dtype=torch.float64)
    noise = torch.zeros(2, count, features, dtype=torch.float64)
    noise[:, :, :noisy] = 3 * torch.randn(2, count, noisy, generator=source, dtype=torch.float64)
    return own + noise[0], own + noise[1]


def test_the_map_is_the_formula_of_the_module():
    first, second = pairs()
    whitening = fit_whitening(first, second)
    both = torch.cat([first, second])
    spread = both.std(0, correction=0)
    apart = (first - second) / spread / 2**0.5
    variance, axes = torch.linalg.eigh(apart.T @ apart / len(apart))
    z = (both - both.mean(0)) / spread
    shrunk = z @ axes * (1 + variance.clamp(min=0) / variance.mean()).rsqrt() @ axes.T
    expected = both.mean(0) + shrunk * spread
    torch.testing.assert_close(whitening(both), expected, rtol=0, atol=1e-5)


def test_what_differs_within_series_is_scaled_down_and_the_rest_stays():
    first, second = pairs()
    whitening = fit_whitening(first, second)
    for one in (first, second):
        ratio = whitening(one).std(0) / one.std(0)
        assert ratio[:3].max() < 0.4
        torch.testing.assert_close(whitening(one)[:, 3:], one[:, 3:], rtol=0, atol=0.05)


@pytest.mark.parametrize("change", [lambda x: 100 * x - 7, lambda x: x * torch.arange(1.0, 31.0)])
def test_the_units_of_features_do_not_matter(change):
    first, second = pairs()
    expected = change(fit_whitening(first, second)(first))
    found = fit_whitening(change(first), change(second))(change(first))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)


def test_features_that_hardly_vary_are_left_as_they_are():
    first, second = pairs()
    first[:, 0], second[:, 0] = 5.0, 5.0
    first[:, 1], second[:, 1] = 1e4 + 1e-3 * first[:, 1], 1e4 + 1e-3 * second[:, 1]  # of rounding
    found = fit_whitening(first, second)(first)
    assert torch.equal(found[:, :2], first[:, :2]) and not torch.equal(found[:, 2], first[:, 2])


def test_without_differences_nothing_changes():
    first, _ = pairs()
    for whitening in (fit_whitening(first, first), fit_whitening(first[:0], first[:0])):
        assert not any(t.any() for t in whitening[1:])
        assert torch.equal(whitening(first), first)
    assert torch.equal(no_whitening(30)(first), first)


def test_fewer_pairs_than_axes_are_enough():
    first, second = (one[: AXES // 8] for one in pairs(noisy=30))
    found = fit_whitening(first, second)
    assert found(first).isfinite().all() and (found.remove.abs().sum(1) > 0).sum() == AXES // 8


@pytest.mark.parametrize("length", [10, 90, 3072, 50_000])
def test_stretches_are_two_thirds_and_no_further_apart_than_they_leave(length):
    series = [np.arange(length)[:, None]] * 200
    starts = []
    for one, other in draw_stretches(series, shortest=1):
        assert len(one) == len(other) == min(2048, round(2 / 3 * length))
        assert abs(int(one[0, 0]) - int(other[0, 0])) <= round(len(one) / 2)
        starts += [int(one[0, 0]), int(other[0, 0])]
    assert min(starts) < 0.1 * length and max(starts) > 0.1 * length
    assert max(starts) <= length - min(2048, round(2 / 3 * length))
    again = [int(one[0, 0]) for one, _ in draw_stretches(series, shortest=1)]
    assert again == starts[::2]


def test_a_series_of_one_patch_has_no_stretches():
    series = [np.zeros((8, 1)), np.zeros((9, 1)), np.zeros((30, 1))]
    assert [len(one) for one, _ in draw_stretches(series, shortest=8)] == [8, 20]


def motifs(count, seed):
    """Waves of two periods, between which noise of any strength comes and goes."""
    rng = np.random.default_rng(seed)
    y = np.arange(count) % 2
    time = np.arange(120) + rng.uniform(0, 50, (count, 1))
    wave = np.sin(2 * np.pi * time / np.where(y, 11, 12)[:, None])
    bursts = np.exp(rng.normal(0, 1, (count, 6))).repeat(20, axis=1)
    return (wave + 0.5 * bursts * rng.normal(size=wave.shape))[..., None], y


def test_classes_are_told_from_few_labels_where_series_vary_within():
    model = progmem.PMT(progmem.ModelConfig.for_length(120, 1, size="tiny")).eval()
    (x, y), (other, other_y) = motifs(200, 0), motifs(200, 1)
    stats = fit_feature_stats(model, x)
    accuracy = []
    for chosen in (stats, stats.unwhitened):
        train, test = (pool(model, series, ["all"], stats=chosen)["all"] for series in (x, other))
        found = classify(train, y, test, other_y, label_share=4, seeds=range(10), head="logistic")
        accuracy.append(found.accuracy.mean())
    assert accuracy[0] > accuracy[1] + 0.03


def test_stretches_without_a_value_do_not_count():
    model = make_model(6, 3, 2).eval()
    x = torch.randn(12, 60, 2)
    x[:4, 10:] = torch.nan
    x[4:8, :50] = torch.nan
    stats = fit_feature_stats(model, x)
    assert stats is not None and stats.fitted
