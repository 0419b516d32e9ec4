"""The page in a real browser: seen, dragged, searched, labelled, undone, reloaded, shared.

Needs playwright and a Chromium of the system; without them it is skipped, and says so.
"""

import errno
import importlib.util

import numpy as np
import pandas as pd
import pytest
from page_setup import made_recordings, small_model

from benchmarks.browser import CHROMIUM, chromium, drag, wait_until_shown
from progmem import files
from progmem.explore.start import page_of
from progmem.pooling import fit_feature_stats

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("playwright") is None, reason="playwright is not installed"
    ),
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this system"),
]
SCRIPT = "<script>window.hurt=1</script><img src=x onerror='window.hurt=1'>"
FILE = "<img src=x onerror=window.hurt=1>\n&amp;"  # a name that a file can have


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


class Page:
    """A page and what went wrong on it."""

    def __init__(self, browser, address, **options):
        self.context = browser.new_context(viewport={"width": 1280, "height": 800}, **options)
        self.wrong = []
        self.address = address
        self.tab = self.open()

    def open(self):
        tab = self.context.new_page()
        tab.set_default_timeout(10_000)
        tab.on("console", lambda m: m.type == "error" and self.wrong.append(m.text))
        tab.on("pageerror", lambda error: self.wrong.append(str(error)))
        tab.on("request", self._outside)
        tab.goto(self.address)
        wait_until_shown(tab)
        return tab

    def _outside(self, request):
        if not request.url.startswith((self.address, "data:", "blob:")):
            self.wrong.append(f"asked for {request.url}")

    def call(self, name):
        """Give the marked stretch a new label."""
        self.tab.fill("#name", name)
        self.tab.press("#name", "Enter")
        self.tab.wait_for_function("name => document.querySelector('#message').innerText == name",
                                   arg=f"labelled {name}")  # fmt: skip

    def key(self, key):
        self.tab.evaluate("document.activeElement.blur()")
        self.tab.keyboard.press(key)

    def text(self, where, tab=None):
        return (tab or self.tab).inner_text(where)

    def ribbons(self, tab=None):
        return (tab or self.tab).evaluate(
            "() => document.querySelector('#signal .js-plotly-plot').layout"
            f"['yaxis{self.rows() + 1}'].ticktext"
        )

    def rows(self):
        return self.tab.evaluate(
            "() => document.querySelector('#signal .js-plotly-plot').data"
            ".filter(t => t.type == 'scatter').length"
        )

    def view(self):
        return self.tab.evaluate(
            "() => document.querySelector('#signal .js-plotly-plot').layout.xaxis.range"
        )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model and recordings on disk, dated, with a gap, one with an evil name."""
    folder = tmp_path_factory.mktemp("explore")
    model = small_model()
    model.feature_stats.set(fit_feature_stats(model, [made_recordings(1)[0].values]))
    model.save(folder / "model")
    (folder / "data").mkdir()
    for recording in made_recordings():
        table = pd.DataFrame(recording.values, columns=["up", SCRIPT])
        table.insert(0, "date", pd.date_range("2024-05-31", periods=len(table), freq="20ms"))
        name = FILE if recording.name == "walk 0" else recording.name
        table.to_csv(folder / "data" / f"{name}.csv", index=False)
    return folder


@pytest.fixture
def served(folder, tmp_path):
    with page_of(folder / "model", folder / "data", tmp_path / "out", port=0) as address:
        yield address, tmp_path / "out"


@pytest.fixture
def page(browser, served):
    page = Page(browser, served[0])
    yield page
    page.context.close()
    assert page.wrong == []


def test_a_person_marks_searches_labels_undoes_and_exports(page, served):
    tab = page.tab
    drag(page.tab, 0.1, 0.2)
    tab.wait_for_selector("#similar .card")
    assert "2024-05-31 00:00:0" in page.text("#marked")
    page.call(SCRIPT)
    assert "predicted" not in page.ribbons()
    moved = "t => document.querySelector('#marked').innerText != t"
    before = page.text("#marked")
    tab.locator("#similar .card").last.click()
    tab.wait_for_function(moved, arg=before)
    page.call("calm")
    before = page.text("#marked")
    page.key("n")
    tab.wait_for_function(moved, arg=before)
    tab.wait_for_function(
        "() => document.querySelector('#signal .js-plotly-plot').data.length == 7"
    )
    while any("…" in ribbon for ribbon in page.ribbons()):  # not all are worked out yet
        tab.wait_for_timeout(100)
    assert page.ribbons() == ["predicted", "label", "surprise", "state", "regime"]
    assert SCRIPT in page.text("#classes") and "2 labels" in page.text("#counts")
    tab.wait_for_selector("#suggestion .card")
    before = page.text("#marked")
    page.key("s")  # the stretch that is offered
    tab.wait_for_function("t => document.querySelector('#marked').innerText != t", arg=before)
    page.key("2")
    tab.wait_for_function("() => document.querySelector('#counts').innerText.includes('3 labels')")
    page.key("u")
    tab.wait_for_function("() => document.querySelector('#counts').innerText.includes('2 labels')")
    for file in ("labels.csv", "predictions.csv", "segments.csv", "report.html"):
        tab.click(f"footer button:text-is('{file}')")
        tab.wait_for_function(
            "file => document.querySelector('#message').innerText.endsWith(file)", arg=file
        )
        assert (served[1] / file).stat().st_size > 50
    labels = pd.read_csv(served[1] / "labels.csv")
    assert sorted(labels["label"]) == sorted([SCRIPT, "calm"])
    assert tab.evaluate("() => window.hurt") is None


def test_a_label_is_of_the_stretch_that_a_key_before_it_went_to(page):
    """However soon it is pressed: the page waits for the move, and what is made anew hides none."""
    drag(page.tab, 0.1, 0.2)
    page.tab.wait_for_selector("#similar .card")
    page.call("wave")
    page.tab.wait_for_selector("#classes .class")
    for count in (2, 3, 4):  # of another stretch each time
        before = page.text("#marked")
        page.tab.evaluate(
            """keys => { document.activeElement.blur();
            for (const key of keys)
              document.body.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true})); }""",
            ["n", "1"],
        )
        page.tab.wait_for_function(
            "n => document.querySelector('#counts').innerText.includes(`${n} labels`)", arg=count
        )
        page.tab.wait_for_function(
            "t => document.querySelector('#marked').innerText != t", arg=before
        )


def test_a_view_is_zoomed_moved_and_left_whole(page):
    whole = page.view()
    page.tab.click("label:has-text('zoom')")
    drag(page.tab, 0.4, 0.6)
    page.tab.wait_for_function(
        "w => document.querySelector('#signal .js-plotly-plot').layout.xaxis.range[0] != w",
        arg=whole[0],
    )
    page.tab.wait_for_timeout(300)
    page.key("w")
    page.tab.wait_for_function(
        "w => document.querySelector('#signal .js-plotly-plot').layout.xaxis.range[0] == w",
        arg=whole[0],
    )


def test_a_click_on_the_map_goes_to_that_window(page):
    place = page.tab.evaluate(
        """() => { const g = document.querySelector('#map .js-plotly-plot');
        const b = g.getBoundingClientRect(), a = g._fullLayout, t = g._fullData[0];
        return [b.x + a._size.l + a.xaxis.d2p(t.x[3]), b.y + a._size.t + a.yaxis.d2p(t.y[3])]; }"""
    )
    page.tab.mouse.move(*place)
    page.tab.mouse.click(*place)
    page.tab.wait_for_selector("#similar .card")
    assert page.text("#marked") != "none"
    page.tab.wait_for_selector("#map .shapelayer path", state="attached")  # and is ringed there


def test_a_reload_loses_nothing_and_two_pages_agree(page):
    drag(page.tab, 0.3, 0.4)
    page.tab.wait_for_selector("#similar .card")
    page.call("wave")
    marked = page.text("#marked")
    page.tab.reload()
    wait_until_shown(page.tab)
    page.tab.wait_for_selector("#classes .class")
    assert page.text("#marked") == marked and "1 labels" in page.text("#counts")
    other = page.open()
    assert "wave" in page.text("#classes", other)
    page.key("u")
    other.wait_for_function("() => !document.querySelector('#classes .class')", timeout=5000)
    assert page.ribbons(other) == page.ribbons()


def test_what_cannot_be_done_is_said_and_nothing_is_lost(page, served, monkeypatch):
    page.key("0")
    page.tab.wait_for_selector("#message.wrong")
    assert page.text("#message") == "mark a stretch first: drag over the recording"
    drag(page.tab, 0.3, 0.4)
    page.tab.wait_for_selector("#similar .card")
    page.call("wave")

    def full(_):
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patched:
        patched.setattr(files, "_sync", full)
        page.tab.click("footer button:text-is('labels.csv')")
        page.tab.wait_for_selector("#message.wrong")
        assert "labels.csv was not written: No space left" in page.text("#message")
        page.tab.fill("#name", "more")
        page.tab.press("#name", "Enter")
        page.tab.wait_for_function(
            "() => document.querySelector('#message').innerText.includes('session.safetensors')"
        )
    assert not (served[1] / "labels.csv").exists() and "1 labels" in page.text("#counts")
    (served[1] / "labels.csv").mkdir()
    page.tab.click("footer button:text-is('labels.csv')")
    page.tab.wait_for_function(
        "() => document.querySelector('#message').innerText.includes('labels.csv is a folder')"
    )


def test_a_narrow_window_has_all_of_the_page_in_one_column(page):
    page.tab.set_viewport_size({"width": 420, "height": 860})
    page.tab.wait_for_timeout(500)
    boxes = [page.tab.locator(part).bounding_box() for part in ("#signal", ".similar", "aside")]
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= 420 for box in boxes)
    assert boxes[0]["height"] > 300 and boxes[0]["width"] > 350
    assert [box["y"] for box in boxes] == sorted(box["y"] for box in boxes)
    drag(page.tab, 0.3, 0.4)
    page.tab.wait_for_selector("#similar .card", state="attached")


def test_what_the_page_holds_does_not_grow_with_the_recording(page):
    sizes = page.tab.evaluate(
        "() => document.querySelector('#signal .js-plotly-plot')._fullData.map(t => t.x.length)"
    )
    assert max(sizes) <= 1600


def test_a_stream_is_shown_as_it_comes_and_labelled_like_a_recording(browser, folder, tmp_path):
    values = made_recordings(1, 4000)[0].values
    path = tmp_path / "sensor.csv"

    def grow(start, stop):
        with path.open("a") as file:
            np.savetxt(file, values[start:stop], fmt="%.4f", delimiter=",")

    grow(0, 1000)
    with page_of(
        folder / "model", folder / "data", tmp_path / "out", port=0, follow=path
    ) as address:
        page = Page(browser, address)
        assert "sensor.csv" in page.text("#recording")
        seen = page.view()
        grow(1000, 2400)
        page.tab.wait_for_function(
            "to => document.querySelector('#signal .js-plotly-plot').layout.xaxis.range[1] > to",
            arg=seen[1],
        )
        drag(page.tab, 0.1, 0.2)
        page.tab.wait_for_selector("#similar .card")
        page.call("wave")
        for start in range(2400, 3900, 500):  # it goes on while something is dragged
            grow(start, start + 500)
            drag(page.tab, 0.3, 0.35)
            page.tab.wait_for_timeout(700)
        page.call("calm")
        page.tab.wait_for_function(
            "() => document.querySelector('#signal .js-plotly-plot').data.length == 7"
        )
        assert "2 labels" in page.text("#counts")
        path.write_text("")
        page.tab.wait_for_function(
            "() => document.querySelector('#counts').innerText.includes('has become shorter')"
        )
        page.context.close()
        assert page.wrong == []
