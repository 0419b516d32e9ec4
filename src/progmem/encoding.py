"""What an encoder returns, and what makes something an encoder.

Shapes: B series, L samples, C channels, K tokens, N windows, D width.
"""

from typing import Any, NamedTuple, Protocol

from torch import Tensor


class Encoding(NamedTuple):
    """One batch of series at three scales, with the samples each part was made from.

    A mask is False where a series has no such token or window, or where all of it is missing.
    Spans are ``[start, end)`` in samples and shared by the batch. Encoders without a memory
    leave ``memory`` and ``eos`` at None, those without windows the masks and spans of windows too.
    """

    tokens: Tensor  # (B, K, D), 0 where token_mask is False
    memory: Tensor | None  # (B, N, slots, D), 0 where a series has no such window
    sequence: Tensor  # (B, D)
    eos: Tensor | None  # (B, D): mean slots of the last window (on a stream: that is complete)
    token_mask: Tensor  # (B, K) bool
    window_mask: Tensor | None  # (B, N) bool
    token_spans: Tensor  # (K, 2) int64
    window_spans: Tensor | None  # (N, 2) int64


class Encoder(Protocol):
    """Anything that turns series (B, L, C) into an `Encoding`: PMT and every baseline."""

    def encode(self, x: Any) -> Encoding: ...
