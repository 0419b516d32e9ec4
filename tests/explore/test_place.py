"""Where a page is: moves stay inside recordings, and a page goes on where it was."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from progmem.explore.place import LEAST_VIEW, Place

LENGTHS = [1000, 400, 30]


def fits(place, lengths):
    assert 0 <= place.first < place.last <= lengths[place.recording]
    assert place.last - place.first >= min(LEAST_VIEW, lengths[place.recording])
    if place.marked is not None:
        start, end = place.marked
        assert 0 <= start < end <= lengths[place.recording]


@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 4), st.integers(-50, 400), st.integers(-50, 400))),
)
def test_no_move_leaves_the_recordings(lengths, moves):
    place = Place.whole(0, lengths[0])
    for kind, a, b in moves:
        length = lengths[place.recording]
        start = max(0, min(a, length - 1))
        stretch = start, max(start + 1, min(b, length))
        options = [
            place.next(lengths, 20),
            place.previous(lengths, 20),
            place.seeing(a, b, length),
            place.marking(*stretch),
            place.at(place.recording, *stretch, length),
        ]
        place = options[kind]
        fits(place, lengths)


def test_next_goes_through_all_recordings_and_previous_the_same_way_back():
    place = Place.whole(0, 1000).marking(0, 200)
    there = [place := place.next(LENGTHS) for _ in range(7)]
    spans = [(p.recording, p.start, p.end) for p in there]
    assert spans[:6] == [(0, 200, 400), (0, 400, 600), (0, 600, 800), (0, 800, 1000),
                         (1, 0, 200), (1, 200, 400)]  # fmt: skip
    assert spans[6] == (2, 0, 30)
    back = Place.whole(1, 400).marking(0, 200).previous(LENGTHS)
    assert (back.recording, back.start, back.end) == (0, 800, 1000)


def test_a_stretch_in_view_is_marked_where_it_is_and_another_is_gone_to():
    place = Place.whole(0, 1000).seeing(300, 500, 1000)
    assert place.at(0, 320, 340, 1000) == place.marking(320, 340)
    far = place.at(0, 900, 920, 1000)
    assert far.last - far.first == 200 and far.first <= 900 and far.last >= 920
    other = place.at(1, 100, 120, 400)
    assert (other.recording, other.first, other.last) == (1, 50, 170)


@pytest.mark.parametrize(
    "kept",
    [None, {}, {"recording": 9, "first": 0, "last": 5}, {"recording": 1, "first": 0, "last": 401},
     {"recording": 0, "first": 0, "last": 9, "start": 5, "end": 2000}, {"what": 1}],
)  # fmt: skip
def test_what_a_browser_kept_of_other_recordings_is_left(kept):
    assert Place.of(kept, LENGTHS) == Place.whole(0, 1000)


def test_what_a_browser_kept_is_where_it_goes_on():
    place = Place.whole(1, 400).seeing(20, 220, 400).marking(30, 60)
    assert Place.of(place._asdict(), LENGTHS) == place
