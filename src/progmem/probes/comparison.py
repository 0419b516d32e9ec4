"""Does pretraining pay? A trained encoder beside the untrained one, raw values and MiniRocket.

All are read by the same head, `fit_logistic`, and scored on the same series: each labelled series
is predicted from the others in folds, which are drawn several times, or series are held out.

Whether the difference of two accuracies tells anything is judged by twice its standard error. That
is the larger of two: one of the folds, by Nadeau and Bengio's correction for series that are used
again in every repeat, and one of the series, by Agresti and Min's, which is not 0 where two
encoders make the same few mistakes.

Shapes: n scored series, L samples, C channels, D features, R repeats.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold
from sklearn.preprocessing import StandardScaler

from progmem.data.labels import draw_labels
from progmem.errors import InputError
from progmem.probes.logistic import coordinates_of, fit_logistic
from progmem.progress import Advance
from progmem.provenance import Seen
from progmem.series import as_float64

FOLDS, MAX_REPEATS = 5, 5
MAX_SERIES = 1_000  # that are scored, in all repeats together
RAW_SAMPLES, ROCKET_SAMPLES = 200, 1_000  # the longest that series are resampled to
LEAST_ROCKET_SAMPLES = 9
WORTH_HAVING = 0.02  # of accuracy: a gain that is surely smaller does not pay
Z = 1.96  # of a 95 % interval


def raw_values(*parts: Sequence[Any]) -> list[np.ndarray]:
    """Features of the series of each part: their values, resampled to one length and flattened.

    The length is the median of the first part's, at most `RAW_SAMPLES`. Channels need no scaling
    here: every feature is standardised before the head.
    """
    length = _median_length(parts[0], RAW_SAMPLES)
    return [resample(part, length).reshape(len(part), -1) for part in parts]


def minirocket(*parts: Sequence[Any]) -> list[np.ndarray]:
    """aeon's MiniRocket of the series of each part, fitted on the first; resampled likewise."""
    length = _median_length(parts[0], ROCKET_SAMPLES)
    if length < LEAST_ROCKET_SAMPLES:
        raise InputError(f"series of {length} samples are too short for it")
    try:
        from aeon.transformations.collection.convolution_based import MiniRocket
    except ImportError as error:
        raise InputError("it needs aeon: pip install 'progmem[data]'") from error
    first, *others = (resample(part, length).astype(np.float32) for part in parts)
    transform, threads = MiniRocket(random_state=0), torch.get_num_threads()
    try:
        return [transform.fit_transform(first), *(transform.transform(part) for part in others)]
    finally:
        torch.set_num_threads(threads)  # numba sets those of OpenMP, which are torch's too


BASELINES: dict[str, Callable[..., list[np.ndarray]]] = {
    "raw values": raw_values,
    "MiniRocket": minirocket,
}


def baseline_features(
    *parts: Sequence[Any],
) -> tuple[dict[str, list[np.ndarray]], dict[str, str]]:
    """The features of all parts by each of `BASELINES`; and which are left out, and why."""
    found, left_out = {}, {}
    for name, features_of in BASELINES.items():
        try:
            found[name] = features_of(*parts)
        except InputError as error:
            left_out[name] = str(error)
    return found, left_out


def resample(series: Sequence[Any], length: int) -> np.ndarray:
    """Series of (L_i, C) as (n, C, length), linearly interpolated, also over gaps.

    Before its first and after its last observed value a channel is constant; one without any is 0.
    """
    resampled = []
    for one in series:
        values = as_float64(one).cpu().numpy()
        at = np.linspace(0, len(values) - 1, length)
        channels = []
        for channel in values.T:
            (there,) = np.nonzero(~np.isnan(channel))
            channels.append(
                np.interp(at, there, channel[there]) if len(there) else np.zeros(length)
            )
        resampled.append(channels)
    return np.array(resampled)


def _median_length(series: Sequence[Any], most: int) -> int:
    return min(most, int(np.median([len(one) for one in series])))


class Outcome(NamedTuple):
    """What one kind of features makes of the scored series."""

    correct: np.ndarray  # (R, n) bool
    log_loss: np.ndarray  # (R, n)

    @classmethod
    def of_probabilities(cls, likely: np.ndarray, number: np.ndarray) -> "Outcome":
        """From probabilities (n, Y) and the number of each series' class (n,)."""
        own = np.take_along_axis(likely, number[:, None], axis=1)[:, 0]
        return cls((likely.argmax(1) == number)[None], -np.log(own.clip(np.finfo(float).eps))[None])


