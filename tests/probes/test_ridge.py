"""The ridge for few labels: against scikit-learn's, against loops, and where it might fail."""

import numpy as np
import pytest
from sklearn.linear_model import Ridge
from sklearn.metrics import log_loss

from progmem.errors import InputError
from progmem.probes.ridge import (
    FIXED_PENALTY,
    FIXED_SHARPNESS,
    PENALTIES,
    RidgePath,
    fit_ridge,
    tells_apart,
)


def clusters(rng, count, features=8, apart=2.0):
    """Features (n, D) of ``count`` series of each class, and the classes."""
    y = np.repeat(np.arange(len(count)), count)
    centre = apart * np.random.default_rng(99).normal(size=(len(count), features))
    return rng.normal(size=(len(y), features)) + centre[y], y


def class_weights(y):
    weight = 1 / np.sqrt(np.bincount(y))[y]
    return weight / weight.mean()


SHAPES = [([9, 5, 3], 4), ([9, 5, 3], 40), ([6, 2], 8), ([4, 4], 8)]


@pytest.mark.parametrize("count, features", SHAPES)
@pytest.mark.parametrize("penalty", [1.0, 1e3])
def test_it_is_scikit_learns_ridge_with_weights_by_class(count, features, penalty):
    x, y = clusters(np.random.default_rng(0), count, features)
    path = RidgePath(x, y)
    theirs = Ridge(alpha=penalty, solver="cholesky").fit(x, path.target, class_weights(y))
    weights, intercept = path.solve(penalty)
    np.testing.assert_allclose(weights, theirs.coef_.T, rtol=0, atol=1e-8)
    np.testing.assert_allclose(intercept, theirs.intercept_, rtol=0, atol=1e-8)


@pytest.mark.parametrize("count, features", SHAPES)
@pytest.mark.parametrize("penalty", [1.0, 1e3])
def test_leave_one_out_is_what_a_loop_that_fits_again_finds(count, features, penalty):
    x, y = clusters(np.random.default_rng(1), count, features)
    path, weight = RidgePath(x, y), class_weights(y)
    looped = []
    for i in range(len(y)):
        rest = np.arange(len(y)) != i
        left = Ridge(alpha=penalty, solver="cholesky")
        left.fit(x[rest], path.target[rest], weight[rest])
        looped.append(left.predict(x[[i]])[0])
    np.testing.assert_allclose(path.leave_one_out(penalty), looped, rtol=0, atol=1e-8)


def test_the_penalty_has_the_fewest_errors_and_the_sharpness_the_least_log_loss():
    chosen = set()
    for seed in range(12):
        x, y = clusters(np.random.default_rng(seed), [12, 8, 4], 30, apart=0.4)
        fitted, path, weight = fit_ridge(x, y), RidgePath(x, y), class_weights(y)
        wrong = [weight @ (path.leave_one_out(one).argmax(1) != y) for one in PENALTIES]
        allowed = [tells_apart(path, one) for one in PENALTIES]
        least = min(w for w, may in zip(wrong, allowed, strict=True) if may)
        best = [p for p, w, may in zip(PENALTIES, wrong, allowed, strict=True) if may
                and w <= least + 1e-9]  # fmt: skip
        assert fitted.penalty in best
        assert abs(np.log10(fitted.penalty / 100)) == min(abs(np.log10(one / 100)) for one in best)
        chosen.add(fitted.penalty)
        values, smooth = path.leave_one_out(fitted.penalty), 1 / 25
        target = (1 - smooth) * np.eye(3)[y] + smooth / 3

        def loss(sharpness, values=values, target=target):
            scores = sharpness * values
            return -(target * (scores - np.log(np.exp(scores).sum(1, keepdims=True)))).sum()

        grid = fitted.sharpness * np.array([0.98, 1, 1.02])
        assert min(grid, key=loss) == fitted.sharpness
    assert len(chosen) > 2


@pytest.mark.parametrize("names", [["b", "a", "c"], [7, -2, 10], [True, False]])
def test_classes_come_back_as_they_were_given(names):
    x, y = clusters(np.random.default_rng(2), [5] * len(names), apart=8.0)
    given = np.array(names)[y]
    fitted = fit_ridge(x, given)
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
    before = fit_ridge(x, y)
    rows, columns = rng.permutation(len(x)), rng.permutation(20)
    for after, moved in (
        (fit_ridge(x[rows], y[rows]), new),
        (fit_ridge(x[:, columns], y), new[:, columns]),
        (fit_ridge(x + 5.0, y), new + 5.0),
        (fit_ridge(-x, y), -new),
    ):
        assert after.penalty == before.penalty
        np.testing.assert_allclose(after.predict_proba(moved), before.predict_proba(new), atol=1e-8)


def test_two_classes_are_each_others_opposite():
    x, y = clusters(np.random.default_rng(4), [6, 9])
    values = fit_ridge(x, y).decision_function(x)
    np.testing.assert_allclose(values[:, 0], -values[:, 1], atol=1e-12)


