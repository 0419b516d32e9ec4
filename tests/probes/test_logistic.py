"""The head for few labels: against scikit-learn, by its symmetries, and where it might fail."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from progmem.errors import InputError
from progmem.probes.logistic import C, coordinates_of, fit_logistic


def clusters(rng, count, features=8, apart=2.0):
    """Features (n, D) of ``count`` series of each class, and the classes."""
    y = np.repeat(np.arange(len(count)), count)
    centre = apart * np.random.default_rng(99).normal(size=(len(count), features))
    return rng.normal(size=(len(y), features)) + centre[y], y


@pytest.mark.parametrize("features", [4, 40])
@pytest.mark.parametrize("count", [[9, 5, 3], [6, 2], [1, 1, 1, 1]])
def test_it_is_scikit_learns_whether_series_or_features_are_more(count, features):
    x, y = clusters(np.random.default_rng(0), count, features, apart=0.5)
    new = np.random.default_rng(1).normal(size=(20, features))
    theirs = LogisticRegression(C=C, tol=1e-10, max_iter=10_000).fit(x, y)
    ours = fit_logistic(x, y)
    likely, n = theirs.predict_proba(new), len(y)
    expected = n / (n + 1) * likely + 1 / (n + 1) / len(count)
    np.testing.assert_allclose(ours.predict_proba(new), expected, atol=1e-5)


@pytest.mark.parametrize("shape", [(5, 30), (30, 5), (6, 6)])
def test_coordinates_have_the_inner_products_of_the_features(shape):
    x = np.random.default_rng(2).normal(size=shape)
    coordinates, axes = coordinates_of(x)
    assert coordinates.shape[1] <= min(shape)
    np.testing.assert_allclose(coordinates @ coordinates.T, x @ x.T, atol=1e-10)
    np.testing.assert_allclose(coordinates @ axes.T, x, atol=1e-10)
    np.testing.assert_allclose(axes.T @ axes, np.eye(axes.shape[1]), atol=1e-10)


@pytest.mark.parametrize("names", [["b", "a", "c"], [7, -2, 10], [True, False]])
def test_classes_come_back_as_they_were_given(names):
    x, y = clusters(np.random.default_rng(2), [5] * len(names), apart=8.0)
    given = np.array(names)[y]
    fitted = fit_logistic(x, given)
    assert fitted.classes.tolist() == sorted(names)
    found = fitted.predict(x)
    assert found.dtype == given.dtype and (found == given).all()
    likely = fitted.predict_proba(x)
    assert likely.shape == fitted.decision_function(x).shape == (len(y), len(names))
    np.testing.assert_allclose(likely.sum(1), 1.0, rtol=1e-12)
    assert (fitted.classes[likely.argmax(1)] == found).all()


def test_order_and_shifts_of_series_and_features_change_nothing():
    rng = np.random.default_rng(3)
    x, y = clusters(rng, [7, 5, 3], 20, apart=0.7)
    new = rng.normal(size=(9, 20))
    before = fit_logistic(x, y).predict_proba(new)
    rows, columns = rng.permutation(len(x)), rng.permutation(20)
    for after, moved in (
        (fit_logistic(x[rows], y[rows]), new),
        (fit_logistic(x[:, columns], y), new[:, columns]),
        (fit_logistic(x + 5.0, y), new + 5.0),
        (fit_logistic(-x, y), -new),
    ):
        np.testing.assert_allclose(after.predict_proba(moved), before, atol=1e-5)


def test_two_classes_are_each_others_opposite():
    x, y = clusters(np.random.default_rng(4), [6, 9])
    values = fit_logistic(x, y).decision_function(x)
    np.testing.assert_allclose(values[:, 0], -values[:, 1], atol=1e-12)


@pytest.mark.parametrize("count", [[4, 2], [5, 1], [3, 3], [40, 4, 2]])
def test_it_never_answers_with_one_class_for_everything(count):
    """Not even where features are noise, and the larger class would be right most often."""
    for seed in range(20):
        x, y = clusters(np.random.default_rng(seed), count, 200, apart=0.0)
        assert len(set(fit_logistic(x, y).predict(x))) > 1


def test_six_labels_that_can_be_told_apart_are():
    found = []
    for seed in range(20):
        x, y = clusters(np.random.default_rng(seed), [4, 2], 30, apart=0.8)
        test, truth = clusters(np.random.default_rng(seed + 100), [40, 20], 30, apart=0.8)
        found.append((fit_logistic(x, y).predict(test) == truth).mean())
    assert np.mean(found) > 0.8  # the larger class alone has 0.67


def test_one_label_a_class_is_enough_where_classes_lie_apart():
    rng = np.random.default_rng(0)
    (x, y), (test, truth) = (clusters(rng, [count] * 42, 60, apart=1.0) for count in (1, 5))
    assert (fit_logistic(x, y).predict(test) == truth).mean() > 0.9


def test_few_labels_never_give_certainty_and_many_nearly_do():
    for count in ([1, 1], [3, 3], [300, 300]):
        x, y = clusters(np.random.default_rng(5), count, apart=6.0)
        likely = fit_logistic(x, y).predict_proba(1e3 * x)  # as far away as features can be
        assert likely.max() <= 1 - 0.5 / (len(y) + 1) + 1e-12
    assert likely.max() > 0.999


def test_probabilities_beat_those_that_know_nothing():
    for count in ([2, 2, 2], [10, 5, 5], [60, 60, 60]):
        losses = []
        for seed in range(5):
            x, y = clusters(np.random.default_rng(seed), count, apart=0.8)
            test, truth = clusters(np.random.default_rng(seed + 50), [50] * 3, apart=0.8)
            losses.append(log_loss(truth, fit_logistic(x, y).predict_proba(test)))
        assert np.mean(losses) < 0.9 * np.log(3)


def test_the_log_loss_of_a_class_it_has_never_seen_is_large_but_finite():
    x, y = clusters(np.random.default_rng(6), [4, 4])
    fitted = fit_logistic(x, y)
    np.testing.assert_allclose(fitted.log_loss(x, y).mean(), log_loss(y, fitted.predict_proba(x)))
    assert 30 < fitted.log_loss(x[:1], np.array([7]))[0] < 40


def test_features_that_are_all_the_same_say_nothing():
    y = np.array([0, 0, 0, 1, 1])
    for features in (3, 9):
        fitted = fit_logistic(np.ones((5, features)), y)
        likely = fitted.predict_proba(np.ones((2, features)))
        np.testing.assert_allclose(likely, 0.5, atol=0.1)  # the larger class, if any


def test_input_is_not_changed_and_bad_input_is_refused():
    x, y = clusters(np.random.default_rng(7), [3, 3])
    before = x.copy()
    fit_logistic(x.astype(np.float32), y)
    fit_logistic(x, y)
    np.testing.assert_array_equal(x, before)
    for bad, labels, message in (
        (np.where(x > 2, np.nan, x), y, "features must be finite"),
        (x[:, 0], y, r"\(series, features\), got \(6,\)"),
        (x, y[:4], "one label for each of the 6 series"),
        (x, np.zeros(6), "at least two classes"),
    ):
        with pytest.raises(InputError, match=message):
            fit_logistic(bad, labels)


def test_thousands_of_series_or_features_are_no_burden():
    rng = np.random.default_rng(8)
    assert fit_logistic(rng.normal(size=(4_000, 50)), np.arange(4_000) % 3).weights.shape[0] == 50
    assert fit_logistic(rng.normal(size=(50, 20_000)), np.arange(50) % 3).weights.shape[1] == 3
