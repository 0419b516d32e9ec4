"""One PMA block on a stream: the batch's own functions, on the part of the windows that is new.

A token is final once the carry of its newest window is final and that window is known to exist.
At any time exactly one window, the open one, has its carry but not all of its tokens; its rows
are made as its tokens come. Everything older is complete, everything newer waits.

Shapes: B series, T tokens held, m new tokens, W window, S stride, O copies, n slots, D width.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from progmem.model.geometry import align_copies, count_windows, tokens_until, unfold_windows
from progmem.model.pma import PMABlock


@dataclass
class Final:
    """What became final somewhere: consecutive tokens with their signal, consecutive windows."""

    tokens: Tensor  # (B, m, D)
    signal: Tensor  # (B, m, D)
    valid: Tensor  # (B, m)
    memory: Tensor | None  # (B, m', n, D)
    alive: Tensor  # (B, m')


@dataclass
class BlockState:
    """What a block holds between pushes; nothing in it grows with the stream."""

    rows: Tensor  # (B, T, D), W-bar of the tokens from the open window on
    q: Tensor  # (B, T, D)
    k: Tensor  # (B, T, D)
    v: Tensor  # (B, T, D)
    signal: Tensor  # (B, T, D)
    valid: Tensor  # (B, T)
    copies: Tensor  # (B, T, O, D), the rows W^out those tokens have so far
    filled: Tensor  # (T, O), which copies those are
    below: Tensor | None  # (B, m', n, D), memory of the block below, from the open window on
    memory: Tensor | None  # (B, n, D), the memory that the open window carries on
    window: int  # number of the open window
    done: int  # positions of the open window whose rows are made
    emitted: int  # tokens given out


class BlockStream:
    """Takes in what the block below made final, gives out what this block made final."""

    def __init__(self, block: PMABlock, batch: int, first_memory: Tensor | None) -> None:
        """``first_memory`` is M_{w,0} (1, 1, n, D) for the first block, None for the others."""
        self.block, self.cfg, self.first_memory = block, block.cfg, first_memory
        weight = block.layer.out.weight
        none = weight.new_zeros(batch, 0, self.cfg.dim)
        memory = None if block.slots is None else block.slots.start(batch).detach()
        self.state = BlockState(
            *(none,) * 5,
            valid=torch.zeros(batch, 0, dtype=torch.bool, device=weight.device),
            copies=weight.new_zeros(batch, 0, self.cfg.overlap, self.cfg.dim),
            filled=torch.zeros(0, self.cfg.overlap, dtype=torch.bool, device=weight.device),
            below=None if memory is None or first_memory is not None else memory[:, None][:, :0],
            memory=memory,
            window=0,
            done=0,
            emitted=0,
        )

    def push(self, new: Final, *, seen: int, ended: bool) -> Final:
        """Advance by ``new``.

        Args:
            seen: tokens the stream has had so far, which tells the windows that exist.
            ended: no more will come, and ``new`` holds all that was left below.
        """
        cfg, state = self.cfg, self.state
        base = state.window * cfg.stride  # number of the first token held
        self._take_in(new)
        held = base + state.rows.shape[1]
        if ended:
            complete = count_windows(cfg, held) if held else 0
        else:
            complete = (held - cfg.window) // cfg.stride + 1
        memory, alive = self._complete_windows(max(0, complete - state.window))
        final = held
        if not ended:
            exists = seen >= tokens_until(cfg, state.window)
            if exists:
                self._open_rows(base)
            final = min(held, (state.window + exists) * cfg.stride)
        out = self._emit(final, base, memory, alive)
        self._forget(state.window * cfg.stride - base)
        return out

    def _take_in(self, new: Final) -> None:
        state = self.state
        projected = self.block.project(new.tokens, new.signal)
        for name, more in (
            *projected._asdict().items(),
            ("signal", new.signal),
            ("valid", new.valid),
        ):
            setattr(state, name, torch.cat([getattr(state, name), more], dim=1))
        m = new.tokens.shape[1]
        state.copies = F.pad(state.copies, (0, 0, 0, 0, 0, m))
        state.filled = F.pad(state.filled, (0, 0, 0, m))
        if state.below is not None and new.memory is not None:
            state.below = torch.cat([state.below, new.memory], dim=1)

    def _complete_windows(self, count: int) -> tuple[Tensor | None, Tensor]:
        """Scan the next ``count`` windows, make their rows; their memory and which are alive."""
        block, state, cfg = self.block, self.state, self.cfg
        valid = state.valid.new_zeros(state.valid.shape[0], 0, cfg.window)
        if count:
            valid = unfold_windows(state.valid, cfg, count)  # (B, count, W)
        alive = valid.any(2)
        memory = None if state.memory is None else state.memory[:, None][:, :0]
        if not count:
            return memory, alive
        rows, q, k, v = (
            unfold_windows(t, cfg, count) for t in (state.rows, state.q, state.k, state.v)
        )
        k, v = block.as_heads(k, rotated=True), block.as_heads(v)
        carry = None
        if block.slots is not None and state.memory is not None:
            below = state.below[:, :count] if state.below is not None else self.first_memory
            assert below is not None
            scanned = block.slots.scan(
                block.layer, state.memory, bar=block.slots.refine(below), k=k, v=v,
                valid=valid, alive=alive,
            )  # fmt: skip
            memory, state.memory = scanned.memory, scanned.state
            carry = scanned.carry_k, scanned.carry_v
        gaps = None if bool(valid.all()) else valid
        made = torch.ones(count, cfg.window, dtype=torch.bool, device=k.device)
        if state.done == 0:
            out = block.attend_rows(rows, q, k, v, carry, gaps)
        else:  # some rows of the first were made while it was open
            made[0, : state.done] = False
            pieces = []
            for part, start in ((slice(0, 1), state.done), (slice(1, count), 0)):
                piece = block.attend_rows(
                    rows[:, part, start:], q[:, part, start:], k[:, part], v[:, part],
                    None if carry is None else (carry[0][:, part], carry[1][:, part]),
                    None if gaps is None else gaps[:, part],
                )  # fmt: skip
                pieces.append(F.pad(piece, (0, 0, start, 0)))
            out = torch.cat(pieces, dim=1)
        self._keep(out, made, 0)
        state.window += count
        state.done = 0
        if state.below is not None:
            state.below = state.below[:, count:].clone()
        return memory, alive

    def _open_rows(self, base: int) -> None:
        """Make the rows of the open window for the tokens that have come since."""
        block, state, cfg = self.block, self.state, self.cfg
        start = state.window * cfg.stride - base  # where the open window starts in the buffers
        length = state.rows.shape[1] - start
        if length == state.done:
            return
        fresh = slice(start + state.done, None)
        k = block.as_heads(state.k[:, None, start:], rotated=True)
        v = block.as_heads(state.v[:, None, start:])
        carry = None
        if block.slots is not None and state.memory is not None:
            _, _, carry_k, carry_v = block.slots.read_carry(block.layer, state.memory)
            carry = carry_k[:, None], carry_v[:, None]
        valid = state.valid[:, None, start:]
        rows, q = state.rows[:, None, fresh], state.q[:, None, fresh]
        out = block.attend_rows(rows, q, k, v, carry, None if bool(valid.all()) else valid)
        made = torch.zeros(1, cfg.window, dtype=torch.bool, device=k.device)
        made[0, state.done : length] = True
        self._keep(F.pad(out, (0, 0, state.done, cfg.window - length)), made, start)
        state.done = length

    def _keep(self, rows: Tensor, made: Tensor, start: int) -> None:
        """Put ``rows`` (B, N, W, D) that were ``made`` (N, W) with the tokens from ``start`` on."""
        state, cfg = self.state, self.cfg
        T = state.copies.shape[1] - start
        filled = align_copies(made[None, :, :, None], cfg, T)[0, :, :, 0]  # (T, O)
        copies = align_copies(rows, cfg, T)  # (B, T, O, D)
        state.filled[start:] |= filled
        state.copies[:, start:] = torch.where(filled[..., None], copies, state.copies[:, start:])

    def _emit(self, final: int, base: int, memory: Tensor | None, alive: Tensor) -> Final:
        """Pool the tokens up to number ``final``."""
        state = self.state
        part = slice(state.emitted - base, max(final, state.emitted) - base)
        state.emitted = max(final, state.emitted)
        valid = state.valid[:, part]
        tokens = self.block.pool(
            state.copies[:, part], state.filled[None, part], state.rows[:, part], valid
        )
        return Final(tokens, state.signal[:, part], valid, memory, alive)

    def _forget(self, tokens: int) -> None:
        """Drop what lies before the open window."""
        state = self.state
        for name in ("rows", "q", "k", "v", "signal", "valid", "copies"):
            setattr(state, name, getattr(state, name)[:, tokens:].clone())
        state.filled = state.filled[tokens:].clone()
