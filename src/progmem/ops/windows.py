"""Tokens laid out as windows, windows laid out as copies of tokens, and what of both is there.

Window w (from 0) covers tokens wS .. wS+W-1. A token in window w at position j is its copy
number r = j // S there, so copy 0 comes from the newest window that holds the token.

Shapes: B series, K tokens, N windows, W window, S stride, O copies, n slots, D width.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from progmem.config import ModelConfig
from progmem.ops import with_fused


class Layout(NamedTuple):
    """What of a batch is there, at each level."""

    tokens: Tensor  # (B, K): the token exists and has an observed value
    windows: Tensor  # (B, N): the window exists for this series
    alive: Tensor  # (B, N): ... and holds a token that is there
    in_window: Tensor  # (B, N, W)
    seen: Tensor  # (B, N, 2n+W), what the slots of a window see: carry, memory below, tokens
    copies: Tensor  # (B, K, O): this copy of the token comes from a window that exists
    gaps: bool  # False: tokens are missing only after a series' end


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
