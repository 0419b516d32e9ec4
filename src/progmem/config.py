"""All settings: the shape of a model, of a training run, and of a training with labels.

Every setting is a field of a frozen dataclass, and says which values it takes. Settings come from
Python, from yaml, or as ``section.key=value``; an unknown name is answered with the nearest one.
What is not given is None in Python and null in yaml.

Letters: W window, S stride (both in tokens), O = ceil(W / S) copies of a token, K tokens.
"""

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, InitVar, asdict, dataclass, field, fields, replace
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from progmem import guard
from progmem.errors import ConfigError, InputError
from progmem.legacy import current_settings

if TYPE_CHECKING:
    from progmem.baselines import Method


def whole(default: Any, low: int, end: float = float("inf"), *, optional: bool = False) -> Any:
    """A field that takes whole numbers from ``low`` up, below ``end``; None if ``optional``."""
    allowed = f"a whole number from {low} up" + ("" if end == float("inf") else f", below {end}")
    return checked(default, lambda v: is_whole(v) and low <= v < end, allowed, optional=optional)


def number(default: Any, low: float, high: float = float("inf"), *, optional: bool = False) -> Any:
    """A field that takes numbers in [low, high); None if ``optional``."""
    allowed = f"a number from {low:g} up" if high == float("inf") else f"in [{low:g}, {high:g})"
    return checked(default, lambda v: is_real(v) and low <= v < high, allowed, optional=optional)


def positive(default: Any, *, optional: bool = False) -> Any:
    """A field that takes numbers above 0; None if ``optional``."""
    return checked(
        default,
        lambda v: is_real(v) and 0 < v < float("inf"),
        "a number above 0",
        optional=optional,
    )


def choice(*options: str) -> Any:
    """A field that takes one of ``options``, the first by default."""
    return checked(
        options[0], lambda v: isinstance(v, str) and v in options, f"one of {', '.join(options)}"
    )


def flag(default: bool | None, *, optional: bool = False) -> Any:
    return checked(default, lambda v: isinstance(v, bool), "true or false", optional=optional)


