"""Cue retention: does an encoder's end-of-sequence state tell whether a cue came before?

Every series is encoded without the cue and with it, at each gap. A logistic regression separates
the two; no series, and no recording, is on both sides of a fold.

The cue is a Hann-tapered burst in one channel, upstream of the window that the state is read from.
Its size is a share of the channel's own standard deviation outside its span. So it is the same cue
before and after a normalisation by fixed statistics, and nothing outside its span reveals it. The
burst is the taper itself: a wave under it would make the task differently hard for every set. FordA
is loud around 0.05 cycles per sample, and five cycles there escape even a matched filter.

Shapes: R series, L samples, C channels, G gaps, V samples of a cue, D width.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from joblib import Parallel, delayed
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score, roc_auc_score
from sklearn.model_selection import GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from progmem.encoding import Encoder
from progmem.errors import InputError
from progmem.pooling import encode_batches
from progmem.progress import Advance, Log, progress

CUE_WIDTH = 0.2  # of the length
CUE_STRENGTH = 0.5  # largest value, in standard deviations of the channel outside the span
MIN_CUE_SAMPLES = 3  # fewer do not show a taper
GAPS = (0.0, 0.1, 0.25, 0.5)  # of the length, from the cue's end to the final window


class Span(NamedTuple):
    """Samples [start, end)."""

    start: int
    end: int


def place_cues(length: int, final: int, gaps: Sequence[float] = GAPS) -> list[Span]:
    """Where the cue lies for each gap before the final window, which begins at sample ``final``."""
    if not 0 <= final <= length:
        raise InputError(f"cues lie before a sample of a series, 0 to {length}, got {final}")
    width = round(CUE_WIDTH * length)
    if width < MIN_CUE_SAMPLES:
        raise InputError(
            f"a cue of {CUE_WIDTH:.0%} of {length} samples is shorter than {MIN_CUE_SAMPLES}; "
            f"series need {round(MIN_CUE_SAMPLES / CUE_WIDTH)} samples or more"
        )
    spans = []
    for gap in gaps:
        end = final - round(gap * length)
        if end < width:
            raise InputError(
                f"a cue of {width} samples and a gap of {gap:g} x {length} samples do not fit "
                f"before the final window, which begins at sample {final}; use a model with "
                "shorter windows (model.window)"
            )
        spans.append(Span(end - width, end))
    assert all(0 <= span.start < span.end <= final for span in spans)
    return spans


def insert_cues(x: np.ndarray, span: Span, *, channel: np.ndarray) -> np.ndarray:
    """Copies of series (R, L, C), float64, each with the cue at ``span`` of its channel (R,)."""
    width = span.end - span.start
    taper = np.sin(np.pi * (np.arange(width) + 0.5) / width) ** 2  # (V,), Hann
    out = np.array(x, dtype=np.float64)
    sd = sd_outside(x, span, channel=channel)
    if not sd.all():
        row = int(np.flatnonzero(sd == 0)[0])
        raise InputError(
            f"series {row}, channel {channel[row]} does not vary outside the cue, so a cue of "
            f"{CUE_STRENGTH:g} of its standard deviation is zero; leave the series out"
        )
    out[np.arange(len(x)), span.start : span.end, channel] += CUE_STRENGTH * sd[:, None] * taper
    return out


def sd_outside(x: np.ndarray, span: Span, *, channel: np.ndarray) -> np.ndarray:
    """Standard deviation (R,) of each series' channel outside ``span``, 0 where it is flat."""
    rows = np.arange(len(x))
    outside = np.delete(x, np.s_[span.start : span.end], axis=1)[rows, :, channel]  # (R, L - V)
    outside = outside.astype(np.float64)
    observed = ~np.isnan(outside)
    count = np.maximum(observed.sum(1, keepdims=True), 1)
    mean = np.where(observed, outside, 0).sum(1, keepdims=True) / count
    return np.sqrt((np.where(observed, outside - mean, 0) ** 2).sum(1) / count[:, 0])


SEEDS = (0, 1, 2)  # draws of which series has which gap
FOLDS = 5
MIXED, SHUFFLED = "mixed", "shuffled labels"


class CueScores(NamedTuple):
    """Mean over the folds."""

    auc: float
    top1: float
    macro_f1: float


