"""Intervals of a forecast hold as many values as they say, also where errors are few or alike."""

import numpy as np
import pytest

from progmem.forecasting.conformal import coverage, error_quantiles, independent


def alike(n, H, rng):
    """Errors of a walk h steps ahead: sums of h draws, most of which neighbours share."""
    draws = rng.normal(size=n + H)
    return np.stack([np.convolve(draws, np.ones(h), "valid")[:n] for h in range(1, H + 1)], 1)


def test_errors_that_share_draws_count_once():
    rng = np.random.default_rng(0)
    apart = independent(rng.normal(size=(4000, 8)))
    np.testing.assert_allclose(apart, 4000, rtol=0.15)
    shared = independent(alike(4000, 8, rng))
    np.testing.assert_allclose(shared, 4000 / np.arange(1, 9), rtol=0.25)
    some = independent(alike(4000, 8, rng)[::4], step=4)  # three steps ahead they share nothing
    np.testing.assert_allclose(some, 1000 / np.maximum(1, np.arange(1, 9) / 4), rtol=0.25)


def test_quantiles_of_many_errors_are_plain_and_those_of_few_are_wider():
    errors = np.random.default_rng(0).normal(size=(900, 2))
    found = error_quantiles(errors, (0.1, 0.5, 0.9))
    np.testing.assert_allclose(found, np.quantile(errors, (0.1, 0.5, 0.9), axis=0), atol=0.03)
    few = error_quantiles(errors[:9], (0.1, 0.5, 0.9))
    assert (few[2] >= np.quantile(errors[:9], 0.98, axis=0)).all()
    assert (few[0] <= np.quantile(errors[:9], 0.02, axis=0)).all()
    np.testing.assert_allclose(few[1], np.median(errors[:9], axis=0))


def test_missing_errors_are_left_out():
    errors = np.random.default_rng(0).normal(size=(500, 2))
    gappy = errors.copy()
    gappy[::2, 1] = np.nan
    found = error_quantiles(gappy, (0.2, 0.8))
    np.testing.assert_allclose(found[:, 0], error_quantiles(errors, (0.2, 0.8))[:, 0])
    np.testing.assert_allclose(found[:, 1], np.nanquantile(gappy[:, 1], (0.2, 0.8)), atol=0.03)


def test_only_the_newest_errors_count():
    errors = np.concatenate(
        [100 * np.ones((5000, 1)), np.random.default_rng(0).normal(size=(1000, 1))]
    )
    assert error_quantiles(errors, (0.99,)).item() < 4


@pytest.mark.parametrize("kind", ["apart", "alike"])
def test_an_interval_of_eighty_holds_four_of_five_later_errors(kind):
    held, H = [], 12
    for seed in range(60):
        rng = np.random.default_rng(seed)
        errors = rng.normal(size=(600, H)) if kind == "apart" else alike(600, H, rng)
        low, high = error_quantiles(errors[:300], (0.1, 0.9))
        later = errors[300 + H :]
        held.append(((later >= low) & (later <= high)).mean())
    assert 0.77 < np.mean(held) < 0.83


def test_coverage_uses_only_errors_that_have_come_true():
    """A jump in the errors is outside of intervals until a horizon after it."""
    H, rng = 4, np.random.default_rng(0)
    before, errors = rng.normal(size=(300, H)), rng.normal(size=(400, H))
    times = np.arange(1000, 1400)
    assert 0.75 < coverage(before, errors, times, (0.1, 0.5, 0.9)) < 0.85
    far = errors + 1e6
    first = coverage(before, far[:20], times[:20], (0.1, 0.9))  # twenty rounds of one moment
    assert first == pytest.approx(0.0, abs=0.8) and first < coverage(before, far, times, (0.1, 0.9))
    assert coverage(before, far[:H], times[:H], (0.1, 0.9)) == 0


def test_what_is_missing_is_not_counted():
    errors = np.random.default_rng(0).normal(size=(200, 2))
    gappy = errors.copy()
    gappy[:, 1] = np.nan
    found = coverage(gappy, gappy, np.arange(200), (0.1, 0.9))
    assert found == pytest.approx(
        coverage(errors[:, :1], errors[:, :1], np.arange(200), (0.1, 0.9)), abs=0.02
    )
