"""PMTClassifier: classes of series from few labels or many, with scikit-learn's manners.

A fitted classifier is kept as a folder: its model, its head, and a note of its parameters, which
holds the sha256 of the head, so that all are of one save.

Shapes: R series, Y classes.
"""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.model_selection import train_test_split
from sklearn.utils.extmath import softmax
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from progmem import artifact
from progmem.artifact import noted
from progmem.config import FinetuneConfig, ModelConfig, is_whole, read_finetune_config
from progmem.data.labels import LabelledRecordings, check_labels, drop_missing_labels
from progmem.errors import ArtifactError, ConfigError, InputError, ModelFolderError
from progmem.estimators import (
    ONE_CHECKPOINT,
    SETTINGS,
    cases_of,
    check_folder,
    check_pooling,
    check_settings,
    from_note,
    know_channels,
    note_of,
    recordings_of,
    run_settings,
    training,
)
from progmem.files import make_folder, read_whole, unfinished
from progmem.missing import already_told
from progmem.model import saving
from progmem.pooling import check_observed
from progmem.probes.own_data import POOLING, LabelProbe
from progmem.provenance import digests, history_of, seen_in
from progmem.training import classifier as sequence_classifier
from progmem.training.classifier import SequenceClassifier
from progmem.training.distributed import choose_device
from progmem.training.finetune import finetune
from progmem.training.pretrain import pretrain

CLASSIFIER_FILE, PROBE_FILE = "classifier.safetensors", "probe.safetensors"
HEADS = {sequence_classifier.FILE: "classifier head", PROBE_FILE: "label probe"}  # file -> kind
OF_LABELS = ("finetune.",)  # settings of the training with labels
MANY_LABELS, MANY_OF_A_CLASS = 200, 10  # from which a training with labels is tried


class PMTClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # no types in sklearn
    """Classes of series, learnt from the labels that are known and from all series.

    A PMT is trained on all of X without labels. A logistic regression made for few labels then
    learns from the features of the series whose label is known. If labels are many, the network is
    trained on them too, on trial, and that is used where it is better on labels held out. X is as
    `PMTEncoder` takes it; y has one label a case, None, NaN or "" where it is not known.

    Args:
        size: "tiny", "small", "base" (the paper's), or "auto": tiny on a CPU, small on a GPU.
        epochs: passes over all series without labels. If neither they nor ``steps`` are given,
            320 steps on a CPU, 1,600 on a GPU.
        steps: updates of the model without labels, in place of ``epochs``.
        pooling: which features of a series are used: "all" (one vector from all scales),
            "sequence", "mean_tokens", "max_tokens" or "mean_memory".
        finetune: whether the network is trained on the labels: True, False, or "auto": if there
            are at least 200, 10 of each class, and it predicts labels held out better.
        label_epochs: passes over the labelled series in that training.
        device: "auto" (a GPU if there is one), "cpu" or "cuda".
        batch_size: series of a training step without labels; None: 32 on a CPU, 256 on a GPU.
        lr: the highest learning rate of the training without labels.
        views: how training distorts series: "hidden" (gently, with hidden spans that are
            predicted), or "gentle", "medium" or "strong" with nothing hidden.
        seed: the same seed, parameters and data give the same classifier, to the bit on a CPU.
        verbose: whether training shows its progress.
        settings: everything else as on the command line: of both trainings, or of one of them, as
            ``("loss.pcl=0", "finetune.only_head=true")``.

    Example:
        >>> import numpy as np, progmem
        >>> rng = np.random.default_rng(0)
        >>> rising = np.arange(24) % 2  # which of the cases go up
        >>> X = rng.normal(size=(24, 1, 40)) + 0.2 * np.outer(rising, range(40))[:, None]
        >>> y = np.where(np.arange(24) < 12, rising, np.nan)  # half of the labels are not known
        >>> classifier = progmem.PMTClassifier(size="tiny", steps=2).fit(X, y)
        >>> classifier.predict(X[12:])
        array([0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1])
        >>> classifier.predict_proba(X).shape
        (24, 2)
    """

    finetuned_: bool
    network_: SequenceClassifier  # if finetuned
    probe_: LabelProbe  # if not
    classes_: np.ndarray  # (Y,)
    channels_: int
    channel_names_: list[str]  # of a long table, which may come in another order later
    n_features_in_: int  # columns of an X of two dimensions, channels of any other

    def __init__(
        self,
        size: str = "auto",
        epochs: int | None = None,
        steps: int | None = None,
        pooling: str = POOLING,
        finetune: bool | str = "auto",
        label_epochs: int = 50,
        device: str = "auto",
        batch_size: int | None = None,
        lr: float = 1e-3,
        views: str = "hidden",
        seed: int = 0,
        verbose: bool = False,
        settings: tuple[str, ...] | None = None,
    ) -> None:
        self.size = size
        self.epochs = epochs
        self.steps = steps
        self.pooling = pooling
        self.finetune = finetune
        self.label_epochs = label_epochs
        self.device = device
        self.batch_size = batch_size
        self.lr = lr
        self.views = views
        self.seed = seed
        self.verbose = verbose
        self.settings = settings

    def fit(self, X: Any, y: Any) -> "PMTClassifier":
        """Train on all series of X without labels, then on those whose label in y is known."""
        cfg, label_cfg = run_settings(self, others=OF_LABELS), label_settings(self)
        check_pooling(self.pooling, slots=cfg.model.get("slots", ModelConfig.slots))
        if self.finetune not in (True, False, "auto"):
            raise ConfigError(f"finetune must be True, False or 'auto', got {self.finetune!r}")
        if y is None:
            raise InputError("PMTClassifier requires y to be passed, but the target y is None")
        recordings = recordings_of(self, X, cfg)
        cases = [recording.values for recording in recordings]
        if getattr(y, "ndim", 1) == 2:
            y = column_or_1d(y, warn=True)  # a table of one column, as everywhere in scikit-learn
        known, labels = drop_missing_labels(y)
        if len(known) != len(cases):
            raise InputError(f"y has {len(known)} labels, X holds {len(cases)} series")
        check_classification_targets(labels)
        check_labels(labels, len(labels))
        check_observed(cases)
        classes, numbers = np.unique(labels, return_inverse=True)
        own = [one for one, there in zip(recordings, known, strict=True) if there]
        labelled = LabelledRecordings(own, numbers, tuple(map(str, classes)))
        log = print if self.verbose else None
        with training() as folder:
            run = folder / "run"
            model = pretrain(recordings, run, cfg, log=log)
            probe = LabelProbe(model, pooling=self.pooling, log=log)
            tuned = None
            if self.finetune is True or (self.finetune == "auto" and are_many(numbers)):
                tuned = self._finetuned(labelled, cases, known, probe, folder, label_cfg)
        self.finetuned_ = tuned is not None
        for name in ("network_", "probe_"):
            self.__dict__.pop(name, None)  # of an earlier fit
        if tuned is not None:
            self.network_ = tuned
        else:
            self.probe_ = probe.fit(cases, y)
            probe.log = None
        self.classes_, self.channels_ = classes, model.cfg.channels
        return self

    def _finetuned(
        self,
        labelled: LabelledRecordings,
        cases: list[np.ndarray],
        known: np.ndarray,
        probe: LabelProbe,
        folder: Path,
        cfg: FinetuneConfig,
    ) -> SequenceClassifier | None:
        """The network trained on the labels; with "auto" None if a head on it frozen is as good.

        That is tried on a fifth of the labelled series, which neither learns from.
        """
        log = print if self.verbose else None

        def tuned_on(rows: np.ndarray, name: str) -> SequenceClassifier:
            some = labelled._replace(
                recordings=[labelled.recordings[i] for i in rows], y=labelled.y[rows]
            )
            return finetune(some, folder / name, cfg, pretrained=folder / "run", log=log).classifier

        everything = np.arange(len(labelled.y))
        if self.finetune is True:
            return tuned_on(everything, "tuned")
        rows, held_out = train_test_split(
            everything, test_size=0.2, random_state=self.seed, stratify=labelled.y
        )
        rows, held_out = np.sort(rows), np.sort(held_out)
        series, y = [labelled.recordings[i].values for i in held_out], labelled.y[held_out]
        learnt = np.full(len(cases), np.nan)
        learnt[np.flatnonzero(known)[rows]] = labelled.y[rows]
        ours = probe.fit(cases, learnt).predict(series).label == y
        theirs = tuned_on(rows, "tried").scores(series).argmax(1) == y
        gain = float(theirs.mean() - ours.mean())
        error = float(np.sqrt((theirs != ours).sum())) / len(y)
        better = gain > error
        if log is not None:
            log(
                f"{len(y)} labels held out: {100 * ours.mean():.1f} % predicted by the frozen "
                f"network's features, {100 * theirs.mean():.1f} % by the network trained on labels,"
                f" which is {'used' if better else 'not surely better, and not used'}"
            )
        return tuned_on(everything, "tuned") if better else None

    def predict_proba(self, X: Any) -> np.ndarray:
        """How likely each class of ``classes_`` is for each series of X, (cases, classes)."""
        check_is_fitted(self, "finetuned_")
        cases = cases_of(self, X, self._encoder().info)
        device = choose_device(run_settings(self, others=OF_LABELS))
        if self.finetuned_:
            return np.asarray(softmax(self.network_.to(device).scores(cases)))  # (R, Y)
        self._encoder().to(device)
        return self.probe_.head.predict_proba(self.probe_.scaled_features(cases))

    def _encoder(self) -> Any:
        """A PMT, or the other encoder that a run of `progmem finetune` trained."""
        return self.network_.encoder if self.finetuned_ else self.probe_.encoder

    def predict(self, X: Any) -> np.ndarray:
        """The likeliest class of each series of X, (cases,)."""
        likely = self.predict_proba(X)
        return self.classes_[likely.argmax(1)]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The accuracy on series and their labels; series whose labels were learnt are told of."""
        check_is_fitted(self, "finetuned_")
        head = self.network_ if self.finetuned_ else self.probe_
        found = digests(cases_of(self, X, self._encoder().info))
        known = np.isin(found, head.learnt) | seen_in(history_of(self._encoder()), found).labels
        if known.any():
            warnings.warn(
                f"the labels of {known.sum()} of these {len(known)} series were learnt, so their "
                "accuracy says nothing about others",
                stacklevel=2,
            )
        with already_told():
            return super().score(X, y, sample_weight)

    def save(self, folder: str | Path) -> None:
        """Write the network, the head and the parameters, without pickle; `load` reads them."""
        check_is_fitted(self, "finetuned_")
        run_settings(self, others=OF_LABELS)
        folder = Path(folder)
        heads = (sequence_classifier.FILE, PROBE_FILE)
        check_folder(folder, ("model", *heads, CLASSIFIER_FILE), "a classifier")
        head = heads[0] if self.finetuned_ else heads[1]
        make_folder(folder.parent)
        with unfinished(folder) as new:
            if self.finetuned_:
                self.network_.save(new)
            else:
                self._encoder().save(new / "model")
                self.probe_.save(new / head)
            kept = artifact.read(new / head, HEADS[head])
            note = note_of(self) | {"classes": self.classes_.tolist(), "head": kept.sha256}
            artifact.write(new / CLASSIFIER_FILE, "classifier", {}, note)

    @classmethod
    def load(cls, folder: str | Path) -> "PMTClassifier":
        """The fitted classifier that ``save`` or `progmem finetune` wrote, its files checked.

        Of a run of `progmem finetune` the classes are texts, and the parameters are the defaults.
        """
        folder = Path(folder)
        return read_whole(folder, lambda: cls._load(folder))

    @classmethod
    def _load(cls, folder: Path) -> "PMTClassifier":
        path, where = folder / CLASSIFIER_FILE, f"{folder} is not a classifier this version reads"
        if not path.exists():
            found = cls()
            found.network_ = SequenceClassifier.load(folder)
            found.classes_, found.finetuned_ = np.array(found.network_.classes), True
            know_channels(found, found._encoder())
            return found
        head = PROBE_FILE if (folder / PROBE_FILE).is_file() else sequence_classifier.FILE
        try:
            kept = artifact.read(path, "classifier")
            model = saving.load(folder / "model")
            beside = artifact.read(folder / head, HEADS[head])
            if kept.note.get("head") != beside.sha256:
                raise ArtifactError(
                    f"{folder}: {head} and {CLASSIFIER_FILE} are not of one save; save again"
                )
            classes = noted(kept.note, "classes", list, where, of=(str, int))
            found = from_note(cls, kept, where)
            found.finetuned_ = head != PROBE_FILE
            if found.finetuned_:
                found.network_ = SequenceClassifier.load(folder)
                known = list(found.network_.classes)
            else:
                found.probe_ = LabelProbe.load(folder / head, model)
                known = list(map(str, found.probe_.head.classes))
            if list(map(str, classes)) != known:
                raise ArtifactError(f"{where}: its classes are {str(classes)[:60]}")
        except (ArtifactError, InputError) as error:
            raise ModelFolderError(str(error)) from error
        found.classes_, found.channels_ = np.array(classes), model.cfg.channels
        return found

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.three_d_array = True
        return tags


def are_many(numbers: np.ndarray) -> bool:
    """Whether labels, as numbers of classes, are enough to train the network on some of them."""
    return len(numbers) >= MANY_LABELS and int(np.bincount(numbers).min()) >= MANY_OF_A_CLASS


def label_settings(estimator: PMTClassifier) -> FinetuneConfig:
    """The settings of the training with labels."""
    if not is_whole(estimator.label_epochs) or estimator.label_epochs < 1:
        raise ConfigError(
            f"label_epochs must be a whole number from 1 up, got {estimator.label_epochs!r}"
        )
    given = [f"{SETTINGS[key]}={getattr(estimator, key)}" for key in ("device", "views", "seed")]
    given.append(f"train.epochs={estimator.label_epochs}")
    others = ("model.", "loss.")  # the model is that of the training before
    settings = check_settings(estimator.settings, SETTINGS)
    more = [text for text in settings if not text.startswith(others)]
    return read_finetune_config(None, [ONE_CHECKPOINT, *given, *more])
