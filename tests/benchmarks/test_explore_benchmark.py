"""The measures by which the explorer is compared, worked out by hand, and their tables."""

from types import SimpleNamespace

import numpy as np
import pytest
from explore_setup import made_index

from benchmarks import explore as benchmark
from benchmarks import (
    explore_boundaries,
    explore_labels,
    explore_oddities,
    explore_search,
    explore_series,
)
from benchmarks.explore_archives import Known, _sessions, splices
from progmem.data.recordings import Recording


def known(classes, person=0, name="r"):
    classes = np.asarray(classes)
    values = np.random.default_rng(person).normal(size=(len(classes), 2))
    return Known(Recording(name, values), classes, person)


@pytest.mark.parametrize(
    ("found", "true", "expected"),
    [
        ([10, 20], [10, 20], 1.0),
        ([12, 40], [10, 20], 0.5),  # 40 is too far
        ([9, 11], [10], 2 / 3),  # each true one is found once
        ([], [10], 0.0),
        ([], [], 1.0),
        ([10, 13], [12, 15], 1.0),
    ],
)
def test_f1_of_boundaries(found, true, expected):
    assert explore_boundaries.f1(found, true, near=3) == pytest.approx(expected)


def test_a_splice_is_made_of_pieces_of_one_person_and_its_boundaries_are_where_classes_change():
    given = [known([i % 3] * 900, person=i // 3, name=str(i)) for i in range(6)]
    found = splices(given, 2, 0)
    assert [one.person for one in found] == [0, 0, 1, 1]
    for one in found:
        at = explore_boundaries.boundaries(one.classes)
        assert len(at) == 5 and len(one.classes) == len(one.recording.values)
        assert (np.diff([0, *at, len(one.classes)]) >= 250).all()
    again = splices(given, 2, 0)
    np.testing.assert_array_equal(again[3].recording.values, found[3].recording.values)


def test_windows_that_overlap_become_the_recording_they_were_cut_from():
    x = np.random.default_rng(0).normal(size=(512, 3))
    parts = np.stack([x[a : a + 128] for a in (0, 64, 128, 256, 320, 384)])
    (one,) = _sessions(parts, np.array([2, 2, 2, 1, 1, 1]), np.array(["7-0"] * 6))
    np.testing.assert_array_equal(one.recording.values, x)
    assert one.person == 7 and explore_boundaries.boundaries(one.classes) == [256]


@pytest.mark.parametrize("normalised", [True, False])
def test_distances_of_values_are_those_of_a_loop(normalised):
    recordings = [known([0] * 60, 1).recording, known([0] * 45, 2).recording]
    ask = explore_search.ValuesDistances(recordings, 20, normalised=normalised)
    found = ask((0, 7, 27))

    def part(x):
        return (x - x.mean(0)) / x.std(0) if normalised else x

    query = part(recordings[0].values[7:27])
    for distances, recording in zip(found, recordings, strict=True):
        expected = [
            np.square(part(recording.values[a : a + 20]) - query).sum()
            for a in range(len(recording.values) - 19)
        ]
        np.testing.assert_allclose(distances, expected, atol=1e-8)


def test_nearest_places_do_not_overlap_and_the_same_person_does_not_count():
    distances = [np.array([3.0, 1.0, 2.0, 9.0, 4.0]), np.array([0.5, 8.0])]
    found = list(explore_search.nearest_places(distances, 10, 20))
    assert found == [(1, 0, 20), (0, 10, 30), (0, 40, 60)]
    people = [known([1] * 90, 0), known([1] * 50 + [2] * 40, 1)]
    nearest = iter([(0, 20, 40), (1, 0, 20), (1, 60, 80), (1, 25, 45)])
    assert explore_search.share_alike(people, (0, 0, 20), nearest) == pytest.approx(2 / 5)


def test_stretches_to_ask_with_are_of_one_class():
    people = [known([0] * 100 + [1] * 55, 0), known([1] * 70, 1)]
    found = explore_search.queries(people, 30, 2, 0)
    assert sorted(found)[-1][0] == 1 and len(found) == 5
    assert all(len(set(people[i].classes[a:b])) == 1 for i, a, b in found)


def test_how_many_labels_are_needed():
    assert explore_labels.needed([0.2, 0.5, 0.4, 0.6], 0.5) == 2
    assert explore_labels.needed([0.2, 0.4], 0.5) is None


def test_people_to_label_are_others_than_those_who_are_scored():
    people = [known([0] * 30, i // 4, str(i)) for i in range(20)]
    asked, scored = explore_labels.draw_people(people, 3)
    assert len(asked) == 9 and len(scored) == 8
    assert {one.person for one in asked}.isdisjoint(one.person for one in scored)
    assert explore_labels.draw_people(people, 3) == (asked, scored)


def test_all_labels_are_as_accurate_as_can_be(tmp_path):
    idx = made_index(tmp_path, [1000, 1000])
    classes = np.repeat([0, 1], 500)
    for i in range(2):
        idx.all_vectors[idx.rows(f"r{i}")][50:] += 5
    people = [known(classes, i, f"r{i}") for i in range(2)]
    oracle = explore_labels.Oracle(people, people[1:], idx)
    labels = [oracle.label(one) for one in explore_labels.side_by_side(idx)]
    assert len(labels) == 20 and labels[-1] == ("r1", 900, 1000, "1")
    assert oracle.accuracy(labels) > 0.95
    assert oracle.accuracy(labels[:1]) == 0.5  # of one class


def test_the_distance_from_what_was_before_is_that_of_a_loop():
    x = np.random.default_rng(0).normal(size=(90, 2))
    found = explore_series.unlike_before(x, 12, 4, normalised=False)
    assert len(found) == 20
    for i in range(len(found)):
        before = [np.linalg.norm(x[4 * i : 4 * i + 12] - x[j : j + 12])
                  for j in range(4 * i) if j + 12 <= 4 * i]  # fmt: skip
        expected = min(before, default=np.nan)
        np.testing.assert_allclose(found[i], expected, atol=1e-6)


def test_a_sample_is_scored_by_the_stretches_that_it_lies_in():
    known, score = explore_series.of_samples(np.array([9.0, 9.0, 1.0, 4.0]), 2, 2, 18)
    assert known.tolist() == 4 * [False] + 12 * [True] + 2 * [False]
    assert score[4:16].tolist() == [1, 1, *8 * [2.5], 4, 4]


def test_an_oddity_is_where_it_is_said_to_be_and_nowhere_else():
    given = [known([i % 2] * 900, person=0, name=str(i)) for i in range(3)]
    found = explore_oddities.oddities(given, 1.0, 0)
    assert [one.kind for one in found] == 3 * list(explore_oddities.NAMES)
    for number, one in enumerate(found):
        before = given[number // 7].recording.values
        changed = np.flatnonzero((one.recording.values != before).any(1))
        assert 300 <= one.start <= changed[0] and changed[-1] < one.end == one.start + 50
    x = np.arange(8.0)[:, None]
    assert explore_oddities.slower(x).ravel().tolist() == [0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5]
    assert explore_oddities.fainter(x).ravel()[[0, 7]].tolist() == pytest.approx([7 / 3, 14 / 3])
    assert not explore_oddities.held(x).any()


def test_boundaries_of_a_series_are_as_far_as_the_nearest_that_was_told():
    assert explore_series.distance_from([12, 80], [10, 90], 100) == pytest.approx(6.0)


def test_every_part_has_a_table():
    rows = {
        "boundaries": [{"set": s, "method": "m", "number_known": k, "f1": [0.5, 1.0]}
                       for s in benchmark.SPLICES for k in (True, False)],
        "search": [{"set": "sample", "method": "m", "precision": [0.2, 0.4]}],
        "labels": [
            {"set": "HAR", "method": "suggest", "needed": n, "full": 0.9} for n in (4, None)
        ],
        "series": [
            {"series": "a", "method": "m", "distance_percent": 1.234},
            {"series": "b", "method": "m", "auc": 0.5, "hit": False},
        ],
        "oddities": [
            {"seconds": s, "kind": kind, "method": "m", "auc": [0.25, s], "hit": [True, False]}
            for s in (0.75, 0.25) for kind in ("a", "b")
        ],
    }  # fmt: skip
    results = [{"part": part, "rows": found} for part, found in rows.items()]
    text = benchmark.explore_table(results)
    for cell in ("| 0.750 ± 0.250 |", "0.300 ± 0.100", "32.0 ± 39.6, 1 of 2 not by then", "1.23 %",
                 "| mean of all, 0.75 s | 0.500 / 0.50 |", "| mean of all, 0.25 s | 0.250 / 0.50 |",
                 "AUC 0.500, highest not at an anomaly"):  # fmt: skip
        assert cell in text, text


def test_speed_says_whether_a_bound_is_kept():
    from benchmarks.explore_speed import explore_speed_table

    row = SimpleNamespace(seconds=0.3, median_seconds=0.4, processor_seconds=0.1)
    rows = [{"question": "q", **vars(row), "bound": bound} for bound in (0.2, 0.5, None)]
    text = explore_speed_table([{"rows": rows}])
    assert "0.2, missed" in text and "0.5, kept" in text and "| - |" in text
