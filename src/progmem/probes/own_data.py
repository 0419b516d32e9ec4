"""A user's own few labels: a support vector machine on a frozen encoder, fitted, kept, applied.

Shapes: B series, L samples, C channels.
"""

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler

from progmem import artifact
from progmem.artifact import Artifact, noted, shaped
from progmem.data.labels import check_labels, drop_missing_labels, labels_for
from progmem.data.reader import Recording, check_order, columns_of
from progmem.encoding import Encoder
from progmem.errors import ArtifactError, InputError
from progmem.files import check_output
from progmem.model.pmt import PMT
from progmem.model.saving import load, weights_sha256
from progmem.pooling import POOLINGS, check_observed, pool, token_stats_for
from progmem.probes.classify import FOLDS, HEADS, FittedSvm, fit_svm
from progmem.series import Series
from progmem.token_summary import TokenStats
from progmem.training.classifier import SequenceClassifier
from progmem.training.run_folder import read_as_trained, run_of


class Prediction(NamedTuple):
    """A label for each series, and its lead over the next best label."""

    label: np.ndarray  # (B,)
    margin: np.ndarray  # (B,), in units of the scores, such as an SVM's decision values

    @classmethod
    def of_scores(cls, classes: np.ndarray, scores: np.ndarray) -> "Prediction":
        """The class of the highest score of each series, from (B, classes)."""
        two = np.sort(scores, axis=1)[:, -2:]
        return cls(classes[scores.argmax(1)], two[:, 1] - two[:, 0])


