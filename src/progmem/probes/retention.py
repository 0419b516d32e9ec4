"""Cue retention: does an encoder's end-of-sequence state tell whether a cue came before?

Every series is there without the cue and with it, at each gap. A logistic regression tells the two
apart; no series, and no recording, is on both sides of a fold.

Shapes: R series, L samples, C channels, G gaps, D width.
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
from progmem.pooling import encoded
from progmem.probes.cue import GAPS, insert_cues, place_cues, spread_outside

SEEDS = (0, 1, 2)  # draws of which series has which gap
FOLDS = 5
MIXED, SHUFFLED = "mixed", "shuffled labels"


class Scores(NamedTuple):
    """Mean over the folds."""

    auc: float
    top1: float
    macro_f1: float


def probe_cue(
    encoder: Encoder,
    x: np.ndarray,
    *,
    recordings: np.ndarray | None = None,
    seeds: Sequence[int] = SEEDS,
) -> dict[str, Any]:
    """Scores of an encoder on series (R, L, C) that it was not trained on, for a json file.

    "mixed" is the headline: each series has one cued copy, a quarter of them at each gap. "gap g"
    are the same machines on copies of one gap; "without gap g" are machines that saw the other
    gaps only, on that one; "shuffled labels" is what a machine finds where there is nothing.
    Series whose channel is flat outside a cue have no size for it, and are left out.

    Args:
        recordings: what each series was cut from, (R,); series of one recording share a fold.
    """
    R, L, C = x.shape
    groups = np.arange(R) if recordings is None else recordings
    final = final_window(encoder, x)
    spans = place_cues(L, final)
    channel = np.random.default_rng(0).integers(C, size=(R,))
    varies = np.all([spread_outside(x, s, channel=channel) for s in spans], axis=0)  # (R,)
    x, groups, channel = x[varies], groups[varies], channel[varies]
    apart = len(np.unique(groups))
    if apart < FOLDS:
        raise InputError(
            f"cue retention needs series of {FOLDS} recordings or more, got {apart}; "
            f"{R - len(x)} series are flat outside a cue and left out"
        )
    folds = list(GroupKFold(FOLDS).split(groups, groups=groups))
    clean = eos_features(encoder, x)
    cued = np.stack([eos_features(encoder, insert_cues(x, s, channel=channel)) for s in spans])
    scores: dict[str, dict[str, list[float]]] = {}
    for seed in seeds:
        for name, found in _probe(clean, cued, folds, np.random.default_rng(seed)).items():
            for key, value in found._asdict().items():
                scores.setdefault(name, {}).setdefault(key, []).append(value)
    places = {f"{gap:g}": list(span) for gap, span in zip(GAPS, spans, strict=True)}
    return {
        "series": len(x), "left_out": R - len(x), "final_window": final, "cue_spans": places,
        "cue_seeds": list(seeds), "scores": scores,
    }  # fmt: skip


def eos_features(encoder: Encoder, x: np.ndarray) -> np.ndarray:
    """End-of-sequence states (R, D)."""
    found = []
    for z in encoded(encoder, x):
        if z.eos is None:
            raise InputError(
                f"cue retention reads an end-of-sequence state, and this {type(encoder).__name__} "
                "has none; a PMT needs model.slots of 1 or more"
            )
        found.append(z.eos.float().cpu().numpy())
    return np.concatenate(found)


def final_window(encoder: Encoder, x: np.ndarray) -> int:
    """First sample of the last window, or of the last token where there are no windows."""
    cfg = getattr(encoder, "cfg", None)
    if getattr(cfg, "normalise", None) == "series":
        raise InputError(
            "this model normalises each series by its own statistics, which would carry the cue "
            "into the final window; cue retention needs model.normalise=channel or none"
        )
    z = encoder.encode(x[:1])
    spans = z.token_spans if z.window_spans is None else z.window_spans
    return int(spans[-1, 0])


def _probe(
    clean: np.ndarray,
    cued: np.ndarray,
    folds: list[tuple[np.ndarray, np.ndarray]],
    rng: np.random.Generator,
) -> dict[str, Scores]:
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
        delayed(tell_apart)(clean, learnt, tested, folds, swapped=swap)
        for learnt, tested, swap in jobs
    )
    return {
        name: one
        for some, all_of in zip(names, found, strict=True)
        for name, one in zip(some, all_of, strict=True)
    }


def tell_apart(
    clean: np.ndarray,
    learnt: np.ndarray,
    tested: Sequence[np.ndarray],
    folds: list[tuple[np.ndarray, np.ndarray]],
    *,
    swapped: np.ndarray | None = None,
) -> list[Scores]:
    """Scores on each of the ``tested`` copies of machines that learnt from ``learnt`` ones.

    Args:
        clean, learnt, tested: features (R, D) of the same series without and with a cue.
        swapped: (R,), where the two copies of a series are called by each other's name.
    """
    absent = np.zeros(len(clean), dtype=bool) if swapped is None else swapped
    values = np.empty((len(tested), len(folds), len(Scores._fields)))
    for f, (train, test) in enumerate(folds):
        machine = make_pipeline(StandardScaler(), LogisticRegression(C=1.0, max_iter=5000))
        machine.fit(
            np.concatenate([clean[train], learnt[train]]),
            np.concatenate([absent[train], ~absent[train]]),
        )
        y = np.concatenate([absent[test], ~absent[test]])
        for t, copies in enumerate(tested):
            p = machine.predict_proba(np.concatenate([clean[test], copies[test]]))[:, 1]
            called = p > 0.5
            macro = f1_score(y, called, average="macro")
            values[t, f] = roc_auc_score(y, p), (called == y).mean(), macro
    return [Scores(*row) for row in values.mean(1).tolist()]
