"""PMT with scikit-learn's manners: collections in, features or collections out.

A fitted encoder is kept as a folder: its model and, in a file beside it, a note of its parameters.
The note is written last and holds the sha256 of the model's file: both are of one save.

Shapes: R series, C channels, L samples, K tokens, N windows, n slots, D width.
"""

import tempfile
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
from progmem.artifact import noted
from progmem.config import ModelConfig, RunConfig, read_config
from progmem.data.reader import Recording
from progmem.data.tables import as_collection
from progmem.errors import ArtifactError, ConfigError, InputError, ModelFolderError
from progmem.files import UNFINISHED
from progmem.geometry import count_tokens, count_windows
from progmem.model import saving
from progmem.model.encode import consecutive
from progmem.model.pmt import PMT, samples_at_once
from progmem.training.distributed import choose_device
from progmem.training.pretrain import pretrain

LEVELS = ("sequence", "tokens", "memory")


def check_level(level: Any, *, slots: int) -> None:
    """Refuse a level that is none, or that a model with ``slots`` does not have."""
    if level not in LEVELS:
        raise ConfigError(f"level must be one of {', '.join(LEVELS)}, got {level!r}")
    if level == "memory" and slots == 0:
        raise ConfigError("level memory needs a model with memory, and model.slots is 0")


def at_level(model: PMT, series: Sequence[np.ndarray], level: str) -> list[np.ndarray]:
    """Each of the series (L_i, C) as (D,), (D, K_i) or (n D, N_i), float32, NaN for missing."""
    z = model.encode(list(series))
    if level == "sequence":
        return list(z.sequence.float().numpy())
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
    """Trains a PMT without labels, then turns series into its tokens, memory or sequence vectors.

    X is what `progmem.data.as_collection` takes: (cases, channels, time), (cases, time) for one
    channel, lists where lengths differ; NaN is missing. ``transform`` takes series of any length.

    Args:
        size: "tiny", "small" or "base", the paper's.
        level: what ``transform`` gives: "sequence" (cases, width), "tokens" (cases, width,
            tokens) or "memory" (cases, slots x width, windows), the last two with NaN where all is
            missing and as lists where lengths differ.
        epochs: passes over the data; 50 if neither they nor ``steps`` are given.
        steps: updates of the model, in place of ``epochs``.
        device: "auto" (a GPU if there is one), "cpu" or "cuda".
        batch_size: series of a training step.
        lr: the highest learning rate.
        views: how strongly training distorts series: "gentle", "medium" or "strong".
        seed: the same seed, parameters and data give the same model, to the bit on a CPU.
        verbose: whether training shows its progress.
        settings: everything else as on the command line, e.g. ``("model.slots=4", "loss.pcl=0")``.
    """

    model_: PMT
    channels_: int
    channel_names_: list[str]  # of a long table, which may come in another order later
    n_features_in_: int  # columns of an X of two dimensions, channels of any other

    def __init__(
        self,
        size: str = "small",
        level: str = "sequence",
        epochs: int | None = None,
        steps: int | None = None,
        device: str = "auto",
        batch_size: int = 256,
        lr: float = 1e-4,
        views: str = "medium",
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
        cases = self._cases(X, fitting=True)
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
                stacklevel=2,
            )
        recordings = [Recording(f"case {i}", values) for i, values in enumerate(cases)]
        gpus = list(range(torch.cuda.device_count()))
        with (
            tempfile.TemporaryDirectory(prefix="progmem-") as parent,
            _TRAINING,
            torch.random.fork_rng(devices=gpus),
        ):
            try:
                say = print if self.verbose else None
                self.model_ = pretrain(recordings, Path(parent) / "run", cfg, say=say)
            except SystemExit as stopped:
                if stopped.code == 130:  # Ctrl-C is a command's exit code only on a command line
                    raise KeyboardInterrupt from stopped
                raise
        self.channels_ = self.model_.cfg.channels
        return self

    def transform(self, X: Any, level: str | None = None) -> Any:
        """The series of X at ``level``, or at the level the encoder was made for; float32."""
        check_is_fitted(self, "model_")
        level = self.level if level is None else level
        check_level(level, slots=self.model_.cfg.slots)
        cases = self._cases(X, fitting=False)
        model = self.model_.to(choose_device(run_settings(self)))
        parts: list[np.ndarray] = []
        at_once = samples_at_once(model.tokenizer.conv.weight, model.cfg)
        for some in consecutive([len(values) for values in cases], at_once):
            try:
                parts += at_level(model, [cases[i] for i in some], level)
            except InputError as error:  # it counts from the first of these
                raise InputError(f"cases {some[0]} to {some[-1]}: {error}") from error
        equal = len({len(values) for values in cases}) == 1
        return np.stack(parts) if equal or level == "sequence" else parts

    def _cases(self, X: Any, *, fitting: bool) -> list[np.ndarray]:
        """The series of X, each (L, C)."""
        long_table = getattr(getattr(X, "index", None), "nlevels", 1) > 1
        ours = long_table or isinstance(X, list | tuple | str | Path | Tensor | np.ma.MaskedArray)
        if not ours:  # arrays and wide tables are checked as everywhere in scikit-learn
            options = {"ensure_all_finite": "allow-nan", "allow_nd": True}
            columns = getattr(X, "shape", ())[1:2]
            if fitting or columns == (self.n_features_in_,):  # looks at the names of columns too
                X = validate_data(self, X, reset=fitting, **options)
            else:  # but series of another length are welcome
                X = check_array(X, **options, estimator=self, input_name="X")
        if long_table:
            X = self._in_order(X, fitting=fitting)
        cases = [np.asarray(case).T for case in as_collection(X).x]
        if fitting and ours:
            self.n_features_in_ = cases[0].shape[1]
            self.__dict__.pop("feature_names_in_", None)  # of an earlier fit, to a table
            if not long_table:
                self.__dict__.pop("channel_names_", None)
        if not fitting and cases[0].shape[1] != self.channels_:
            swapped = cases[0].shape[0] == self.channels_
            hint = "; X is (cases, channels, time): swap its last two axes?" if swapped else ""
            raise InputError(f"fitted on {self.channels_} channels, got {cases[0].shape[1]}{hint}")
        return cases

    def _in_order(self, table: Any, *, fitting: bool) -> Any:
        """A long table with its channels as they were in ``fit``."""
        if fitting:
            self.channel_names_ = list(table.columns)
        known = getattr(self, "channel_names_", None)
        if known is None or known == list(table.columns):
            return table
        if set(known) != set(table.columns):
            raise InputError(f"fitted on the channels {known}, got {list(table.columns)}")
        return table[known]

    @property
    def _n_features_out(self) -> int:
        """Columns of the sequence level, which scikit-learn names after the class."""
        return self.model_.cfg.dim

    def save(self, folder: str | Path) -> None:
        """Write the model and the parameters, without pickle; `load` reads them back."""
        check_is_fitted(self, "model_")
        run_settings(self)
        _save(self, Path(folder))

    @classmethod
    def load(cls, folder: str | Path) -> "PMTEncoder":
        """The fitted encoder that ``save`` wrote, its files checked."""
        return _load(Path(folder), cls)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.three_d_array = True
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags


