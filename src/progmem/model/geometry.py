"""Where tokens and windows lie: counts, existence, spans.

Window w (from 0) covers tokens wS .. wS+W-1.

Shapes: B series, L samples, K tokens, N windows, W window, S stride.
"""

import torch
from torch import Tensor

from progmem.config import ModelConfig


def count_tokens(cfg: ModelConfig, length: int) -> int:
    """Tokens of a series of ``length`` samples: whole patches only."""
    return max(0, (length - cfg.patch) // cfg.patch_stride + 1)


def tokens_until(cfg: ModelConfig, window: int) -> int:
    """The fewest tokens with which window number ``window`` exists."""
    return 1 if window == 0 else window * cfg.stride + _tokens_before(cfg)


def _tokens_before(cfg: ModelConfig) -> int:
    """Tokens that must be there before a window after the first, counted from its own start."""
    if cfg.windows == "floor":
        return cfg.window
    return cfg.window - cfg.stride + 1  # one token that no earlier window covers


def count_windows(cfg: ModelConfig, tokens: int) -> int:
    """N = max(1, ceil((K-W)/S) + 1); the paper's tables take the floor instead."""
    beyond = tokens - cfg.window
    steps = beyond // cfg.stride if cfg.windows == "floor" else -(-beyond // cfg.stride)
    return max(1, steps + 1)


def windows_exist(cfg: ModelConfig, tokens: Tensor, windows: int) -> Tensor:
    """Which of the first ``windows`` windows series of ``tokens`` (B,) tokens have: (B, N)."""
    number = torch.arange(windows, device=tokens.device)
    first = torch.where(number == 0, 1, number * cfg.stride + _tokens_before(cfg))
    return tokens[:, None] >= first


def token_spans(cfg: ModelConfig, start: int, stop: int) -> Tensor:
    """Samples [from, to) of tokens ``start`` to ``stop``: (K, 2)."""
    first = torch.arange(start, stop) * cfg.patch_stride
    return torch.stack([first, first + cfg.patch], dim=1)


def window_spans(cfg: ModelConfig, start: int, stop: int, *, tokens: int) -> Tensor:
    """Samples of windows ``start`` to ``stop``; a last window ends with the last token: (N, 2)."""
    first = torch.arange(start, stop) * cfg.stride
    last = (first + cfg.window).clamp(max=tokens) - 1
    return torch.stack([first * cfg.patch_stride, last * cfg.patch_stride + cfg.patch], dim=1)
