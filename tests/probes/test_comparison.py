"""Whether pretraining pays: the same series, folds and head for all features, and honest errors."""

import re

import numpy as np
import pytest
import torch
from probe_setup import waves
from sklearn.preprocessing import StandardScaler

import progmem
from progmem.errors import InputError
from progmem.probes import comparison
from progmem.probes.comparison import (
    Comparison,
    Outcome,
    compare_by_folds,
    compare_held_out,
    compared_series,
    does_it_pay,
    draw_folds,
    minirocket,
    raw_values,
    resample,
)
from progmem.probes.logistic import fit_logistic
from progmem.probes.own_data import LabelProbe, compare_on_held_out, compare_on_labels


def clusters(seed, count, features=6, apart=2.0):
    y = np.repeat(np.arange(len(count)), count)
    centre = apart * np.random.default_rng(9).normal(size=(len(count), features))
    return np.random.default_rng(seed).normal(size=(len(y), features)) + centre[y], y


def outcomes(**correct):
    return {name: Outcome(np.atleast_2d(c), np.atleast_2d(c) * 0.0) for name, c in correct.items()}


def test_every_repeat_deals_out_all_series_with_classes_in_equal_shares():
    y = np.repeat([0, 1], [30, 20])
    folds = draw_folds(y)
    assert folds.shape == (5, 50) and not np.array_equal(folds[0], folds[1])
    for fold in folds:
        for label, share in ((0, 6), (1, 4)):
            assert np.bincount(fold[y == label]).tolist() == [share] * 5
    assert draw_folds(np.array([0, 0, 0, 1, 1])).max() == 1  # two folds: a class has two
    assert draw_folds(np.array([0, 0, 0, 1])) is None
    assert len(draw_folds(np.arange(800) % 2)) == 1  # many series need no repeats


def test_series_of_one_recording_are_in_one_fold():
    y = np.repeat([0, 1], 30)
    recordings = np.repeat(np.arange(12), 5)
    folds = draw_folds(y, recordings)
    for fold in folds:
        assert all(len(set(fold[recordings == one])) == 1 for one in range(12))
        assert len(set(fold)) == 5
    assert draw_folds(y, y) is None  # each class is one recording
    rare = np.array([1] * 4 + [0, 0, 1, 1] + [0] * 5 + [1, 1, 1, 0] + [1] * 5)
    drawn = draw_folds(rare, np.repeat(range(5), [3, 10, 4, 3, 2]))
    assert 0 < len(drawn) < 5  # recordings 1 and 2 alone have class 0, and must be apart
    assert all(fold[4] != fold[16] for fold in drawn)
    x, _ = clusters(0, [30, 30])
    grouped = compare_by_folds({"trained": x}, y, folds, recordings=recordings)
    alone = compare_by_folds({"trained": x}, y, folds)
    assert (grouped.independent, alone.independent) == (12, 60)


@pytest.mark.parametrize("features", [6, 90])
def test_series_are_scored_as_a_loop_over_folds_scores_them(features):
    x, y = clusters(1, [12, 9, 9], features, apart=0.5)
    x = 3 * x + 7
    folds = draw_folds(y)
    found = compare_by_folds({"a": x.astype(np.float32)}, y, folds).outcomes["a"]
    scaled = StandardScaler().fit_transform(x.astype(np.float32).astype(np.float64))
    for repeat in (0, 3):
        for k in range(5):
            test = folds[repeat] == k
            head = fit_logistic(scaled[~test], y[~test])
            likely = head.predict_proba(scaled[test])
            own = likely[np.arange(len(likely)), y[test]]
            np.testing.assert_array_equal(found.correct[repeat, test], likely.argmax(1) == y[test])
            np.testing.assert_allclose(found.log_loss[repeat, test], -np.log(own), rtol=1e-6)


def test_held_out_series_are_scored_by_one_head_on_the_labelled_ones():
    (x, y), (test, truth) = clusters(2, [8, 8], apart=0.5), clusters(3, [5, 7], apart=0.5)
    found = compare_held_out({"a": (x, test)}, y, truth)
    scaler = StandardScaler().fit(x)
    likely = fit_logistic(scaler.transform(x), y).predict_proba(scaler.transform(test))
    again = Outcome.of_probabilities(likely, truth)
    np.testing.assert_array_equal(found.outcomes["a"].correct, again.correct)
    np.testing.assert_allclose(found.outcomes["a"].log_loss, again.log_loss)
    np.testing.assert_allclose(again.log_loss[0], -np.log(likely[np.arange(12), truth]))
    assert found.folds is None and found.independent == 12


def test_an_interval_is_wilsons_and_few_labels_are_never_surely_right():
    by_hand = Comparison(outcomes(a=np.ones(8, bool)), {}, 8, "")
    assert by_hand.accuracy("a") == 1
    np.testing.assert_allclose(by_hand.interval("a"), (0.6756, 1.0), atol=1e-4)  # 8/(8+1.96^2)
    half = Comparison(outcomes(a=np.arange(100) < 50), {}, 100, "")
    np.testing.assert_allclose(half.interval("a"), (0.4038, 0.5962), atol=1e-4)


