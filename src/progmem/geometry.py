"""Where tokens and windows lie: counts, existence, spans, and the moves between the two layouts.

Window w (from 0) covers tokens wS .. wS+W-1. A token in window w at position j is its copy
number r = j // S there, so copy 0 comes from the newest window that holds the token.

Shapes: B series, L samples, K tokens, N windows, W window, S stride, O copies, n slots, D width.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from progmem.config import ModelConfig
from progmem.ops import with_fused


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


def covered(cfg: ModelConfig, windows: int) -> int:
    """Tokens from the start of the first of ``windows`` windows to the end of the last."""
    return (windows - 1) * cfg.stride + cfg.window


def unfold_windows(x: Tensor, cfg: ModelConfig, windows: int) -> Tensor:
    """Tokens (B, K, ...) laid out as windows (B, N, W, ...), zero past the last token."""
    length = covered(cfg, windows)
    if x.shape[1] < length:
        x = F.pad(x, (*(0, 0) * (x.dim() - 2), 0, length - x.shape[1]))
    elif x.shape[1] > length:
        x = x[:, :length]  # tokens of no window
    return _unfold(x, cfg.window, cfg.stride)


@with_fused("window_layout.unfold", supports="unfold_supports")
def _unfold(x: Tensor, window: int, stride: int) -> Tensor:
    """A view of tokens; fused is the way back, in which a token's copies are summed in one pass."""
    return x.unfold(1, window, stride).movedim(-1, 2)  # (B, N, W, ...)


def align_copies(rows: Tensor, cfg: ModelConfig, tokens: int) -> Tensor:
    """Windows (B, N, W, D) laid out as copies of the first ``tokens`` tokens: (B, K, O, D).

    Position rS+i of window w is copy r of token (w+r)S+i: each copy number is a stretch of
    windows moved right by r strides. Cells that no window fills are zero.
    """
    B, N, W, D = rows.shape
    O, S = cfg.overlap, cfg.stride
    strides = F.pad(rows, (0, 0, 0, O * S - W)).view(B, N, O, S, D)
    moved = [F.pad(strides[:, :, r], (0, 0, 0, 0, r, O - 1 - r)) for r in range(O)]
    copies = torch.stack(moved, dim=3).view(B, (N + O - 1) * S, O, D)
    return F.pad(copies, (0, 0, 0, 0, 0, tokens - copies.shape[1]))


class Layout(NamedTuple):
    """What of a batch is there, at each level."""

    tokens: Tensor  # (B, K): the token exists and has an observed value
    windows: Tensor  # (B, N): the window exists for this series
    alive: Tensor  # (B, N): ... and holds a token that is there
    in_window: Tensor  # (B, N, W)
    seen: Tensor  # (B, N, 2n+W), what the slots of a window see: carry, memory below, tokens
    copies: Tensor  # (B, K, O): this copy of the token comes from a window that exists
    gaps: bool  # False: tokens are missing only after a series' end


def lay_out(cfg: ModelConfig, valid: Tensor, counts: Tensor, windows: int, *, gaps: bool) -> Layout:
    """The layout of series with ``counts`` (B,) tokens, of which ``valid`` (B, K) are there."""
    exists = windows_exist(cfg, counts, windows)  # (B, N)
    in_window = unfold_windows(valid, cfg, windows)  # (B, N, W)
    filled = exists[:, :, None, None].expand(-1, -1, cfg.window, 1)
    copies = align_copies(filled, cfg, valid.shape[1])[..., 0]  # (B, K, O)
    seen = F.pad(in_window, (2 * cfg.slots, 0), value=True)
    return Layout(valid, exists, exists & in_window.any(2), in_window, seen, copies, gaps)
