"""A Chromium of the system, driven by playwright: for tests, benchmarks and screenshots."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser without a window; it must be closed before another is opened."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


def wait_until_shown(tab: Any) -> None:
    """Wait until the page of ``progmem explore`` has all that it shows first."""
    tab.wait_for_selector("#signal .heatmaplayer image", state="attached", timeout=60_000)
    tab.wait_for_selector("#map .trace", state="attached", timeout=60_000)
    tab.wait_for_function("() => !document.querySelector('#signal').innerText.includes('…')")
    tab.wait_for_selector("#suggestion :not(:text('looking'))", timeout=60_000)
    tab.wait_for_timeout(300)  # for figures that are on their way


def drag(tab: Any, first: float, last: float, row: int = 1) -> None:
    """Drag over a row of the recording, from a share of its width to another."""
    place = tab.locator("#signal .nsewdrag").nth(row)
    place.scroll_into_view_if_needed()
    box = place.bounding_box()
    y = box["y"] + box["height"] / 2
    tab.mouse.move(box["x"] + first * box["width"], y)
    tab.mouse.down()
    tab.mouse.move(box["x"] + last * box["width"], y, steps=4)
    tab.mouse.up()
