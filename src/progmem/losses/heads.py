"""Projection heads: only the losses see their output; probes use what comes before.

Shapes: D width; "..." is any batch.
"""

from typing import cast

from torch import Tensor, nn

from progmem.ops.layers import linear, linear_gelu
from progmem.settings import LossConfig

ICL_WIDTH = 128


def make_heads(dim: int, cfg: LossConfig) -> nn.ModuleDict:
    """Two-layer heads for the objectives that have one and are switched on."""
    heads = nn.ModuleDict()
    if cfg.icl:
        heads["icl"] = Head(dim, 2 * dim, ICL_WIDTH)
    if cfg.hgcl:
        heads["hgcl"] = Head(dim, dim, dim)
    return heads


class Head(nn.Sequential):
    """Two linear maps with a gelu between them."""

    def __init__(self, dim: int, hidden: int, out: int) -> None:
        super().__init__(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, out))

    def forward(self, x: Tensor) -> Tensor:
        first, last = cast(nn.Linear, self[0]), cast(nn.Linear, self[2])
        return linear(linear_gelu(x, first.weight, first.bias), last.weight, last.bias)
