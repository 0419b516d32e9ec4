"""Search: the nearest stretches of recordings, exactly."""

import numpy as np
import pytest
from explore_setup import made_index

from progmem import explore
from progmem.errors import InputError
from progmem.explore import nearest


@pytest.fixture(scope="module")
def idx(tmp_path_factory):
    """Vectors at random for recordings of 50, 7 and 120 windows of 10 samples."""
    return made_index(tmp_path_factory.mktemp("index"), [505, 70, 1200])


def by_loop(idx, name, start, end):
    """Every stretch of as many windows, with its distance."""
    first, last = start // 10, end // 10
    query = idx.vectors(name)[first:last].mean(0)
    found = []
    for other in idx.names:
        vectors, spans = idx.vectors(other), idx.windows(other)
        for at in range(len(vectors) - (last - first) + 1):
            stretch = slice(at, at + last - first)
            if idx.observed(other)[stretch].mean() >= 0.5:
                distance = np.linalg.norm(vectors[stretch].mean(0) - query)
                found.append((float(distance), other, spans[stretch][0, 0], spans[stretch][-1, 1]))
    return sorted(found)


def overlap(a, b):
    return a[0] == b[0] and a[1] < b[2] and b[1] < a[2]


@pytest.mark.parametrize("length", [1, 2, 3, 5, 6, 7, 8])
def test_a_search_finds_the_nearest_stretches_in_order_without_overlaps(idx, length, monkeypatch):
    monkeypatch.setattr(nearest, "AT_ONCE", 16)
    start, end = 20, 20 + 10 * length
    taken, expected = [("r0", start, end)], []
    for distance, *span in by_loop(idx, "r0", start, end):
        if not any(overlap(span, other) for other in taken):
            taken.append(span)
            expected.append((distance, *span))
    found = explore.search(idx, "r0", start, end, k=6)
    assert [tuple(match[:3]) for match in found] == [tuple(one[1:]) for one in expected[:6]]
    assert np.allclose([match.distance for match in found], [one[0] for one in expected[:6]])


def test_a_search_gives_fewer_where_there_is_too_little(idx):
    found = explore.search(idx, "r0", 0, 250, k=100)
    assert 1 <= len(found) <= 5
    assert explore.search(idx, "r2", 0, 1200, k=3) == []


def test_the_same_stretch_elsewhere_has_no_distance(tmp_path):
    idx = made_index(tmp_path, [300, 300])
    idx.all_vectors[40:50] = idx.all_vectors[12:22]
    (first, *_) = explore.search(idx, "r0", 120, 220)
    assert first[:3] == ("r1", 100, 200) and first.distance < 1e-5


BAD = {
    "no such recording": (("r9", 0, 10), {}, "no recording 'r9'; its recordings are r0, r1, r2"),
    "backwards": (("r0", 10, 10), {}, "r0 has samples 0 to 505, got the stretch from 10 to 10"),
    "past the end": (("r0", 0, 506), {}, "r0 has samples 0 to 505, got the stretch from 0 to 506"),
    "nothing": (("r0", 0, 10), {"k": 0}, "k must be a whole number from 1 up, got 0"),
    "a gap": (("r2", 300, 340), {}, "nothing is observed in r2 from 300 to 340"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_searched_is_named(idx, case):
    arguments, options, message = BAD[case]
    with pytest.raises(InputError, match=message):
        explore.search(idx, *arguments, **options)