def run_settings(encoder: PMTEncoder) -> RunConfig:
    """The settings of the training run that the parameters of ``encoder`` ask for."""
    more = encoder.settings if encoder.settings is not None else ()
    if not isinstance(more, list | tuple) or not all(isinstance(text, str) for text in more):
        raise ConfigError(f"settings must be texts such as ('loss.pcl=0',), got {more!r}")
    for text in more:
        for parameter, name in SETTINGS.items():
            if text.partition("=")[0] == name:
                raise ConfigError(f"{text!r} in settings is the parameter {parameter}; set that")
    params = {name: getattr(encoder, key) for key, name in SETTINGS.items()}
    either = ("train.epochs", "train.steps")  # None: it is the other, or neither, that is given
    given = [f"{name}={v}" for name, v in params.items() if v is not None or name not in either]
    # a run in a temporary folder is never taken up again: one checkpoint, at its end
    return read_config(None, ["train.checkpoint_every=1000000000", *given, *more])


FILE = "encoder.safetensors"
_OURS = ("model", FILE, legacy.ENCODER_NOTE)


def _save(encoder: "PMTEncoder", folder: Path) -> None:
    """Write ``encoder`` into ``folder``, over one that was there before."""
    if folder.is_file():
        raise ModelFolderError(f"{folder} is a file; save an encoder into a folder of its own")
    there = [path.name for path in folder.iterdir()] if folder.exists() else []
    if any(name not in _OURS and not name.startswith(UNFINISHED) for name in there):
        raise ModelFolderError(
            f"{folder} holds other files; save an encoder into a folder of its own"
        )
    sha256 = saving.save(encoder.model_, folder / "model")
    note = {
        "params": {name: _plain(value) for name, value in encoder.get_params().items()},
        "n_features_in": encoder.n_features_in_,
        "feature_names_in": list(getattr(encoder, "feature_names_in_", [])),
        "channel_names": list(getattr(encoder, "channel_names_", [])),
        "model": sha256,
    }
    artifact.write(folder / FILE, "encoder", {}, note)
    (folder / legacy.ENCODER_NOTE).unlink(missing_ok=True)  # it no longer counts


def _load(folder: Path, kind: type["PMTEncoder"]) -> "PMTEncoder":
    """The encoder of class ``kind`` that ``save`` wrote."""
    path, where = folder / FILE, f"{folder} is not an encoder this version can read"
    try:
        found = artifact.read(path, "encoder") if path.exists() else legacy.read_encoder(folder)
        if found is None:
            raise ModelFolderError(
                f"{folder} is not the folder of a saved encoder: it has no {FILE}"
            )
        model = saving.read(folder / "model")
        if found.note.get("model") != model.sha256:
            raise ModelFolderError(f"{folder}: model/ and {FILE} are not of one save; save again")
        params = legacy.encoder_params(noted(found.note, "params", dict, where))
        columns = noted(found.note, "n_features_in", int, where)
        names = noted(found.note, "feature_names_in", list, where, of=str)
        channels = noted(found.note, "channel_names", list, where, of=(str, int, float))
    except ArtifactError as error:
        raise ModelFolderError(str(error)) from error
    try:
        if params.get("settings") is not None:
            params["settings"] = tuple(params["settings"])
        encoder = kind(**params)
    except TypeError as error:
        raise ModelFolderError(f"{where}: {artifact.in_one_line(error)}") from error
    encoder.model_ = saving.build(model, folder / "model")
    encoder.channels_, encoder.n_features_in_ = encoder.model_.cfg.channels, columns
    if names:
        encoder.feature_names_in_ = np.array(names, dtype=object)
    if channels:
        encoder.channel_names_ = channels
    return encoder


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value  # a search gives numpy's
