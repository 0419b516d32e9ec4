"""Projection heads: only the losses see their output; probes use what comes before.

Shapes: D width; "..." is any batch.
"""

from torch import nn

from progmem.settings import LossConfig

ICL_WIDTH = 128


def make_heads(dim: int, cfg: LossConfig) -> nn.ModuleDict:
    """Two-layer heads for the objectives that have one and are switched on."""
    heads = nn.ModuleDict()
    if cfg.icl:
        heads["icl"] = _head(dim, 2 * dim, ICL_WIDTH)
    if cfg.hgcl:
        heads["hgcl"] = _head(dim, dim, dim)
    return heads


def _head(dim: int, hidden: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, out))
