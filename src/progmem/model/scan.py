"""Writable memory: the slots, and their scan over the windows, the only sequential part of PMT.

Whatever does not depend on the carry (keys and values of the tokens and of the block below) is
made for all windows at once; a step of the scan is a few small products over n slots.

Shapes: B series, N windows, W window, n slots, D width, H heads, d = D / H.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from progmem import kernels
from progmem.config import ModelConfig
from progmem.model.attention import AttentionLayer, attend, drops, precision_of, split_heads
from progmem.model.gates import MemoryGate, Reset
from progmem.model.recurrence import Seen, Step, Stepped, scan, scan_with_adjoint
from progmem.model.twins import frozen


class Scanned(NamedTuple):
    """The memory after each window, and the keys and values of the carry each window saw."""

    memory: Tensor  # (B, N, n, D), M_{w,b}
    carry: tuple[Tensor, Tensor] | None  # (B, N, H, n, d) each; None once tokens have seen them
    state: Tensor  # (B, n, D): the memory after the last window


class MemorySlots(nn.Module):
    """The memory of one block: reset state M_r, gate G_M, and which rows are read out."""

    def __init__(self, cfg: ModelConfig, block: int) -> None:
        super().__init__()
        self.heads = cfg.heads
        self.gate_carry, self.readout = cfg.gate_carry, cfg.readout
        generator = torch.Generator().manual_seed(cfg.reset_seed)
        resets = torch.randn(cfg.blocks, cfg.slots, cfg.dim, generator=generator)
        self.reset = nn.Parameter(0.02 * resets[block])  # M_r; slots differ, or would stay equal
        self.gate = MemoryGate(cfg.dim, mixes=block > 0 or cfg.gate_carry)
        self.segments = nn.Parameter(0.02 * torch.randn(2, cfg.dim))  # carry, block below

    def first(self) -> Tensor:
        """M_r (n, D), at least float32: bf16 would swallow small updates."""
        return self.reset.to(torch.promote_types(self.reset.dtype, torch.float32))

    def start(self, batch: int) -> Tensor:
        """M_{0,b} = M_r, (B, n, D)."""
        return self.first().expand(batch, -1, -1)

    def ready(self) -> Reset:
        """The reset state as the gate takes it."""
        return self.gate.against(self.first())

    def read_carry(self, layer: AttentionLayer, state: Tensor, reset: Reset) -> tuple[Tensor, ...]:
        """The carry as a window sees it: rows (B, n, D), then q, k, v (B, H, n, d)."""
        carry = self.gate(state, reset) if self.gate_carry else state
        q, k, v = layer.project(carry, self.segments[0])
        return carry, *(split_heads(t, self.heads) for t in (q, k, v))

    def scan(
        self,
        layer: AttentionLayer,
        state: Tensor,
        *,
        below: Tensor,
        k: Tensor,
        v: Tensor,
        valid: Tensor,
        alive: Tensor,
    ) -> Scanned:
        """Carry the memory ``state`` (B, n, D) through N windows.

        Args:
            below: memory of the block below, (B or 1, N or 1, n, D).
            k: keys of each window's tokens, (B, N, H, W, d); ``v`` likewise.
            valid: which of those tokens are there, (B, N, W).
            alive: which windows write, (B, N); the others pass their carry on.
        """
        B, N = alive.shape
        reset = self.ready()
        bar = self.gate(below, reset)  # M-bar_{w,b-1} = G_M(LN M_{w,b-1}, LN M_r)
        bar_q, bar_k, bar_v = (
            split_heads(t, self.heads).expand(B, N, -1, -1, -1)
            for t in layer.project(bar, self.segments[1])
        )
        k = torch.cat([bar_k, k], dim=3)  # (B, N, H, n+W, d)
        v = torch.cat([bar_v, v], dim=3)
        slots = valid.new_ones(B, N, 2 * self.reset.shape[0])
        mask = torch.cat([slots, valid], dim=2)[:, :, None, None]  # (B, N, 1, 1, 2n+W)
        seen = Seen(bar.expand(B, N, -1, -1), bar_q, k, v, mask, alive)
        memory, carry_k, carry_v = self.run(layer, state, seen, reset)
        last = memory[:, -1].clone()  # a view would keep the memory of all windows alive
        return Scanned(memory, (carry_k, carry_v), last)

    def run(self, layer: AttentionLayer, state: Tensor, seen: Seen, reset: Reset) -> Stepped:
        """The scan: with an adjoint where there is a gradient, by hand on a GPU, or plainly."""
        step = self.stepper(layer, reset)
        if drops(layer.drop) or torch.compiler.is_compiling():  # a step cannot be made twice
            return scan(step, state, seen)
        dtype = precision_of(layer.qkv)
        if torch.is_grad_enabled() and (state.requires_grad or seen.k.requires_grad):
            known = Reset(reset.rows.detach(), reset.logit.detach(), reset.left.detach().to(dtype))
            alone = frozen(self, dtype).stepper(frozen(layer, dtype), known)
            return scan_with_adjoint(alone, step, state, seen)
        if self.by_hand(layer, state, keys=seen.mask.shape[-1]):
            from progmem.model import tape

            weights = tape.weights_of(self, layer, reset, self.segments[0], dtype)
            alive = seen.alive.T.contiguous()
            kept = tape.run(weights, state, seen.k, seen.v, seen.mask[:, :, 0, 0], alive)
            return Stepped(kept.memory(len(state)), *kept.carry_heads(len(state)))
        return scan(step, state, seen)

    def by_hand(self, layer: AttentionLayer, rows: Tensor, *, keys: int) -> bool:
        """Whether kernels can scan windows whose slots see so many ``keys``."""
        if not (kernels.fit(rows) and self.gate_carry and self.readout == "carry"):
            return False
        from progmem.kernels import few_keys

        return not drops(layer.drop) and few_keys.takes(keys, keys, rows.shape[-1] // self.heads)

    def stepper(self, layer: AttentionLayer, reset: Reset) -> Step:
        """The step of the scan; the reset state is the same in all of them."""

        def step(state: Tensor, seen: Seen) -> Stepped:
            """``state`` (..., n, D) after a window, for one window of each series or all."""
            rows, q, own_k, own_v = self.read_carry(layer, state, reset)
            if self.readout == "block":
                rows, q = seen.bar, seen.bar_q
            attended = attend(q, seen.k, seen.v, seen.mask, first=(own_k, own_v))
            written = layer.complete(rows, attended)
            return Stepped(torch.where(seen.alive[..., None, None], written, state), own_k, own_v)

        return step
