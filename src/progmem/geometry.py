"""Tokens and windows: how many there are, which exist, their spans, and moving between the two.

Window w (from 0) covers tokens wS .. wS+W-1. A token in window w at position j is its copy
number r = j // S there, so copy 0 comes from the newest window that holds the token.

Shapes: B series, L samples, K tokens, N windows, W window, S stride, O copies, n slots, D width.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from progmem.config import ModelConfig
from progmem.ops.layers import unfold


def count_tokens(cfg: ModelConfig, length: int) -> int:
    """Tokens of a series of ``length`` samples: whole patches only."""
    return max(0, (length - cfg.patch) // cfg.patch_stride + 1)


def tokens_until(cfg: ModelConfig, window: int) -> int:
    """The fewest tokens with which window number ``window`` exists."""
    return 1 if window == 0 else window * cfg.stride + _least_tokens(cfg)


def _least_tokens(cfg: ModelConfig) -> int:
    """Tokens from its own start on with which a window after the first exists."""
    if cfg.windows == "floor":
        return cfg.window
    return cfg.window - cfg.stride + 1  # one token that no earlier window covers


def count_windows(cfg: ModelConfig, tokens: int) -> int:
    """N = max(1, ceil((K-W)/S) + 1); the paper's tables take the floor instead."""
    beyond = max(0, tokens - cfg.window)  # ONNX rounds a division of less than 0 the other way
    if cfg.windows == "cover":
        beyond += cfg.stride - 1
    return 1 + beyond // cfg.stride


def windows_exist(cfg: ModelConfig, tokens: Tensor, windows: int) -> Tensor:
    """Which of the first ``windows`` windows series of ``tokens`` (B,) tokens have: (B, N)."""
    number = torch.arange(windows, device=tokens.device)
    first = torch.where(number == 0, 1, number * cfg.stride + _least_tokens(cfg))
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


def covered_tokens(cfg: ModelConfig, windows: int) -> int:
    """Tokens from the start of the first of ``windows`` windows to the end of the last."""
    return (windows - 1) * cfg.stride + cfg.window


def unfold_windows(x: Tensor, cfg: ModelConfig, windows: int) -> Tensor:
    """Tokens (B, K, ...) as windows (B, N, W, ...), zero past the last token."""
    length = covered_tokens(cfg, windows)
    if x.shape[1] < length:
        x = F.pad(x, (*(0, 0) * (x.dim() - 2), 0, length - x.shape[1]))
    elif x.shape[1] > length:
        x = x[:, :length]  # tokens that are in no window
    return unfold(x, cfg.window, cfg.stride)


def align_copies(rows: Tensor, cfg: ModelConfig, tokens: int) -> Tensor:
    """Windows (B, N, W, D) rearranged as copies of the first ``tokens`` tokens: (B, K, O, D).

    Position rS+i of window w is copy r of token (w+r)S+i: copies of
    number r are the windows moved right by r strides. Cells that no window fills are zero.
    """
    B, N, W, D = rows.shape
    O, S = cfg.overlap, cfg.stride
    strides = F.pad(rows, (0, 0, 0, O * S - W)).view(B, N, O, S, D)
    moved = [F.pad(strides[:, :, r], (0, 0, 0, 0, r, O - 1 - r)) for r in range(O)]
    copies = torch.stack(moved, dim=3).view(B, (N + O - 1) * S, O, D)
    return F.pad(copies, (0, 0, 0, 0, 0, tokens - copies.shape[1]))


class WindowMasks(NamedTuple):
    """Which tokens, windows and copies of a batch exist; True where they do."""

    tokens: Tensor  # (B, K): the token exists and has an observed value
    windows: Tensor  # (B, N): the window exists for this series
    nonempty: Tensor  # (B, N): it exists and holds a valid token
    in_window: Tensor  # (B, N, W): `tokens` of each window
    slot_mask: Tensor  # (B, N, 2n+W): keys that slots attend to: carry, memory below, tokens
    copies: Tensor  # (B, K, O): this copy of the token comes from a window that exists
    gaps: bool  # False: tokens are missing only after a series' end


def window_masks(
    cfg: ModelConfig, valid: Tensor, counts: Tensor, windows: int, *, gaps: bool
) -> WindowMasks:
    """The masks of series with ``counts`` (B,) tokens; those ``valid`` (B, K) are observed."""
    exists = windows_exist(cfg, counts, windows)  # (B, N)
    in_window = unfold_windows(valid, cfg, windows)  # (B, N, W)
    filled = exists[:, :, None, None].expand(-1, -1, cfg.window, 1)
    copies = align_copies(filled, cfg, valid.shape[1])[..., 0]  # (B, K, O)
    slot_mask = F.pad(in_window, (2 * cfg.slots, 0), value=True)
    return WindowMasks(valid, exists, exists & in_window.any(2), in_window, slot_mask, copies, gaps)
