"""A user's own few labels: fit a machine on a frozen encoder, keep it, predict.

Shapes: B series, L samples, C channels.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from progmem.data.labels import check_labels, known_labels
from progmem.encoding import Encoder
from progmem.errors import InputError
from progmem.files import write_file
from progmem.model.saving import weights_sha256
from progmem.pooling import check_observed, pool
from progmem.probes.svm import FOLDS, HEADS, fit_svm

FORMAT = "progmem probe 2"


class Prediction(NamedTuple):
    """A label for each series, and how much nearer it was than the next."""

    label: np.ndarray  # (B,)
    margin: np.ndarray  # (B,), in units of the scores, a machine's decision values

    @classmethod
    def of_scores(cls, classes: np.ndarray, scores: np.ndarray) -> "Prediction":
        """The class of the highest score of each series, from (B, classes)."""
        two = np.sort(scores, axis=1)[:, -2:]
        return cls(classes[scores.argmax(1)], two[:, 1] - two[:, 0])


class LabelProbe:
    """Knows a user's classes from a few labelled series, by the features of a frozen encoder."""

    scaler: StandardScaler
    machine: SVC

    def __init__(
        self,
        encoder: Encoder,
        *,
        pooling: str = "sequence",
        head: str = "linear",
        columns: Sequence[str] = (),  # what the files of series call the channels
    ) -> None:
        if head not in HEADS:
            raise InputError(f"head must be one of {'; '.join(HEADS)}, got {head!r}")
        self.encoder, self.pooling, self.head = encoder, pooling, head
        self.columns = tuple(columns)

    def fit(self, x: Any, y: Any) -> "LabelProbe":
        """Learn from series (B, L, C), or a list of (L_i, C), and their labels.

        Where y is NaN or an empty text a series has no label; it still helps to scale features.
        """
        known, labels = known_labels(y)
        if len(known) != len(x):
            raise InputError(f"y has {len(known)} labels, x holds {len(x)} series")
        check_labels(labels, len(labels))
        features = self._features(x)
        self.scaler = StandardScaler().fit(features)
        self.features, self.y = self.scaler.transform(features[known]), labels
        self.machine = fit_svm(self.features, self.y, HEADS[self.head])
        return self

    def estimate(self) -> np.ndarray | None:
        """Accuracy on each fold of the labelled series when it was left out; None if too few.

        C is chosen anew without the fold: one chosen with it would know too much.
        """
        smallest = int(np.unique(self.y, return_counts=True)[1].min())
        if smallest < 2:
            return None
        folds = StratifiedKFold(min(FOLDS, smallest), shuffle=True, random_state=0)
        found = []
        for train, test in folds.split(self.features, self.y):
            machine = fit_svm(self.features[train], self.y[train], HEADS[self.head])
            found.append(machine.score(self.features[test], self.y[test]))
        return np.array(found)

    def predict(self, x: Any) -> Prediction:
        features = self.scaler.transform(self._features(x))
        values = self.machine.decision_function(features)
        if values.ndim == 1:  # two classes
            return Prediction(self.machine.predict(features), np.abs(values))
        return Prediction.of_scores(self.machine.classes_, values)

    def _features(self, x: Any) -> np.ndarray:
        check_observed(x)
        found = pool(self.encoder, x, [self.pooling])
        if self.pooling not in found:
            raise InputError(f"{self.pooling} needs an encoder with a memory; this one has none")
        return found[self.pooling]

    def save(self, path: Path) -> None:
        """Write the fitted probe, without pickle and without the encoder."""
        content = {
            "format": FORMAT, "encoder": fingerprint(self.encoder), "pooling": self.pooling,
            "head": self.head, "columns": list(self.columns), "scaler": self.scaler,
            "machine": self.machine,
        }  # fmt: skip
        import skops.io

        write_file(path, skops.io.dumps(content))

    @classmethod
    def load(cls, path: Path, encoder: Encoder) -> "LabelProbe":
        """The probe that ``save`` wrote, for the encoder it was fitted on."""
        import skops.io

        if not path.is_file() or not path.stat().st_size:
            raise InputError(f"there is no probe in {path}")
        try:
            data = path.read_bytes()
            strange = skops.io.get_untrusted_types(data=data)
            if strange:
                raise InputError(f"{path} holds {', '.join(strange)}, which no probe needs")
            content = skops.io.loads(data)
        except InputError:
            raise
        except Exception as error:  # whatever a file that is no probe sets off
            why = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise InputError(f"{path} cannot be read as a probe: {why}") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise InputError(f"{path} is not a probe this version can read")
        if content["encoder"] != fingerprint(encoder):
            raise InputError(f"{path} was fitted on the features of another model; fit it again")
        options = {name: content[name] for name in ("pooling", "head", "columns")}
        probe = cls(encoder, **options)
        probe.scaler, probe.machine = content["scaler"], content["machine"]
        return probe


def fingerprint(encoder: Encoder) -> str:
    """What tells an encoder from others: what was fitted on one is of no use to another."""
    return weights_sha256(encoder) if hasattr(encoder, "state_dict") else type(encoder).__name__
