"""The series that aeon's package ships for segmentation and anomalies, as a second check.

A tiny model is trained without labels on each series alone, by the default recipe but for 100
steps. Boundaries: how far the true ones are from the nearest one that is told, in % of the series,
where the number is known. Anomalies: the area under the ROC curve of `surprise` over samples, and
whether the most surprising stretch is at an anomaly; the first tenth of a series, which has little
before it, is not scored. Beside them ClaSP with the period that aeon gives for a series, and the
distance of a stretch of values from the nearest one before it, z-normalised and not.

Shapes: L samples, n stretches, m samples of a stretch.
"""

import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from sklearn.metrics import roc_auc_score

from benchmarks.explore_boundaries import Given, by_segment, on_statistics
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
        "ruptures, mean and deviation": on_statistics(given, count=count, kernel="rbf", pen=1.0),
        "ClaSP": sorted(map(int, clasp.fit_predict(series.values))),
    }
    return [
        {"series": name, "method": method, "true": series.boundaries, "found": at,
         "distance_percent": distance_from(at, series.boundaries, len(series.values))}
        for method, at in found.items()
    ]  # fmt: skip


def unlike_before(x: np.ndarray, m: int, hop: int, *, normalised: bool) -> np.ndarray:
    """For stretches every ``hop`` samples: the distance from the nearest before that is apart."""
    pieces = sliding_window_view(x, m)[::hop].copy()
    if normalised:
        spread = pieces.std(1, keepdims=True)
        pieces = (pieces - pieces.mean(1, keepdims=True)) / np.where(spread > 1e-9, spread, 1)
    squares = np.square(pieces).sum(1)
    found = np.full(len(pieces), np.nan)
    apart = -(-m // hop)
    for i in range(apart, len(pieces)):
        before = slice(0, i - apart + 1)
        found[i] = (squares[before] + squares[i] - 2 * pieces[before] @ pieces[i]).min()
    return np.sqrt(found.clip(0))


def surprised(name: str, series: Series, idx: explore.Index) -> list[dict[str, Any]]:
    """A sample is scored by the mean of the stretches that it lies in."""
    assert series.anomalous is not None
    h, L = idx.window, len(series.values)
    m, first = STRETCH * h, -(-L // (10 * h))  # behind the first tenth
    rows = []
    for method, scores in {  # of the stretch from each window on
        "surprise": explore.surprise(idx, name)[STRETCH - 1 :],
        "z-normalised values": unlike_before(series.values, m, h, normalised=True),
        "values": unlike_before(series.values, m, h, normalised=False),
    }.items():
        total, count = np.zeros(L), np.zeros(L)
        for i in range(first, len(scores)):
            total[i * h : i * h + m] += scores[i]
            count[i * h : i * h + m] += 1
        known = count > 0
        best = (first + int(np.argmax(scores[first:]))) * h
        rows.append({
            "series": name, "method": method, "stretch": m,
            "auc": float(roc_auc_score(series.anomalous[known], total[known] / count[known])),
            "highest": [best, best + m], "hit": bool(series.anomalous[best : best + m].any()),
        })  # fmt: skip
    return rows


def compare(name: str, folder: Path) -> list[dict[str, Any]]:
    series = load_series(name)
    ask = segmented if series.boundaries is not None else surprised
    return ask(name, series, index_of(name, series, folder))
