"""How long the page of ``progmem explore`` lets a person wait, measured in a browser.

    python -m benchmarks.explore_page        # writes results/explore_page/<samples>.json

Recordings of a million and of ten million samples, three channels, 100,000 windows each, in a few
kinds that take turns. The vectors of windows are drawn at random around one for each kind: what
the page does with them takes as long as with those of a model, which need not be waited for here.
A time is that from the mouse button or the key to the changed figure, the browser's part included.
Beside it stands the processor time of this program and the browser meanwhile, all threads together:
no more than that would it take where nothing else runs.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.browser import chromium, drag, wait_until_shown
from progmem import explore
from progmem.data.recordings import ChannelInfo, Recording
from progmem.explore.axes import Axes
from progmem.explore.findings import Findings
from progmem.explore.server import serving
from progmem.explore.session import Session
from progmem.explore.windows import PARTS
from progmem.report import record
from progmem.report.tables import markdown

SAMPLES = (1_000_000, 10_000_000)
WINDOWS, VECTOR, KINDS, CHANNELS, RATE = 100_000, 128, 6, 3, 100.0
STAY = 300  # windows of one kind on end, on average
BOUNDS = {"first view": 3.0, "pan": 0.5, "search": 0.2, "refit": 1.0}  # seconds
SIZE = {"width": 1280, "height": 800}
WATCHED = """() => {
  for (const name of ["pointerup", "keydown"])
    document.addEventListener(name, () => { window.began = performance.now(); }, true);
  window.drawn = () => document.querySelector("#signal .js-plotly-plot").data;
  window.labels = () => JSON.stringify(  // the lowest ribbons: those given and those predicted
    window.drawn().filter((row) => row.type === "heatmap").slice(0, 2).map((row) => row.z));
  window.card = () => document.querySelector("#similar .card img");
  window.changed = (what) => new Promise((done, fail) => {
    setTimeout(() => fail(new Error("nothing has changed")), 60000);
    const tell = () => done(performance.now() - window.began);
    const look = () => requestAnimationFrame(what() && what() !== window.former ? tell : look);
    look();
  });
}"""


class Times(NamedTuple):
    """Of one wait."""

    seconds: float
    processor: float  # seconds of all threads of this program and the browser


def processor_seconds() -> float:
    """What this program and the browser have used so far."""
    parents, used = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            fields = path.read_text().rpartition(")")[2].split()
            parents[int(path.parent.name)] = int(fields[1])
            used[int(path.parent.name)] = int(fields[11]) + int(fields[12])
    own = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in own} - own:
        own |= more
    return sum(used[pid] for pid in own & used.keys()) / os.sysconf("SC_CLK_TCK")


def made_recording(samples: int, windows: int, folder: Path) -> tuple[explore.Index, Recording]:
    """A recording whose kinds of movement take turns, and its index."""
    rng = np.random.default_rng(0)
    h = samples // windows
    turns = rng.geometric(1 / STAY, size=windows // 10)
    kind = np.repeat(rng.integers(KINDS, size=len(turns)), turns)[:windows]
    kind = np.resize(kind, windows)
    vectors = rng.normal(size=(KINDS, VECTOR))[kind] + rng.normal(size=(windows, VECTOR))
    np.save(folder / "vectors.npy", vectors.astype(np.float32))
    period = np.repeat(20.0 * 2.0 ** np.arange(KINDS)[kind], h)
    phase = np.cumsum(2 * np.pi / period)
    values = np.stack([np.sin(phase + i) for i in range(CHANNELS)], axis=1).astype(np.float32)
    values += 0.2 * rng.standard_normal(values.shape, dtype=np.float32)
    by_window = values.reshape(windows, h, CHANNELS)
    ones = (torch.ones(2 * CHANNELS, dtype=torch.float64),) * 3
    idx = explore.Index(
        folder=folder, names=["made"], lengths=[samples], window=h, starts=np.array([0, windows]),
        all_vectors=np.load(folder / "vectors.npy", mmap_mode="r"),
        channel_values=np.stack([by_window.mean(1), by_window.std(1)], axis=1),
        channels=ChannelInfo(("x", "y", "z"), (), RATE), calendars=[None],
        all_points=by_window[:, : h // PARTS * PARTS].reshape(windows, PARTS, -1, CHANNELS).mean(2),
        axes=Axes(*ones, size=ones[0].mean()), sha256="",
    )  # fmt: skip
    return idx, Recording("made", values, columns=("x", "y", "z"), rate=RATE)


def measure(samples: int, windows: int, repeats: int) -> dict[str, list[Times]]:
    """Times of everything that a person waits for, ``repeats`` times each."""
    from progmem.explore.page import make_app  # needs an extra, which tables of results do not

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        idx, recording = made_recording(samples, windows, folder)
        with (
            Session(folder / "out") as session,
            closing(Findings(idx, [recording], session)) as findings,
            serving(make_app(findings, folder), 0) as address,
            chromium() as browser,
        ):
            findings.begin()
            first = [_first_view(browser, address) for _ in range(repeats)]
            tab = browser.new_page(viewport=SIZE)
            tab.goto(address)
            wait_until_shown(tab)
            tab.evaluate(WATCHED)
            found = {
                "first view": first,
                "pan": _pans(tab, repeats),
                "search on the page": _searches(tab, repeats),
                "refit": _labels(tab, repeats),
            }
        middle = samples // 2
        stretch = ("made", middle, middle + 10 * idx.window)
        known = [
            ("made", i * 40 * idx.window, (i * 40 + 10) * idx.window, f"kind {i % 3}")
            for i in range(30)
        ]
        found["search"] = _times(lambda: explore.search(idx, *stretch), repeats)
        found["refit alone"] = _times(lambda: explore.classify(idx, known), repeats)
        return found


def _times(call: Callable[[], Any], repeats: int) -> list[Times]:
    found = []
    for _ in range(repeats):
        start, used = time.perf_counter(), time.process_time()
        call()
        found.append(Times(time.perf_counter() - start, time.process_time() - used))
    return found


def _first_view(browser: Any, address: str) -> Times:
    """From the address to channels above ribbons, in a browser that has kept nothing."""
    context = browser.new_context(viewport=SIZE)
    tab = context.new_page()
    start, used = time.perf_counter(), processor_seconds()
    tab.goto(address)
    tab.wait_for_selector("#signal .heatmaplayer image", state="attached", timeout=60_000)
    found = Times(time.perf_counter() - start, processor_seconds() - used)
    context.close()
    return found


def _redrawn(tab: Any, act: Callable[[], Any], what: str = "drawn") -> Times:
    """From what a person does to what has changed."""
    tab.evaluate(f"window.former = {what}()")
    used = processor_seconds()
    act()
    seconds = tab.evaluate(f"changed({what})") / 1000
    found = Times(seconds, processor_seconds() - used)
    tab.wait_for_timeout(1500)  # for news, so that the next one is not mixed up with them
    return found


def _pans(tab: Any, repeats: int) -> list[Times]:
    tab.click("label:has-text('zoom')")
    _redrawn(tab, lambda: drag(tab, 0.4, 0.5))
    tab.click("label:has-text('move')")
    tab.wait_for_timeout(1500)
    ways = [(0.7, 0.4), (0.3, 0.6)]
    found = [_redrawn(tab, partial(drag, tab, *ways[i % 2])) for i in range(repeats)]
    tab.click("label:has-text('mark')")
    tab.wait_for_timeout(1500)
    return found


def _searches(tab: Any, repeats: int) -> list[Times]:
    found = []
    for i in range(repeats):
        start = 0.1 + 0.8 * i / repeats
        found.append(_redrawn(tab, partial(drag, tab, start, start + 0.05), "card"))
    return found


def _labels(tab: Any, repeats: int) -> list[Times]:
    """From the key that gives a stretch its label to the changed ribbons of labels."""
    for i, name in enumerate(("one", "other")):
        drag(tab, 0.1 + 0.3 * i, 0.13 + 0.3 * i)
        tab.wait_for_timeout(1000)
        tab.fill("#name", name)
        tab.press("#name", "Enter")
        tab.wait_for_timeout(3000)
    found = []
    for i in range(repeats):
        drag(tab, 0.5 + 0.4 * i / repeats, 0.52 + 0.4 * i / repeats)
        tab.evaluate("document.activeElement.blur()")
        tab.wait_for_timeout(2000)
        press = partial(tab.keyboard.press, str(i % 2 + 1))
        found.append(_redrawn(tab, press, "labels"))
    return found


def explore_page_table(results: list[dict[str, Any]]) -> str:
    """What a person waits for beside its bound, the best of several and their median."""
    lines = []
    by_size = sorted(results, key=lambda result: result["config"]["samples"])
    for samples, row in ((one["config"]["samples"], row) for one in by_size for row in one["rows"]):
        bound = BOUNDS.get(row["what"])
        best, processor = min(row["seconds"]), min(row["processor"])
        said = "" if bound is None else "reached" if best <= bound else "missed"
        lines.append([
            f"{samples:,}", row["what"], "-" if bound is None else f"{bound:g} s",
            f"{best:.2f} s", f"{median(row['seconds']):.2f} s", said, f"{processor:.2f} s",
        ])  # fmt: skip
    header = ["samples", "what", "bound", "best", "median", "", "least processor time"]
    loads = ", ".join(f"{one['load']:.1f}" for one in by_size)
    cores = by_size[0]["config"]["cores"]
    note = f"{cores} cores, which other work shared: {loads} processes waited for them on average."
    return f"{markdown(header, lines)}\n\n{note}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5, help="of each, of which the best")
    parser.add_argument("--samples", type=int, nargs="+", default=SAMPLES)
    parser.add_argument("--windows", type=int, default=WINDOWS)
    parser.add_argument("--commit", help="where there is no repository to ask")
    parser.add_argument("--out", type=Path, default=record.RESULTS)
    chosen = parser.parse_args()
    for samples in chosen.samples:
        found = measure(samples, chosen.windows, chosen.repeats)
        rows = [
            {"what": what, "seconds": [one.seconds for one in times],
             "processor": [one.processor for one in times]}
            for what, times in found.items()
        ]  # fmt: skip
        with chromium() as browser:
            version = browser.version
        config = {"samples": samples, "windows": chosen.windows, "numbers of a vector": VECTOR,
                  "channels": CHANNELS, "size": SIZE, "chromium": version,
                  "cores": os.cpu_count()}  # fmt: skip
        result = {**record.environment("cpu", chosen.commit), "config": config, "seeds": [0],
                  "repeats": chosen.repeats, "load": os.getloadavg()[1], "rows": rows}  # fmt: skip
        path = record.save("explore_page", str(samples), result, folder=chosen.out)
        print(f"written: {path}\n\n{explore_page_table([result])}")


if __name__ == "__main__":
    main()
