"""Few labels: how they are drawn, what the machines find, what the probe of a whole set keeps."""

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from progmem.config import parse_amount
from progmem.data.labels import draw_labels
from progmem.errors import InputError
from progmem.probes import classify as classify_module
from progmem.probes.classify import C_GRID, FIXED_C, HEADS, FittedSvm, classify, fit_svm


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


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_c_is_validated_inside_the_labelled_series_and_fixed_where_it_cannot_be(kernel):
    rng = np.random.default_rng(0)
    x, y = clusters(rng, 60, apart=30.0)
    head = HEADS[kernel]
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
            found = fit_svm(x, y, HEADS[kernel])
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
        assert looped_c(x, y, kernel, folds) == fit_svm(x, y, HEADS[kernel]).C


def test_features_that_are_all_the_same_have_a_machine():
    x, y = np.zeros((12, 4)), np.arange(12) % 2
    for head in HEADS.values():
        assert fit_svm(x, y, head).predict(x).shape == (12,)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kernel", ["linear", "rbf"])
@pytest.mark.parametrize("classes", [2, 3, 4, 7])
def test_a_machine_of_arrays_decides_as_scikit_learns_does(classes, kernel, dtype):
    rng = np.random.default_rng(classes)
    y = rng.permutation(np.arange(90) % classes)
    x = (rng.normal(size=(90, 5)) * 10.0 ** np.arange(5) + 6 * y[:, None] + 3).astype(dtype)
    new = (3 * x[rng.permutation(90)] + rng.normal(size=(90, 5))).astype(dtype)
    names = np.array([f"class {label}" for label in range(classes)])[y]
    scaler = StandardScaler().fit(x)
    svc = fit_svm(scaler.transform(x), names, HEADS[kernel])
    machine = FittedSvm.from_sklearn(scaler, svc)
    for features in (x, new):
        scaled = scaler.transform(features)
        np.testing.assert_array_equal(machine.scaled(features), scaled)
        values = machine.decision_function(features)
        np.testing.assert_allclose(values, svc.decision_function(scaled), rtol=1e-10, atol=1e-10)
        np.testing.assert_array_equal(machine.predict(features), svc.predict(scaled))
    assert len(set(machine.predict(x))) == classes
    by_default = SVC(kernel=kernel, C=svc.C).fit(scaler.transform(x), names)
    np.testing.assert_array_equal(
        svc.decision_function(scaled), by_default.decision_function(scaled)
    )


def test_a_tie_of_votes_is_decided_as_scikit_learn_does():
    """Three classes around the origin: there each beats one other, and no value is above 0."""
    angle = 2 * np.pi * np.arange(3) / 3
    x, y = np.stack([np.cos(angle), np.sin(angle)], axis=1), np.arange(3)
    scaler, svc = StandardScaler().fit(x), SVC(kernel="linear", C=1.0, gamma=1.0).fit(x, y)
    machine = FittedSvm.from_sklearn(scaler, svc)._replace(mean=np.zeros(2), scale=np.ones(2))
    origin = np.zeros((1, 2))
    assert machine.predict(origin) == svc.predict(origin)
    for two in ([0, 1], [1, 2]):
        svc = SVC(kernel="linear", C=1.0, gamma=1.0).fit(np.array([[-1.0, 0], [1, 0]]), two)
        machine = FittedSvm.from_sklearn(scaler, svc)._replace(mean=np.zeros(2), scale=np.ones(2))
        assert machine.decision_function(origin) == 0 == svc.decision_function(origin)
        assert machine.predict(origin) == svc.predict(origin)
