"""PMT with scikit-learn's manners: collections in, features, collections or classes out.

A fitted estimator is kept as a folder: its model and, in a file beside it, a note of its
parameters. The note is written last and holds the sha256 of the file it belongs to, so that all
are of one save.

Shapes: R series, C channels, L samples, K tokens, N windows, n slots, D width, Y classes.
"""

import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
)
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_is_fitted, column_or_1d, validate_data
from torch import Tensor

from progmem import artifact, legacy
from progmem.artifact import Artifact, noted
from progmem.config import (
    FinetuneConfig,
    ModelConfig,
    RunConfig,
    is_whole,
    read_config,
    read_finetune_config,
)
from progmem.data.labels import LabelledRecordings, check_labels, drop_missing_labels
from progmem.data.reader import Recording
from progmem.data.tables import as_collection
from progmem.errors import ArtifactError, ConfigError, InputError, ModelFolderError
from progmem.features import features_in_all
from progmem.files import UNFINISHED
from progmem.geometry import count_tokens, count_windows
from progmem.model import saving
from progmem.model.encode import consecutive
from progmem.model.pmt import PMT, samples_at_once
from progmem.pooling import check_observed, pool
from progmem.training import classifier as sequence_classifier
from progmem.training.classifier import SequenceClassifier
from progmem.training.distributed import choose_device
from progmem.training.finetune import finetune
from progmem.training.pretrain import pretrain

LEVELS = ("all", "sequence", "tokens", "memory")
ONE_VECTOR = ("all", "sequence")  # a case; the other levels have a course of time


def check_level(level: Any, *, slots: int) -> None:
    """Refuse a level that is none, or that a model with ``slots`` does not have."""
    if level not in LEVELS:
        raise ConfigError(f"level must be one of {', '.join(LEVELS)}, got {level!r}")
    if level == "memory" and slots == 0:
        raise ConfigError("level memory needs a model with memory, and model.slots is 0")


def at_level(model: PMT, series: Sequence[np.ndarray], level: str) -> list[np.ndarray]:
    """Each of the series (L_i, C) as one vector, (D, K_i) or (n D, N_i), float32, NaN: missing."""
    if level in ONE_VECTOR:
        return list(pool(model, list(series), [level])[level])
    z = model.encode(list(series))
    values, mask = z.tokens, z.token_mask
    counts = [count_tokens(model.cfg, len(one)) for one in series]
    if level == "memory":
        assert z.memory is not None and z.window_mask is not None
        values, mask = z.memory.flatten(2), z.window_mask  # (R, N, n D)
        counts = [count_windows(model.cfg, count) for count in counts]
    values = values.float().masked_fill(~mask[..., None], torch.nan).transpose(1, 2)
    return [one[:, :count].numpy() for one, count in zip(values, counts, strict=True)]


SETTINGS = {  # parameter -> the setting of a run it stands for
    "size": "model.size",
    "epochs": "train.epochs",
    "steps": "train.steps",
    "device": "train.device",
    "batch_size": "train.batch_size",
    "lr": "train.lr",
    "views": "views.preset",
    "seed": "train.seed",
}
_TRAINING = threading.Lock()  # torch's random numbers are drawn from one state for all threads