def test_the_error_of_a_gain_is_that_of_paired_series():
    """Agresti and Min: (b + c + 1 - (b - c)^2 / (n + 2)) / (n + 2)^2, of b gained and c lost."""
    ours, theirs = np.ones(40, bool), np.ones(40, bool)
    ours[:2], theirs[2:9] = False, False  # 7 gained, 2 lost
    found = Comparison(outcomes(trained=ours, untrained=theirs), {}, 40, "")
    gain, error = found.gain("trained")
    assert gain == pytest.approx(5 / 40)
    assert error == pytest.approx(np.sqrt(10 - 25 / 42) / 42)
    fewer, wider = found._replace(independent=10).gain("trained")  # so many recordings
    assert fewer == gain and wider > 1.5 * error


def test_the_error_of_a_gain_is_corrected_for_series_that_are_used_again():
    """Nadeau and Bengio: (1 / J + tested / trained on) times the variance over J folds."""
    rng = np.random.default_rng(0)
    folds = np.stack([rng.permutation(np.arange(400) % 5) for _ in range(5)])
    theirs = np.zeros((5, 400), bool)
    ours = folds % 5 < 2  # all of two folds, none of the others
    both = outcomes(trained=ours, untrained=theirs)
    found = Comparison(both, {}, 400, "", folds)
    gain, error = found.gain("trained")
    variance = np.var([1, 1, 0, 0, 0] * 5, ddof=1)
    assert gain == pytest.approx(0.4) and error == pytest.approx(
        np.sqrt((1 / 25 + 1 / 4) * variance)
    )
    assert error > 5 * np.sqrt(variance / 25 / 5)  # the naive one


@pytest.mark.parametrize(
    "gain, error, verdict",
    [
        (0.10, 0.04, "pretraining pays here: +10.0 ± 8.0 points of accuracy over the untrained"),
        (0.10, 0.06, "whether pretraining pays cannot be told here: +10.0 ± 12.0 points"),
        (-0.10, 0.04, "pretraining does not pay here: -10.0 ± 8.0 points"),
        (-0.10, 0.07, "whether pretraining pays cannot be told here"),
        (0.001, 0.005, "pretraining does not pay here: +0.1 ± 1.0 points"),
        (0.0, 0.0, "pretraining does not pay here"),
    ],
)
def test_a_gain_is_judged_by_twice_its_error(gain, error, verdict):
    assert does_it_pay(gain, error).startswith(verdict)


def test_two_encoders_that_are_right_on_all_of_a_few_labels_cannot_be_told_apart():
    right = np.ones((5, 8), bool)
    folds = np.tile(np.arange(8) % 4, (5, 1))
    same = outcomes(trained=right, untrained=right)
    assert "cannot be told" in Comparison(same, {}, 8, "", folds).sentence()
    assert "does not pay" in Comparison(same, {}, 800, "", folds).sentence()


def test_features_that_know_more_pay_and_those_that_know_nothing_do_not():
    (x, y), rng = clusters(4, [40, 40]), np.random.default_rng(0)
    noise = rng.normal(size=x.shape)
    folds = draw_folds(y)
    pays = compare_by_folds({"trained": x, "untrained": noise}, y, folds)
    assert pays.sentence().startswith("pretraining pays here")
    costs = compare_by_folds({"trained": noise, "untrained": x}, y, folds)
    assert costs.sentence().startswith("pretraining does not pay here")
    mirrored = compare_by_folds({"trained": x, "untrained": -x}, y, folds)
    assert mirrored.gain("trained")[0] == 0


@pytest.mark.slow
def test_the_estimate_does_not_flatter():
    """Labels that mean nothing are predicted by chance, however the penalty is chosen."""
    found = []
    for seed in range(40):
        x, y = np.random.default_rng(seed).normal(size=(20, 32)), np.arange(20) % 2
        found.append(compare_by_folds({"a": x}, y, draw_folds(y)).accuracy("a"))
    assert 0.4 < np.mean(found) < 0.53


def test_series_are_resampled_linearly_over_gaps_and_at_their_ends():
    ramp = np.arange(5.0)[:, None]
    gappy = np.array([[np.nan], [1], [np.nan], [3], [np.nan]])
    empty = np.full((3, 1), np.nan)
    found = resample([ramp, gappy, empty], 9)
    assert found.shape == (3, 1, 9)
    np.testing.assert_allclose(found[0, 0], np.linspace(0, 4, 9))
    np.testing.assert_allclose(found[1, 0], [1, 1, 1, 1.5, 2, 2.5, 3, 3, 3])
    assert not found[2].any()
    two = np.stack([np.arange(5.0), -np.arange(5.0)], axis=1)
    np.testing.assert_array_equal(resample([two], 5)[0], two.T)