def probe_cue(
    encoder: Encoder,
    x: np.ndarray,
    *,
    recordings: np.ndarray | None = None,
    final: int | None = None,
    seeds: Sequence[int] = SEEDS,
    log: Log | None = None,
) -> dict[str, Any]:
    """Scores of an encoder on series (R, L, C) that it was not trained on, for a json file.

    "mixed" is the headline: each series has one cued copy, a quarter of them at each gap. "gap g"
    are the same classifiers on copies of one gap; "without gap g" are classifiers fitted on the
    other gaps only, on that one; "shuffled labels" is the score where there is nothing to find.
    Series whose channel is flat outside a cue have no size for it, and are left out.

    Args:
        recordings: what each series was cut from, (R,); series of one recording share a fold.
        final: the sample up to which cues lie; None: where the encoder's last window begins.
    """
    R, L, C = x.shape
    groups = np.arange(R) if recordings is None else recordings
    check_normalisation(encoder)
    final = final_window(encoder, x) if final is None else final
    spans = place_cues(L, final)
    channel = np.random.default_rng(0).integers(C, size=(R,))
    varies = np.all([sd_outside(x, s, channel=channel) for s in spans], axis=0)  # (R,)
    x, groups, channel = x[varies], groups[varies], channel[varies]
    recordings_left = len(np.unique(groups))
    if recordings_left < FOLDS:
        raise InputError(
            f"cue retention needs series of {FOLDS} recordings or more, got {recordings_left}; "
            f"{R - len(x)} series are flat outside a cue and left out"
        )
    folds = list(GroupKFold(FOLDS).split(groups, groups=groups))
    count = len(x) * (1 + len(spans))
    with progress(f"encoding {count} series with cues and without", count, log=log) as advance:
        clean = eos_features(encoder, x, advance)
        cued = np.stack([
            eos_features(encoder, insert_cues(x, s, channel=channel), advance) for s in spans
        ])  # fmt: skip
    scores: dict[str, dict[str, list[float]]] = {}
    with progress(f"scoring {len(seeds)} draws", len(seeds), log=log) as advance:
        for seed in seeds:
            for name, found in _score_draw(clean, cued, folds, np.random.default_rng(seed)).items():
                for key, value in found._asdict().items():
                    scores.setdefault(name, {}).setdefault(key, []).append(value)
            advance(1)
    places = {f"{gap:g}": list(span) for gap, span in zip(GAPS, spans, strict=True)}
    return {
        "series": len(x), "left_out": R - len(x), "final_window": final, "cue_spans": places,
        "cue_seeds": list(seeds), "scores": scores,
    }  # fmt: skip


def eos_features(encoder: Encoder, x: np.ndarray, advance: Advance | None = None) -> np.ndarray:
    """End-of-sequence states (R, D); ``advance`` is told how many are done."""
    found = []
    for z, some in encode_batches(encoder, x):
        if z.eos is None:
            name = getattr(encoder, "name", type(encoder).__name__)
            raise InputError(
                f"cue retention reads an end-of-sequence state, and the encoder {name} has none; "
                "a PMT needs model.slots of 1 or more"
            )
        found.append(z.eos.float().cpu().numpy())
        if advance is not None:
            advance(len(some))
    return np.concatenate(found)


def check_normalisation(encoder: Encoder) -> None:
    """Refuse an encoder whose normalisation would tell of a cue everywhere."""
    cfg = getattr(encoder, "cfg", None)
    if getattr(cfg, "normalise", None) == "series":
        raise InputError(
            "this model normalises each series by its own statistics, which would carry the cue "
            "into the final window; cue retention needs model.normalise=channel or none"
        )


def final_window(encoder: Encoder, x: np.ndarray) -> int:
    """First sample of the last window, or of the last token where there are no windows."""
    z = encoder.encode(x[:1])
    spans = z.token_spans if z.window_spans is None else z.window_spans
    return int(spans[-1, 0])


def _score_draw(
    clean: np.ndarray,
    cued: np.ndarray,
    folds: list[tuple[np.ndarray, np.ndarray]],
    rng: np.random.Generator,
) -> dict[str, CueScores]:
    """Every score of one draw, from features (R, D) and (G, R, D)."""
    G, R, _ = cued.shape
    order, rows = rng.permutation(R), np.arange(R)
    mixed = cued[order % G, rows]
    swapped = rng.random(R) < 0.5
    names = [[MIXED, *(f"gap {gap:g}" for gap in GAPS)], [SHUFFLED]]
    jobs = [(mixed, [mixed, *cued], None), (mixed, [mixed], swapped)]
    for left_out in range(G):
        others = np.delete(np.arange(G), left_out)
        jobs.append((cued[others[order % (G - 1)], rows], [cued[left_out]], None))
        names.append([f"without gap {GAPS[left_out]:g}"])
    found = Parallel(n_jobs=torch.get_num_threads())(
        delayed(score_detection)(clean, fitted, tested, folds, swapped=swap)
        for fitted, tested, swap in jobs
    )
    return {
        name: one
        for job_names, job_scores in zip(names, found, strict=True)
        for name, one in zip(job_names, job_scores, strict=True)
    }


def score_detection(
    clean: np.ndarray,
    fitted: np.ndarray,
    tested: Sequence[np.ndarray],
    folds: list[tuple[np.ndarray, np.ndarray]],
    *,
    swapped: np.ndarray | None = None,
) -> list[CueScores]:
    """Scores on each of the ``tested`` copies of classifiers fitted on the ``fitted`` ones.

    Args:
        clean, fitted, tested: features (R, D) of the same series without and with a cue.
        swapped: (R,), where the two copies of a series have each other's label.
    """
    absent = np.zeros(len(clean), dtype=bool) if swapped is None else swapped
    values = np.empty((len(tested), len(folds), len(CueScores._fields)))
    for f, (train, test) in enumerate(folds):
        classifier = make_pipeline(StandardScaler(), LogisticRegression(C=1.0, max_iter=5000))
        classifier.fit(
            np.concatenate([clean[train], fitted[train]]),
            np.concatenate([absent[train], ~absent[train]]),
        )
        y = np.concatenate([absent[test], ~absent[test]])
        for t, copies in enumerate(tested):
            p = classifier.predict_proba(np.concatenate([clean[test], copies[test]]))[:, 1]
            predicted = p > 0.5
            macro = f1_score(y, predicted, average="macro")
            values[t, f] = roc_auc_score(y, p), (predicted == y).mean(), macro
    return [CueScores(*row) for row in values.mean(1).tolist()]