class PMTEncoder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]  # no types in sklearn
    """Trains a PMT without labels, then turns series into one vector each, or tokens, or memory.

    X is what `progmem.data.as_collection` takes: (cases, channels, time), (cases, time) for one
    channel, lists where lengths differ; NaN is missing. ``transform`` takes series of any length.

    Args:
        size: "tiny", "small", "base" (the paper's), or "auto": tiny on a CPU, small on a GPU.
        level: what ``transform`` gives: "all" (cases, 4 x width + 1024): the sequence vector joined
            with the maximum, the standard deviation and the share above the training median of
            each feature of the tokens, and with the detail below the tokens; "sequence" (cases,
            width), "tokens" (cases, width, tokens) or "memory" (cases, slots x width, windows), the
            last two with NaN where all is missing and as lists where lengths differ.
        epochs: passes over the data. If neither they nor ``steps`` are given, 400 steps on a CPU,
            1,600 on a GPU.
        steps: updates of the model, in place of ``epochs``.
        device: "auto" (a GPU if there is one), "cpu" or "cuda".
        batch_size: series of a training step; None: 32 on a CPU, 256 on a GPU.
        lr: the highest learning rate.
        views: how training distorts series: "hidden" (gently, with hidden spans that are
            predicted), or "gentle", "medium" or "strong" with nothing hidden.
        seed: the same seed, parameters and data give the same model, to the bit on a CPU.
        verbose: whether training shows its progress.
        settings: everything else as on the command line, e.g. ``("model.slots=4", "loss.pcl=0")``.

    Example:
        >>> import numpy as np, progmem
        >>> X = np.random.default_rng(0).normal(size=(12, 2, 60))  # (cases, channels, time)
        >>> encoder = progmem.PMTEncoder(size="tiny", steps=2).fit(X)
        >>> encoder.transform(X).shape
        (12, 1280)
        >>> tokens = encoder.transform(X, level="tokens")  # (cases, width, tokens)
        >>> tokens.shape[:2]
        (12, 64)
    """

    model_: PMT
    channels_: int
    channel_names_: list[str]  # of a long table, which may come in another order later
    n_features_in_: int  # columns of an X of two dimensions, channels of any other

    def __init__(
        self,
        size: str = "auto",
        level: str = "all",
        epochs: int | None = None,
        steps: int | None = None,
        device: str = "auto",
        batch_size: int | None = None,
        lr: float = 1e-3,
        views: str = "hidden",
        seed: int = 0,
        verbose: bool = False,
        settings: tuple[str, ...] | None = None,
    ) -> None:
        self.size = size
        self.level = level
        self.epochs = epochs
        self.steps = steps
        self.device = device
        self.batch_size = batch_size
        self.lr = lr
        self.views = views
        self.seed = seed
        self.verbose = verbose
        self.settings = settings

    def fit(self, X: Any, y: Any = None) -> "PMTEncoder":
        """Train a model on the series of X; y is not looked at."""
        cfg = run_settings(self)
        check_level(self.level, slots=cfg.model.get("slots", ModelConfig.slots))
        recordings = recordings_of(cases_of(self, X, fitting=True), cfg)
        with training() as folder:
            log = print if self.verbose else None
            self.model_ = pretrain(recordings, folder / "run", cfg, log=log)
        self.channels_ = self.model_.cfg.channels
        return self

    def transform(self, X: Any, level: str | None = None) -> Any:
        """The series of X at ``level``, or at the level the encoder was made for; float32."""
        check_is_fitted(self, "model_")
        level = self.level if level is None else level
        check_level(level, slots=self.model_.cfg.slots)
        if level == "all" and self.model_.feature_stats.values is None:
            raise ConfigError(
                "this encoder has no feature statistics, which level all needs (it was trained by "
                "an earlier version); fit it again, or give level='sequence'"
            )
        cases = cases_of(self, X, fitting=False)
        model = self.model_.to(choose_device(run_settings(self)))
        parts: list[np.ndarray] = []
        at_once = samples_at_once(model.tokenizer.conv.weight, model.cfg)
        for some in consecutive([len(values) for values in cases], at_once):
            try:
                parts += at_level(model, [cases[i] for i in some], level)
            except InputError as error:  # it counts from the first of these
                raise InputError(f"cases {some[0]} to {some[-1]}: {error}") from error
        equal = len({len(values) for values in cases}) == 1
        return np.stack(parts) if equal or level in ONE_VECTOR else parts

    @property
    def _n_features_out(self) -> int:
        """Columns of what ``transform`` gives, which scikit-learn names after the class."""
        cfg = self.model_.cfg
        return {"all": features_in_all(cfg.dim), "memory": cfg.slots * cfg.dim}.get(
            self.level, cfg.dim
        )

    def save(self, folder: str | Path) -> None:
        """Write the model and the parameters, without pickle; `load` reads them back."""
        check_is_fitted(self, "model_")
        run_settings(self)
        folder = Path(folder)
        check_folder(folder, ("model", ENCODER_FILE, legacy.ENCODER_NOTE), "an encoder")
        note = note_of(self) | {"model": saving.save(self.model_, folder / "model")}
        artifact.write(folder / ENCODER_FILE, "encoder", {}, note)
        (folder / legacy.ENCODER_NOTE).unlink(missing_ok=True)  # it no longer counts

    @classmethod
    def load(cls, folder: str | Path) -> "PMTEncoder":
        """The fitted encoder that ``save`` wrote, its files checked."""
        folder = Path(folder)
        path, where = folder / ENCODER_FILE, f"{folder} is not an encoder this version can read"
        try:
            found = artifact.read(path, "encoder") if path.exists() else legacy.read_encoder(folder)
            if found is None:
                raise ModelFolderError(
                    f"{folder} is not the folder of a saved encoder: it has no {ENCODER_FILE}"
                )
            model = saving.read(folder / "model")
            if found.note.get("model") != model.sha256:
                raise ModelFolderError(
                    f"{folder}: model/ and {ENCODER_FILE} are not of one save; save again"
                )
            encoder = from_note(cls, found, where)
        except ArtifactError as error:
            raise ModelFolderError(str(error)) from error
        encoder.model_ = saving.build(model, folder / "model")
        encoder.channels_ = encoder.model_.cfg.channels
        return encoder

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.three_d_array = True
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags


class PMTClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # no types in sklearn
    """Classes of series, learnt from the labels that are known and from all series.

    A PMT is trained on all of X without labels, then with a linear head on the series whose label
    is known. X is as `PMTEncoder` takes it; y has one label a case, None, NaN or "" where it is
    not known.

    Args:
        size: "tiny", "small", "base" (the paper's), or "auto": tiny on a CPU, small on a GPU.
        epochs: passes over all series without labels. If neither they nor ``steps`` are given,
            400 steps on a CPU, 1,600 on a GPU.
        steps: updates of the model without labels, in place of ``epochs``.
        label_epochs: passes over the labelled series.
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
        >>> classifier = progmem.PMTClassifier(size="tiny", steps=2, label_epochs=20).fit(X, y)
        >>> classifier.predict(X[12:])
        array([0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1])
        >>> classifier.predict_proba(X).shape
        (24, 2)
    """

    network_: SequenceClassifier
    classes_: np.ndarray  # (Y,)
    channels_: int
    channel_names_: list[str]  # of a long table, which may come in another order later
    n_features_in_: int  # columns of an X of two dimensions, channels of any other

    def __init__(
        self,
        size: str = "auto",
        epochs: int | None = None,
        steps: int | None = None,
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
        cfg, label_cfg = run_settings(self), label_settings(self)
        if y is None:
            raise InputError("PMTClassifier requires y to be passed, but the target y is None")
        cases = cases_of(self, X, fitting=True)
        recordings = recordings_of(cases, cfg)
        if getattr(y, "ndim", 1) == 2:
            y = column_or_1d(y, warn=True)  # a table of one column, as everywhere in scikit-learn
        known, labels = drop_missing_labels(y)
        if len(known) != len(cases):
            raise InputError(f"y has {len(known)} labels, X holds {len(cases)} series")
        check_classification_targets(labels)
        check_labels(labels, len(labels))
        check_observed(cases)
        classes, numbers = np.unique(labels, return_inverse=True)
        labelled = LabelledRecordings(
            [one for one, there in zip(recordings, known, strict=True) if there],
            numbers,
            tuple(map(str, classes)),
        )
        with training() as folder:
            log = print if self.verbose else None
            run = folder / "run"
            pretrain(recordings, run, cfg, log=log)
            tuned = finetune(labelled, folder / "tuned", label_cfg, pretrained=run, log=log)
        self.network_, self.classes_ = tuned.classifier, classes
        self.channels_ = self.network_.encoder.cfg.channels
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """How likely each class of ``classes_`` is for each series of X, (cases, classes)."""
        check_is_fitted(self, "network_")
        cases = cases_of(self, X, fitting=False)
        network = self.network_.to(choose_device(run_settings(self)))
        scores = network.scores(cases)  # (R, Y)
        likely = np.exp(scores - scores.max(1, keepdims=True))
        return likely / likely.sum(1, keepdims=True)

    def predict(self, X: Any) -> np.ndarray:
        """The likeliest class of each series of X, (cases,)."""
        likely = self.predict_proba(X)
        return self.classes_[likely.argmax(1)]

    def save(self, folder: str | Path) -> None:
        """Write the network and the parameters, without pickle; `load` reads them back."""
        check_is_fitted(self, "network_")
        run_settings(self)
        folder = Path(folder)
        ours = ("model", sequence_classifier.FILE, CLASSIFIER_FILE)
        check_folder(folder, ours, "a classifier")
        self.network_.save(folder)
        head = artifact.read(folder / sequence_classifier.FILE, "classifier head")
        note = note_of(self) | {"classes": self.classes_.tolist(), "head": head.sha256}
        artifact.write(folder / CLASSIFIER_FILE, "classifier", {}, note)

    @classmethod
    def load(cls, folder: str | Path) -> "PMTClassifier":
        """The fitted classifier that ``save`` or `progmem finetune` wrote, its files checked.

        Of a run of `progmem finetune` the classes are texts, and the parameters are the defaults.
        """
        folder = Path(folder)
        path, where = folder / CLASSIFIER_FILE, f"{folder} is not a classifier this version reads"
        network = SequenceClassifier.load(folder)
        if not path.exists():
            found = cls()
            found.classes_ = np.array(network.classes)
            found.n_features_in_ = network.encoder.cfg.channels
        else:
            try:
                kept = artifact.read(path, "classifier")
                head = artifact.read(folder / sequence_classifier.FILE, "classifier head")
                if kept.note.get("head") != head.sha256:
                    raise ArtifactError(
                        f"{folder}: {sequence_classifier.FILE} and {CLASSIFIER_FILE} are not of "
                        "one save; save again"
                    )
                classes = noted(kept.note, "classes", list, where, of=(str, int))
                if tuple(map(str, classes)) != network.classes:
                    raise ArtifactError(f"{where}: its classes are {str(classes)[:60]}")
                found = from_note(cls, kept, where)
            except ArtifactError as error:
                raise ModelFolderError(str(error)) from error
            found.classes_ = np.array(classes)
        found.network_, found.channels_ = network, network.encoder.cfg.channels
        return found

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.three_d_array = True
        return tags


Estimator = PMTEncoder | PMTClassifier


def cases_of(estimator: Estimator, X: Any, *, fitting: bool) -> list[np.ndarray]:
    """The series of X, each (L, C); what ``fit`` learns of their form is kept in ``estimator``."""
    long_table = getattr(getattr(X, "index", None), "nlevels", 1) > 1
    ours = long_table or isinstance(X, list | tuple | str | Path | Tensor | np.ma.MaskedArray)
    if not ours:  # arrays and wide tables are checked as everywhere in scikit-learn
        options = {"ensure_all_finite": "allow-nan", "allow_nd": True}
        columns = getattr(X, "shape", ())[1:2]
        if fitting or columns == (estimator.n_features_in_,):  # looks at the names of columns too
            X = validate_data(estimator, X, reset=fitting, **options)
        else:  # but series of another length are welcome
            X = check_array(X, **options, estimator=estimator, input_name="X")
    if long_table:
        X = _in_order(estimator, X, fitting=fitting)
    cases = [np.asarray(case).T for case in as_collection(X).x]
    channels = cases[0].shape[1]
    if fitting and ours:
        estimator.n_features_in_ = channels
        estimator.__dict__.pop("feature_names_in_", None)  # of an earlier fit, to a table
        if not long_table:
            estimator.__dict__.pop("channel_names_", None)
    if not fitting and channels != estimator.channels_:
        swapped = cases[0].shape[0] == estimator.channels_
        hint = "; X is (cases, channels, time): swap its last two axes?" if swapped else ""
        raise InputError(f"fitted on {estimator.channels_} channels, got {channels}{hint}")
    return cases


def _in_order(estimator: Estimator, table: Any, *, fitting: bool) -> Any:
    """A long table with its channels as they were in ``fit``."""
    if fitting:
        estimator.channel_names_ = list(table.columns)
    known = getattr(estimator, "channel_names_", None)
    if known is None or known == list(table.columns):
        return table
    if set(known) != set(table.columns):
        raise InputError(f"fitted on the channels {known}, got {list(table.columns)}")
    return table[known]


def recordings_of(cases: Sequence[np.ndarray], cfg: RunConfig) -> list[Recording]:
    """The cases as a run takes them, if there is something to train on."""
    if len(cases) == 1 and len(cases[0]) <= cfg.data.longest:
        raise InputError(
            "training needs at least 2 cases to tell apart, got n_samples=1 "
            f"of {len(cases[0])} time points"
        )
    longest = max(len(values) for values in cases)
    if cases[0].shape[1] > longest:
        warnings.warn(
            f"{cases[0].shape[1]} channels of at most {longest} time points: X is (cases, "
            "channels, time); swap its last two axes?",
            stacklevel=3,
        )
    return [Recording(f"case {i}", values) for i, values in enumerate(cases)]


@contextmanager
def training() -> Iterator[Path]:
    """A folder for runs that last no longer; torch's random numbers are afterwards as before."""
    gpus = list(range(torch.cuda.device_count()))
    with (
        tempfile.TemporaryDirectory(prefix="progmem-") as folder,
        _TRAINING,
        torch.random.fork_rng(devices=gpus),
    ):
        try:
            yield Path(folder)
        except SystemExit as stopped:
            if stopped.code == 130:  # Ctrl-C is a command's exit code only on a command line
                raise KeyboardInterrupt from stopped
            raise


# a run in a temporary folder is never taken up again: one checkpoint, at its end
ONE_CHECKPOINT = "train.checkpoint_every=1000000000"


def run_settings(estimator: Estimator) -> RunConfig:
    """The settings of the training without labels that an estimator's parameters ask for."""
    params = {name: getattr(estimator, key) for key, name in SETTINGS.items()}
    open_ones = ("train.epochs", "train.steps", "train.batch_size")  # None: decided by the run
    given = [f"{name}={v}" for name, v in params.items() if v is not None or name not in open_ones]
    more = check_settings(estimator.settings, SETTINGS)
    if isinstance(estimator, PMTClassifier):
        more = [text for text in more if not text.startswith("finetune.")]
    return read_config(None, [ONE_CHECKPOINT, *given, *more])


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


def check_settings(settings: Any, parameters: Mapping[str, str]) -> Sequence[str]:
    """What is given as ``settings``, if it is texts and none of them is a parameter's."""
    more = settings if settings is not None else ()
    if not isinstance(more, list | tuple) or not all(isinstance(text, str) for text in more):
        raise ConfigError(f"settings must be texts such as ('loss.pcl=0',), got {more!r}")
    for text in more:
        for parameter, name in parameters.items():
            if text.partition("=")[0] == name:
                raise ConfigError(f"{text!r} in settings is the parameter {parameter}; set that")
    return more


ENCODER_FILE = "encoder.safetensors"
CLASSIFIER_FILE = "classifier.safetensors"


def check_folder(folder: Path, ours: Sequence[str], what: str) -> None:
    """Refuse a folder that holds other files than ``ours``."""
    if folder.is_file():
        raise ModelFolderError(f"{folder} is a file; save {what} into a folder of its own")
    there = [path.name for path in folder.iterdir()] if folder.exists() else []
    if any(name not in ours and not name.startswith(UNFINISHED) for name in there):
        raise ModelFolderError(f"{folder} holds other files; save {what} into a folder of its own")


def note_of(estimator: Estimator) -> dict[str, Any]:
    """What is kept of an estimator beside its model."""
    return {
        "params": {name: _plain(value) for name, value in estimator.get_params().items()},
        "n_features_in": estimator.n_features_in_,
        "feature_names_in": list(getattr(estimator, "feature_names_in_", [])),
        "channel_names": list(getattr(estimator, "channel_names_", [])),
    }


Kept = TypeVar("Kept", PMTEncoder, PMTClassifier)


def from_note(kind: type[Kept], found: Artifact, where: str) -> Kept:
    """The estimator whose `note_of` is in ``found``, without its model."""
    params = legacy.encoder_params(noted(found.note, "params", dict, where))
    columns = noted(found.note, "n_features_in", int, where)
    names = noted(found.note, "feature_names_in", list, where, of=str)
    channels = noted(found.note, "channel_names", list, where, of=(str, int, float))
    try:
        if params.get("settings") is not None:
            params["settings"] = tuple(params["settings"])
        estimator = kind(**params)
    except TypeError as error:
        raise ArtifactError(f"{where}: {artifact.in_one_line(error)}") from error
    estimator.n_features_in_ = columns
    if names:
        estimator.feature_names_in_ = np.array(names, dtype=object)
    if channels:
        estimator.channel_names_ = channels
    return estimator


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value  # a search gives numpy's
