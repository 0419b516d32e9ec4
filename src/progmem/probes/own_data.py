"""A user's own few labels: a head on a frozen encoder, fitted, kept, applied.

Shapes: B series, L samples, C channels, D features, Y classes.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.preprocessing import StandardScaler

from progmem import artifact
from progmem.artifact import Artifact, noted, shaped
from progmem.data.labels import check_labels, drop_missing_labels
from progmem.encoding import Encoder
from progmem.errors import ArtifactError, InputError
from progmem.features import FeatureStats
from progmem.model.saving import weights_sha256
from progmem.pooling import POOLINGS, check_observed, feature_stats_for, pool
from progmem.probes.classify import untrained_copy
from progmem.probes.comparison import (
    Comparison,
    baseline_features,
    compare_by_folds,
    compare_held_out,
    compared_series,
    draw_folds,
)
from progmem.probes.logistic import FittedLogistic, fit_logistic
from progmem.progress import Log, progress
from progmem.provenance import NONE, Seen, check_labels_unseen, digests, pack, seen_by, unpack

POOLING = "all"  # by default


class Prediction(NamedTuple):
    """The likeliest label of each series, how likely it is, and how likely each class is."""

    label: np.ndarray  # (B,)
    probability: np.ndarray  # (B,)
    classes: np.ndarray  # (Y,)
    likely: np.ndarray  # (B, Y)

    @classmethod
    def of_probabilities(cls, classes: np.ndarray, likely: np.ndarray) -> "Prediction":
        """From the probabilities (B, Y) of all classes (Y,)."""
        return cls(classes[likely.argmax(1)], likely.max(1), classes, likely)


class LabelProbe:
    """Predicts a user's classes, by a logistic regression on a frozen encoder's features."""

    mean: np.ndarray  # (D,), of the features
    scale: np.ndarray  # (D,)
    head: FittedLogistic
    learnt: np.ndarray  # digests of the series whose labels it learnt

    def __init__(
        self,
        encoder: Encoder,
        *,
        pooling: str = POOLING,
        columns: Sequence[str] = (),  # what the files of series call the channels
        log: Log | None = None,
    ) -> None:
        self.encoder, self.pooling, self.log = encoder, pooling, log
        self.columns = tuple(columns)
        self.feature_stats: FeatureStats | None = None  # of the pooling "all", once fitted

    def fit(self, x: Any, y: Any) -> "LabelProbe":
        """Learn from series (B, L, C), or a list of (L_i, C), and their labels.

        A series whose label is NaN or an empty text has none; it is still used to scale features.
        """
        known, labels = drop_missing_labels(y)
        if len(known) != len(x):
            raise InputError(f"y has {len(known)} labels, x holds {len(x)} series")
        check_labels(labels, len(labels))
        if self.pooling == "all":
            self.feature_stats = feature_stats_for(self.encoder, x)
        features = self._features(x)
        scaler = StandardScaler().fit(features)
        self.mean, self.scale = scaler.mean_, scaler.scale_
        self.features, self.y, self.known = self._scaled(features[known]), labels, known
        self.head = fit_logistic(self.features, self.y)
        self.learnt = digests(np.asarray(x[i]) for i in np.flatnonzero(known))
        return self

    def predict(self, x: Any) -> Prediction:
        likely = self.head.predict_proba(self.scaled_features(x))
        return Prediction.of_probabilities(self.head.classes, likely)

    def scaled_features(self, x: Any) -> np.ndarray:
        """Features (B, D) as the head takes them."""
        features = self._features(x)
        if features.shape[1:] != self.mean.shape:
            raise InputError(
                f"the probe was fitted on {len(self.mean)} features, the encoder gives "
                f"{features.shape[1]}; fit it again"
            )
        return self._scaled(features)

    def _scaled(self, features: np.ndarray) -> np.ndarray:
        return (features - self.mean) / self.scale  # float64

    def _features(self, x: Any) -> np.ndarray:
        check_observed(x)
        with progress(f"encoding {len(x)} series", len(x), log=self.log) as advance:
            stats = self.feature_stats
            found = pool(self.encoder, x, [self.pooling], stats=stats, advance=advance)
        if self.pooling not in found:
            raise InputError(f"{self.pooling} needs an encoder with a memory; this one has none")
        return found[self.pooling]

    def save(self, path: Path) -> None:
        """Write the fitted probe, without the encoder."""
        head = self.head
        arrays = {"mean": self.mean, "scale": self.scale,
                  "weights": head.weights, "intercept": head.intercept}  # fmt: skip
        tensors = {name: torch.as_tensor(array) for name, array in arrays.items()}
        if self.feature_stats is not None:
            tensors |= {f"{_STATS}{n}": t for n, t in self.feature_stats.tensors().items()}
        note = {
            "encoder": fingerprint(self.encoder), "pooling": self.pooling,
            "columns": list(self.columns), "classes": head.classes.tolist(),
            "smoothing": head.smoothing, "learnt": pack(self.learnt),
        }  # fmt: skip
        artifact.write(path, "label probe", tensors, note)

    @classmethod
    def load(cls, path: Path, encoder: Encoder) -> "LabelProbe":
        """The probe that ``save`` wrote, for the encoder it was fitted on."""
        if not path.is_file() or not path.stat().st_size:
            raise InputError(f"there is no probe in {path}")
        if path.suffix == ".skops":
            raise InputError(f"{path} is a probe of version 0.1.0, kept by skops; fit it again")
        try:
            found = artifact.read(path, "label probe")
            note, where = found.note, f"{path} is not a probe this version can read"
            if note.get("encoder") != fingerprint(encoder):
                raise ArtifactError(
                    f"{path} was fitted on the features of another model; fit it again"
                )
            if "kernel" in note or "penalty" in note:
                raise ArtifactError(f"{path} holds the head of an earlier version; fit it again")
            pooling = noted(note, "pooling", str, where)
            columns = noted(note, "columns", list, where, of=str)
            if pooling not in POOLINGS:
                raise ArtifactError(f"{where}: it has pooling {pooling!r}")
            feature_stats = _pop_feature_stats(found, path) if pooling == "all" else None
            head = _read_head(found, where)
            learnt = unpack(note, "learnt", where) if "learnt" in note else NONE
        except ArtifactError as error:
            raise InputError(str(error)) from error
        probe = cls(encoder, pooling=pooling, columns=columns)
        probe.head, probe.feature_stats = head, feature_stats
        probe.learnt = learnt
        probe.mean, probe.scale = (found.tensors[name].numpy() for name in ("mean", "scale"))
        return probe


def _pop_feature_stats(found: Artifact, path: Path) -> FeatureStats:
    """The feature statistics of a probe on the pooling "all", taken out of its tensors."""
    names = [name for name in found.tensors if name.startswith(_STATS)]
    held = {name.removeprefix(_STATS): found.tensors.pop(name) for name in names}
    if "detail_channel_mean" not in held or "median" not in held:
        raise ArtifactError(
            f"{path} has no feature statistics: the pooling all was another when it was fitted; "
            "fit it again"
        )
    sizes = held["median"].numel(), held["detail_channel_mean"].numel()
    artifact.check_tensors(held, FeatureStats.blank(*sizes).tensors(), path)
    stats = FeatureStats.of_tensors(held)
    if not stats.fitted:
        raise ArtifactError(
            f"{path}: its feature statistics are not finite, or a scale not above 0"
        )
    return stats


_STATS = "features."  # begins the names of feature statistics


def _read_head(found: Artifact, where: str) -> FittedLogistic:
    """The head of an artifact, if all of its parts and the scaling fit together."""
    note, tensors = found.note, found.tensors
    names = noted(note, "classes", list, where, of=(str, int))
    classes, Y = (
        np.array(names),
        len(names),
    )  # whole numbers or texts, as `drop_missing_labels` has them
    mixed = len(set(map(type, names))) != 1
    if mixed or classes.dtype.kind not in "iU" or not 2 <= Y == len(set(classes.tolist())):
        raise ArtifactError(f"{where}: its classes are {str(names)[:60]}")
    D = tensors.get("mean", torch.empty(0)).numel()
    expected = {"mean": shaped(D), "scale": shaped(D),
                "weights": shaped(D, Y), "intercept": shaped(Y)}  # fmt: skip
    artifact.check_tensors(tensors, expected, where)
    finite = all(bool(tensor.isfinite().all()) for tensor in tensors.values())
    if not finite or bool((tensors["scale"] <= 0).any()):
        raise ArtifactError(f"{where}: a number is not finite, or a scale not above 0")
    smoothing = noted(note, "smoothing", float, where)
    if not 0 < smoothing <= 1:
        raise ArtifactError(f"{where}: it has smoothing {smoothing}")
    weights, intercept = (tensors[name].numpy() for name in ("weights", "intercept"))
    return FittedLogistic(weights, intercept, smoothing, classes)


def fingerprint(encoder: Encoder) -> str:
    """Identifies an encoder: what was fitted on the features of one does not fit another."""
    return weights_sha256(encoder) if hasattr(encoder, "state_dict") else type(encoder).__name__


def compare_on_labels(
    probe: LabelProbe,
    x: Sequence[Any],
    *,
    recordings: np.ndarray | None = None,
    seen: Seen | None = None,
    allow_seen_labels: bool = False,
) -> Comparison:
    """A fitted probe beside what it is worth comparing with, on its labelled series ``x``.

    Each is predicted from the others. Of more than `MAX_SERIES` some are drawn; series of one of
    the ``recordings`` (B,) stay together. An encoder that has learnt labels of ``x`` is refused,
    or with ``allow_seen_labels`` its scores are marked. What it has ``seen`` of ``x`` is looked up
    by samples alone where it is not given.
    """
    log = probe.log
    seen = seen_by(probe.encoder, x) if seen is None else seen
    check_labels_unseen(seen.labels, "labelled series", allow=allow_seen_labels)
    chosen = compared_series(probe.y)
    x, y = [x[i] for i in chosen], probe.y[chosen]
    recordings = None if recordings is None else recordings[chosen]
    folds = draw_folds(y, recordings)
    if folds is None:
        unit = "label" if recordings is None else "recording"
        return Comparison({}, {}, 0, f"the {unit}s of a class are too few to be split")
    encoder: Any = probe.encoder  # a PMT or a baseline: others are compared by their users
    untrained = LabelProbe(untrained_copy(encoder), pooling=probe.pooling)
    if log is not None:
        log("comparing with the untrained encoder, raw values and MiniRocket ...")
    features = {"trained": probe.features[chosen], "untrained": untrained.fit(x, y).features}
    baselines, left_out = baseline_features(x)
    features |= {name: parts[0] for name, parts in baselines.items()}
    with progress(
        "predicting each label from the others", len(features) * folds.size, log=log
    ) as advance:
        found = compare_by_folds(
            features, y, folds, recordings=recordings, left_out=left_out, advance=advance
        )
    return found.marked(seen)


def compare_on_held_out(
    encoders: Mapping[str, Encoder],
    x: Sequence[Any],
    y: np.ndarray,
    test: Sequence[Any],
    test_y: np.ndarray,
    *,
    allow_seen_labels: bool = False,
    log: Log | None = None,
) -> Comparison:
    """Frozen encoders, raw values and MiniRocket: ``test`` is predicted from labelled series.

    Encoders that have learnt labels of ``test`` are treated as by `compare_on_labels`.
    """
    knows = [seen_by(encoder, test) for encoder in encoders.values()]
    seen = Seen(*(np.any([getattr(one, f) for one in knows], axis=0) for f in Seen._fields))
    check_labels_unseen(seen.labels, "series held out", allow=allow_seen_labels)
    chosen = compared_series(y)
    x, y = [x[i] for i in chosen], y[chosen]
    pairs = {}
    if log is not None:
        log("comparing with the frozen encoder, raw values and MiniRocket ...")
    for name, encoder in encoders.items():
        probe = LabelProbe(encoder, log=log).fit(x, y)
        pairs[name] = (probe.features, probe.scaled_features(test))
    baselines, left_out = baseline_features(x, test)
    pairs |= {name: (parts[0], parts[1]) for name, parts in baselines.items()}
    return compare_held_out(pairs, y, test_y, left_out=left_out).marked(seen)
