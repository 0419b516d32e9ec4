"""The vanilla transformer: same tokenizer and layers, full attention, no windows, no memory.

Shapes: B series, L samples, C channels, K tokens, D width, H heads, d = D / H.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn

from progmem.config import ModelConfig
from progmem.encoding import Encoding
from progmem.geometry import count_tokens, token_spans
from progmem.missing import tell_of_missing
from progmem.model.encode import blank_encoding, encode_rows, eval_mode, moments_for, write
from progmem.model.layers import AttentionLayer, Norm
from progmem.model.tokenizer import Tokenizer
from progmem.ops.layers import attend, merge_heads, rotate, rotation, split_heads
from progmem.series import ChannelStats, Series, check_count, check_finite, check_tensor


class VanillaTransformer(nn.Module):
    """``cfg.blocks`` layers in which every token and CLS see every token and CLS."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.stats = ChannelStats(cfg.channels)
        self.tokenizer = Tokenizer(cfg)
        self.cls = nn.Parameter(0.02 * torch.randn(cfg.dim))
        self.layers = nn.ModuleList(AttentionLayer(cfg.dim, cfg.dropout) for _ in range(cfg.blocks))
        self.norm = Norm(cfg.dim)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, *, lengths: Tensor | None = None
    ) -> Encoding:
        """Encode normalised series (B, L, C), as `PMT.forward` does."""
        check_tensor(x, self.cfg)
        B, L, _ = x.shape
        K = count_tokens(self.cfg, L)
        tokens, valid = self.tokenizer(x, mask, lengths)
        rows = torch.cat([self.cls.expand(B, 1, -1), tokens], dim=1)  # (B, 1+K, D)
        seen = None
        if mask is not None or lengths is not None:  # a missing row sees CLS, so none is empty
            seen = torch.cat([valid.new_ones(B, 1), valid], dim=1)[:, None, None]
        for layer in self.layers:
            rows = self._attend(cast(AttentionLayer, layer), rows, seen)
        rows = self.norm(rows)
        return Encoding(
            tokens=torch.where(valid[..., None], rows[:, 1:], 0.0),
            memory=None,
            sequence=rows[:, 0],
            eos=None,
            token_mask=valid,
            window_mask=None,
            token_spans=token_spans(self.cfg, 0, K),
            window_spans=None,
        )

    def _attend(self, layer: AttentionLayer, rows: Tensor, seen: Tensor | None) -> Tensor:
        rows, qkv = layer.project(rows)
        q, k, v = (split_heads(t, self.cfg.heads) for t in qkv.chunk(3, dim=-1))
        position = rotation(q)
        attended = merge_heads(attend(rotate(q, position), rotate(k, position), v, seen))
        del q, k, v, qkv
        return layer.attention_output(rows, attended)

    @torch.no_grad()
    def encode(self, x: Any, *, lengths: Any = None, batch_size: int = 64) -> Encoding:
        """Encode series as they are, as `PMT.encode` does."""
        series = Series(x, lengths, self.cfg)
        tell_of_missing(series.arrays, series.names, lengths=series.lengths)
        check_count("batch_size", batch_size)
        like = self.tokenizer.conv.weight
        out = blank_encoding(self.cfg, series, like=like, memory=None, windows=False)
        with eval_mode(self):
            for rows in series.batches(batch_size):
                moments = moments_for(self.cfg, self.stats, series, rows)
                write(out, rows, encode_rows(self, series, rows, moments=moments, like=like))
        check_finite(out.sequence, series.names)
        return out