class Comparison(NamedTuple):
    """Outcomes of several kinds of features on the same series; none where labels are too few."""

    outcomes: dict[str, Outcome]
    left_out: dict[str, str]  # features that could not be computed, and why
    independent: int  # scored series, or recordings that they were cut from
    how: str  # the series were scored, or why they were not
    folds: np.ndarray | None = None  # (R, n), the fold of each series; None if they were held out
    scored: int = 0  # series
    seen: int = 0  # of them the trained network has seen, with or without their labels
    labels_seen: int = 0  # of them it has learnt the labels: its scores say nothing about others

    def marked(self, seen: Seen) -> "Comparison":
        """With what the trained network knows of the scored series."""
        rows, labels = (int(known.sum()) for known in seen)
        return self._replace(scored=len(seen.rows), seen=rows, labels_seen=labels)

    def accuracy(self, name: str) -> float:
        return float(self.outcomes[name].correct.mean())

    def interval(self, name: str) -> tuple[float, float]:
        """Wilson's 95 % interval of the accuracy: wide with few labels, even if all are right."""
        p, n = self.accuracy(name), self.independent
        centre = (p + Z**2 / (2 * n)) / (1 + Z**2 / n)
        half = Z / (1 + Z**2 / n) * np.sqrt(p * (1 - p) / n + Z**2 / (4 * n**2))
        return max(0.0, centre - half), min(1.0, centre + half)

    def gain(self, name: str) -> tuple[float, float]:
        """By how much ``name`` is more accurate than the untrained encoder; its standard error."""
        ours, theirs = (self.outcomes[one].correct.astype(float) for one in (name, "untrained"))
        difference = ours - theirs  # (R, n)
        gain, n = float(difference.mean()), self.independent
        discordant = n * float(np.abs(difference).mean())
        of_series = np.sqrt(discordant + 1 - (n * gain) ** 2 / (n + 2)) / (n + 2)
        if self.folds is None:
            return gain, float(of_series)
        by_fold = np.array(
            [
                row[fold == k].mean()
                for row, fold in zip(difference, self.folds, strict=True)
                for k in np.unique(fold)
            ]
        )
        tested = len(self.folds) / len(by_fold)  # the share of the series that a fold has
        factor = 1 / len(by_fold) + tested / (1 - tested)
        return gain, float(max(of_series, np.sqrt(factor * by_fold.var(ddof=1))))

    def sentence(self) -> str:
        """Whether training pays: that without labels, or, if there was none, that with labels."""
        if not self.outcomes:
            return f"the accuracy and whether pretraining pays cannot be told here: {self.how}"
        if self.labels_seen:
            return (
                f"LABELS SEEN: the network was trained with the labels of {self.labels_seen} of "
                f"these {self.scored} series before, so its accuracy says nothing about others, "
                "and whether pretraining pays cannot be told"
            )
        if "trained" in self.outcomes:
            return does_it_pay(*self.gain("trained"))
        return does_it_pay(*self.gain("finetuned"), what="training on the labels")

    def lines(self) -> list[str]:
        """A table and the sentence, as text."""
        if not self.outcomes:
            return [self.sentence()]
        rows = [("features", "accuracy %", "95 % interval", "log loss")]
        for name, outcome in self.outcomes.items():
            low, high = (f"{100 * end:.1f}" for end in self.interval(name))
            accuracy, loss = 100 * self.accuracy(name), outcome.log_loss.mean()
            knows = self.labels_seen and name in ("trained", "finetuned")
            rows.append(
                (
                    f"{name}, LABELS SEEN" if knows else name,
                    f"{accuracy:.1f}",
                    f"{low} to {high}",
                    f"{loss:.2f}",
                )
            )
        one_head = "finetuned" not in self.outcomes
        width = max(14, *(len(row[0]) for row in rows))
        return [
            f"{self.how}, by one logistic regression{'' if one_head else ' where not finetuned'}:",
            *(f"  {row[0]:{width}}" + "".join(f"{cell:>16}" for cell in row[1:]) for row in rows),
            *(f"  {name} was left out: {why}" for name, why in self.left_out.items()),
            "raw values and MiniRocket see series resampled to one length, gaps interpolated",
            *([self._seen_line()] if self.seen and not self.labels_seen else []),
            self.sentence(),
        ]

    def _seen_line(self) -> str:
        return f"the trained network has seen {self.seen} of these {self.scored} series, unlabelled"

    def to_dict(self) -> dict[str, Any]:
        """What is kept in a result."""
        return {
            "how": self.how,
            "scored": self.scored,
            "seen_without_labels": self.seen - self.labels_seen,
            "labels_seen": self.labels_seen,
            "left_out": self.left_out,
            "scores": {
                name: {
                    "accuracy": self.accuracy(name),
                    "interval": list(self.interval(name)),
                    "log_loss": float(outcome.log_loss.mean()),
                }
                for name, outcome in self.outcomes.items()
            },
            "printed": self.lines(),
        }


