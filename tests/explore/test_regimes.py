"""Regimes, states and surprise: what was put into the vectors is found there."""

from itertools import combinations

import numpy as np
import pytest
from explore_setup import made_index

from progmem import explore
from progmem.errors import InputError
from progmem.explore import novelty, regimes
from progmem.explore.shapes import FAINT


def with_means(tmp_path, lengths, means, noise=0.3):
    """An index of one recording whose vectors have these means for so many windows."""
    idx = made_index(tmp_path, [10 * sum(lengths)], width=64)
    centres = np.repeat(means, lengths, axis=0)
    idx.all_vectors[:] = noise * idx.all_vectors + centres
    idx.channel_values[:, 0] = np.repeat(np.array(means)[:, :2], lengths, axis=0)
    return idx


A, B, C = np.eye(64)[:3] * 6


@pytest.mark.parametrize("most", [4096, 40])
def test_boundaries_are_found_to_the_window_and_regimes_that_recur_have_one_number(
    tmp_path, monkeypatch, most
):
    monkeypatch.setattr(regimes, "MOST", most)
    idx = with_means(tmp_path, [40, 60, 31, 50], [A, B, A, C])
    found = explore.segment(idx, "r0")
    assert [(s.start, s.end, s.regime) for s in found] == [
        (0, 400, 0), (400, 1000, 1), (1000, 1310, 0), (1310, 1810, 2)
    ]  # fmt: skip
    assert most == 40 or explore.segment(idx, "r0", count=4) == found
    assert len(explore.segment(idx, "r0", penalty=1000)) == 1


def test_noise_has_no_boundaries(tmp_path):
    idx = with_means(tmp_path, [300], [A])
    assert explore.segment(idx, "r0") == [explore.Segment("r0", 0, 3000, 0)]
    idx.all_vectors[:], idx.channel_values[:] = 1, 1  # nor has what never changes
    assert explore.segment(idx, "r0") == [explore.Segment("r0", 0, 3000, 0)]


def test_a_regime_that_varies_much_does_not_hide_the_boundaries_of_others(tmp_path):
    idx = with_means(tmp_path, [60, 40, 40], [A, A, A])
    rng = np.random.default_rng(0)
    idx.channel_values[:] = rng.normal(size=(140, 2, 2))
    idx.channel_values[60:] = 0.02 * idx.channel_values[60:]
    idx.channel_values[100:, 0] += 1.0  # far less than the first 60 windows vary
    assert [s.end for s in explore.segment(idx, "r0")] == [600, 1000, 1400]


def test_a_change_of_the_vectors_alone_is_a_boundary(tmp_path):
    idx = with_means(tmp_path, [50, 70], [A, B])
    idx.channel_values[:] = 1
    assert [s.end for s in explore.segment(idx, "r0")] == [500, 1200]


def recurring(parts, windows, period):
    """Points of windows in which a short shape recurs, its mean 0 and its deviation 1."""
    shape = np.random.default_rng(period).normal(size=period)
    shape = (shape - shape.mean()) / shape.std()
    return np.resize(shape, windows * parts).reshape(windows, parts, 1)


def test_where_one_short_shape_recurs_and_then_another_is_a_boundary(tmp_path):
    idx = made_index(tmp_path, [1200], channels=1)
    idx.channel_values[:] = 1
    idx.all_points[:70], idx.all_points[70:] = recurring(5, 70, 13), recurring(5, 50, 17)
    idx.all_points[:] += 0.2 * np.random.default_rng(0).normal(size=idx.all_points.shape)
    (first, second) = explore.segment(idx, "r0")
    assert abs(first.end - 700) <= 20 and first.end == second.start


def test_windows_share_their_neighbours_and_none_that_overlaps_it():
    points = np.random.default_rng(0).normal(size=(40, 4, 2)).astype(np.float32)
    points[20:] = points[:20]
    share = regimes._neighbours(points, np.arange(40))
    np.testing.assert_array_equal(share, share.T)
    asked = 40 - explore.STRETCH  # the others have no whole stretch around them
    assert share.sum() == pytest.approx(asked)
    at = np.arange(2, 15)
    assert (share[at, at + 20] == pytest.approx(1 / regimes.NEIGHBOURS)) and not any(
        share.diagonal(i).any() for i in range(explore.STRETCH)
    )
    few = regimes._neighbours(points[:8], np.arange(8))  # all of the three overlap
    assert not few.any()


def test_more_segments_than_blocks_can_tell_apart_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(regimes, "MOST", 40)
    idx = with_means(tmp_path, [40, 60], [A, B])
    with pytest.raises(InputError, match="at most 16 segments are looked for in 100 windows"):
        explore.segment(idx, "r0", count=20)


def worth(kernel, ends):
    starts = [0, *ends[:-1]]
    return sum(kernel[a:b, a:b].sum() / (b - a) for a, b in zip(starts, ends, strict=True))


