"""PMTEncoder: PMT with scikit-learn's manners, and what it shares with `progmem.classifier`.

A fitted estimator is kept as a folder: its model and, in a file beside it, a note of its
parameters. The note is written last and holds the sha256 of the file it belongs to, so that all
are of one save.

Shapes: R series, C channels, L samples, K tokens, N windows, n slots, D width.
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
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
)
from sklearn.utils.validation import check_array, check_is_fitted, validate_data
from torch import Tensor

from progmem import artifact, legacy
from progmem.artifact import Artifact, noted
from progmem.baselines import method_of
from progmem.config import PMT as PMT_NAME
from progmem.config import ModelConfig, RunConfig, read_config
from progmem.data.arrays import CASES
from progmem.data.dates import COVARIATES
from progmem.data.options import BY_RULE, ReadOptions
from progmem.data.reader import read_with
from progmem.data.recordings import (
    ChannelInfo,
    Recording,
    Recordings,
    check_channels,
    with_covariates,
)
from progmem.data.tables import is_table, is_wide
from progmem.data.windows import cut_alone
from progmem.errors import ArtifactError, ConfigError, InputError, ModelFolderError
from progmem.features import features_in_all
from progmem.files import UNFINISHED, make_folder, read_whole, unfinished
from progmem.geometry import count_windows
from progmem.missing import already_told, tell_of_missing
from progmem.model import saving
from progmem.model.encode import consecutive
from progmem.model.pmt import PMT, SAMPLES_AT_ONCE, samples_at_once
from progmem.model.saving import AnyEncoder
from progmem.pooling import POOLINGS, check_observed, pool
from progmem.training.distributed import choose_device
from progmem.training.pretrain import pretrain

LEVELS = ("all", "sequence", "tokens", "memory")
ONE_VECTOR = ("all", "sequence")  # a case; the other levels have a course of time


def check_level(level: Any, *, slots: int) -> None:
    """Refuse a level that is none, or that a model with ``slots`` does not have."""
    if level not in LEVELS:
        raise ConfigError(f"level must be one of {', '.join(LEVELS)}, got {level!r}")
    if level == "memory" and slots == 0:
        raise ConfigError("level memory needs a model with memory, and model.slots is 0")


def check_pooling(pooling: Any, *, slots: int) -> None:
    """Refuse a pooling that is none, or that a model with ``slots`` does not have."""
    if pooling not in (None, *POOLINGS):
        raise ConfigError(f"pooling must be one of {', '.join(POOLINGS)}, got {pooling!r}")
    if pooling == "mean_memory" and slots == 0:
        raise ConfigError("mean_memory needs a model with memory, and model.slots is 0")


def at_level(model: AnyEncoder, series: Sequence[np.ndarray], level: str) -> list[np.ndarray]:
    """Each of the series (L_i, C) as one vector, (D, K_i) or (n D, N_i), float32, NaN: missing.

    ``level`` may also be one of `POOLINGS`.
    """
    if level in POOLINGS:
        return list(pool(model, list(series), [level])[level])
    z = model.encode(list(series))
    values, mask = z.tokens, z.token_mask
    counts = [len(model.token_spans(len(one))) for one in series]
    if level == "memory":
        assert z.memory is not None and z.window_mask is not None and isinstance(model, PMT)
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

    X is (cases, channels, time), (cases, time) for one channel, a list of (channels, time) where
    lengths differ, or anything that `progmem.read` takes or returns: a long table, one recording
    with dates, a file, a folder. NaN is missing. ``transform`` takes series of any length.

    Args:
        size: "tiny", "small", "base" (the paper's), or "auto": tiny on a CPU, small on a GPU.
        level: what ``transform`` gives: "all" (cases, 4 x width + 1024): the sequence vector joined
            with the maximum, the standard deviation and the share above the training median of
            each feature of the tokens, and with the detail below the tokens; "sequence" (cases,
            width), "tokens" (cases, width, tokens) or "memory" (cases, slots x width, windows), the
            last two with NaN where all is missing and as lists where lengths differ.
        encoder: the method that is trained: "pmt", or another of `progmem.baselines.ENCODERS`,
            such as "ts2vec", whose own settings are ``("encoder.dim=64",)``. ``size`` and ``views``
            are for PMT and the methods in its frame, such as "windowed". Width is then that of its
            vectors; it may have no memory.
        pooling: in place of a level, another vector a case: "mean_tokens", "max_tokens" or
            "mean_memory" (cases, width), or "sequence" or "all" as above.
        epochs: passes over the data. If neither they nor ``steps`` are given, 320 steps on a CPU,
            1,600 on a GPU.
        steps: updates of the model, in place of ``epochs``.
        device: "auto" (a GPU if there is one), "cpu" or "cuda".
        batch_size: series of a training step; None: 32 on a CPU, 256 on a GPU.
        lr: the highest learning rate; None: 1e-3, of other encoders as published.
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

    model_: AnyEncoder
    channels_: int
    channel_names_: list[str]  # of tables and files, which may have another order later
    n_features_in_: int  # columns of an X of two dimensions, channels of any other

    def __init__(
        self,
        size: str = "auto",
        level: str = "all",
        epochs: int | None = None,
        steps: int | None = None,
        device: str = "auto",
        batch_size: int | None = None,
        lr: float | None = None,
        views: str = "hidden",
        seed: int = 0,
        verbose: bool = False,
        settings: tuple[str, ...] | None = None,
        pooling: str | None = None,
        encoder: str = PMT_NAME,
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
        self.pooling = pooling
        self.encoder = encoder

    def fit(self, X: Any, y: Any = None) -> "PMTEncoder":
        """Train a model on the series of X; y is not looked at."""
        cfg = run_settings(self)
        slots = cfg.model.get("slots", ModelConfig.slots) if self.encoder == PMT_NAME else 0
        check_level(self.level, slots=slots)
        check_pooling(self.pooling, slots=slots)
        recordings = recordings_of(self, X, cfg)
        with training() as folder:
            log = print if self.verbose else None
            self.model_ = pretrain(recordings, folder / "run", cfg, log=log)
        self.channels_ = self.model_.cfg.channels
        return self

    def transform(self, X: Any, level: str | None = None) -> Any:
        """The series of X at ``level``, or as the encoder was made for; float32."""
        check_is_fitted(self, "model_")
        slots = self.model_.cfg.slots
        check_level(self.level if level is None else level, slots=slots)
        check_pooling(self.pooling, slots=slots)
        level = self._output if level is None else level
        if level == "all" and self.model_.feature_stats.values is None:
            raise ConfigError(
                "this encoder has no feature statistics, which level all needs (it was trained by "
                "an earlier version); fit it again, or give level='sequence'"
            )
        cases = cases_of(self, X, self.model_.info)
        if level in ONE_VECTOR:
            check_observed(cases)
        model = self.model_.to(choose_device(run_settings(self)))
        parts: list[np.ndarray] = []
        at_once = SAMPLES_AT_ONCE
        if isinstance(model, PMT):
            at_once = samples_at_once(model.tokenizer.conv.weight, model.cfg)
        for some in consecutive([len(values) for values in cases], at_once):
            try:
                with already_told():
                    parts += at_level(model, [cases[i] for i in some], level)
            except InputError as error:  # it counts from the first of these
                raise InputError(f"cases {some[0]} to {some[-1]}: {error}") from error
        equal = len({len(values) for values in cases}) == 1
        return np.stack(parts) if equal or level in POOLINGS else parts

    @property
    def _output(self) -> str:
        """A level or a pooling: what ``transform`` gives where nothing else is asked for."""
        return self.level if self.pooling is None else self.pooling

    @property
    def _n_features_out(self) -> int:
        """Columns of what ``transform`` gives, which scikit-learn names after the class."""
        cfg = self.model_.cfg
        return {"all": features_in_all(cfg.dim), "memory": cfg.slots * cfg.dim}.get(
            self._output, cfg.dim
        )

    def save(self, folder: str | Path) -> None:
        """Write the model and the parameters, without pickle; `load` reads them back."""
        check_is_fitted(self, "model_")
        run_settings(self)
        folder = Path(folder)
        check_folder(folder, ("model", ENCODER_FILE, legacy.ENCODER_NOTE), "an encoder")
        make_folder(folder.parent)
        with unfinished(folder) as new:
            note = note_of(self) | {"model": saving.save(self.model_, new / "model")}
            artifact.write(new / ENCODER_FILE, "encoder", {}, note)

    @classmethod
    def from_run(cls, run: str | Path) -> "PMTEncoder":
        """The encoder of a finished run of `progmem pretrain`; its parameters are the defaults."""
        run = Path(run)
        if not (run / "model").is_dir():
            raise ModelFolderError(f"{run} is not the folder of a finished run: it has no model/")
        return cls._of_model(run / "model")

    @classmethod
    def _of_model(cls, folder: Path) -> "PMTEncoder":
        encoder = cls()
        encoder.model_ = saving.load(folder)
        know_channels(encoder, encoder.model_)
        return encoder

    @classmethod
    def load(cls, folder: str | Path) -> "PMTEncoder":
        """The fitted encoder that ``save`` wrote, its files checked.

        The folder of a run, and a model's, such as RUN/model, are encoders too, whose parameters
        are the defaults.
        """
        folder = Path(folder)
        return read_whole(folder, lambda: cls._load(folder))

    @classmethod
    def _load(cls, folder: Path) -> "PMTEncoder":
        if (folder / "config.yaml").is_file():
            return cls.from_run(folder)
        if (folder / saving.FILE).is_file():
            return cls._of_model(folder)
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


Estimator = Any  # `PMTEncoder` or `PMTClassifier`, whose form of X is kept in them


def cases_of(estimator: Estimator, X: Any, info: ChannelInfo) -> list[np.ndarray]:
    """The series of X, each (L, C), as ``fit`` had them; ``info`` is what its model knows."""
    options = BY_RULE.or_missing(info.missing)
    found = _read(estimator, X, options, fitting=False, covariates=info.has_calendar)
    channels = found[0].values.shape[1]
    if channels != estimator.channels_:
        hint = ""
        if found[0].values.shape[0] == estimator.channels_:
            hint = "; X is (cases, channels, time): swap its last two axes?"
        elif info.has_calendar and channels + len(COVARIATES) == estimator.channels_:
            hint = f"; {len(COVARIATES)} of them come from dates: give series with dates"
        raise InputError(f"fitted on {estimator.channels_} channels, got {channels}{hint}")
    cases = [recording.values for recording in found]
    tell_of_missing(cases, case_names(cases), found[0].columns)
    return cases


def case_names(cases: Sequence[Any]) -> list[str]:
    """What series are called in what a user is told."""
    return [f"case {i}" for i in range(len(cases))]


def _read(
    estimator: Estimator, X: Any, options: ReadOptions = BY_RULE, *, fitting: bool, covariates: bool
) -> list[Recording]:
    """The recordings of X; what ``fit`` learns of their form is kept in ``estimator``."""
    table = is_table(X)
    others = (list, tuple, str, Path, Tensor, Recordings, np.ma.MaskedArray)
    ours = isinstance(X, others) or type(X) is dict or (table and not is_wide(X)) or _is_foreign(X)
    if not ours:
        # arrays and wide tables are checked as everywhere in scikit-learn
        # but for infinite values, which are refused below with their places
        checks = {"ensure_all_finite": False, "allow_nd": True}
        columns = getattr(X, "shape", ())[1:2]
        try:
            if fitting or columns == (estimator.n_features_in_,):  # looks at names of columns too
                X = validate_data(estimator, X, reset=fitting, **checks)
            else:  # but series of another length are welcome
                X = check_array(X, **checks, estimator=estimator, input_name="X")
        except ValueError as error:
            raise InputError(artifact.in_one_line(error)) from error
        found = read_with(X, options, axes=CASES)
    else:
        found = read_with(X, options, axes=CASES)
        if fitting:
            estimator.n_features_in_ = found[0].values.shape[1]
            estimator.__dict__.pop("feature_names_in_", None)  # of an earlier fit, to a table
    if fitting:
        estimator.__dict__.pop("channel_names_", None)
        if found.columns:
            estimator.channel_names_ = list(found.columns)
    recordings = [_in_order(estimator, recording) for recording in found]
    return with_covariates(recordings) if covariates else recordings


def _is_foreign(X: Any) -> bool:
    """Whether this is an xarray, or of polars and no table yet, which the reader says."""
    package = type(X).__module__.partition(".")[0]
    return package == "xarray" or (package == "polars" and type(X).__name__ == "LazyFrame")


def _in_order(estimator: Estimator, recording: Recording) -> Recording:
    """A recording with its channels as they were in ``fit``."""
    values, columns = np.asarray(recording.values), list(recording.columns)
    known = [str(name) for name in getattr(estimator, "channel_names_", [])]
    if not known or not columns or known == columns:
        return recording._replace(values=values)
    if set(known) != set(columns):
        raise InputError(f"fitted on the channels {known}, got {columns}")
    order = [columns.index(name) for name in known]
    units = tuple(recording.units[i] for i in order) if recording.units else ()
    return recording._replace(values=values[:, order], columns=tuple(known), units=units)


def recordings_of(estimator: Estimator, X: Any, cfg: RunConfig) -> list[Recording]:
    """The series of X as a run takes them, if there is something to train on."""
    found = _read(estimator, X, fitting=True, covariates=bool(cfg.data.covariates))
    check_channels(found, "; a recording without dates has no time covariates")
    cases, names = [one.values for one in found], case_names(found)
    tell_of_missing(cases, names, found[0].columns)
    recordings = [one._replace(name=name) for one, name in zip(found, names, strict=True)]
    alone = len(cases) == 1 and len(cases[0]) <= cfg.data.longest
    if alone and cut_alone(recordings, cfg.data) == cfg.data:
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
    return recordings


@contextmanager
def training() -> Iterator[Path]:
    """A folder for runs that last no longer; torch's random numbers are afterwards as before.

    Whoever trains has told of what is missing in the series, by the names that they were given.
    """
    gpus = list(range(torch.cuda.device_count()))
    with (
        tempfile.TemporaryDirectory(prefix="progmem-") as folder,
        _TRAINING,
        torch.random.fork_rng(devices=gpus),
        already_told(),
    ):
        try:
            yield Path(folder)
        except SystemExit as stopped:
            if stopped.code == 130:  # Ctrl-C is a command's exit code only on a command line
                raise KeyboardInterrupt from stopped
            raise


# a run in a temporary folder is never taken up again: one checkpoint, at its end
ONE_CHECKPOINT = "train.checkpoint_every=1000000000"


def run_settings(estimator: Estimator, *, others: tuple[str, ...] = ()) -> RunConfig:
    """The settings of the training without labels that an estimator's parameters ask for.

    Those that begin with one of ``others`` are left out.
    """
    params = {name: getattr(estimator, key) for key, name in SETTINGS.items()}
    if getattr(estimator, "encoder", PMT_NAME) != PMT_NAME:
        params = _of_another(estimator, params)
    open_ones = ("train.epochs", "train.steps", "train.batch_size", "train.lr")  # None: by the run
    given = [f"{name}={v}" for name, v in params.items() if v is not None or name not in open_ones]
    more = check_settings(estimator.settings, SETTINGS)
    more = [text for text in more if not text.startswith(others)]
    return read_config(None, [ONE_CHECKPOINT, *given, *more])


def _of_another(estimator: Estimator, params: dict[str, Any]) -> dict[str, Any]:
    """The settings of an encoder that is not PMT.

    Parameters of PMT must be at rest for one that is not in its frame.
    """
    name = {"encoder.name": estimator.encoder}
    if method_of(estimator.encoder).in_frame:
        return name | params
    for key, at_rest in (("size", "auto"), ("views", "hidden")):
        if getattr(estimator, key) != at_rest:
            raise ConfigError(
                f"{key} is a parameter of the encoder pmt; leave it out for {estimator.encoder}"
            )
    others = {name: v for name, v in params.items() if not name.startswith(("model.", "views."))}
    return name | others


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


def know_channels(estimator: Estimator, model: AnyEncoder) -> None:
    """Keep in ``estimator`` what a model of the command line was trained on, as ``fit`` would."""
    values = model.info.columns[len(COVARIATES) if model.info.has_calendar else 0 :]
    estimator.channels_ = estimator.n_features_in_ = model.cfg.channels
    if values:
        estimator.channel_names_ = list(values)


ENCODER_FILE = "encoder.safetensors"


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


Kept = TypeVar("Kept")


def from_note(kind: type[Kept], found: Artifact, where: str) -> Kept:
    """The estimator whose `note_of` is in ``found``, without its model."""
    params = legacy.encoder_params(noted(found.note, "params", dict, where))
    columns = noted(found.note, "n_features_in", int, where)
    names = noted(found.note, "feature_names_in", list, where, of=str)
    channels = noted(found.note, "channel_names", list, where, of=(str, int, float))
    try:
        if params.get("settings") is not None:
            params["settings"] = tuple(params["settings"])
        estimator: Any = kind(**params)
    except TypeError as error:
        raise ArtifactError(f"{where}: {artifact.in_one_line(error)}") from error
    estimator.n_features_in_ = columns
    if names:
        estimator.feature_names_in_ = np.array(names, dtype=object)
    if channels:
        estimator.channel_names_ = channels
    found_one: Kept = estimator
    return found_one


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value  # a search gives numpy's