class LabelProbe:
    """Predicts a user's classes, by an SVM on a frozen encoder's features of a few series."""

    svm: FittedSvm

    def __init__(
        self,
        encoder: Encoder,
        *,
        pooling: str = "all",
        head: str = "linear",
        columns: Sequence[str] = (),  # what the files of series call the channels
    ) -> None:
        if head not in HEADS:
            raise InputError(f"head must be one of {'; '.join(HEADS)}, got {head!r}")
        self.encoder, self.pooling, self.head = encoder, pooling, head
        self.columns = tuple(columns)
        self.token_stats: TokenStats | None = None  # of the pooling "all", once fitted

    def fit(self, x: Any, y: Any) -> "LabelProbe":
        """Learn from series (B, L, C), or a list of (L_i, C), and their labels.

        A series whose label is NaN or an empty text has none; it is still used to scale features.
        """
        known, labels = drop_missing_labels(y)
        if len(known) != len(x):
            raise InputError(f"y has {len(known)} labels, x holds {len(x)} series")
        check_labels(labels, len(labels))
        if self.pooling == "all":
            self.token_stats = token_stats_for(self.encoder, x)
        features = self._features(x)
        scaler = StandardScaler().fit(features)
        self.features, self.y = scaler.transform(features[known]), labels
        self.svm = FittedSvm.from_sklearn(scaler, fit_svm(self.features, self.y, HEADS[self.head]))
        return self

    def estimate(self) -> np.ndarray | None:
        """Accuracy on each fold of the labelled series when it was left out; None if too few.

        C is chosen again without the fold; a C chosen with it would leak its labels.
        """
        smallest = int(np.unique(self.y, return_counts=True)[1].min())
        if smallest < 2:
            return None
        folds = StratifiedKFold(min(FOLDS, smallest), shuffle=True, random_state=0)
        found = []
        for train, test in folds.split(self.features, self.y):
            svc = fit_svm(self.features[train], self.y[train], HEADS[self.head])
            found.append(svc.score(self.features[test], self.y[test]))
        return np.array(found)

    def predict(self, x: Any) -> Prediction:
        features, svm = self._features(x), self.svm
        if features.shape[1:] != svm.mean.shape:
            raise InputError(
                f"the probe was fitted on {len(svm.mean)} features, the encoder gives "
                f"{features.shape[1]}; fit it again"
            )
        values = svm.decision_function(features)
        if values.ndim == 1:  # two classes
            return Prediction(svm.predict(features), np.abs(values))
        return Prediction.of_scores(svm.classes, values)

    def _features(self, x: Any) -> np.ndarray:
        check_observed(x)
        found = pool(self.encoder, x, [self.pooling], stats=self.token_stats)
        if self.pooling not in found:
            raise InputError(f"{self.pooling} needs an encoder with a memory; this one has none")
        return found[self.pooling]

    def save(self, path: Path) -> None:
        """Write the fitted probe, without the encoder."""
        svm = self.svm
        tensors = {name: torch.as_tensor(getattr(svm, name)) for name in _ARRAYS}
        if self.token_stats is not None:
            tensors |= {f"token_{n}": t for n, t in self.token_stats._asdict().items()}
        note = {
            "encoder": fingerprint(self.encoder), "pooling": self.pooling, "head": self.head,
            "columns": list(self.columns), "kernel": svm.kernel, "gamma": svm.gamma,
            "classes": svm.classes.tolist(),
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
            options = {name: noted(note, name, str, where) for name in ("pooling", "head")}
            columns = noted(note, "columns", list, where, of=str)
            if options["pooling"] not in POOLINGS or options["head"] not in HEADS:
                raise ArtifactError(f"{where}: it has pooling and head {options}")
            token_stats = _pop_token_stats(found, path) if options["pooling"] == "all" else None
            svm = _read_svm(found, where)
        except ArtifactError as error:
            raise InputError(str(error)) from error
        probe = cls(encoder, **options, columns=columns)
        probe.svm, probe.token_stats = svm, token_stats
        return probe


def _pop_token_stats(found: Artifact, path: Path) -> TokenStats:
    """The token statistics of a probe on the pooling "all", taken out of its tensors."""
    median, scale = (found.tensors.pop(f"token_{name}", None) for name in TokenStats._fields)
    if median is None or scale is None:
        raise ArtifactError(
            f"{path} has no token statistics: the pooling all was another when it was fitted; "
            "fit it again"
        )
    names = {"token_median": median, "token_scale": scale}
    artifact.check_tensors(names, dict.fromkeys(names, shaped(median.numel())), path)
    if not bool((median.isfinite() & scale.isfinite() & (scale > 0)).all()):
        raise ArtifactError(f"{path}: its token statistics are not finite, or a scale not above 0")
    return TokenStats(median, scale)


_ARRAYS = ("mean", "scale", "support", "dual", "intercept", "counts")


def _read_svm(found: Artifact, where: str) -> FittedSvm:
    """The SVM of an artifact, if all of its parts fit together."""
    note, tensors = found.note, found.tensors
    names = noted(note, "classes", list, where, of=(str, int))
    classes, Y = (
        np.array(names),
        len(names),
    )  # whole numbers or texts, as `drop_missing_labels` has them
    mixed = len(set(map(type, names))) != 1
    if mixed or classes.dtype.kind not in "iU" or not 2 <= Y == len(set(classes.tolist())):
        raise ArtifactError(f"{where}: its classes are {str(names)[:60]}")
    support = tensors.get("support", torch.empty(0))
    V, D = support.shape if support.ndim == 2 else (0, 0)
    expected = {
        "mean": shaped(D), "scale": shaped(D), "support": shaped(V, D), "dual": shaped(Y - 1, V),
        "intercept": shaped(Y * (Y - 1) // 2), "counts": shaped(Y, dtype=torch.int64),
    }  # fmt: skip
    artifact.check_tensors(tensors, expected, where)
    arrays = {name: tensors[name].numpy() for name in _ARRAYS}
    if (arrays["counts"] < 0).any() or arrays["counts"].sum() != V:
        raise ArtifactError(f"{where}: its classes have not {V} support vectors together")
    finite = all(np.isfinite(array).all() for array in arrays.values())
    if not finite or (arrays["scale"] <= 0).any():
        raise ArtifactError(f"{where}: a number is not finite, or a scale not above 0")
    kernel, gamma = noted(note, "kernel", str, where), noted(note, "gamma", float, where)
    if kernel not in ("linear", "rbf") or not 0 < gamma < np.inf:
        raise ArtifactError(f"{where}: it has the kernel {kernel!r} with gamma {gamma}")
    return FittedSvm(**arrays, kernel=kernel, gamma=gamma, classes=classes)


def fingerprint(encoder: Encoder) -> str:
    """Identifies an encoder: what was fitted on the features of one does not fit another."""
    return weights_sha256(encoder) if hasattr(encoder, "state_dict") else type(encoder).__name__


def classify_files(
    model_folder: Path,
    data: Path,
    out: Path | None = None,
    *,
    labels: Path | None = None,
    probe: Path | None = None,
    predict: Path | None = None,
    pooling: str | None = None,
    log: Callable[[str], None] = print,
) -> Prediction | None:
    """Fit a probe on the series of ``data`` that have labels, estimate its accuracy, and predict.

    Predicted are the series of ``predict``, by default all of ``data``. They go to the .csv file
    ``out``, and the fitted probe is kept beside it; without ``out`` nothing is predicted.

    Args:
        labels: the file of the labels.
        probe: a kept probe, or the folder of a finetuned run, in place of ``labels``: nothing is
            fitted, and the series of ``data`` are predicted.
        pooling: one of `POOLINGS`, by default "all".
    """
    if (labels is None) == (probe is None):
        raise InputError("give --labels to fit a probe, or --probe to use a fitted one")
    if probe is not None:
        _check_use_of_probe(out, predict, pooling)
    if out is None and predict is not None:
        raise InputError("--predict needs -o: the .csv file for the predictions")
    if out is not None:
        if out.suffix != ".csv":
            raise InputError(f"-o must name the .csv file to write, got {out}")
        check_output(out, data, labels, predict)
        if probe is None:
            artifact.check_replaceable(out.with_suffix(".safetensors"), "label probe")
    model = load(model_folder, device="auto")
    run = run_of(model_folder)
    recordings = read_as_trained(data, run)
    targets = recordings if predict is None else read_as_trained(predict, run)
    y = None if labels is None else labels_for(recordings, data, labels)
    names = [r.name for r in targets]
    Series([r.values for r in targets], None, model.cfg, names)  # refused before anything is fitted
    if probe is not None:
        prediction = _apply(probe, targets, model_folder, model)
    else:
        check_order(str(data), columns_of(recordings), targets)
        fitted = LabelProbe(model, pooling=pooling or "all", columns=columns_of(recordings))
        fitted.fit([r.values for r in recordings], y)
        log(_describe_fit(fitted))
        if out is None:
            return None
        prediction = fitted.predict([r.values for r in targets])
        fitted.save(out.with_suffix(".safetensors"))
        log(f"the fitted probe: {out.with_suffix('.safetensors')}")
    assert out is not None
    with out.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["series", "label", "margin"])
        for name, label, margin in zip(names, *prediction, strict=True):
            table.writerow([name, label, f"{margin:.4f}"])
    log(f"{len(names)} predictions: {out}")
    return prediction


def _check_use_of_probe(out: Path | None, predict: Path | None, pooling: str | None) -> None:
    if out is None:
        raise InputError("--probe needs -o: the .csv file for the predictions")
    if predict is not None:
        raise InputError("--predict goes with --labels; with --probe, DATA is predicted")
    if pooling is not None:
        raise InputError("--pooling goes with --labels; a fitted probe has its own")


def _apply(
    probe: Path, recordings: Sequence[Recording], model_folder: Path, model: PMT
) -> Prediction:
    """What a kept probe, or the classifier of a finetuned run, says of recordings."""
    series = [r.values for r in recordings]
    if not probe.is_dir():
        kept = LabelProbe.load(probe, model)
        check_order(str(probe), kept.columns, recordings)
        return kept.predict(series)
    classifier = SequenceClassifier.load(probe, device=next(model.parameters()).device)
    if weights_sha256(classifier.encoder) != weights_sha256(model):
        raise InputError(f"{model_folder} is not the network of {probe}; give its model/")
    return Prediction.of_scores(np.array(classifier.classes), classifier.scores(series))


def _describe_fit(probe: LabelProbe) -> str:
    accuracy = probe.estimate()
    fitted = f"{len(probe.y)} labelled series, {len(probe.svm.classes)} classes"
    if accuracy is None:
        return f"{fitted}; a class has only one label, so the accuracy cannot be estimated"
    spread = f"sd {100 * accuracy.std(ddof=1):.1f}"
    return (
        f"{fitted}; accuracy {100 * accuracy.mean():.1f} % ({spread}), "
        f"each of {len(accuracy)} folds predicted from the others"
    )
