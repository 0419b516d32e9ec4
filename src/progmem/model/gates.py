"""The two adaptive gates of a PMA block: g * a + (1 - g) * b with g = sigmoid(Linear([a; b])).

Both look at normalised inputs, so that a growing stream cannot saturate them; the memory gate
also mixes the normalised values (Algorithm 1), which keeps the carried memory bounded.

Shapes: D width, n slots; "..." is any batch.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from progmem import kernels
from progmem.model.attention import Norm, precision_of


class TokenGate(nn.Module):
    """G_W: processed tokens against the signal they came from."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = Norm(dim)
        self.mix = _mixer(dim)

    def forward(self, tokens: Tensor, signal: Tensor) -> Tensor:
        dtype = precision_of(self.mix)
        if kernels.fit(tokens) and kernels.fit(signal):
            from progmem.kernels.norm_rows import Normed
            from progmem.model.gate_by_hand import gated

            layer = Normed(self.norm.weight, self.norm.bias, self.norm.eps)
            return gated(tokens, signal, layer, self.mix.weight.to(dtype), self.mix.bias)
        seen = [self.norm.before(x, dtype=dtype) for x in (tokens, signal)]
        z = F.linear(torch.cat(seen, dim=-1), self.mix.weight)
        return mixed(z, self.mix.bias[None], tokens, signal)


class Reset(NamedTuple):
    """What a memory gate needs of the reset state, the same for every memory."""

    rows: Tensor  # LN M_r, (n, D)
    logit: Tensor  # its part of the gate's, (n, D)
    left: Tensor  # the gate's weights for a memory, (D, D)


class MemoryGate(nn.Module):
    """G_M: a memory against the reset state, both normalised.

    A block whose gate only ever meets the reset state itself (the first, when the carry is not
    gated) has nothing to decide: it is built without the mixing weights.
    """

    def __init__(self, dim: int, *, mixes: bool) -> None:
        super().__init__()
        self.norm = Norm(dim)
        self.mix = _mixer(dim) if mixes else None

    def against(self, reset: Tensor) -> Reset:
        """``reset`` (n, D) made ready."""
        rows = self.norm(reset)
        if self.mix is None:
            return Reset(rows, torch.zeros_like(rows), rows.new_empty(0))
        left, right = self.mix.weight.chunk(2, dim=1)
        return Reset(rows, F.linear(rows.to(right.dtype), right, self.mix.bias), left)

    def forward(self, memory: Tensor, reset: Reset) -> Tensor:
        """``memory`` (..., n, D) refined with ``reset``."""
        new = self.norm(memory)
        if self.mix is None:
            return new
        z = F.linear(new.to(reset.left.dtype), reset.left)
        return mixed(z, reset.logit, new, reset.rows)


def mixed(z: Tensor, more: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """g a + (1 - g) b with g = sigmoid(z + more); ``b`` and ``more`` may be repeated (n, D)."""
    if kernels.fit(a):
        from progmem.kernels import mix

        return mix.mixed(z, more, a, b)
    g = torch.sigmoid(z + more)
    return g * a + (1 - g) * b


def _mixer(dim: int) -> nn.Linear:
    mix = nn.Linear(2 * dim, dim)
    nn.init.ones_(mix.bias)  # start by keeping most of the new side, as a forget bias does
    return mix
