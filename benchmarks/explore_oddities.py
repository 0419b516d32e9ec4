"""Made oddities in recordings of movements: `surprise` beside values and the error of prediction.

In each recording of a person who is held out some seconds are changed in one of seven ways, and
faded in and out. A sample is scored by the mean of the stretches that it lies in; told are the area
under the ROC curve of the samples, and whether the highest score is at the oddity. The first third
of a recording, which has little before it, is neither changed nor scored. Each recording is alone:
what was before is its own past. Beside `surprise`:

- its two parts, the vectors of windows in order and the shape of a stretch;
- the distance of the values of a stretch from the nearest before it, from any sample on, channels
  in units of how much they vary, z-normalised and not;
- how badly the samples of a window are predicted from those around it: every fifth window is hidden
  at a time, and what the tokens say of hidden samples is decoded.

Shapes: L samples, C channels, n windows, m samples of a stretch.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.metrics import roc_auc_score

from benchmarks.explore_archives import RATE, Archive, Known
from benchmarks.explore_series import of_samples, unlike_before
from progmem import explore
from progmem.data.recordings import Recording
from progmem.explore import novelty
from progmem.explore.stretches import STRETCH, sums
from progmem.model.pmt import PMT

SECONDS = (3.0, 0.4)  # of an oddity
FADED = 0.1  # of it, at each end
NOISE = 0.7  # deviations of a channel
HIDDEN = 5  # of so many windows one is hidden at a time


class Oddity(NamedTuple):
    """A recording with an oddity."""

    kind: str
    recording: Recording
    start: int
    end: int


def backwards(part: np.ndarray) -> np.ndarray:
    return part[::-1]


def held(part: np.ndarray) -> np.ndarray:
    return np.repeat(part[:1], len(part), axis=0)


def fainter(part: np.ndarray) -> np.ndarray:
    return part.mean(0) + (part - part.mean(0)) / 3


def slower(part: np.ndarray) -> np.ndarray:
    at = np.arange(len(part))
    return np.stack([np.interp(at / 2, at, channel) for channel in part.T], axis=1)


KINDS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "backwards in time": backwards,
    "one value held": held,
    "a third of the amplitude": fainter,
    "half as fast": slower,
}
NAMES = ("noise on top", "another exercise", *KINDS, "twice as fast")


def oddities(known: Sequence[Known], seconds: float, seed: int) -> list[Oddity]:
    """One of every kind in each recording, all at one place."""
    rng, length, found = np.random.default_rng(seed), int(seconds * RATE), []
    faded = max(1, int(FADED * length))
    edge = np.minimum(np.arange(1, length + 1), np.arange(length, 0, -1)) / faded
    weight = edge.clip(max=1)[:, None]
    for one in known:
        x = one.recording.values
        others = [
            other.recording.values for other in known
            if other.person == one.person and other.classes[0] != one.classes[0]
        ]  # fmt: skip
        start = int(rng.integers(len(x) // 3, len(x) - 2 * length))
        part = x[start : start + length]
        other = others[rng.integers(len(others))]
        at = int(rng.integers(len(other) - length))
        news = {
            "noise on top": part + NOISE * x.std(0) * rng.normal(size=part.shape),
            "another exercise": other[at : at + length],
            "twice as fast": x[start : start + 2 * length : 2],
            **{kind: change(part) for kind, change in KINDS.items()},
        }
        for kind in NAMES:
            values = x.copy()
            values[start : start + length] = weight * news[kind] + (1 - weight) * part
            recording = Recording(f"{one.recording.name}, {kind}", values)
            found.append(Oddity(kind, recording, start, start + length))
    return found


def alone(idx: explore.Index, name: str) -> explore.Index:
    """The index of one of its recordings."""
    rows, i = idx.rows(name), idx.number(name)
    return replace(
        idx, names=[name], lengths=[idx.lengths[i]], starts=np.array([0, rows.stop - rows.start]),
        all_vectors=idx.vectors(name), channel_values=idx.channel_values[rows],
        all_points=idx.points(name), calendars=[None],
    )  # fmt: skip


def badly_predicted(model: PMT, idx: explore.Index, recording: Recording) -> np.ndarray:
    """The mean error of the samples of each stretch that are predicted from those around them."""
    spans = idx.windows(recording.name)
    x = torch.from_numpy(recording.values).double()
    x = ((x - model.stats.mean) / model.stats.scale).float()[None]
    # the squared errors of every sample by all tokens that say something of it, and their number
    patch, stride = model.cfg.patch, model.cfg.patch_stride
    error, count = np.zeros(x.shape[1]), np.zeros(x.shape[1])
    for turn in range(HIDDEN):
        hidden = torch.zeros_like(x, dtype=torch.bool)
        for start, end in spans[turn::HIDDEN]:
            hidden[:, start:end] = True
        with torch.no_grad():
            decoded = model.decode(model(x, hidden=hidden).tokens)  # (1, K, C, patch)
        apart = (decoded - x.unfold(1, patch, stride)).square().mean(2)[0].numpy()  # (K, patch)
        at = np.arange(len(apart))[:, None] * stride + np.arange(patch)
        asked = hidden[0, :, 0].numpy()[at]
        np.add.at(error, at[asked], apart[asked])
        np.add.at(count, at[asked], 1)
    errors = [error[a:b].sum() / max(1, count[a:b].sum()) for a, b in spans]
    return sums(np.array(errors)[:, None], STRETCH)[:, 0] / STRETCH


def scores_of(model: PMT, idx: explore.Index, one: Oddity) -> dict[str, np.ndarray]:
    """By method, of the stretch from each window on."""
    name, own = one.recording.name, alone(idx, one.recording.name)
    m, x = STRETCH * idx.window, one.recording.values.astype(np.float64)
    x = (x - x.mean(0)) / x.std(0)
    parts = idx.all_points.shape[1]
    return {
        "surprise": explore.surprise(own, name)[STRETCH - 1 :],
        "its vectors": novelty._from_before(own, name, 1, novelty._vectors_in_order),
        "its shapes": novelty._from_before(own, name, parts, novelty._shapes),
        "values": unlike_before(x, m, idx.window, normalised=False),
        "z-normalised values": unlike_before(x, m, idx.window, normalised=True),
        "error of prediction": badly_predicted(model, own, one.recording),
    }


def compare(archive: Archive, model: PMT, work: Path) -> list[dict[str, Any]]:
    """Areas and hits of each recording, by length and kind of the oddity and by method."""
    found: dict[tuple[float, str, str], list[tuple[float, bool]]] = {}
    for seconds in SECONDS:
        made = oddities(archive.held_out, seconds, 0)
        idx = explore.index(
            model, [one.recording for one in made], work / f"oddities-{seconds}", log=None
        )
        for one in made:
            L, h = len(one.recording.values), idx.window
            first = -(-(L // 3) // h)
            odd = np.zeros(L, dtype=bool)
            odd[one.start : one.end] = True
            for method, scores in scores_of(model, idx, one).items():
                known, score = of_samples(scores, first, h, L)
                best = (first + int(np.nanargmax(scores[first:]))) * h
                area = float(roc_auc_score(odd[known], score[known]))
                hit = bool(odd[best : best + STRETCH * h].any())
                found.setdefault((seconds, one.kind, method), []).append((area, hit))
    return [
        {"seconds": seconds, "kind": kind, "method": method,
         "auc": [area for area, _ in results], "hit": [hit for _, hit in results]}
        for (seconds, kind, method), results in found.items()
    ]  # fmt: skip
