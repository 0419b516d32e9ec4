"""A few labelled stretches, and what follows from them."""

import numpy as np
from explore_setup import made_index

from progmem import explore
from progmem.explore import labelling


def two_kinds(tmp_path, windows=100):
    """Two recordings whose first half is of one kind and whose second half is of another."""
    idx = made_index(tmp_path, [10 * windows, 10 * windows])
    for i in range(2):
        idx.all_vectors[idx.rows(f"r{i}")][windows // 2 :] += 2
    return idx


KNOWN = [("r0", 100, 200, "rest"), ("r0", 700, 800, "walk")]


def test_two_labels_tell_every_window_of_all_recordings(tmp_path):
    idx = two_kinds(tmp_path)
    found = explore.classify(idx, KNOWN)
    assert found.classes == ("rest", "walk")
    truth = np.repeat(["rest", "walk"], 50)
    for name in idx.names:
        assert (found.labels(name) == truth).mean() > 0.93
        assert np.allclose(found.probabilities[name].sum(1), 1)
        assert (found.probability(name) >= 0.5).all()


def test_more_labels_make_it_surer(tmp_path):
    idx = two_kinds(tmp_path)
    more = [*KNOWN, ("r1", 0, 100, "rest"), ("r1", 900, 1000, "walk")]
    few, many = (explore.classify(idx, labels).probability("r0") for labels in (KNOWN, more))
    assert many.mean() > few.mean()


def test_a_gap_has_no_prediction(tmp_path):
    idx = made_index(tmp_path, [500, 500, 500])
    found = explore.classify(idx, [*KNOWN[:1], ("r1", 100, 200, "walk")])
    assert (found.labels("r2")[30:34] == "").all() and np.isnan(
        found.probability("r2")[30:34]
    ).all()
    assert (found.labels("r2")[:30] != "").all()


def test_what_is_predicted_without_a_stretch_is_what_a_fit_without_it_predicts():
    rng = np.random.default_rng(0)
    x, y, group = rng.normal(size=(12, 5)), rng.normal(size=(12, 2)), np.repeat([0, 1, 2, 3], 3)
    u, s, _ = np.linalg.svd(x, full_matrices=False)
    left = labelling._left_out(u, s, y, 0.7, group)
    for i in range(4):
        kept = group != i
        beta = np.linalg.solve(x[kept].T @ x[kept] + 0.7 * np.eye(5), x[kept].T @ y[kept])
        assert np.allclose(left[~kept], x[~kept] @ beta)


def test_a_long_stretch_counts_as_much_as_a_short_one(tmp_path):
    idx = two_kinds(tmp_path)
    long = [("r0", 0, 450, "rest"), ("r0", 700, 800, "walk")]
    found = explore.classify(idx, long).labels("r1")
    assert (found == np.repeat(["rest", "walk"], 50)).mean() > 0.9


def test_what_is_suggested_is_first_the_largest_group_and_then_one_without_a_label(tmp_path):
    idx = made_index(tmp_path, [1500])
    idx.all_vectors[100:] += 3
    first = explore.suggest(idx)
    assert first.recording == "r0" and first.end - first.start == 100
    assert first.why == "typical of a group without a label, 100 % of all"
    second = explore.suggest(idx, [("r0", 200, 250, "rest")])
    assert second.start >= 1000 and second.end - second.start == 50
    third = explore.suggest(idx, [("r0", 200, 250, "rest"), ("r0", 1100, 1150, "walk")])
    assert (third.start, third.end) not in {(200, 250), (1100, 1150)}
