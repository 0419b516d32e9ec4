"""The PMA block (eq. 2, Algorithm 1): gates, slots and windows, overlap pool, feed-forward.

Inside a window the slots see everything; a token sees the carry M_{w-1,b} and the tokens of its
window up to itself, never M-bar. Tokens of one window do not wait for each other and windows
wait only for their carry: the slots are scanned first, then all tokens attend at once.

Shapes: B series, K tokens, N windows, W window, O copies, n slots, D width, H heads, d = D / H.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from progmem.config import ModelConfig
from progmem.model import lean
from progmem.model.aggregator import OverlapAggregator
from progmem.model.attention import AttentionLayer, FeedForward, attend, split_heads
from progmem.model.gates import TokenGate
from progmem.model.geometry import align_copies, unfold_windows, windows_exist
from progmem.model.rotary import turned, turns
from progmem.model.scan import MemorySlots, Scanned


class Layout(NamedTuple):
    """What of a batch is there, at each level."""

    tokens: Tensor  # (B, K): the token exists and has an observed value
    windows: Tensor  # (B, N): the window exists for this series
    alive: Tensor  # (B, N): ... and holds a token that is there
    in_window: Tensor  # (B, N, W)
    seen: Tensor  # (B, N, 2n+W), what the slots of a window see: carry, memory below, tokens
    copies: Tensor  # (B, K, O): this copy of the token comes from a window that exists
    gaps: bool  # False: tokens are missing only after a series' end


class Projected(NamedTuple):
    """Gated tokens and their projections, made once per token and shared by its windows."""

    rows: Tensor  # (B, K, D), W-bar
    q: Tensor  # (B, K, D)
    k: Tensor  # (B, K, D)
    v: Tensor  # (B, K, D)


class PMABlock(nn.Module):
    """W_b, M_b = PMA(carry, M-bar_{b-1}, W-bar_{b-1}) for all windows of a batch."""

    def __init__(self, cfg: ModelConfig, block: int) -> None:
        super().__init__()
        self.cfg = cfg
        self.token_gate = TokenGate(cfg.dim) if block > 0 else None  # at block 1 both sides agree
        self.layer = AttentionLayer(cfg.dim, cfg.dropout)
        self.slots = MemorySlots(cfg, block) if cfg.slots else None
        self.segment = nn.Parameter(0.02 * torch.randn(cfg.dim)) if cfg.slots else None
        self.aggregator = OverlapAggregator(cfg)
        self.feed_forward = FeedForward(cfg.dim, cfg.dropout)

    def forward(
        self, tokens: Tensor, signal: Tensor, below: Tensor | None, layout: Layout
    ) -> tuple[Tensor, Scanned | None]:
        """Tokens (B, K, D) and memory of this block.

        Args:
            tokens: W_{b-1}, (B, K, D).
            signal: W_0, (B, K, D).
            below: M_{b-1}, (B, N, n, D); for the first block its reset state (1, 1, n, D). None:
                no memory.
        """
        if lean.takes(tokens, self.cfg, self.layer, gaps=layout.gaps):
            return lean.run_block(self, tokens, signal, below, layout)
        gated = self.gate(tokens, signal)
        scanned: Scanned | None
        if self.slots is not None and below is not None and self.by_hand(self.slots, gated):
            rows, scanned = self.attend_by_hand(self.slots, gated, below, layout)
        else:
            projected = Projected(gated, *self.layer.project(gated, self.segment))
            rows, scanned = self.attend_windows(projected, below, layout)
        merged = self.aggregator(rows, layout.copies)  # (B, K, D)
        return self.complete(merged, layout.copies, gated, layout.tokens), scanned

    def gate(self, tokens: Tensor, signal: Tensor) -> Tensor:
        return tokens if self.token_gate is None else self.token_gate(tokens, signal)

    def project(self, tokens: Tensor, signal: Tensor) -> Projected:
        rows = self.gate(tokens, signal)
        return Projected(rows, *self.layer.project(rows, self.segment))

    def by_hand(self, slots: MemorySlots, rows: Tensor) -> bool:
        """Whether kernels can take these windows whole."""
        return slots.by_hand(self.layer, rows, keys=2 * self.cfg.slots + self.cfg.window)

    def attend_by_hand(
        self, slots: MemorySlots, gated: Tensor, below: Tensor, layout: Layout
    ) -> tuple[Tensor, Scanned]:
        """`attend_windows` by kernels, from gated tokens (B, K, D)."""
        from progmem.kernels.lay import Places
        from progmem.model import by_hand, tape

        layer, H = self.layer, self.cfg.heads
        N, W = layout.windows.shape[1], self.cfg.window
        reset = slots.ready()
        gated, qkv = layer.project_at_once(gated, self.segment)  # (B, K, 3D)
        carried, under = slots.segments.unbind()
        _, bar = layer.project_at_once(slots.gate(below, reset), under)
        qkv, bar = (torch.unflatten(t, -1, (3, H, -1)) for t in (qkv, bar))
        fixed = by_hand.Fixed(
            Places(W, self.cfg.stride, N), turns(qkv.new_empty(W, qkv.shape[-1])),
            layout.seen, layout.alive, self.may_see(layout.in_window, W) if layout.gaps else None,
        )  # fmt: skip
        weights = tape.weights_of(slots, layer, reset, carried, qkv.dtype)
        attended, memory = by_hand.attend_by_hand(fixed, slots.first(), qkv, bar, weights)
        rows = layer.complete(unfold_windows(gated, self.cfg, N), attended.transpose(2, 3))
        return rows, Scanned(memory, None, memory[:, -1].clone())

    def attend_windows(
        self, gated: Projected, below: Tensor | None, layout: Layout
    ) -> tuple[Tensor, Scanned | None]:
        """W^out (B, N, W, D) and the scanned memory, from M_{b-1} (B or 1, N or 1, n, D)."""
        B, N = layout.windows.shape
        rows, q, k, v = (unfold_windows(t, self.cfg, N) for t in gated)  # (B, N, W, D)
        k, v = self.as_heads(k, rotated=True), self.as_heads(v)
        scanned, carry = None, None
        if self.slots is not None and below is not None:
            state = self.slots.start(B)
            scanned = self.slots.scan(
                self.layer, state, below=below, k=k, v=v, valid=layout.in_window, alive=layout.alive
            )
            carry = scanned.carry
        valid = layout.in_window if layout.gaps else None
        return self.attend_rows(rows, q, k, v, carry, valid), scanned

    def as_heads(self, x: Tensor, *, rotated: bool = False) -> Tensor:
        """(..., T, D) -> (..., H, T, d), at the positions of its window if ``rotated``."""
        x = split_heads(x, self.cfg.heads)
        return turned(x, turns(x)) if rotated else x

    def attend_rows(
        self,
        rows: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        carry: tuple[Tensor, Tensor] | None,
        valid: Tensor | None,
    ) -> Tensor:
        """W^out of the last P positions of each window: (B, N, P, D).

        Args:
            rows, q: those positions' tokens and queries, (B, N, P, D).
            k, v: the window's keys and values up to there, (B, N, H, T, d), T >= P.
            carry: keys and values of the carry, (B, N, H, n, d) each; None: no memory.
            valid: which tokens are there, (B, N, T); None if none is missing before its row.
        """
        P, T = q.shape[2], k.shape[3]
        mask = None if valid is None else self.may_see(valid, P)[:, :, None]
        if mask is not None and carry is None:
            mask = mask[..., self.cfg.slots :]
        q = self.as_heads(q)
        attended = attend(q, k, v, mask, first=carry, q_turn=turns(q, T - P), causal=True)
        return self.layer.complete(rows, attended)

    def may_see(self, valid: Tensor, last: int) -> Tensor:
        """What the ``last`` P tokens of windows may see: slots, and what is ``valid`` (B, N, T).

        (B, N, P, n+T); a missing token still sees itself, so no row is ever empty.
        """
        T = valid.shape[2]
        own = torch.ones(last, T, dtype=torch.bool, device=valid.device).tril(T - last)
        mask = valid[:, :, None] | own.triu(T - last)
        return F.pad(mask, (self.cfg.slots, 0), value=True)

    def pool(self, copies: Tensor, exists: Tensor, rows: Tensor, valid: Tensor) -> Tensor:
        """The block's tokens (B, K, D) from their copies (B, K, O, D)."""
        return self.complete(self.aggregator.of_copies(copies, exists), exists, rows, valid)

    def complete(self, merged: Tensor, exists: Tensor, rows: Tensor, valid: Tensor) -> Tensor:
        """The block's tokens (B, K, D): feed-forward, 0 where nothing is there."""
        if self.cfg.windows == "floor":  # tokens after the last window pass through
            merged = torch.where(exists.any(2, keepdim=True), merged, rows)
        made: Tensor = self.feed_forward(merged, valid=valid)
        return made


def lay_out(cfg: ModelConfig, valid: Tensor, counts: Tensor, windows: int, *, gaps: bool) -> Layout:
    """The layout of series with ``counts`` (B,) tokens, of which ``valid`` (B, K) are there."""
    exists = windows_exist(cfg, counts, windows)  # (B, N)
    in_window = unfold_windows(valid, cfg, windows)  # (B, N, W)
    filled = exists[:, :, None, None].expand(-1, -1, cfg.window, 1)
    copies = align_copies(filled, cfg, valid.shape[1])[..., 0]  # (B, K, O)
    seen = F.pad(in_window, (2 * cfg.slots, 0), value=True)
    return Layout(valid, exists, exists & in_window.any(2), in_window, seen, copies, gaps)