def test_raw_values_have_the_median_length_of_the_first_part_up_to_a_limit():
    first, second = [np.zeros((n, 2)) for n in (4, 6, 50)], [np.zeros((9, 2))]
    assert [part.shape for part in raw_values(first, second)] == [(3, 12), (1, 12)]
    assert raw_values([np.zeros((900, 1))])[0].shape == (1, 200)


def test_minirocket_is_left_out_with_a_reason(monkeypatch):
    with pytest.raises(InputError, match="series of 8 samples are too short"):
        minirocket([np.zeros((8, 1))] * 3)
    found, left_out = comparison.baseline_features([np.zeros((8, 1))] * 3)
    assert list(found) == ["raw values"] and "too short" in left_out["MiniRocket"]


@pytest.mark.slow
def test_minirocket_takes_gaps_and_unequal_lengths_and_gives_the_same_each_time():
    x, y = waves(30, 0)
    series = [one[: 40 + i] for i, one in enumerate(x)]
    series[3][5:9] = np.nan
    new = [one[:50] for one in waves(6, 1)[0]]
    first, test = minirocket(series, new)
    again, _ = minirocket(series, new)
    assert torch.get_num_threads() == 1  # as before
    np.testing.assert_array_equal(first, again)
    assert np.isfinite(first).all() and test.shape == (6, first.shape[1])
    found = compare_held_out({"MiniRocket": (first, test)}, y, np.arange(6) % 2)
    assert found.accuracy("MiniRocket") == 1


def test_of_many_series_some_of_each_class_are_compared():
    y = np.repeat([0, 1, 2], [1500, 490, 10])
    chosen = compared_series(y)
    assert len(set(chosen)) == len(chosen) == 1000
    assert np.bincount(y[chosen]).tolist() == [750, 245, 5]
    np.testing.assert_array_equal(compared_series(y[:20]), np.arange(20))


def no_minirocket(*parts):
    raise InputError("not in this test")


def test_a_probe_is_compared_on_its_own_labelled_series(model, monkeypatch):
    monkeypatch.setitem(comparison.BASELINES, "MiniRocket", no_minirocket)
    x, y = waves(20, 0)
    torch.manual_seed(1)  # in place of training: the untrained copy has the weights of seed 0
    probe = LabelProbe(progmem.PMT(progmem.load(model).cfg)).fit(x, y)
    found = compare_on_labels(probe, list(x))
    assert list(found.outcomes) == ["trained", "untrained", "raw values"]
    assert found.left_out == {"MiniRocket": "not in this test"}
    alone = compare_by_folds({"trained": probe.features}, y, draw_folds(y))
    np.testing.assert_array_equal(
        found.outcomes["trained"].correct, alone.outcomes["trained"].correct
    )
    assert not np.array_equal(
        found.outcomes["trained"].log_loss, found.outcomes["untrained"].log_loss
    )
    text = "\n".join(found.lines())
    assert "in 5 folds drawn 5 times" in text and "MiniRocket was left out: not in this" in text
    assert re.search(r"  trained +[\d.]+ +[\d.]+ to [\d.]+ +[\d.]+\n", text)
    assert text.endswith(found.sentence()) and "points of accuracy" in found.sentence()
    assert found.to_dict()["scores"]["trained"]["accuracy"] == found.accuracy("trained")


def test_where_a_class_has_one_label_nothing_can_be_told(model):
    x, _ = waves(9, 0)
    probe = LabelProbe(progmem.load(model)).fit(x, ["a"] * 4 + ["b"] * 4 + ["c"])
    found = compare_on_labels(probe, list(x))
    (line,) = found.lines()
    assert line.startswith("the accuracy and whether pretraining pays cannot be told here: ")
    assert line.endswith("the labels of a class are too few to be split")
    by_recording = compare_on_labels(
        LabelProbe(progmem.load(model)).fit(x[:8], ["a"] * 4 + ["b"] * 4),
        list(x[:8]),
        recordings=np.repeat(["r", "s"], 4),
    )
    assert by_recording.sentence().endswith("the recordings of a class are too few to be split")


def test_frozen_encoders_are_compared_on_held_out_series(model, monkeypatch):
    monkeypatch.setitem(comparison.BASELINES, "MiniRocket", no_minirocket)
    (x, y), (test, truth) = waves(16, 0), waves(10, 1)
    encoder = progmem.load(model)
    found = compare_on_held_out({"trained": encoder}, list(x), y, list(test), truth)
    predicted = LabelProbe(encoder).fit(x, y).predict(test)
    np.testing.assert_array_equal(found.outcomes["trained"].correct[0], predicted.label == truth)
    assert list(found.outcomes) == ["trained", "raw values"]
    assert found.how == "10 series held out, predicted from 16"
