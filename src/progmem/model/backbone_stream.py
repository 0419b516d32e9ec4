"""Tokenizer and PMA blocks on a stream: samples in, final tokens and memory out.

Shapes: B series, L samples, C channels, m new tokens, D width.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from progmem.model.block_stream import BlockStream, Final
from progmem.model.geometry import count_tokens

if TYPE_CHECKING:
    from progmem.model.pmt import PMT


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
        """Advance by clean samples (B, L, C); ``ended`` flushes what still waited.

        ``masked``: never look at values on the way, as `BlockStream.push` has it.
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
