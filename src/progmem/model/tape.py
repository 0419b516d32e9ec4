"""The scan on a GPU, step by step without autograd: few kernels, and a backward pass by hand.

It gives the states before each window, and in backward carries gradients from window to window;
weights and keys get theirs from the batch of all windows (`progmem.model.recurrence`).

Shapes: B series, N windows, n slots, R = B n rows, D width, H heads, d = D / H.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from progmem.kernels import biased, few_keys, norm, slots
from progmem.model.attention import AttentionLayer, Norm
from progmem.model.recurrence import Seen

if TYPE_CHECKING:
    from progmem.model.scan import MemorySlots


@dataclass
class Trace:
    """What a step leaves for its backward pass."""

    state: Tensor  # (R, D)
    moments: Tensor  # (2, R)
    z: Tensor  # (R, D)
    carry: Tensor  # (R, D)
    carry_moments: Tensor
    given: few_keys.Given
    attended: Tensor
    lse: Tensor
    total: Tensor  # (R, D)
    total_moments: Tensor
    wide: Tensor  # (R, 4D)
    alive: Tensor  # (B,)


class KernelTape:
    """A `Tape` for slots whose carry is gated and read out; weights are frozen and cast."""

    def __init__(self, memory: "MemorySlots", layer: AttentionLayer, seen: Seen) -> None:
        assert memory.gate.mix is not None
        self.layer, self.seen, self.heads = layer, seen, memory.heads
        self.left = memory.gate.mix.weight.chunk(2, dim=1)[0].contiguous()
        reset = memory.ready()
        assert reset.logit is not None
        self.reset, self.logit = reset.rows.contiguous(), reset.logit.contiguous()
        self.segment = memory.segments[0]
        self.gate = _normed(memory.gate.norm)
        self.traces: list[Trace] = []

    @torch.no_grad()
    def forward(self, state: Tensor) -> Tensor:
        """States (B, N, n, D) before each window, the first being ``state`` (B, n, D)."""
        B, N = self.seen.alive.shape
        D = state.shape[-1]
        states = state.new_empty(N + 1, state.numel() // D, D)
        states[0] = state.reshape(-1, D)
        normed, moments = norm.run_forward(states[0], self.gate, dtype=self.left.dtype)
        for w in range(N):
            trace, y, bias = self._step(states[w], normed, moments, w)
            self.traces.append(trace)
            normed, moments = slots.settle(
                trace.total, y, bias, states[w], trace.alive, gate=self.gate, out=states[w + 1]
            )
        return states[:N].view(N, B, -1, D).transpose(0, 1).contiguous()

    def _step(
        self, state: Tensor, normed: Tensor, moments: Tensor, w: int
    ) -> tuple[Trace, Tensor, Tensor]:
        layer, ahead, seen = self.layer, self.layer.feed_forward, self.seen.window(w)
        B = len(seen.alive)
        z = normed @ self.left.T
        carry, h, carry_moments = slots.gate_and_norm(
            z, state, moments, gate=self.gate, reset=self.reset, logit=self.logit,
            norm=_normed(layer.norm), segment=self.segment,
        )  # fmt: skip
        qkv = (h @ layer.qkv.weight.T).view(B, 1, -1, 3, self.heads, state.shape[1] // self.heads)
        q, k, v = (qkv[:, :, :, i].transpose(2, 3) for i in range(3))  # (B, 1, H, n, d)
        mask = seen.mask.expand(-1, -1, q.shape[3], -1)
        given = few_keys.Given(q, k, v, seen.k.unsqueeze(1), seen.v.unsqueeze(1), mask)
        attended, lse = few_keys.run_forward(given)
        more = attended.view(len(state), -1) @ layer.out.weight.T
        total, f, total_moments = norm.run_add_forward(
            carry, more, layer.out.bias, _normed(ahead.norm), dtype=z.dtype
        )
        wide = f @ ahead.widen.weight.T
        y = biased.run_gelu_forward(wide, ahead.widen.bias) @ ahead.narrow.weight.T
        trace = Trace(
            state, moments, z, carry, carry_moments, given, attended, lse,
            total, total_moments, wide, seen.alive.contiguous(),
        )  # fmt: skip
        return trace, y, ahead.narrow.bias

    @torch.no_grad()
    def backward(self, memory: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """dL/dM_w with all later windows in it, (B, N, n, D), and dL/dstate, (B, n, D).

        Args: what each window's own readers have of M_w (B, N, n, D) and of its carry's keys and
        values (B, N, H, n, d).
        """
        B, N, n, D = memory.shape
        k, v = (t if t.stride(-1) == 1 else t.contiguous() for t in (k, v))
        own = memory.transpose(0, 1).reshape(N, -1, D).to(torch.float32)
        found = torch.zeros(N + 1, B * n, D, dtype=torch.float32, device=memory.device)
        found[N] = own[N - 1]  # found[w + 1] is dL/dM_w
        alive = self.traces[-1].alive
        masked = torch.where(alive[:, None, None], found[N].view(B, n, D), 0.0).view(-1, D)
        cast = masked.to(self.left.dtype)
        for w in reversed(range(N)):
            trace = self.traces[w]
            first = w == 0
            da, through = self._pull(trace, masked, cast, k[:, w], v[:, w])
            masked, cast = slots.settle_backward(
                da, through, trace.state, trace.moments, found[w + 1], trace.alive, gate=self.gate,
                earlier=found[0] if first else own[w - 1],
                earlier_alive=trace.alive if first else self.traces[w - 1].alive, out=found[w],
            )  # fmt: skip
        return found[1:].view(N, B, n, D).transpose(0, 1), found[0].view(B, n, D)

    def _pull(
        self, trace: Trace, masked: Tensor, cast: Tensor, k: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor]:
        """From the gradient of what was written to that of LN(state): directly, and through z."""
        layer, ahead = self.layer, self.layer.feed_forward
        B, H, n, d = k.shape
        d_wide = biased.run_gelu_backward(trace.wide, ahead.widen.bias, cast @ ahead.narrow.weight)
        d_total, d_more = norm.run_add_backward(
            d_wide @ ahead.widen.weight, masked, trace.total, trace.total_moments,
            _normed(ahead.norm), dtype=cast.dtype,
        )  # fmt: skip
        back = (d_more @ layer.out.weight).view(B, 1, n, H, d)
        d_qkv = cast.new_empty(B, 1, n, 3, H, d)
        few_keys.run_backward(
            trace.given, out=trace.attended, lse=trace.lse,
            back=back, made=[*d_qkv.unbind(3), d_qkv[:, :, :0, 0], d_qkv[:, :, :0, 0]], keys=False,
            more=(k.transpose(1, 2).unsqueeze(1), v.transpose(1, 2).unsqueeze(1)),
        )  # fmt: skip
        dz, da = slots.gate_and_norm_backward(
            d_qkv.view(B * n, -1) @ layer.qkv.weight, d_total, trace.carry, trace.carry_moments,
            trace.z, trace.state, trace.moments,
            gate=self.gate, reset=self.reset, logit=self.logit, norm=_normed(layer.norm),
        )  # fmt: skip
        return da, dz @ self.left


def _normed(layer: Norm) -> norm.Normed:
    return norm.Normed(layer.weight, layer.bias, layer.eps)
