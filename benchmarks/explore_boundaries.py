"""How well boundaries are found: `segment` beside ruptures and ClaSP on raw values.

A boundary counts as found if one is told within ``NEAR`` seconds; each is used once. Methods are
told how many boundaries there are, or are not. ClaSP is aeon's; it wants the number, and one
channel, which is the first principal component. What ruptures needs beside (its kernel, its
penalty) is chosen on splices of people that the model was trained on; `segment` has no setting.

Shapes: L samples, C channels, n windows, V numbers of a window.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from benchmarks.explore_archives import Known
from progmem import explore
from progmem.explore.tables import runs

NEAR = 2.0  # seconds
EVERY = 5  # samples: of so many one is given to ruptures, whose time grows with the square
PENALTIES = tuple(float(p) for p in np.geomspace(0.1, 1000, 25))
KERNELS = ("linear", "rbf")


def f1(found: Sequence[int], true: Sequence[int], near: float) -> float:
    """Harmonic mean of precision and recall of boundaries, matched one to one."""
    if not found or not true:
        return float(not found and not true)
    free, hits = list(true), 0
    for at in sorted(found):
        nearest = min(free, key=lambda one: abs(one - at), default=None)
        if nearest is not None and abs(nearest - at) <= near:
            free.remove(nearest)
            hits += 1
    return 2 * hits / (len(found) + len(true))


def boundaries(classes: np.ndarray) -> list[int]:
    """Where the class of samples changes."""
    return [part.start for part in runs(classes)[1:]]


class Given(NamedTuple):
    """What the methods are given of one recording."""

    name: str
    values: np.ndarray  # (L, C)
    idx: explore.Index
    true: list[int]


def by_segment(given: Given, *, count: int | None) -> list[int]:
    found = explore.segment(given.idx, given.name, count=count)
    return [segment.start for segment in found[1:]]


def by_ruptures(
    x: np.ndarray, starts: np.ndarray, shortest: int, *, count: int | None, kernel: str, pen: float
) -> list[int]:
    """Change points of rows of x (n, V), which begin at samples ``starts``."""
    import ruptures

    search: Any = ruptures.KernelCPD(kernel=kernel, min_size=shortest).fit(x)
    # a linear kernel is in units of the values, which vary by 1 each
    least = pen * (x.shape[1] if kernel == "linear" else 1)
    found = search.predict(pen=least) if count is None else search.predict(n_bkps=count - 1)
    return [int(starts[row]) for row in found[:-1]]


def on_values(given: Given, rate: float, **settings: Any) -> list[int]:
    """Ruptures on some samples of every channel."""
    x = _standardised(given.values[::EVERY])
    return by_ruptures(x, np.arange(len(x)) * EVERY, int(rate / EVERY), **settings)


def on_statistics(given: Given, **settings: Any) -> list[int]:
    """Ruptures on mean and standard deviation of each channel in the windows of the index."""
    spans = given.idx.windows(given.name)
    rows = [given.values[start:end] for start, end in spans]
    x = np.stack([np.concatenate([row.mean(0), row.std(0)]) for row in rows])
    return by_ruptures(_standardised(x), spans[:, 0], 5, **settings)


def on_component(given: Given, rate: float, *, count: int) -> list[int]:
    """ClaSP on the first principal component."""
    from aeon.segmentation import ClaSPSegmenter, find_dominant_window_sizes

    x = _standardised(given.values)
    _, axes = np.linalg.eigh(x.T @ x)
    component = (x @ axes[:, -1]).astype(np.float64)
    period = int(find_dominant_window_sizes(component))
    found = ClaSPSegmenter(min(period, len(x) // 10), n_cps=count - 1).fit_predict(component)
    return sorted(map(int, found))


def _standardised(x: np.ndarray) -> np.ndarray:
    spread = x.std(0)
    return (x - x.mean(0)) / np.where(spread > 0, spread, 1)


def given_of(known: Sequence[Known], idx: explore.Index) -> list[Given]:
    return [
        Given(one.recording.name, one.recording.values, idx, boundaries(one.classes))
        for one in known
    ]


Method = Callable[..., list[int]]


def best_settings(method: Method, training: Sequence[Given], near: float) -> dict[str, Any]:
    """The kernel that finds most where the number is known, and kernel and penalty where not."""
    known = {
        kernel: np.mean([
            f1(method(one, count=len(one.true) + 1, kernel=kernel, pen=1.0), one.true, near)
            for one in training
        ])
        for kernel in KERNELS
    }  # fmt: skip
    unknown = {
        (kernel, pen): np.mean([
            f1(method(one, count=None, kernel=kernel, pen=pen), one.true, near) for one in training
        ])
        for kernel, pen in product(KERNELS, PENALTIES)
    }  # fmt: skip
    kernel, pen = max(unknown, key=unknown.__getitem__)
    return {
        "known": {"kernel": max(known, key=known.__getitem__), "pen": 1.0},
        "unknown": {"kernel": kernel, "pen": pen},
    }


def compare(training: Sequence[Given], asked: Sequence[Given], rate: float) -> list[dict[str, Any]]:
    """F1 on each recording that is ``asked``, by method and by whether the number is known."""
    near = NEAR * rate
    rows: list[dict[str, Any]] = []

    def add(method: str, known: bool, found: list[list[int]], settings: dict[str, Any]) -> None:
        scores = [f1(at, one.true, near) for at, one in zip(found, asked, strict=True)]
        rows.append({
            "method": method, "number_known": known, "settings": settings, "f1": scores,
            "boundaries": [len(at) for at in found],
        })  # fmt: skip
        print(f"{method:30} known={known!s:5} {np.mean(scores):.3f} {settings}", flush=True)

    counts = [len(one.true) + 1 for one in asked]
    add("segment", True,
        [by_segment(one, count=n) for one, n in zip(asked, counts, strict=True)], {})  # fmt: skip
    add("segment", False, [by_segment(one, count=None) for one in asked], {})
    methods: dict[str, Method] = {
        "ruptures, values": partial(on_values, rate=rate),
        "ruptures, mean and deviation": on_statistics,
    }
    for name, method in methods.items():
        chosen = best_settings(method, training, near)
        found = [method(one, count=n, **chosen["known"])
                 for one, n in zip(asked, counts, strict=True)]  # fmt: skip
        add(name, True, found, chosen["known"])
        add(name, False, [method(one, count=None, **chosen["unknown"]) for one in asked],
            chosen["unknown"])  # fmt: skip
    found = [on_component(one, rate, count=n) for one, n in zip(asked, counts, strict=True)]
    add("ClaSP, first component", True, found, {})
    return rows
