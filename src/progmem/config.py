"""Settings, checked once, when they are made.

Letters: W window, S stride (both in tokens), O = ceil(W / S) copies of a token, K tokens.
"""

import difflib
from collections.abc import Mapping
from dataclasses import InitVar, asdict, dataclass, fields
from typing import Any

from progmem.errors import ConfigError

SIZES = {  # name -> dim, heads, blocks
    "tiny": (64, 4, 2),
    "small": (128, 4, 3),
    "base": (320, 8, 6),
}
LONGEST_TRAINING_WINDOW = 2048  # samples; longer recordings are cut before training


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Shape of a PMT. ``size`` fills in ``dim``, ``heads`` and ``blocks`` where they are 0."""

    channels: int
    size: InitVar[str] = "small"
    dim: int = 0
    heads: int = 0
    blocks: int = 0  # PMA blocks
    window: int = 16  # W, tokens per window
    stride: int = 8  # S, tokens between window starts; smaller than W means overlap
    slots: int = 2  # memory slots per window; 0 is a model without memory
    patch: int = 8  # samples per token
    patch_stride: int = 2  # samples between token starts
    encoder_layers: int = 2  # neighbourhood layers after the blocks
    readout: str = "carry"  # rows that become the memory: the carry's, or the "block" below's
    gate_carry: bool = True  # mix the carried memory with the reset state before it is read
    windows: str = "cover"  # "cover" every token, or "floor" as the paper's compute tables count
    dropout: float = 0.0
    reset_seed: int = 0  # draws the reset state, apart from every other weight

    def __post_init__(self, size: str) -> None:
        if size not in SIZES:
            raise ConfigError(f"model.size must be one of {', '.join(SIZES)}, got {size!r}")
        for name, value in zip(("dim", "heads", "blocks"), SIZES[size], strict=True):
            if getattr(self, name) == 0:
                object.__setattr__(self, name, value)
        for name, low in _LOWEST.items():
            _check_int(name, getattr(self, name), low)
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
        _check_choice("readout", self.readout, ("carry", "block"))
        _check_choice("windows", self.windows, ("cover", "floor"))
        if not isinstance(self.gate_carry, bool):
            raise ConfigError(f"model.gate_carry must be true or false, got {self.gate_carry!r}")
        if not isinstance(self.dropout, int | float) or not 0 <= self.dropout < 1:
            raise ConfigError(f"model.dropout must be in [0, 1), got {self.dropout!r}")

    @property
    def overlap(self) -> int:
        """O, the most windows a token can be in."""
        return -(-self.window // self.stride)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ModelConfig":
        """The config of a mapping, as json or yaml give it; an unknown key names its nearest."""
        known = ["size", *(f.name for f in fields(cls))]
        for key in values:
            if key not in known:
                near = difflib.get_close_matches(str(key), known, n=1)
                hint = f"did you mean 'model.{near[0]}'?" if near else f"known: {', '.join(known)}"
                raise ConfigError(f"unknown setting 'model.{key}'; {hint}")
        if "channels" not in values:
            raise ConfigError("model.channels is missing; it is the number of values per sample")
        return cls(**values)

    @classmethod
    def for_length(cls, length: int, channels: int, **settings: Any) -> "ModelConfig":
        """Geometry for training windows of ``length`` samples.

        Patch 12.5 % of the length and patch stride 12.5 % of the patch lie on the plateau of the
        paper's tokenizer ablation; windows of about 20 % of the tokens with W = 2S exactly keep
        every token in at most two windows and a stream's latency at S tokens.
        """
        _check_int("length", length, 1, section="")
        if length > LONGEST_TRAINING_WINDOW:
            raise ConfigError(
                f"length must be in 1..{LONGEST_TRAINING_WINDOW} samples, got {length}; longer "
                "recordings are cut into training windows: give the length in data.window"
            )
        patch = settings.get("patch", max(1, round(length / 8)))
        _check_int("patch", patch, 1)
        if patch > length:
            raise ConfigError(f"model.patch must be in 1..{length} (the length), got {patch}")
        patch_stride = settings.get("patch_stride", max(1, round(patch / 8)))
        _check_int("patch_stride", patch_stride, 1)
        tokens = (length - patch) // patch_stride + 1
        window = settings.get("window", 2 * settings.get("stride", max(1, round(tokens / 10))))
        geometry = {
            "patch": patch,
            "patch_stride": patch_stride,
            "window": window,
            "stride": max(1, window // 2),
        }
        return cls.from_dict({"channels": channels, **geometry, **settings})

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


_LOWEST = {
    "channels": 1,
    "dim": 2,
    "heads": 1,
    "blocks": 1,
    "window": 1,
    "stride": 1,
    "slots": 0,
    "patch": 1,
    "patch_stride": 1,
    "encoder_layers": 1,
    "reset_seed": 0,
}


def _check_int(name: str, value: object, low: int, *, section: str = "model.") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ConfigError(f"{section}{name} must be a whole number from {low} up, got {value!r}")


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"model.{name} must be one of {', '.join(choices)}, got {value!r}")
