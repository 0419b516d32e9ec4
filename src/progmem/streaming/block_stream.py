"""Tokenizer and PMA blocks on a stream: the functions of the batch, on the windows that are new.

A token is final once the carry of its newest window is final and that window is known to exist.
At any time exactly one window, the open one, has its carry but not all of its tokens; its rows
are computed as its tokens come. Older windows are complete, newer ones wait for their carry.

Shapes: B series, L samples, C channels, T tokens held, m new tokens, W window, S stride, O copies,
n slots, D width.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from progmem.geometry import count_tokens, count_windows, tokens_until, unfold_windows
from progmem.model.block import PMABlock
from progmem.ops.window_attention import attend_windows, memory_scan, read_carry, window_keys

if TYPE_CHECKING:
    from progmem.model.pmt import PMT


@dataclass
class Final:
    """What became final in a block: consecutive tokens with their signal, consecutive windows."""

    tokens: Tensor  # (B, m, D)
    signal: Tensor  # (B, m, D)
    valid: Tensor  # (B, m)
    memory: Tensor | None  # (B, m', n, D)
    nonempty: Tensor  # (B, m')


@dataclass
class BlockState:
    """What a block holds between pushes; nothing in it grows with the stream."""

    held: Tensor  # (B, T, 5D): W-bar, q, k, v and signal of the tokens from the open window on
    valid: Tensor  # (B, T)
    copies: Tensor  # (B, T, O, D), the rows W^out those tokens have so far
    filled: Tensor  # (T, O), which copies those are
    below: Tensor | None  # (B, m', n, D), memory of the block below, from the open window on
    memory: Tensor | None  # (B, n, D), the memory that the open window carries on
    window: int  # number of the open window
    done: int  # positions of the open window whose rows are computed
    emitted: int  # tokens returned so far


class BlockStream:
    """Takes in what the block below made final, gives out what this block made final."""

    def __init__(self, block: PMABlock, batch: int, first_memory: Tensor | None) -> None:
        """``first_memory`` is M_{w,0} (1, 1, n, D) for the first block, None for the others."""
        self.block, self.cfg, self.first_memory = block, block.cfg, first_memory
        weight, D, O = block.layer.out.weight, self.cfg.dim, self.cfg.overlap
        memory = None if block.slots is None else block.slots.initial_memory(batch).detach()
        self.state = BlockState(
            held=weight.new_zeros(batch, 0, 5 * D),
            valid=torch.zeros(batch, 0, dtype=torch.bool, device=weight.device),
            copies=weight.new_zeros(batch, 0, O, D),
            filled=torch.zeros(0, O, dtype=torch.bool, device=weight.device),
            below=None if memory is None or first_memory is not None else memory[:, None][:, :0],
            memory=memory,
            window=0,
            done=0,
            emitted=0,
        )

    def push(self, new: Final, *, seen: int, ended: bool, masked: bool) -> Final:
        """Advance by ``new``.

        Args:
            seen: tokens the stream has had so far, which tells the windows that exist.
            ended: no more will come, and ``new`` holds all that was left below.
            masked: use the mask of missing tokens without checking whether any is missing.
        """
        cfg, state = self.cfg, self.state
        base = state.window * cfg.stride  # number of the first token held
        self._append(new)
        held = base + state.held.shape[1]
        if ended:
            complete = count_windows(cfg, held) if held else 0
        else:
            complete = (held - cfg.window) // cfg.stride + 1
        memory, nonempty = self._complete_windows(max(0, complete - state.window), masked)
        final = held
        if not ended:
            exists = seen >= tokens_until(cfg, state.window)
            if exists:
                self._open_rows(base, masked)
            final = min(held, (state.window + exists) * cfg.stride)
        out = self._emit(final, base, memory, nonempty)
        self._drop(state.window * cfg.stride - base)
        return out

    def _append(self, new: Final) -> None:
        state, m = self.state, new.tokens.shape[1]
        rows, qkv = self.block.project(new.tokens, new.signal)
        columns = torch.cat([rows, qkv, new.signal], dim=-1)
        state.held = torch.cat([state.held, columns], dim=1)
        state.valid = torch.cat([state.valid, new.valid], dim=1)
        self._extend_copies(m)
        if state.below is not None and new.memory is not None:
            state.below = torch.cat([state.below, new.memory], dim=1)

    def _extend_copies(self, tokens: int) -> None:
        state = self.state
        state.copies = F.pad(state.copies, (0, 0, 0, 0, 0, tokens))
        state.filled = F.pad(state.filled, (0, 0, 0, tokens))

    def _complete_windows(self, count: int, masked: bool) -> tuple[Tensor | None, Tensor]:
        """Scan the next ``count`` windows and compute their rows; memory, which are nonempty."""
        block, state, cfg = self.block, self.state, self.cfg
        if not count:
            none = None if state.memory is None else state.memory[:, None][:, :0]
            return none, state.valid[:, :0]
        valid = unfold_windows(state.valid, cfg, count)  # (B, count, W)
        nonempty = valid.any(2)
        rows, q, k, v, _ = unfold_windows(state.held, cfg, count).chunk(5, dim=-1)
        k, v = window_keys(k, v, cfg=cfg)
        memory = carry = None
        if block.slots is not None and state.memory is not None:
            below = state.below[:, :count] if state.below is not None else self.first_memory
            assert below is not None
            weights = block.slots.scan_weights(block.layer)
            memory, *carry_kv = memory_scan(
                state.memory, block.slots.gate_below(block.layer, weights, below), weights, k, v,
                valid=valid, nonempty=nonempty, cfg=cfg, training=False,
            )  # fmt: skip
            state.memory = memory[:, -1].clone()  # a view would keep the memory of all windows
            carry = carry_kv[0], carry_kv[1]
        gaps = _if_any_missing(valid, masked)
        beyond = (count - 1) * cfg.stride + cfg.window - state.copies.shape[1]
        if beyond > 0:  # the last window of a series may reach past its tokens
            self._extend_copies(beyond)
        # some rows of the first window were computed while it was open
        parts = [(0, 1, state.done), (1, count, 0)] if state.done else [(0, count, 0)]
        for first, last, start in parts:
            if first == last:
                continue
            part = slice(first, last)
            attended = attend_windows(
                q[:, part, start:], k[:, part], v[:, part],
                None if carry is None else (carry[0][:, part], carry[1][:, part]),
                None if gaps is None else gaps[:, part], cfg=cfg,
            )  # fmt: skip
            out = block.layer.attention_output(rows[:, part, start:], attended)
            self._store(out, first * cfg.stride, start)
        state.window += count
        state.done = 0
        if state.below is not None:
            state.below = state.below[:, count:].clone()
        return memory, nonempty

    def _open_rows(self, base: int, masked: bool) -> None:
        """Compute the rows of the open window for the tokens that are new."""
        block, state, cfg = self.block, self.state, self.cfg
        start = state.window * cfg.stride - base  # where the open window starts in the buffers
        length = state.held.shape[1] - start
        if length == state.done:
            return
        rows, q, k, v, _ = state.held[:, None, start:].chunk(5, dim=-1)
        k, v = window_keys(k, v, cfg=cfg)
        carry = None
        if block.slots is not None and state.memory is not None:
            weights = block.slots.scan_weights(block.layer)
            _, _, carry_k, carry_v = read_carry(state.memory, weights, cfg=cfg)
            carry = carry_k[:, None], carry_v[:, None]
        gaps = _if_any_missing(state.valid[:, None, start:], masked)
        new = slice(state.done, None)
        attended = attend_windows(q[:, :, new], k, v, carry, gaps, cfg=cfg)
        self._store(block.layer.attention_output(rows[:, :, new], attended), start, state.done)
        state.done = length

    def _store(self, rows: Tensor, start: int, position: int) -> None:
        """Store W^out (B, N, P, D) of the positions from ``position`` on as copies of their tokens.

        The first of the N windows starts at ``start`` in the buffers. Position j is copy j // S
        of its token: each copy number is a range of positions, a stride apart per window.
        """
        state, S = self.state, self.cfg.stride
        N, stop = rows.shape[1], position + rows.shape[2]
        for r in range(position // S, -(-stop // S)):
            a, b = max(position, r * S), min(stop, (r + 1) * S)
            cells = slice(start + a, start + (N - 1) * S + b)
            copies = state.copies[:, cells, r].unfold(1, b - a, S)  # (B, N, D, b-a)
            copies.copy_(rows[:, :, a - position : b - position].mT)
            state.filled[cells, r].unfold(0, b - a, S).fill_(True)

    def _emit(self, final: int, base: int, memory: Tensor | None, nonempty: Tensor) -> Final:
        """Pool the tokens up to number ``final``."""
        block, state, D = self.block, self.state, self.cfg.dim
        part = slice(state.emitted - base, max(final, state.emitted) - base)
        state.emitted = max(final, state.emitted)
        valid, held = state.valid[:, part], state.held[:, part]
        exists = state.filled[None, part]
        merged = block.aggregator.of_copies(state.copies[:, part], exists)
        tokens = block.output_tokens(merged, exists, held[..., :D], valid)
        return Final(tokens, held[..., -D:], valid, memory, nonempty)

    def _drop(self, tokens: int) -> None:
        """Drop what lies before the open window."""
        state = self.state
        for name in ("held", "valid", "copies"):
            setattr(state, name, getattr(state, name)[:, tokens:].clone())
        state.filled = state.filled[tokens:].clone()


def _if_any_missing(valid: Tensor, masked: bool) -> Tensor | None:
    """``valid`` if any token is missing; with ``masked`` always, without reading its values."""
    return valid if masked or not bool(valid.all()) else None


class BackboneStream:
    """Holds the samples that do not make a token yet, and the state of every block."""

    def __init__(self, model: "PMT", batch: int) -> None:
        weight = model.tokenizer.conv.weight
        self.tokenizer, self.cfg = model.tokenizer, model.cfg
        self.x = weight.new_zeros(batch, 0, self.cfg.channels)
        self.observed = torch.zeros_like(self.x, dtype=torch.bool)
        self.seen = 0  # tokens so far
        first = model.first_memory()
        self.blocks = [
            BlockStream(block, batch, first if b == 0 else None)
            for b, block in enumerate(model.pma_blocks)
        ]

    def push(
        self, x: Tensor, observed: Tensor, *, ended: bool = False, masked: bool = False
    ) -> Final:
        """Advance by normalised samples (B, L, C); ``ended`` flushes the tokens that still waited.

        ``masked``: see `BlockStream.push`.
        """
        self.x = torch.cat([self.x, x], dim=1)
        self.observed = torch.cat([self.observed, observed], dim=1)
        m = count_tokens(self.cfg, self.x.shape[1])
        if m:
            signal, valid = self.tokenizer(self.x, self.observed)
            self.x = self.x[:, m * self.cfg.patch_stride :].clone()
            self.observed = self.observed[:, m * self.cfg.patch_stride :].clone()
        else:
            signal = self.x.new_zeros(x.shape[0], 0, self.cfg.dim)
            valid = observed.new_zeros(x.shape[0], 0)
        self.seen += m
        final = Final(signal, signal, valid, None, valid[:, :0])
        for block in self.blocks:
            final = block.push(final, seen=self.seen, ended=ended, masked=masked)
        return final