def is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_real(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def checked(
    default: Any, good: Callable[[Any], bool], allowed: str, *, optional: bool = False
) -> Any:
    """A field that takes what is ``good``, which is ``allowed`` in words; None if ``optional``."""
    metadata = {"good": good, "allowed": allowed}
    if optional:
        metadata = {"good": lambda v: v is None or good(v), "allowed": f"{allowed} or null"}
    return field(default=default, metadata=metadata)


def check_fields(config: Any, section: str) -> None:
    """Refuse a value that its field does not take."""
    for item in fields(config):
        value = getattr(config, item.name)
        if not item.metadata["good"](value):
            allowed = item.metadata["allowed"]
            raise ConfigError(f"{section}.{item.name} must be {allowed}, got {value!r}")
        if is_whole(value):
            object.__setattr__(config, item.name, int(value))  # numpy's are not for json
        elif is_real(value):
            object.__setattr__(config, item.name, float(value))


RENAMED = {"finetune.labels": "finetune.label_share", "finetune.encoder": "encoder.name"}


def check_names(given: Iterable[str], known: Iterable[str], section: str = "") -> None:
    """Refuse a name that is not known, with the nearest that is."""
    known, dot = list(known), f"{section}." if section else ""
    for name in given:
        now = RENAMED.get(f"{dot}{name}")
        if now is not None:
            raise ConfigError(f"the setting '{dot}{name}' is called '{now}' now")
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            hint = f"did you mean '{dot}{near[0]}'?" if near else f"known: {', '.join(known)}"
            raise ConfigError(f"unknown setting '{dot}{name}'; {hint}")


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that have a value: null is as good as leaving one out."""
    return {name: value for name, value in values.items() if value is not None}


def plain(values: Mapping[str, Any], cls: Any) -> dict[str, Any]:
    """Values as their fields mean them: yaml takes 1e-3 for a word and 32 for a number."""
    kinds = {item.name: item.type for item in fields(cls)}
    return {name: _plain(value, kinds.get(name)) for name, value in given(values).items()}


def _plain(value: Any, kind: Any) -> Any:
    if kind is str and is_real(value):
        return str(value)
    if kind in (float, float | None) and isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def names(cls: Any, *more: str) -> list[str]:
    """The settings a config class takes; ``more`` are those it turns into others."""
    return [*more, *(item.name for item in fields(cls))]


def check_mapping(value: Any, section: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{section} must be a mapping of settings, got {value!r}")
    return value


class EncoderConfig(Protocol):
    """What the settings of every encoder say."""

    @property
    def channels(self) -> int: ...
    @property
    def dim(self) -> int: ...  # D
    @property
    def patch(self) -> int: ...  # the fewest samples of a series
    @property
    def slots(self) -> int: ...  # of a window's memory; 0 without memory
    @property
    def normalise(self) -> str: ...  # channel, series or none


SIZES = {  # name -> dim, heads, blocks
    "tiny": (64, 4, 2),
    "small": (128, 4, 3),
    "base": (320, 8, 6),
}
LONGEST_TRAINING_WINDOW = 2048  # samples; longer recordings are cut before training


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Shape of a PMT.

    ``size`` fills in ``dim``, ``heads`` and ``blocks`` where they are not given, and reads "custom"
    where they are not that size's.

    Example:
        >>> import progmem
        >>> cfg = progmem.ModelConfig(channels=9)
        >>> cfg.size, cfg.dim, cfg.heads, cfg.blocks
        ('small', 128, 4, 3)
        >>> cfg = progmem.ModelConfig.for_length(500, channels=9, size="tiny")
        >>> cfg.patch, cfg.patch_stride, cfg.window, cfg.stride
        (62, 8, 12, 6)
    """

    channels: int = whole(MISSING, 1)  # must be given
    size: str = choice("small", "tiny", "base", "custom")
    dim: int = whole(None, 2)
    heads: int = whole(None, 1)
    blocks: int = whole(None, 1)  # PMA blocks
    window: int = whole(16, 1)  # W, tokens per window
    stride: int = whole(8, 1)  # S, tokens between window starts; smaller than W means overlap
    slots: int = whole(2, 0)  # memory slots per window; 0 is a model without memory
    patch: int = whole(8, 1)  # samples per token
    patch_stride: int = whole(2, 1)  # samples between token starts
    encoder_layers: int = whole(2, 1)  # neighbourhood layers after the blocks
    readout: str = choice("carry", "block")  # the rows that become the memory
    gate_carry: bool = flag(True)  # mix the carried memory with the reset state before it is read
    windows: str = choice("cover", "floor")  # cover every token, or as the paper's tables count
    dropout: float = number(0.0, 0, 1)
    reset_seed: int = whole(0, 0, 2**63)  # draws the reset state, apart from every other weight
    normalise: str = choice("channel", "series", "none")  # by training statistics, by own, not
    mask_vector: bool = flag(False)  # is learnt, and stands for hidden samples
    predictor: bool = flag(False)  # decodes the samples of a token's patch

    def __post_init__(self) -> None:
        shape = ("dim", "heads", "blocks")
        if isinstance(self.size, str) and self.size in SIZES:
            for name, value in zip(shape, SIZES[self.size], strict=True):
                if getattr(self, name) is None:
                    object.__setattr__(self, name, value)
        check_fields(self, "model")
        if SIZES.get(self.size) != tuple(getattr(self, name) for name in shape):
            object.__setattr__(self, "size", "custom")
        if self.stride > self.window:
            raise ConfigError(
                f"model.stride must be in 1..{self.window} (model.window), got {self.stride}; "
                "a larger stride would skip tokens"
            )
        if self.patch_stride > self.patch:
            raise ConfigError(
                f"model.patch_stride must be in 1..{self.patch} (model.patch), "
                f"got {self.patch_stride}; a larger stride would skip samples"
            )
        if self.dim % (2 * self.heads):
            raise ConfigError(
                f"model.dim must be a multiple of 2 x model.heads ({2 * self.heads}), "
                f"got {self.dim}; rotary positions turn pairs of channels of a head"
            )

    @property
    def overlap(self) -> int:
        """O, the most windows a token can be in."""
        return -(-self.window // self.stride)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ModelConfig":
        """The config of a mapping, as json or yaml give it; an unknown key names its nearest."""
        check_names(check_mapping(values, "model"), names(cls), "model")
        values = given(values)
        if "channels" not in values:
            raise ConfigError("model.channels is missing; it is the number of values per sample")
        return cls(**values)

    @classmethod
    def for_length(cls, length: int, channels: int, **settings: Any) -> "ModelConfig":
        """Geometry for training windows of ``length`` samples.

        Patch 12.5 % of the length and patch stride 12.5 % of the patch lie on the plateau of the
        paper's tokenizer ablation; windows of about 20 % of the tokens with W = 2S exactly keep
        every token in at most two windows and a stream's latency at S tokens. What is given in
        ``settings`` stays as it is.
        """
        if not is_whole(length) or not 1 <= length <= LONGEST_TRAINING_WINDOW:
            raise ConfigError(
                f"length must be in 1..{LONGEST_TRAINING_WINDOW} samples, got {length!r}: that of "
                "a training window (in a run: data.window); a model then encodes any length"
            )
        settings = given(settings)
        patch = settings.get("patch", max(1, round(length / 8)))
        eighth = max(1, round(patch / 8)) if is_whole(patch) else 1
        patch_stride = settings.get("patch_stride", eighth)
        others = {k: v for k, v in settings.items() if k not in ("window", "stride")}
        others |= {"channels": channels, "patch": patch, "patch_stride": patch_stride}
        known = cls.from_dict(others)
        if known.patch > length:
            raise ConfigError(f"model.patch must be in 1..{length} (the length), got {patch}")
        tokens = (length - known.patch) // known.patch_stride + 1
        stride = settings.get("stride", max(1, round(tokens / 10)))
        window = settings.get("window", 2 * stride if is_whole(stride) else 1)
        geometry = {"patch": patch, "patch_stride": patch_stride, "window": window}
        geometry["stride"] = max(1, window // 2) if is_whole(window) else 1
        return cls.from_dict({"channels": channels, **geometry, **settings})

    def to_dict(self) -> dict[str, Any]:
        """All settings; of the parts that the paper's model does not have, those that are there."""
        values = asdict(self)
        return {k: v for k, v in values.items() if v or k not in ("mask_vector", "predictor")}


PRESETS = {  # view strengths by name: the default for all data, and three that hide nothing
    "hidden": {"scale": 0.1, "jitter_weak": 0.03, "jitter_strong": 0.03, "time_warp": 0.05,
               "magnitude_warp": 0.1, "crop": 0.3, "channel_dropout": 0.3, "hide": 0.5},
    "gentle": {"scale": 0.1, "jitter_weak": 0.03, "jitter_strong": 0.03, "time_warp": 0.05,
               "magnitude_warp": 0.1, "crop": 0.1, "channel_dropout": 0.0, "hide": 0.0},
    "medium": {"scale": 0.2, "jitter_weak": 0.05, "jitter_strong": 0.1, "time_warp": 0.2,
               "magnitude_warp": 0.2, "crop": 0.3, "channel_dropout": 0.1, "hide": 0.0},
    "strong": {"scale": 0.3, "jitter_weak": 0.1, "jitter_strong": 0.3, "time_warp": 0.4,
               "magnitude_warp": 0.4, "crop": 0.5, "channel_dropout": 0.3, "hide": 0.0},
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """How recordings become training rows."""

    longest: int = whole(LONGEST_TRAINING_WINDOW, 1, LONGEST_TRAINING_WINDOW + 1)
    window: int = whole(512, 1)  # samples of a row cut from a recording of more than ``longest``
    hop: int | None = whole(None, 1, optional=True)  # samples between such rows; None: the window
    sampling_rate: float | None = positive(None, optional=True)  # samples a second
    # of dated series: what the calendar says, beside the values; None: of sets to forecast only
    covariates: bool | None = flag(None, optional=True)

    def __post_init__(self) -> None:
        check_fields(self, "data")
        if self.window > self.longest:
            raise ConfigError(
                f"data.window must be in 1..{self.longest} (data.longest), got {self.window}"
            )


@dataclass(frozen=True, kw_only=True)
class ViewConfig:
    """Strengths of the two views, in units of a channel's standard deviation; None: by preset."""

    preset: InitVar[str] = "hidden"
    scale: float = number(None, 0)  # sd of a factor per channel, both views
    jitter_weak: float = number(None, 0)  # sd of the noise on the weak view
    jitter_strong: float = number(None, 0)  # and on the strong
    time_warp: float = number(None, 0)  # sd of the log speed at the knots, strong view
    magnitude_warp: float = number(None, 0)  # sd of a smooth factor at the knots, strong view
    crop: float = number(None, 0, 1)  # largest share cut away before resizing, both views
    channel_dropout: float = number(None, 0, 1)  # chance that a channel is silent, both views
    hide: float = number(None, 0, 1)  # largest share of a series that is hidden, both views
    knots: int = whole(4, 2)
    align: str = choice("time", "index")  # positives: same stretch of time, or same position

    def __post_init__(self, preset: str) -> None:
        if preset not in PRESETS:
            raise ConfigError(f"views.preset must be one of {', '.join(PRESETS)}, got {preset!r}")
        for name, value in PRESETS[preset].items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        check_fields(self, "views")


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """Weights, temperatures and widths of the objectives."""

    icl: float = number(1.0, 0)
    pcl: float | None = number(None, 0, optional=True)  # None: 0 where spans are hidden, else 1
    hgcl: float = number(1.0, 0)
    predict: float | None = number(None, 0, optional=True)  # None: 1 where spans are hidden
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
        if self.icl == self.pcl == self.hgcl == self.predict == 0:
            raise ConfigError(
                "loss.icl, loss.pcl, loss.hgcl and loss.predict are all 0; nothing would be learnt"
            )


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The optimiser, the length of the run and what is kept of it.

    A run takes ``epochs`` passes over the data or ``steps`` updates, whichever is given. What is
    None is decided when a run begins, by the device (`progmem.training.defaults`).
    """

    epochs: int | None = whole(None, 1, optional=True)
    steps: int | None = whole(None, 1, optional=True)
    batch_size: int | None = whole(None, 2, optional=True)  # series, over all processes
    parts: int = whole(1, 1)  # of a process' batch, held in memory one at a time; costs time
    lr: float = positive(1e-3)
    lr_end: float = number(1e-6, 0)
    warmup: float = number(0.05, 0, 1)  # share of the run
    weight_decay: float = number(0.05, 0)
    clip: float = positive(1.0)  # largest gradient norm
    seed: int = whole(0, 0, 2**32)  # as far as scikit-learn takes them
    precision: str = choice("auto", "32", "bf16", "64")  # auto: bf16 on a GPU
    device: str = choice("auto", "cpu", "cuda")
    checkpoint_every: int = whole(100, 1)  # steps
    log_every: int = whole(10, 1)  # steps

    def __post_init__(self) -> None:
        check_fields(self, "train")
        if self.epochs is not None and self.steps is not None:
            raise ConfigError(
                f"train.epochs is {self.epochs} and train.steps is {self.steps}; give one of them"
            )
        if self.lr_end > self.lr:
            raise ConfigError(f"train.lr_end must be at most train.lr ({self.lr:g})")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """All settings of a run. ``model`` holds what is not to be derived from the data.

    ``encoder`` is the name of the method that is trained and, of methods that are not set by
    ``model``, what is not the published setting.
    """

    encoder: dict[str, Any] = field(default_factory=lambda: {"name": PMT})
    model: dict[str, Any] = field(default_factory=dict)
    data: DataConfig = field(default_factory=DataConfig)
    views: ViewConfig = field(default_factory=ViewConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    train: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        # memories of two views with other spans hidden must not be drawn together: they would
        # learn to forget what only one of the views has seen
        pcl, predict, hides = self.loss.pcl, self.loss.predict, self.views.hide > 0
        pcl = float(not hides) if pcl is None else pcl
        predict = float(hides) if predict is None else predict
        object.__setattr__(self, "loss", replace(self.loss, pcl=pcl, predict=predict))
        if self.loss.predict and not self.views.hide:
            raise ConfigError(
                f"loss.predict is {self.loss.predict:g}, but views.hide is 0 and nothing is hidden"
            )

    def to_dict(self) -> dict[str, Any]:
        """All settings by section; of ``train`` those that are decided."""
        values = asdict(self)
        values = {**values, "train": given(values["train"])}
        name = self.encoder["name"]
        unused = () if name == PMT or _method(name).in_frame else FRAME
        return {name: section for name, section in values.items() if name not in unused}


_SECTIONS: dict[str, Any] = {
    "data": DataConfig, "views": ViewConfig, "loss": LossConfig, "train": TrainConfig
}  # fmt: skip


PMT = "pmt"  # the encoder where none is named
FRAME = ("model", "views", "loss")  # sections of PMT, and of what differs from it in one part


def _method(name: Any) -> "Method":
    """What the registry of encoders has under ``name``."""
    from progmem.baselines import method_of  # it imports this module, and is slow to load

    return method_of(name)


def _encoder_settings(values: Mapping[str, Any], *, labels: bool) -> dict[str, Any]:
    """The name and settings of the encoder; the sections that it does not have are refused."""
    given_ones = check_mapping(values.get("encoder") or {}, "encoder")
    name = given_ones.get("name", PMT)
    own = {key: value for key, value in given_ones.items() if key != "name"}
    if name == PMT and not own:
        return {"name": PMT}
    cls = _method(name).config
    if issubclass(cls, ModelConfig):
        for key in own.keys() & set(names(ModelConfig)):
            raise ConfigError(f"of the encoder {name}, 'encoder.{key}' is called 'model.{key}'")
        known = [key for key in names(cls) if key not in names(ModelConfig)]
    else:
        known = names(cls)
        for section in FRAME:
            if values.get(section) and not (labels and section == "views"):
                raise ConfigError(
                    f"the encoder {name} has no settings {section}.*; its own are encoder.*: "
                    f"{', '.join(known)}"
                )
    check_names(own, ["name", *known], "encoder")
    return {"name": name, **plain(own, cls)}


def _published(train: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What is given of the settings of a training; the rest is as published with the method."""
    published = dict(_method(name).training)
    if "epochs" in train or "steps" in train:
        published = {k: v for k, v in published.items() if k not in ("epochs", "steps")}
    if published.get("lr_end") is not None and published["lr_end"] == published.get("lr"):
        published["lr_end"] = train.get("lr", published["lr"])  # a rate that is constant stays so
    return {**published, **train}


def run_config(values: Mapping[str, Any], *, labels: bool = False) -> RunConfig:
    """The settings of a nested mapping, as yaml gives it; what is missing keeps its default.

    With ``labels`` they are of a training with labels.
    """
    check_names(values, ["encoder", "model", *_SECTIONS])
    encoder = _encoder_settings(values, labels=labels)
    model = plain(check_mapping(values.get("model") or {}, "model"), ModelConfig)
    check_names(model, names(ModelConfig), "model")
    if model.get("size") == "auto":
        del model["size"]
    parts: dict[str, Any] = {"encoder": encoder, "model": model}
    for name, cls in _SECTIONS.items():
        section = check_mapping(values.get(name) or {}, name)
        check_names(section, names(cls, "preset") if cls is ViewConfig else names(cls), name)
        section = plain(section, cls)
        if name == "train" and encoder["name"] != PMT and not labels:
            section = _published(section, encoder["name"])
        parts[name] = cls(**section)
    return RunConfig(**parts)


def read_config(path: Path | None, overrides: Sequence[str] = ()) -> RunConfig:
    """The settings of a yaml file, if there is one, with ``section.key=value`` put over them."""
    return run_config(read_values(path, overrides))


def read_values(path: Path | None, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """What `read_config` turns into settings: values by section and name."""
    values: dict[str, Any] = {}
    if path is not None:
        try:
            values = guard.load_yaml(path.read_bytes()) or {}
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise ConfigError(f"{path} is not yaml: {error}") from error
        values = current_settings(check_mapping(values, str(path)))
        values = {k: dict(check_mapping(v, k)) for k, v in values.items()}
    for override in overrides:
        key, equals, text = override.partition("=")
        section, dot, name = key.partition(".")
        if not (equals and dot and name):
            raise ConfigError(f"{override!r} must be section.key=value, e.g. train.epochs=20")
        try:
            values.setdefault(section, {})[name] = guard.load_yaml(text)
        except ValueError as error:
            raise ConfigError(f"{override!r} has a value that is not yaml") from error
    return values


SECTIONS = ("encoder", "model", "data", "views", "train")  # that both kinds of run have
TRAIN = {"batch_size": 64, "lr": 5e-4}  # where a label teaches, not a batch
LABEL_EPOCHS = 50  # of a training with labels that is given neither epochs nor steps


Amount = int | float  # of labels: a share of each class, or a number per class


def parse_amount(text: str) -> Amount:
    """``"5%"`` is a share of each class, ``"10"`` a number per class."""
    try:
        amount = float(text[:-1]) / 100 if text.endswith("%") else int(text)
    except ValueError:
        amount = 0
    if not amount > 0 or (text.endswith("%") and amount > 1):
        raise InputError(
            f"a label share must be a percentage such as 5% or a number per class, got {text!r}"
        )
    return amount


def is_amount(value: Any) -> bool:
    try:
        return isinstance(value, str) and (value == "all" or parse_amount(value) > 0)
    except InputError:
        return False


@dataclass(frozen=True, kw_only=True)
class LabelConfig:
    """Which labels are learnt from, and what learns."""

    only_head: bool = flag(False)  # the network stays as it is
    # how many of the labels are learnt from
    label_share: str = checked("all", is_amount, "all, a share such as 5%, or a number per class")
    label_seed: int = whole(0, 0)  # draws them, as for the few-label probe
    validation: float = number(0.0, 0, 1)  # share of the training rows that is scored, not learnt
    views: str = choice("none", "weak", "strong")  # what a row is shown as
    head_lr: float = positive(3e-3)  # peak learning rate of the head

    def __post_init__(self) -> None:
        check_fields(self, "finetune")


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig:
    """All settings of a training with labels."""

    run: RunConfig = field(default_factory=lambda: finetune_config({}).run)
    finetune: LabelConfig = field(default_factory=LabelConfig)

    def to_dict(self) -> dict[str, Any]:
        run = {**self.run.to_dict(), "views": asdict(self.run.views)}
        kept = {name: run[name] for name in SECTIONS if name in run}
        return {**kept, "finetune": asdict(self.finetune)}


def finetune_config(values: Mapping[str, Any]) -> FinetuneConfig:
    """The settings of a nested mapping, as yaml gives it; what is missing keeps its default."""
    check_names(values, [*SECTIONS, "finetune"])
    own = check_mapping(values.get("finetune") or {}, "finetune")
    check_names(own, names(LabelConfig), "finetune")
    run = {name: values[name] for name in SECTIONS if name in values}
    run["train"] = {**TRAIN, **given(check_mapping(run.get("train") or {}, "train"))}
    if not {"epochs", "steps"} & run["train"].keys():
        run["train"]["epochs"] = LABEL_EPOCHS
    run["views"] = {"preset": "medium", **given(check_mapping(run.get("views") or {}, "views"))}
    config = run_config(run, labels=True)
    no_others = replace(config.loss, pcl=0.0, predict=0.0)  # no objective but the labels
    config = replace(config, loss=no_others)
    return FinetuneConfig(run=config, finetune=LabelConfig(**plain(own, LabelConfig)))


def read_finetune_config(path: Path | None, overrides: Sequence[str] = ()) -> FinetuneConfig:
    """As `progmem.config.read_config`."""
    return finetune_config(read_values(path, overrides))
