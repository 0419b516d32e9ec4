"""The shape of a model.

Letters: W window, S stride (both in tokens), O = ceil(W / S) copies of a token, K tokens.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from progmem.errors import ConfigError
from progmem.fields import (
    check_fields,
    check_mapping,
    check_names,
    choice,
    flag,
    is_whole,
    names,
    number,
    whole,
)

SIZES = {  # name -> dim, heads, blocks
    "tiny": (64, 4, 2),
    "small": (128, 4, 3),
    "base": (320, 8, 6),
}
LONGEST_TRAINING_WINDOW = 2048  # samples; longer recordings are cut before training


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Shape of a PMT.

    ``size`` fills in ``dim``, ``heads`` and ``blocks`` where they are not given (0), and reads
    "custom" where they are not that size's.
    """

    channels: int = whole(0, 1)  # the default is refused: it must be given
    size: str = choice("small", "tiny", "base", "custom")
    dim: int = whole(0, 2)
    heads: int = whole(0, 1)
    blocks: int = whole(0, 1)  # PMA blocks
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

    def __post_init__(self) -> None:
        shape = ("dim", "heads", "blocks")
        if isinstance(self.size, str) and self.size in SIZES:
            for name, value in zip(shape, SIZES[self.size], strict=True):
                if is_whole(getattr(self, name)) and getattr(self, name) == 0:
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
        return asdict(self)
