"""Few labels: how they are drawn, what the machines find, what the probe of a whole set keeps."""

import numpy as np
import pytest
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.svm import SVC

from progmem.config import parse_amount
from progmem.data.labels import draw_labels
from progmem.errors import InputError
from progmem.probes import classify as classify_module
from progmem.probes.classify import C_GRID, FIXED_C, HEADS, SVM_HEADS, classify, fit_svm
from progmem.probes.logistic import fit_logistic


def test_label_draws_are_stratified_nested_and_reproducible():
    y = np.repeat([0, 1, 2], [5, 50, 500])
    for few_labels, more_labels in ((2, 5), (0.01, 0.05)):
        few, again, more = (
            draw_labels(y, n, seed=3) for n in (few_labels, few_labels, more_labels)
        )
        np.testing.assert_array_equal(few, again)
        assert set(few) <= set(more) and len(set(more)) == len(more)
        assert not np.array_equal(few, draw_labels(y, few_labels, seed=4))
    assert np.bincount(y[draw_labels(y, 2, seed=0)]).tolist() == [2, 2, 2]
    assert np.bincount(y[draw_labels(y, 0.01, seed=0)]).tolist() == [1, 1, 5]
    assert np.bincount(y[draw_labels(y, 0.05, seed=0)]).tolist() == [1, 2, 25]
    assert len(draw_labels(y, 1.0, seed=0)) == len(y)
    with pytest.raises(InputError, match="class 0 has 5 series, 6 labels were asked"):
        draw_labels(y, 6, seed=0)


@pytest.mark.parametrize("text, amount", [("5%", 0.05), ("0.5%", 0.005), ("10", 10), ("100%", 1.0)])
def test_amounts_of_labels_are_shares_or_numbers(text, amount):
    assert parse_amount(text) == amount and type(parse_amount(text)) is type(amount)


@pytest.mark.parametrize("text", ["0", "-3", "0%", "101%", "half", "0.05", "%"])
def test_other_amounts_are_refused(text):
    with pytest.raises(InputError, match="a percentage such as 5% or a number per class"):
        parse_amount(text)


def clusters(rng, count, classes=3, apart=3.0):
    y = rng.integers(classes, size=count)
    return rng.normal(size=(count, 8)) + apart * np.eye(8)[y], y


@pytest.mark.parametrize("head", HEADS)
def test_the_probe_finds_what_is_there_and_not_what_is_not(head):
    rng = np.random.default_rng(0)
    for apart, low, high in ((0.0, 0.23, 0.43), (3.0, 0.85, 1.0)):
        (x, y), (test_x, test_y) = (clusters(rng, 300, apart=apart) for _ in range(2))
        scores = classify(x, y, test_x, test_y, label_share=10, head=head)
        for values in scores[:3]:
            assert values.shape == (5,) and low <= values.mean() <= high


def test_scores_are_those_worked_by_hand():
    x = np.array([[-1.0], [-1.0], [1.0], [1.0]])
    test_x = np.array([[-1.0], [-1.0], [-1.0], [1.0]])
    scores = classify(
        x, np.array([0, 0, 1, 1]), test_x, np.array([0, 0, 1, 1]),
        label_share=2, seeds=[0], head="linear, fixed C",
    )  # fmt: skip
    assert scores.accuracy[0] == 0.75
    assert scores.macro_f1[0] == pytest.approx((0.8 + 2 / 3) / 2)  # 2PR/(P+R) of each class
    lone = classify(
        x, np.array([0, 0, 1, 1]), test_x, np.array([0, 1, 1, 1]),
        label_share=2, seeds=[0], head="linear, fixed C",
    )  # fmt: skip
    assert lone.accuracy[0] == 0.5
    assert lone.weighted_f1[0] == pytest.approx(0.25 * 0.5 + 0.75 * 0.5)
    assert scores.c[0] == FIXED_C["linear"]


