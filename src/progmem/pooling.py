"""One vector per series from any encoder's levels, some series at a time.

Shapes: B series, L samples, C channels, K tokens, N windows, n slots, D width.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from progmem.encoding import Encoder, Encoding
from progmem.errors import InputError
from progmem.series import as_float64

MAX_SAMPLES = 2**17  # of the series that are encoded at a time


def sequence(z: Encoding) -> Tensor:
    return z.sequence


def mean_tokens(z: Encoding) -> Tensor:
    return _mean(z.tokens, z.token_mask)


def max_tokens(z: Encoding) -> Tensor:
    """Largest value of each feature over the valid tokens; 0 where there are none."""
    valid = z.token_mask[..., None]
    highest = z.tokens.masked_fill(~valid, -torch.inf).amax(1)
    return torch.where(valid.any(1), highest, 0.0)


def mean_memory(z: Encoding) -> Tensor:
    if z.memory is None or z.window_mask is None:
        raise InputError("mean_memory needs an encoder with a memory; this one has none")
    return _mean(z.memory.mean(2), z.window_mask)


def all_levels(z: Encoding) -> Tensor:
    """The other poolings that the encoder has, concatenated."""
    parts = [sequence(z), mean_tokens(z), max_tokens(z)]
    if z.memory is not None:
        parts.append(mean_memory(z).to(z.tokens.dtype))
    return torch.cat(parts, dim=1)


POOLINGS: dict[str, Callable[[Encoding], Tensor]] = {
    "sequence": sequence,
    "mean_tokens": mean_tokens,
    "max_tokens": max_tokens,
    "mean_memory": mean_memory,
    "all": all_levels,
}


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean (B, D) of values (B, m, D) where ``mask`` (B, m) is true."""
    weight = mask[..., None].to(values.dtype)
    return (values * weight).sum(1) / weight.sum(1).clamp(min=1)


def pool(encoder: Encoder, x: Any, poolings: Sequence[str]) -> dict[str, np.ndarray]:
    """Features (B, D) by each of ``poolings`` of series (B, L, C) or a list of (L_i, C).

    The pooling of the memory is left out for an encoder that has none.
    """
    for name in poolings:
        if name not in POOLINGS:
            raise InputError(f"pooling must be one of {', '.join(POOLINGS)}, got {name!r}")
    if not len(x):
        raise InputError("there are no series to encode; give at least one")
    found: dict[str, list[np.ndarray]] = {}
    for z in encode_batches(encoder, x):
        for name in poolings:
            if name != "mean_memory" or z.memory is not None:
                found.setdefault(name, []).append(POOLINGS[name](z).float().cpu().numpy())
    return {name: np.concatenate(parts) for name, parts in found.items()}


def check_observed(x: Any) -> None:
    """Refuse a series without a value: nothing can be predicted from it."""
    for i, series in enumerate(x):
        if bool(as_float64(series).isnan().all()):
            raise InputError(f"series {i} has no observed value; leave it out")


def encode_batches(encoder: Encoder, x: Any) -> Iterator[Encoding]:
    """The encodings of the series of ``x`` in order, several series at a time."""
    first = 0
    while first < len(x):
        count, samples = 0, 0
        while first + count < len(x) and (not count or samples < MAX_SAMPLES):
            samples += len(x[first + count])
            count += 1
        try:
            z = encoder.encode(x[first : first + count])
        except InputError as error:
            if not first:
                raise
            raise InputError(f"{error} (counted from series {first} on)") from error
        yield z
        first += count
