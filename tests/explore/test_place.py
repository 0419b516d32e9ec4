"""Where a page is: moves stay inside recordings, and a page goes on where it was."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from progmem.explore.place import LEAST_VIEW, Place

PARTS = [range(1000), range(400), range(30)]


def fits(place, parts):
    there = parts[place.recording]
    assert there.start <= place.first < place.last <= there.stop
    assert place.last - place.first >= min(LEAST_VIEW, len(there))
    if place.marked is not None:
        start, end = place.marked
        assert there.start <= start < end <= there.stop


@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=3),
    st.integers(0, 100),
    st.lists(st.tuples(st.integers(0, 4), st.integers(-50, 400), st.integers(-50, 400))),
)
def test_no_move_leaves_the_recordings(lengths, gone, moves):
    parts = [range(length) for length in lengths]
    parts[-1] = range(gone, gone + lengths[-1])  # as of a stream
    place = Place.whole(0, parts[0])
    for kind, a, b in moves:
        there = parts[place.recording]
        start = max(there.start, min(a, there.stop - 1))
        stretch = start, max(start + 1, min(b, there.stop))
        options = [
            place.next(parts, 20),
            place.previous(parts, 20),
            place.seeing(a, b, there),
            place.marking(*stretch),
            place.at(place.recording, *stretch, there),
        ]
        place = options[kind]
        fits(place, parts)


def test_next_goes_through_all_recordings_and_previous_the_same_way_back():
    place = Place.whole(0, range(1000)).marking(0, 200)
    there = [place := place.next(PARTS) for _ in range(7)]
    spans = [(p.recording, p.start, p.end) for p in there]
    assert spans[:6] == [(0, 200, 400), (0, 400, 600), (0, 600, 800), (0, 800, 1000),
                         (1, 0, 200), (1, 200, 400)]  # fmt: skip
    assert spans[6] == (2, 0, 30)
    back = Place.whole(1, range(400)).marking(0, 200).previous(PARTS)
    assert (back.recording, back.start, back.end) == (0, 800, 1000)


def test_a_stretch_in_view_is_marked_where_it_is_and_another_is_gone_to():
    place = Place.whole(0, range(1000)).seeing(300, 500, range(1000))
    assert place.at(0, 320, 340, range(1000)) == place.marking(320, 340)
    far = place.at(0, 900, 920, range(1000))
    assert far.last - far.first == 200 and far.first <= 900 and far.last >= 920
    other = place.at(1, 100, 120, range(400))
    assert (other.recording, other.first, other.last) == (1, 50, 170)


@pytest.mark.parametrize(
    "kept",
    [None, {}, {"recording": 9, "first": 0, "last": 5}, {"recording": 1, "first": 0, "last": 401},
     {"recording": 0, "first": 0, "last": 9, "start": 5, "end": 2000}, {"what": 1}],
)  # fmt: skip
def test_what_a_browser_kept_of_other_recordings_is_left(kept):
    assert Place.of(kept, PARTS) == Place.whole(0, range(1000))


def test_what_a_browser_kept_is_where_it_goes_on():
    place = Place.whole(1, range(400)).seeing(20, 220, range(400)).marking(30, 60)
    assert Place.of(place._asdict(), PARTS) == place


def test_a_view_at_the_end_of_a_stream_follows_it_and_another_stays():
    end = Place.whole(0, range(500)).seeing(400, 500, range(500))
    assert end.following(range(560), 50)[:3] == (0, 460, 560)
    assert end.following(range(560), 200)[:3] == (0, 360, 560)
    assert end.following(range(560), 50).following(range(900), 50)[:3] == (0, 800, 900)
    assert end.seeing(300, 400, range(500)).following(range(560), 50) is None
    assert Place.whole(0, range(8)).following(range(30), 200)[:3] == (0, 0, 30)


def test_a_place_that_a_stream_has_forgotten_in_part_is_left_for_what_is_there():
    kept = Place(1, 100, 200, 110, 120)._asdict()
    assert Place.of(kept, [range(10), range(150, 900)], 1) == Place(1, 150, 250)
    assert Place.of(kept, [range(10), range(300, 900)], 1) == Place.whole(1, range(300, 900))