def test_the_logistic_regression_is_scored_on_standardised_features_with_its_log_loss():
    rng = np.random.default_rng(1)
    (x, y), (test_x, test_y) = (clusters(rng, 60, apart=1.0) for _ in range(2))
    scores = classify(
        7 * x + 3, y, 7 * test_x + 3, test_y, label_share=5, seeds=[4], head="logistic"
    )
    mean, sd, rows = x.mean(0), x.std(0), draw_labels(y, 5, 4)
    head, test = fit_logistic((x[rows] - mean) / sd, y[rows]), (test_x - mean) / sd
    assert scores.c[0] == 0.1
    assert scores.accuracy[0] == (head.predict(test) == test_y).mean()
    expected = log_loss(test_y, head.predict_proba(test))
    np.testing.assert_allclose(scores.log_loss, [expected], rtol=1e-9)
    svm = classify(x, y, test_x, test_y, label_share=5, seeds=[4], head="linear, fixed C")
    assert set(scores.as_lists()) - set(svm.as_lists()) == {"log_loss"}
    unknown = classify(x, y, test_x, test_y + 1, label_share=5, seeds=[4], head="logistic")
    assert np.isfinite(unknown.log_loss).all()  # a class that no label has


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_c_is_validated_inside_the_labelled_series_and_fixed_where_it_cannot_be(kernel):
    rng = np.random.default_rng(0)
    x, y = clusters(rng, 60, apart=30.0)
    head = SVM_HEADS[kernel]
    found = fit_svm(x, y, head)
    assert found.score(x, y) == 1.0 and FIXED_C[kernel] > found.C  # the smallest that is best
    few = np.concatenate([np.flatnonzero(y == 0)[:1], np.flatnonzero(y != 0)])
    found = fit_svm(x[few], y[few], head)
    assert FIXED_C[kernel] == found.C
    two = np.concatenate([np.flatnonzero(y == label)[:2] for label in range(3)])
    assert fit_svm(x[two], y[two], head).predict(x[two]).shape == (6,)  # two folds


@pytest.mark.parametrize("kernel, count, least", [("linear", 50, 1.5), ("rbf", 70, 0.0)])
def test_c_is_the_one_a_grid_search_finds(kernel, count, least, monkeypatch):
    chosen = set()
    for seed in range(0, 8, 2):
        rng = np.random.default_rng(seed)
        x, y = clusters(rng, count, apart=least + 0.3 * seed)
        x = x.astype(np.float32)
        folds = StratifiedKFold(5, shuffle=True, random_state=0)
        search = GridSearchCV(SVC(kernel=kernel), {"C": C_GRID}, cv=folds).fit(x, y)
        for most in (1_000, 10):  # below: no matrix of products
            monkeypatch.setattr(classify_module, "MAX_GRAM_SIZE", most)
            found = fit_svm(x, y, SVM_HEADS[kernel])
            assert search.best_params_["C"] == found.C
            np.testing.assert_array_equal(found.predict(x), search.predict(x))
            chosen.add(found.C)
    assert len(chosen) > 1


def looped_c(x, y, kernel, folds):
    """The best C by a loop over folds and the grid, of equally good ones the smallest."""
    accuracy = np.zeros((len(C_GRID), folds))
    split = StratifiedKFold(folds, shuffle=True, random_state=0).split(x, y)
    for fold, (train, held_out) in enumerate(split):
        for place, c in enumerate(C_GRID):
            machine = SVC(kernel=kernel, C=c).fit(x[train], y[train])
            accuracy[place, fold] = (machine.predict(x[held_out]) == y[held_out]).mean()
    return min(C_GRID, key=lambda c: (-accuracy.mean(1)[C_GRID.index(c)], c))


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_of_equally_good_values_of_c_the_smallest_is_taken(kernel):
    for seed, apart in enumerate([2.0, 3.0, 30.0]):
        x, y = clusters(np.random.default_rng(seed), 40, apart=apart)
        folds = min(5, np.bincount(y).min())
        assert looped_c(x, y, kernel, folds) == fit_svm(x, y, SVM_HEADS[kernel]).C


def test_features_that_are_all_the_same_have_a_machine():
    x, y = np.zeros((12, 4)), np.arange(12) % 2
    for head in SVM_HEADS.values():
        assert fit_svm(x, y, head).predict(x).shape == (12,)
