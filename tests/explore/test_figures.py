"""What the page draws: extremes stay, gaps are gaps, sizes do not grow, and names are no markup."""

import base64
import json

import numpy as np
import pytest

from progmem.data.recordings import Recording
from progmem.explore import figures
from progmem.explore.figures import Cells, Ribbon
from progmem.explore.time_axis import TimeAxis

go = pytest.importorskip("plotly.graph_objects")
pytest.importorskip("plotly_resampler")

NAME = "<script>alert(1)</script><b>\n"


def unpacked(spec):
    return np.frombuffer(base64.b64decode(spec["bdata"]), dtype=np.float64)


def made_figure(length=5000, channels=2, **options):
    rng = np.random.default_rng(0)
    values = rng.normal(size=(length, channels)).astype(np.float32)
    values[length // 5 : 2 * length // 5] = np.nan
    n = length // 20
    spans = np.stack([np.arange(n) * 20, np.arange(n) * 20 + 20], axis=1)
    ribbons = [
        Ribbon("state", Cells(spans, np.arange(n) % 3.0), ["a", NAME, "c"], figures.STATES),
        Ribbon("surprise", Cells(spans, np.linspace(0, 1, n))),
        Ribbon("label", Cells(np.empty((0, 2)), np.empty(0)), []),
        Ribbon("predicted", Cells(spans, np.arange(n) % 2.0, rng.random(n)), ["x", "y"]),
    ]
    for ribbon in (ribbons[0], ribbons[1], ribbons[3]):  # nothing is known of a gap
        ribbon.cells.value[n // 5 : 2 * n // 5] = np.nan
    ribbons[3].cells.share[n // 5 : 2 * n // 5] = np.nan
    names = {i: f"{NAME}{i}" for i in range(channels)}
    axis = TimeAxis(Recording("r", values, rate=50.0))
    options = {"view": (0, length), "channels": names, "ribbons": ribbons, **options}
    return values, figures.signal_figure(values, axis, **options)


def test_a_figure_is_one_that_plotly_knows():
    _, figure = made_figure(marked=(100, 200))
    go.Figure(figure)  # refuses unknown names
    go.Figure(figures.map_figure(
        np.zeros((4, 2)), np.array([-1, 0, 1, 1]), names=["a", NAME], colours=figures.STATES,
        texts=["r"] * 4, numbers=np.arange(4), rings=figures.rings(np.zeros((1, 2))),
    ))  # fmt: skip


def test_thinned_values_keep_extremes_and_gaps():
    values = np.random.default_rng(0).normal(size=(200_000, 2)).astype(np.float32)
    values[77_777, 1] = 50.0
    values[120_000:150_000] = np.nan
    at, y = figures.thin(values, 1, slice(10_000, 190_000))
    assert len(at) <= figures.POINTS and (np.diff(at) > 0).all() and at[0] >= 10_000
    assert 77_777 in at and np.nanmax(y) == 50.0
    np.testing.assert_array_equal(y, values[at, 1])
    inside = (at > 121_000) & (at < 149_000)
    assert inside.any() and np.isnan(y[inside]).all()


@pytest.mark.parametrize("length", [1, 7, 3000])
def test_few_samples_are_drawn_as_they_are(length):
    values = np.arange(length, dtype=np.float32)[:, None]
    at, y = figures.thin(values, 0, slice(0, length), points=4000)
    np.testing.assert_array_equal(at, np.arange(length))
    np.testing.assert_array_equal(y, values[:, 0])


def test_nothing_but_gaps_can_be_drawn():
    values = np.full((50_000, 2), np.nan, dtype=np.float32)
    at, y = figures.thin(values, 0, slice(0, 50_000))
    assert 0 < len(at) < 4000 and np.isnan(y).all()
    assert figures.thumbnail(values, 0, 100, channels=[0, 1]).startswith("data:image/svg+xml")


def test_a_figure_does_not_grow_with_the_recording():
    sizes = [len(json.dumps(made_figure(length)[1])) for length in (20_000, 400_000)]
    assert sizes[1] < 1.3 * sizes[0] < 400_000


def test_cells_show_the_window_in_their_middle_and_no_label_vanishes():
    spans = np.array([[0, 10], [10, 20], [30, 40]])
    borders, found = figures.cells_in(Cells(spans, np.zeros(3)), slice(0, 40), 8)
    assert borders.tolist() == [0, 5, 10, 15, 20, 25, 30, 35, 40]
    assert found.tolist() == [0, 0, 1, 1, -1, -1, 2, 2]
    short = np.array([[100_003, 100_005]])
    _, found = figures.cells_in(Cells(short, np.zeros(1)), slice(0, 1_000_000))
    assert (found == 0).sum() == 1


def test_a_view_is_drawn_with_what_lies_beside_it():
    _, figure = made_figure(view=(2200, 2800))
    x = unpacked(figure["data"][0]["x"])
    assert x[0] == pytest.approx(1900 / 50) and x[-1] == pytest.approx(3099 / 50)
    assert figure["layout"]["xaxis"]["range"] == [44.0, 56.0]


def test_a_predicted_class_is_fainter_the_less_likely_it_is():
    spans = np.array([[0, 10], [10, 20]])
    cells = Cells(spans, np.array([1.0, 1.0]), np.array([0.51, 0.99]))
    drawn = figures._drawn_ribbon(
        Ribbon("predicted", cells, ["a", "b"]), 0, TimeAxis(Recording("r", np.zeros((20, 1)))),
        slice(0, 20), "y2",
    )  # fmt: skip
    faint, full = drawn["z"][0][0], drawn["z"][0][-1]
    assert figures.SHADES <= faint < full < 2 * figures.SHADES
    assert drawn["text"][0][0] == "b 51%" and drawn["text"][0][-1] == "b 99%"


def test_names_are_texts_and_no_markup():
    _, figure = made_figure()
    assert "<script" not in json.dumps(figure) and "<b>" not in json.dumps(figure)


def test_what_is_still_worked_out_is_said():
    empty = Cells(np.empty((0, 2), dtype=np.int64), np.empty(0))
    figure = figures.signal_figure(
        np.zeros((20, 1)), TimeAxis(Recording("r", np.zeros((20, 1)))), (0, 20),
        channels={0: "x"}, ribbons=[Ribbon("state", empty, awaited=True), Ribbon("label", empty)],
    )  # fmt: skip
    assert figure["layout"]["yaxis2"]["ticktext"] == ["label", "state …"]
    assert "worked out" in figures.awaited_map()["layout"]["annotations"][0]["text"]


def test_a_long_stretch_has_few_rings():
    assert len(figures.rings(np.zeros((0, 2)))) == 0
    assert len(figures.rings(np.zeros((7, 2)))) == 7
    assert 50 < len(figures.rings(np.zeros((10_007, 2)))) <= figures.RINGS