@pytest.mark.parametrize("shortest", [1, 3])
def test_no_other_boundaries_are_better(shortest):
    x = np.random.default_rng(0).normal(size=(11, 2)).cumsum(0)
    kernel = np.exp(-np.square(x[:, None] - x).sum(2))
    n, found = len(x), {}
    for count in range(1, n // shortest + 1):
        ends = [
            [*inner, n]
            for inner in combinations(range(1, n), count - 1)
            if min(np.diff([0, *inner, n])) >= shortest
        ]
        found[count] = max(ends, key=lambda one: worth(kernel, one))
        assert regimes.best_ends(kernel, shortest, count).tolist() == found[count]
    for penalty in (0.01, 0.3, 1.0, 9.0):
        best = max(found.values(), key=lambda one: worth(kernel, one) - penalty * len(one))
        assert regimes.best_ends(kernel, shortest, None, penalty).tolist() == best


def test_a_gap_between_two_regimes_belongs_to_none(tmp_path):
    idx = with_means(tmp_path, [50, 20, 40], [A, A, B])
    idx.all_vectors[50:70], idx.channel_values[50:70] = 0, np.nan
    assert [s[1:3] for s in explore.segment(idx, "r0")] == [(0, 500), (700, 1100)]
    labels = explore.states(idx, 2).labels["r0"]
    assert (labels[50:70] == -1).all() and set(labels[:50]) == {0} and set(labels[70:]) == {1}


def test_states_are_those_that_recur_with_their_values_in_the_units_of_the_channels(tmp_path):
    idx = with_means(tmp_path, [40, 60, 30, 50], [A, B, A, C])
    found = explore.states(idx)
    assert np.allclose(found.mean, [A[:2], B[:2], C[:2]], atol=0.2)
    assert np.allclose(found.share, [70 / 180, 60 / 180, 50 / 180], atol=0.03)
    assert found.labels["r0"][[20, 70, 115, 160]].tolist() == [0, 1, 0, 2]


def test_what_was_never_there_before_surprises_once(tmp_path):
    idx = with_means(tmp_path, [100, 10, 90, 10, 90], [A, B, A, B, A])
    idx.all_points[:] = 0
    found = explore.surprise(idx, "r0")
    assert np.isnan(found[:9]).all() and np.isfinite(found[9:]).all()
    assert 100 <= np.nanargmax(found) < 114
    assert found[200:214].max() < 0.5 * found[100:114].max()


def test_surprise_knows_the_recordings_before_and_nothing_of_what_comes(tmp_path, monkeypatch):
    idx = made_index(tmp_path, [600, 600])
    idx.all_vectors[60:], idx.all_points[60:] = idx.all_vectors[:60], idx.all_points[:60]
    again = explore.surprise(idx, "r1")
    assert np.isfinite(again[4:]).all() and np.allclose(again[4:], 0, atol=1e-3)
    first = explore.surprise(idx, "r0")
    idx.all_vectors[50:60] += 5
    changed = explore.surprise(idx, "r0")
    ratio = changed[9:50] / first[9:50]  # in units of another median
    assert np.allclose(ratio, ratio[0])
    monkeypatch.setattr(novelty, "AT_ONCE", 7)
    assert np.allclose(explore.surprise(idx, "r0"), changed, equal_nan=True, atol=1e-5)


def test_the_same_movement_backwards_is_a_surprise(tmp_path):
    idx = made_index(tmp_path, [2000], channels=1)
    idx.all_vectors[:], idx.all_points[:] = 1, recurring(5, 200, 13)
    backwards = idx.all_points[150:160].ravel()[::-1].copy()
    idx.all_points[150:160] = backwards.reshape(10, 5, 1)
    found = explore.surprise(idx, "r0")
    assert 150 < np.argmax(found[20:]) + 20 < 164 and np.allclose(found[25:150], 0)
    assert (found[153:158] > 0.1).all()


def test_the_order_of_windows_is_a_surprise_where_it_changes(tmp_path):
    idx = made_index(tmp_path, [1800], width=5)
    idx.all_points[:] = 0
    idx.all_vectors[:] = np.resize(np.eye(5), (180, 5))  # five kinds in turns
    idx.all_vectors[120:130] = np.resize(np.eye(5)[::-1], (10, 5))
    found = explore.surprise(idx, "r0")
    assert np.allclose(found[14:120], 0) and (found[122:129] > 0).all()


def test_the_surprise_of_a_stretch_worked_by_hand(tmp_path, monkeypatch):
    monkeypatch.setattr(np, "nanmedian", lambda _: 1.0)
    idx = made_index(tmp_path, [100])
    idx.all_vectors[:], idx.all_points[:] = 0, 0
    idx.all_vectors[9] = 6, 0, 0, 0
    idx.all_points[9, :, 0] = [1, 1, -1, -1, 0]
    found = explore.surprise(idx, "r0")
    assert np.isnan(found[:9]).all()
    # the last of the three means is of two windows 0 and one 6; vectors are 2 long in the mean
    vectors = 2 / 3**0.5 / 2
    shape = 1 / (1 + 50 / 4 * FAINT**2) ** 0.5  # of 50 numbers four are 1 or -1
    assert found[9] == pytest.approx(vectors + 0.5 * shape, rel=1e-5)


def test_a_map_puts_what_is_alike_together(tmp_path):
    idx = with_means(tmp_path, [40, 60], [A, B])
    places = explore.map(idx)
    first, second = places[:38], places[42:]
    assert np.linalg.norm(first.mean(0) - second.mean(0)) > 4 * max(
        first.std(0).max(), second.std(0).max()
    )
