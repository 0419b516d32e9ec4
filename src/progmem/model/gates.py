"""The two adaptive gates of a PMA block: g * a + (1 - g) * b with g = sigmoid(Linear([a; b])).

Both look at normalised inputs, so that a growing stream cannot saturate them; the memory gate
also mixes the normalised values (Algorithm 1), which keeps the carried memory bounded.

Shapes: D width, n slots; "..." is any batch.
"""

import torch
from torch import Tensor, nn

from progmem.model.attention import Norm, linear


class TokenGate(nn.Module):
    """G_W: processed tokens against the signal they came from."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = Norm(dim)
        self.mix = _mixer(dim)

    def forward(self, tokens: Tensor, signal: Tensor) -> Tensor:
        seen = torch.cat([self.norm(tokens), self.norm(signal)], dim=-1)  # (..., 2D)
        g = torch.sigmoid(self.mix(seen))
        return g * tokens + (1 - g) * signal


class MemoryGate(nn.Module):
    """G_M: a memory against the reset state, both normalised.

    A block whose gate only ever meets the reset state itself (the first, when the carry is not
    gated) has nothing to decide: it is built without the mixing weights.
    """

    def __init__(self, dim: int, *, mixes: bool) -> None:
        super().__init__()
        self.norm = Norm(dim)
        self.mix = _mixer(dim) if mixes else None

    def forward(self, memory: Tensor, reset: Tensor) -> Tensor:
        """``memory`` (..., n, D) refined with ``reset`` (n, D)."""
        a, b = self.norm(memory), self.norm(reset)
        if self.mix is None:
            return a
        g = torch.sigmoid(linear(self.mix, torch.cat([a, b.expand_as(a)], dim=-1)))
        return g * a + (1 - g) * b


def _mixer(dim: int) -> nn.Linear:
    mix = nn.Linear(2 * dim, dim)
    nn.init.ones_(mix.bias)  # start by keeping most of the new side, as a forget bias does
    return mix