def does_it_pay(gain: float, standard_error: float, *, what: str = "pretraining") -> str:
    """The sentence about a gain of accuracy over the untrained encoder."""
    if gain > 2 * standard_error:
        verdict = f"{what} pays here"
    elif gain + 2 * standard_error < WORTH_HAVING:
        verdict = f"{what} does not pay here"
    else:
        verdict = f"whether {what} pays cannot be told here"
    points = f"{100 * gain:+.1f} ± {200 * standard_error:.1f} points"
    return f"{verdict}: {points} of accuracy over the untrained encoder"


def draw_folds(y: np.ndarray, recordings: np.ndarray | None = None) -> np.ndarray | None:
    """The fold of each series (R, n), classes in equal shares, a recording's series together.

    None where a class has only one label, or one recording: nothing could be learnt of it without.
    """
    units = np.arange(len(y)) if recordings is None else recordings
    fewest = min(len(np.unique(units[y == label])) for label in np.unique(y))
    if fewest < 2:
        return None
    repeats = min(MAX_REPEATS, max(1, MAX_SERIES // len(y)))
    kind = StratifiedKFold if recordings is None else StratifiedGroupKFold
    drawn = []
    for repeat in range(repeats):
        fold = np.empty(len(y), dtype=int)
        split = kind(min(FOLDS, fewest), shuffle=True, random_state=repeat)
        for k, (_, test) in enumerate(split.split(y, y, recordings)):
            fold[test] = k
        # whole recordings cannot always be dealt out evenly
        if all(len(set(y[fold != k])) > 1 for k in set(fold)):
            drawn.append(fold)
    return np.array(drawn) if drawn else None


def compare_by_folds(
    features: Mapping[str, np.ndarray],
    y: np.ndarray,
    folds: np.ndarray,
    *,
    recordings: np.ndarray | None = None,
    left_out: Mapping[str, str] | None = None,
    advance: Advance | None = None,
) -> Comparison:
    """Each labelled series is predicted from those of other folds, by each of ``features``.

    ``advance`` is told how many are.
    """
    outcomes = {}
    for name, x in features.items():
        x, _ = coordinates_of(StandardScaler().fit_transform(x.astype(np.float64)))
        correct, loss = np.empty(folds.shape, dtype=bool), np.empty(folds.shape)
        for repeat, fold in enumerate(folds):
            for k in np.unique(fold):
                test = fold == k
                head = fit_logistic(x[~test], y[~test])
                correct[repeat, test] = head.predict(x[test]) == y[test]
                loss[repeat, test] = head.log_loss(x[test], y[test])
                if advance is not None:
                    advance(int(test.sum()))
        outcomes[name] = Outcome(correct, loss)
    independent = len(y) if recordings is None else len(np.unique(recordings))
    repeats, count = len(folds), len(np.unique(folds[0]))
    how = f"each label predicted from the others, in {count} folds drawn {repeats} times"
    return Comparison(outcomes, dict(left_out or {}), independent, how, folds)


def compare_held_out(
    features: Mapping[str, tuple[np.ndarray, np.ndarray]],
    y: np.ndarray,
    test_y: np.ndarray,
    *,
    left_out: Mapping[str, str] | None = None,
) -> Comparison:
    """Held-out series are predicted from labelled ones, by each pair of ``features``."""
    outcomes = {}
    for name, (train, test) in features.items():
        scaler = StandardScaler().fit(train.astype(np.float64))
        head, test = fit_logistic(scaler.transform(train), y), scaler.transform(test)
        correct, loss = head.predict(test) == test_y, head.log_loss(test, test_y)
        outcomes[name] = Outcome(correct[None], loss[None])
    how = f"{len(test_y)} series held out, predicted from {len(y)}"
    return Comparison(outcomes, dict(left_out or {}), len(test_y), how)


def compared_series(y: np.ndarray) -> np.ndarray:
    """Numbers of the series that are compared: all, or `MAX_SERIES` of them, drawn by class."""
    if len(y) <= MAX_SERIES:
        return np.arange(len(y))
    return np.sort(draw_labels(y, MAX_SERIES / len(y), seed=0))
