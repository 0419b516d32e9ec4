"""Settings of a training run: sections, yaml, ``section.key=value``."""

from collections.abc import Mapping, Sequence
from dataclasses import InitVar, asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from progmem.config import LONGEST_TRAINING_WINDOW, ModelConfig
from progmem.errors import ConfigError
from progmem.fields import (
    check_fields,
    check_mapping,
    check_names,
    choice,
    flag,
    names,
    number,
    plain,
    positive,
    whole,
)

PRESETS = {  # view strengths by name; which fits is a property of the data, see docs/LOG.md
    "gentle": {"scale": 0.1, "jitter_weak": 0.03, "jitter_strong": 0.03, "time_warp": 0.05,
               "magnitude_warp": 0.1, "crop": 0.1, "channel_dropout": 0.0},
    "medium": {"scale": 0.2, "jitter_weak": 0.05, "jitter_strong": 0.1, "time_warp": 0.2,
               "magnitude_warp": 0.2, "crop": 0.3, "channel_dropout": 0.1},
    "strong": {"scale": 0.3, "jitter_weak": 0.1, "jitter_strong": 0.3, "time_warp": 0.4,
               "magnitude_warp": 0.4, "crop": 0.5, "channel_dropout": 0.3},
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """How recordings become training rows."""

    longest: int = whole(LONGEST_TRAINING_WINDOW, 1, LONGEST_TRAINING_WINDOW + 1)
    window: int = whole(512, 1)  # samples of a row cut from a recording of more than ``longest``
    hop: int = whole(0, 0)  # samples between such rows; 0: the window's length
    sampling_rate: float | None = positive(None, optional=True)  # samples a second
    covariates: bool = flag(True)  # of dated series: what the calendar says, beside the values

    def __post_init__(self) -> None:
        check_fields(self, "data")
        if self.window > self.longest:
            raise ConfigError(
                f"data.window must be in 1..{self.longest} (data.longest), got {self.window}"
            )


@dataclass(frozen=True, kw_only=True)
class ViewConfig:
    """Strengths of the two views, in units of a channel's standard deviation; -1: by preset."""

    preset: InitVar[str] = "medium"
    scale: float = number(-1.0, 0)  # sd of a factor per channel, both views
    jitter_weak: float = number(-1.0, 0)  # sd of the noise on the weak view
    jitter_strong: float = number(-1.0, 0)  # and on the strong
    time_warp: float = number(-1.0, 0)  # sd of the log speed at the knots, strong view
    magnitude_warp: float = number(-1.0, 0)  # sd of a smooth factor at the knots, strong view
    crop: float = number(-1.0, 0, 1)  # largest share cut away before resizing, both views
    channel_dropout: float = number(-1.0, 0, 1)  # chance that a channel is silent, both views
    knots: int = whole(4, 2)
    align: str = choice("time", "index")  # positives: same stretch of time, or same position

    def __post_init__(self, preset: str) -> None:
        if preset not in PRESETS:
            raise ConfigError(f"views.preset must be one of {', '.join(PRESETS)}, got {preset!r}")
        for name, value in PRESETS[preset].items():
            if getattr(self, name) == -1.0:
                object.__setattr__(self, name, value)
        check_fields(self, "views")


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """Weights, temperatures and widths of the three objectives."""

    icl: float = number(1.0, 0)
    pcl: float = number(1.0, 0)
    hgcl: float = number(1.0, 0)
    icl_temperature: float = positive(0.2)
    pcl_temperature_start: float = positive(0.2)  # linear over the run
    pcl_temperature_end: float = positive(0.1)
    token_temperature: float = positive(0.2)
    window_temperature: float = positive(0.2)
    hgcl_form: str = choice("printed", "soft_positive")
    alpha: float = number(0.5, 0)  # HGCL: weight of its tokens
    beta: float = number(0.5, 0)  # and of its windows
    token_width: float = positive(0.25)  # sigma_p over W
    window_width: float = positive(0.5)  # sigma_w over W - S
    negatives: int = whole(512, 1)  # per sequence, PCL and HGCL

    def __post_init__(self) -> None:
        check_fields(self, "loss")
        if self.icl == self.pcl == self.hgcl == 0:
            raise ConfigError("loss.icl, loss.pcl and loss.hgcl are all 0; nothing would be learnt")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The optimiser, the length of the run and what is kept of it."""

    epochs: int = whole(50, 1)
    batch_size: int = whole(256, 2)  # series, over all processes
    parts: int = whole(1, 1)  # of a process' batch, held in memory one at a time; costs time
    lr: float = positive(1e-4)
    lr_end: float = number(1e-6, 0)
    warmup: float = number(0.05, 0, 1)  # share of the run
    weight_decay: float = number(0.05, 0)
    clip: float = positive(1.0)  # largest gradient norm
    seed: int = whole(0, 0)
    precision: str = choice("auto", "32", "bf16", "64")  # auto: bf16 on a GPU
    device: str = choice("auto", "cpu", "cuda")
    checkpoint_every: int = whole(100, 1)  # steps
    log_every: int = whole(10, 1)  # steps

    def __post_init__(self) -> None:
        check_fields(self, "train")
        if self.lr_end > self.lr:
            raise ConfigError(f"train.lr_end must be at most train.lr ({self.lr:g})")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """All settings of a run. ``model`` holds what is not to be derived from the data."""

    model: dict[str, Any] = field(default_factory=dict)
    data: DataConfig = field(default_factory=DataConfig)
    views: ViewConfig = field(default_factory=ViewConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    train: TrainConfig = field(default_factory=TrainConfig)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


_SECTIONS: dict[str, Any] = {
    "data": DataConfig, "views": ViewConfig, "loss": LossConfig, "train": TrainConfig
}  # fmt: skip


def run_config(values: Mapping[str, Any]) -> RunConfig:
    """The settings of a nested mapping, as yaml gives it; what is missing keeps its default."""
    check_names(values, ["model", *_SECTIONS])
    model = plain(check_mapping(values.get("model") or {}, "model"), ModelConfig)
    check_names(model, names(ModelConfig), "model")
    parts: dict[str, Any] = {"model": model}
    for name, cls in _SECTIONS.items():
        section = check_mapping(values.get(name) or {}, name)
        check_names(section, names(cls, "preset") if cls is ViewConfig else names(cls), name)
        parts[name] = cls(**plain(section, cls))
    return RunConfig(**parts)


def read_config(path: Path | None, overrides: Sequence[str] = ()) -> RunConfig:
    """The settings of a yaml file, if there is one, with ``section.key=value`` put over them."""
    return run_config(read_values(path, overrides))


def read_values(path: Path | None, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """What `read_config` turns into settings: values by section and name."""
    values: dict[str, Any] = {}
    if path is not None:
        try:
            values = yaml.safe_load(path.read_text()) or {}
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} is not yaml: {str(error).splitlines()[0]}") from error
        values = {k: dict(check_mapping(v, k)) for k, v in check_mapping(values, str(path)).items()}
    for override in overrides:
        key, equals, text = override.partition("=")
        section, dot, name = key.partition(".")
        if not (equals and dot and name):
            raise ConfigError(f"{override!r} must be section.key=value, e.g. train.epochs=20")
        try:
            values.setdefault(section, {})[name] = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"{override!r} has a value that is not yaml") from error
    return values
