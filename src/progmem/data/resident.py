"""Training rows kept on the device, normalised once: a batch is then a selection of them.

Shapes: R rows, B rows of a batch, L samples of the longest, C channels.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from progmem.config import ModelConfig
from progmem.data.rows import Batch, Rows
from progmem.series import ChannelStats

LARGEST = 2**30  # bytes of rows that are kept
PIECE = 1024  # rows normalised at a time


class Resident:
    """All rows of a run as `Rows.fetch` would give them."""

    def __init__(self, rows: Rows, cfg: ModelConfig, stats: ChannelStats, like: Tensor) -> None:
        shape = (len(rows), int(rows.length.max()), rows.channels)
        self.length = rows.length
        self.lengths = rows.length.to(like.device)
        self.x = torch.zeros(shape, dtype=like.dtype, device=like.device)
        self.observed = torch.zeros(shape, dtype=torch.bool, device=like.device)
        for first in range(0, len(rows), PIECE):
            some = torch.arange(first, min(first + PIECE, len(rows)))
            batch = rows.fetch(some, cfg, stats, like)
            part = slice(first, first + len(some)), slice(0, batch.x.shape[1])
            self.x[part], self.observed[part] = batch.x, batch.observed

    def fetch(self, rows: Tensor) -> Batch:
        """The rows (B,), cut to the longest of them."""
        length = int(self.length[rows].max())
        rows = rows.to(self.x.device)
        return Batch(self.x[rows, :length], self.observed[rows, :length], self.lengths[rows])


def fetch_from(
    rows: Rows, cfg: ModelConfig, stats: ChannelStats, like: Tensor
) -> Callable[[Tensor], Batch]:
    """What gives the rows of a batch: kept on the device where they fit, else made each time."""
    if fits(rows, like):
        return Resident(rows, cfg, stats, like).fetch
    return partial(rows.fetch, cfg=cfg, stats=stats, like=like)


def fits(rows: Rows, like: Tensor) -> bool:
    """Whether all rows may be kept on the device of ``like``, beside what else it has to hold."""
    samples = len(rows) * int(rows.length.max()) * rows.channels
    needed = samples * (like.element_size() + 1)
    if like.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(like.device)
        return needed <= min(LARGEST, free // 4)
    return needed <= LARGEST
