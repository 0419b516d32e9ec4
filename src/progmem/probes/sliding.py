"""What an encoder knows at each moment: its last token of a window that ends there.

Nothing after a moment is in its window, so no feature sees the future, whatever the encoder does
inside a window.

Shapes: I instances, T samples, C channels, P samples of past, n places, D width.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from progmem.encoding import Encoder
from progmem.errors import InputError

PADDING = 200  # P, as TS2Vec
AT_ONCE = 2**17  # samples of windows given to the encoder at a time


class Places(NamedTuple):
    """Moments of instances."""

    instance: np.ndarray  # (n,)
    time: np.ndarray  # (n,)


class Features(NamedTuple):
    """One vector a place."""

    values: Tensor  # (n, D) float32
    there: Tensor  # (n,) bool: something was observed at that moment


def windows(x: Tensor, padding: int) -> Tensor:
    """The ``padding`` samples before each sample, and it: a view (I, T, P+1, C) of (I, T, C).

    Before its first sample a series is missing.
    """
    before = x.new_full((x.shape[0], padding, x.shape[2]), torch.nan)
    padded = torch.cat([before, x], dim=1)  # (I, P+T, C)
    return padded.unfold(1, padding + 1, 1).transpose(2, 3)  # (I, T, P+1, C)


def sliding_features(
    encoder: Encoder, x: np.ndarray, places: Places, *, padding: int = PADDING
) -> Features:
    """Features of some moments of series (I, T, C)."""
    device = device_of(encoder)
    view = windows(torch.as_tensor(x, dtype=torch.float64, device=device), padding)
    values, there = [], []
    for part in _pieces(places, AT_ONCE // (padding + 1)):
        instance, time = (torch.from_numpy(index).to(device) for index in part)
        z = encoder.encode(view[instance, time])  # of windows (b, P+1, C)
        end = int(z.token_spans[-1, 1])
        if end != padding + 1:
            raise InputError(
                f"the encoder's last token of a window of {padding + 1} samples ends after {end}: "
                "its feature would not know the newest; train with model.patch_stride=1"
            )
        values.append(z.tokens[:, -1].float())
        there.append(z.token_mask[:, -1])
    return Features(torch.cat(values), torch.cat(there))


def device_of(encoder: Any) -> torch.device:
    """Where an encoder computes; the CPU for one that does not say."""
    first = next(encoder.parameters(), None) if isinstance(encoder, nn.Module) else None
    return torch.device("cpu") if first is None else first.device


def _pieces(places: Places, size: int) -> Iterator[Places]:
    for first in range(0, len(places.time), max(1, size)):
        part = slice(first, first + max(1, size))
        yield Places(places.instance[part], places.time[part])
