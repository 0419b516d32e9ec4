"""Write the pictures of the page in docs/images, from the model that `make demo` trained.

python -m scripts.make_screenshots       # in a folder that has progmem-demo; needs Chromium
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.browser import chromium, drag, wait_until_shown
from progmem.data.sample import load_sample
from progmem.explore.start import DEMO, page_of

IMAGES = Path(__file__).parent.parent / "docs/images"
WIDE, NARROW = {"width": 1280, "height": 800}, {"width": 420, "height": 860}
LABELS = 9  # stretches that are suggested and then called what they are
SUBJECT, EXERCISES = 8, ("PEN", "FEL", "TRAP")  # who is seen live, and doing what


def main() -> None:
    if not DEMO.is_dir():
        raise SystemExit(f"there is no {DEMO} here; `progmem demo` makes it")
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "watch.csv", Path(folder) / "out"
        np.savetxt(source, _performed(), delimiter=",")
        with page_of(None, None, out, port=0, log=print) as address, chromium() as browser:
            tab = browser.new_page(viewport=WIDE)
            tab.goto(address)
            wait_until_shown(tab)
            for _ in range(LABELS):
                _label_what_is_offered(tab)
            tab.click("label:has-text('labels')")
            drag(tab, 0.3, 0.55)
            _shot(tab, "explore_wide")
            tab.set_viewport_size(NARROW)
            _shot(tab, "explore_narrow", full_page=True)
        with (
            page_of(None, None, out, follow=source, port=0, log=print) as address,
            chromium() as browser,
        ):
            tab = browser.new_page(viewport=WIDE)
            tab.goto(address)
            wait_until_shown(tab)
            tab.wait_for_timeout(5000)  # until all lines are read
            tab.keyboard.press("w")
            tab.click("label:has-text('labels')")
            tab.wait_for_timeout(2000)
            drag(tab, 0.6, 0.7)
            _shot(tab, "explore_live")


def _performed() -> np.ndarray:
    """What one person did of some exercises, one after the other."""
    sample = load_sample()
    parts = [
        recording.values
        for recording, y, subject in zip(sample.recordings, sample.y, sample.subject, strict=True)
        if subject == SUBJECT and sample.classes[y] in EXERCISES
    ]
    return np.concatenate(parts)


def _label_what_is_offered(tab: Any) -> None:
    """Go to the stretch that is offered, and label it by the exercise in its recording's name."""
    tab.wait_for_selector("#suggestion .card")
    offered = tab.inner_text("#suggestion .card .name")
    tab.click("#suggestion .card")
    tab.wait_for_function(
        "n => document.querySelector('#marked .name')?.innerText == n", arg=offered
    )
    tab.wait_for_timeout(300)
    exercise = offered.split("-")[1]
    tab.fill("#name", exercise)
    tab.press("#name", "Enter")
    tab.wait_for_function(
        "said => document.querySelector('#message').innerText == said", arg=f"labelled {exercise}"
    )
    tab.wait_for_selector("#suggestion .card", state="detached")


def _shot(tab: Any, name: str, **options: Any) -> None:
    tab.evaluate("document.activeElement.blur()")
    tab.wait_for_timeout(3000)  # for all that follows from what was done last
    tab.mouse.move(5, 5)
    tab.wait_for_timeout(500)
    path = IMAGES / f"{name}.png"
    tab.screenshot(path=path, **options)
    with Image.open(path) as picture:  # few colours make a small file
        small = picture.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=4)
    small.save(path, optimize=True)
    print(f"written: {path}, {path.stat().st_size // 1024} KB")


if __name__ == "__main__":
    main()
