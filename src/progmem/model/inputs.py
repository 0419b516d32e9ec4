"""What a model's ``encode`` and ``forward`` refuse, and the mode they run in."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from progmem.config import ModelConfig
from progmem.errors import InputError
from progmem.fields import is_whole
from progmem.series import check_samples


def check_tensor(x: Tensor, cfg: ModelConfig) -> None:
    """Refuse what `forward` cannot take: by shape alone, so that it can be traced."""
    if x.dim() != 3:
        raise InputError(f"x must be (batch, time, channels), got shape {tuple(x.shape)}")
    check_samples(x, cfg.channels)
    if x.shape[1] < cfg.patch:
        raise InputError(f"x needs at least {cfg.patch} samples, got {x.shape[1]}")


def check_finite(sequence: Tensor, names: Sequence[str]) -> None:
    """Refuse to hand out NaN: whatever is not finite in a series shows in its sequence vector."""
    bad = ~sequence.isfinite().all(1)
    if bool(bad.any()):
        raise InputError(
            f"{names[int(bad.nonzero()[0])]} gave values that are not finite in "
            f"{sequence.dtype}; use a float32 or bfloat16 model, or rescale the data"
        )


def check_count(name: str, value: Any) -> None:
    if not is_whole(value) or value < 1:
        raise InputError(f"{name} must be a whole number from 1 up, got {value!r}")


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode inside; afterwards every part is in the mode it had."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
