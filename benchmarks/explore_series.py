"""The series that aeon's package ships for segmentation and anomalies, as a second check.

A tiny model is trained without labels on each series alone, by the default recipe but for 100
steps. Boundaries: how far the true ones are from the nearest one that is told, in % of the series,
where the number is known. Anomalies: the area under the ROC curve of `surprise` over samples, and
whether the most surprising stretch is at an anomaly; the first tenth of a series, which has little
before it, is not scored. A sample is scored by the mean of the stretches that it lies in. Beside
them ruptures on values and on their mean and deviation, ClaSP with the period that aeon gives for a
series, and the distance of a stretch of values from the nearest one before it, from any sample on,
z-normalised and not.

Shapes: L samples, n stretches, m samples of a stretch.
"""

import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from sklearn.metrics import roc_auc_score

from benchmarks.explore_boundaries import EVERY, Given, by_segment, on_statistics, on_values
from progmem import explore
from progmem.config import read_config
from progmem.data.recordings import Recording
from progmem.explore.stretches import STRETCH
from progmem.training.pretrain import pretrain

SETTINGS = ("model.size=tiny", "train.device=cpu", "train.steps=100")
SERIES = {
    "GunPoint": "load_gun_point_segmentation",
    "ElectricDevices": "load_electric_devices_segmentation",
    "KDD-TSAD_135": "load_kdd_tsad_135",
    "ecg-diff-count-3": "load_ecg_diff_count_3",
}


class Series(NamedTuple):
    """A series with its boundaries, or with its anomalies."""

    values: np.ndarray  # (L,) float64
    period: int | None = None
    boundaries: list[int] | None = None
    anomalous: np.ndarray | None = None  # (L,)


def load_series(name: str) -> Series:
    from aeon import datasets

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # one of them is shipped up to 1.6
        found = getattr(datasets, SERIES[name])()
    values = np.asarray(found[0], dtype=np.float64).ravel()
    if len(found) == 3:
        _, period, changes = found
        return Series(values, int(period), [int(at) for at in changes])
    return Series(values, anomalous=np.asarray(found[1]).ravel().astype(bool))


def index_of(name: str, series: Series, folder: Path) -> explore.Index:
    recordings = [Recording(name, series.values[:, None].astype(np.float32))]
    model = pretrain(recordings, folder / name, read_config(None, SETTINGS))
    return explore.index(model, recordings, folder / f"{name}-index")


def distance_from(found: list[int], true: list[int], length: int) -> float:
    """How far true boundaries are from the nearest one found, in % of the series."""
    return 100 * float(np.mean([min(abs(at - one) for at in found) for one in true])) / length


def segmented(name: str, series: Series, idx: explore.Index) -> list[dict[str, Any]]:
    from aeon.segmentation import ClaSPSegmenter

    assert series.boundaries is not None
    given = Given(name, series.values[:, None], idx, series.boundaries)
    count = len(series.boundaries) + 1
    clasp = ClaSPSegmenter(series.period, n_cps=count - 1)
    found = {
        "segment": by_segment(given, count=count),
        "ruptures, values": on_values(
            given, float(EVERY * idx.window), count=count, kernel="rbf", pen=1.0
        ),
        "ruptures, mean and deviation": on_statistics(given, count=count, kernel="rbf", pen=1.0),
        "ClaSP": sorted(map(int, clasp.fit_predict(series.values))),
    }
    return [
        {"series": name, "method": method, "true": series.boundaries, "found": at,
         "distance_percent": distance_from(at, series.boundaries, len(series.values))}
        for method, at in found.items()
    ]  # fmt: skip


def unlike_before(x: np.ndarray, m: int, hop: int, *, normalised: bool) -> np.ndarray:
    """For stretches of x (L, C) every ``hop`` samples: how far the nearest before is that is apart.

    Those before begin at every sample.
    """
    pieces = sliding_window_view(x, m, axis=0)  # (L - m + 1, C, m)
    if normalised:
        spread = pieces.std(2, keepdims=True)
        pieces = (pieces - pieces.mean(2, keepdims=True)) / np.where(spread > 1e-9, spread, 1)
    pieces = pieces.reshape(len(pieces), -1)
    squares, at = np.square(pieces).sum(1), np.arange(0, len(pieces), hop)
    apart = squares[at][:, None] + squares - 2 * pieces[at] @ pieces.T
    nearest = np.where(np.arange(len(pieces)) <= at[:, None] - m, apart.clip(0), np.inf).min(1)
    return np.sqrt(np.where(np.isinf(nearest), np.nan, nearest))


def of_samples(scores: np.ndarray, first: int, h: int, L: int) -> tuple[np.ndarray, np.ndarray]:
    """Which samples are scored, (L,), and the mean of the stretches that they lie in.

    ``scores`` are those of the stretch from each window of ``h`` samples on; counted are those from
    window ``first`` on.
    """
    total, count = np.zeros(L), np.zeros(L)
    for i in range(first, len(scores)):
        total[i * h : (i + STRETCH) * h] += scores[i]
        count[i * h : (i + STRETCH) * h] += 1
    return count > 0, total / count.clip(1)


def surprised(name: str, series: Series, idx: explore.Index) -> list[dict[str, Any]]:
    assert series.anomalous is not None
    h, L = idx.window, len(series.values)
    m, first = STRETCH * h, -(-L // (10 * h))  # behind the first tenth
    values, rows = series.values[:, None], []
    for method, scores in {  # of the stretch from each window on
        "surprise": explore.surprise(idx, name)[STRETCH - 1 :],
        "z-normalised values": unlike_before(values, m, h, normalised=True),
        "values": unlike_before(values, m, h, normalised=False),
    }.items():
        known, score = of_samples(scores, first, h, L)
        best = (first + int(np.argmax(scores[first:]))) * h
        rows.append({
            "series": name, "method": method, "stretch": m,
            "auc": float(roc_auc_score(series.anomalous[known], score[known])),
            "highest": [best, best + m], "hit": bool(series.anomalous[best : best + m].any()),
        })  # fmt: skip
    return rows


def compare(name: str, folder: Path) -> list[dict[str, Any]]:
    series = load_series(name)
    ask = segmented if series.boundaries is not None else surprised
    return ask(name, series, index_of(name, series, folder))