@pytest.mark.parametrize("count", [[4, 2], [5, 1], [3, 3], [40, 4, 2]])
def test_it_never_answers_with_one_class_for_everything(count):
    """Noise draws the penalty to its largest, which must not mean the larger class."""
    alone = []
    for seed in range(30):
        x, y = clusters(np.random.default_rng(seed), count, 30, apart=0.0)
        fitted = fit_ridge(x, y)
        assert len(set(fitted.predict(x))) > 1
        weights, intercept = RidgePath(x, y).solve(1e12)
        alone.append(len(set((x @ weights + intercept).argmax(1))) == 1)
    assert all(alone) == (len(set(count)) > 1)  # there is something to be guarded against


def test_six_labels_that_can_be_told_apart_are():
    found = []
    for seed in range(20):
        x, y = clusters(np.random.default_rng(seed), [4, 2], 30, apart=0.8)
        test, truth = clusters(np.random.default_rng(seed + 100), [40, 20], 30, apart=0.8)
        found.append((fit_ridge(x, y).predict(test) == truth).mean())
    assert np.mean(found) > 0.9  # the larger class alone has 0.67


def test_classes_of_one_label_have_a_penalty_that_leave_one_out_would_not_find():
    """Features share what does not tell classes apart, which a large penalty gives the most say."""
    shared = 3 * np.random.default_rng(9).normal(size=(5, 60))
    accuracy = {"fixed": [], "left out": []}
    for seed in range(3):
        rng = np.random.default_rng(seed)
        (x, y), (test, truth) = (clusters(rng, [count] * 42, 60, apart=0.8) for count in (1, 5))
        x, test = (part + rng.normal(size=(len(part), 5)) @ shared for part in (x, test))
        fitted, path = fit_ridge(x, y), RidgePath(x, y)
        assert (fitted.penalty, fitted.sharpness) == (FIXED_PENALTY, FIXED_SHARPNESS)
        accuracy["fixed"].append((fitted.predict(test) == truth).mean())
        best = min(PENALTIES, key=lambda one: ((path.target - path.leave_one_out(one)) ** 2).sum())
        weights, intercept = path.solve(best)
        accuracy["left out"].append(((test @ weights + intercept).argmax(1) == truth).mean())
    assert np.mean(accuracy["fixed"]) > 1.5 * np.mean(accuracy["left out"])
    lone, y = clusters(np.random.default_rng(0), [30, 1])
    assert fit_ridge(lone, y).penalty == FIXED_PENALTY


def test_few_labels_never_give_certainty_and_many_nearly_do():
    for count in ([1, 1], [3, 3], [300, 300]):
        x, y = clusters(np.random.default_rng(5), count, apart=6.0)
        n = len(y)
        likely = fit_ridge(x, y).predict_proba(1e3 * x)  # as far away as features can be
        assert likely.max() <= 1 - 0.5 / (n + 1) + 1e-12
    assert likely.max() > 0.999


def test_probabilities_beat_those_that_know_nothing():
    for count in ([2, 2, 2], [10, 5, 5], [60, 60, 60]):
        losses = []
        for seed in range(5):
            x, y = clusters(np.random.default_rng(seed), count, apart=0.8)
            test, truth = clusters(np.random.default_rng(seed + 50), [50] * 3, apart=0.8)
            losses.append(log_loss(truth, fit_ridge(x, y).predict_proba(test)))
        assert np.mean(losses) < 0.9 * np.log(3)


def test_labels_that_mean_nothing_give_probabilities_near_chance():
    rng = np.random.default_rng(6)
    x, y = rng.normal(size=(60, 30)), np.arange(60) % 3
    assert log_loss(y, fit_ridge(rng.normal(size=(60, 30)), y).predict_proba(x)) < 1.15 * np.log(3)


def test_features_that_are_all_the_same_say_nothing():
    y = np.array([0, 0, 0, 1, 1])
    for features in (3, 9):
        fitted = fit_ridge(np.zeros((5, features)), y)
        likely = fitted.predict_proba(np.zeros((2, features)))
        np.testing.assert_allclose(likely, 0.5, atol=0.1)  # the larger class, if any


def test_input_is_not_changed_and_bad_input_is_refused():
    x, y = clusters(np.random.default_rng(7), [3, 3])
    before = x.copy()
    fit_ridge(x.astype(np.float32), y)
    fit_ridge(x, y)
    np.testing.assert_array_equal(x, before)
    for bad, labels, message in (
        (np.where(x > 2, np.nan, x), y, "features must be finite"),
        (x[:, 0], y, r"\(series, features\), got \(6,\)"),
        (x, y[:4], "one label for each of the 6 series"),
        (x, np.zeros(6), "at least two classes"),
    ):
        with pytest.raises(InputError, match=message):
            fit_ridge(bad, labels)


def test_thousands_of_series_or_features_are_no_burden():
    rng = np.random.default_rng(8)
    assert fit_ridge(rng.normal(size=(4_000, 50)), np.arange(4_000) % 3).weights.shape[0] == 50
    assert fit_ridge(rng.normal(size=(50, 20_000)), np.arange(50) % 3).weights.shape[1] == 3
