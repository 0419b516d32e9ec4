"""The windowed transformer: PMT's windows without its gates, slots per layer and attentive pool.

Each window goes through all layers by itself, its tokens causal; the copies of a token are
averaged at the end. With slots, a state of n rows stands before the tokens of a window: it sees all
of them and they see it, and what the last layer makes of it is handed to the next window
(Bulatov et al., 2022). Without, a window knows nothing of the others.

Shapes: B series, K tokens, N windows, W window, n slots, T = n + W rows, D width.
"""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from progmem.baselines.encoder import last_row
from progmem.baselines.matched import LAYERS_PER_BLOCK, StackOutput
from progmem.config import ModelConfig
from progmem.geometry import WindowMasks, align_copies, unfold_windows
from progmem.model.layers import AttentionLayer, Norm
from progmem.ops.layers import Rotation, attend, merge_heads, rotate, rotation, split_heads


class WindowedTransformer(nn.Module):
    """Twice ``cfg.blocks`` layers over windows; ``cfg.slots`` rows are handed on, 0 for none.

    Example:
        >>> import progmem
        >>> from progmem.baselines.windowed import WindowedTransformer
        >>> cfg = progmem.ModelConfig(channels=1, size="tiny", slots=0)
        >>> WindowedTransformer(cfg).state is None
        True
    """

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.state = nn.Parameter(0.02 * torch.randn(cfg.slots, cfg.dim)) if cfg.slots else None
        self.layers = nn.ModuleList(
            AttentionLayer(cfg.dim, cfg.dropout) for _ in range(LAYERS_PER_BLOCK * cfg.blocks)
        )
        self.norm = Norm(cfg.dim)  # also keeps the state level, however often it is handed on

    def forward(self, tokens: Tensor, masks: WindowMasks) -> StackOutput:
        B, K, _ = tokens.shape
        windows = unfold_windows(tokens, self.cfg, masks.windows.shape[1])  # (B, N, W, D)
        seen = self._seen(masks.in_window)  # (B, N, T, T)
        if self.state is None:
            out, memory = self._run(windows, seen), None
            there = masks.in_window & masks.nonempty[..., None]
            eos = last_row(out.flatten(1, 2), there.flatten(1))
        else:
            out, memory = self._hand_on(self.state.expand(B, -1, -1), windows, seen, masks)
            eos = memory[:, -1].mean(1)
        copies = torch.where(masks.copies[..., None], align_copies(out, self.cfg, K), 0.0)
        count = masks.copies.sum(2)[..., None]  # (B, K, 1)
        merged = copies.sum(2) / count.clamp(min=1)
        return StackOutput(torch.where(count > 0, merged, tokens), eos, memory)

    def _hand_on(
        self, state: Tensor, windows: Tensor, seen: Tensor, masks: WindowMasks
    ) -> tuple[Tensor, Tensor]:
        """One window after the other: all tokens (B, N, W, D) and states (B, N, n, D)."""
        n = state.shape[1]
        out, states = [], []
        for w in range(windows.shape[1]):
            rows = self._run(torch.cat([state, windows[:, w]], dim=1), seen[:, w])
            # a window that does not exist, or is missing, passes the state on
            state = torch.where(masks.nonempty[:, w, None, None], rows[:, :n], state)
            out.append(rows[:, n:])
            states.append(state)
        return torch.stack(out, dim=1), torch.stack(states, dim=1)

    def _run(self, rows: Tensor, seen: Tensor) -> Tensor:
        """All layers for rows (..., T, D), of which each sees ``seen`` (..., T, T)."""
        for layer in self.layers:
            rows = self._attend(cast(AttentionLayer, layer), rows, seen[..., None, :, :])
        return self.norm(rows)

    def _attend(self, layer: AttentionLayer, rows: Tensor, seen: Tensor) -> Tensor:
        rows, qkv = layer.project(rows)
        q, k, v = (split_heads(t, self.cfg.heads) for t in qkv.chunk(3, dim=-1))
        n = self.cfg.slots  # the state stands where the first token does, as PMT's slots do
        turn = rotation(q[..., n:, :])
        turn = Rotation(F.pad(turn.cos, (0, 0, n, 0), value=1.0), F.pad(turn.sin, (0, 0, n, 0)))
        attended = attend(rotate(q, turn), rotate(k, turn), v, seen)
        return layer.attention_output(rows, merge_heads(attended))

    def _seen(self, valid: Tensor) -> Tensor:
        """Rows that rows of a window see, (B, N, T, T), of tokens ``valid`` (B, N, W)."""
        n, W = self.cfg.slots, valid.shape[2]
        there = F.pad(valid, (n, 0), value=True)[:, :, None]  # (B, N, 1, T)
        own = torch.ones(W, n + W, dtype=torch.bool, device=valid.device)
        by_token = (there & own.tril(n)) | (own.tril(n) & own.triu(n))  # each sees itself
        return torch.cat([there.expand(-1, -1, n, -1), by_token], dim=2)
