"""The vanilla transformer: same tokenizer and layers, full attention, no windows, no memory.

Shapes: B series, L samples, C channels, K tokens, D width, H heads, d = D / H.
"""

from typing import cast

import torch
from torch import Tensor, nn

from progmem.config import ModelConfig
from progmem.encoding import Encoding
from progmem.geometry import count_tokens, token_spans
from progmem.model.layers import AttentionLayer, Norm
from progmem.model.tokenizer import Tokenizer
from progmem.ops.layers import attend, merge_heads, rotate, rotation, split_heads
from progmem.series import check_tensor


class VanillaTransformer(nn.Module):
    """``cfg.blocks`` layers in which every token and CLS see every token and CLS."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.cfg = cfg
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
            token_spans=self.token_spans(L),
            window_spans=None,
        )

    def _attend(self, layer: AttentionLayer, rows: Tensor, seen: Tensor | None) -> Tensor:
        rows, qkv = layer.project(rows)
        q, k, v = (split_heads(t, self.cfg.heads) for t in qkv.chunk(3, dim=-1))
        position = rotation(q)
        attended = merge_heads(attend(rotate(q, position), rotate(k, position), v, seen))
        del q, k, v, qkv
        return layer.attention_output(rows, attended)

    def token_spans(self, length: int) -> Tensor:
        """Samples [from, to) of each token of a series of ``length`` samples, (K, 2)."""
        return token_spans(self.cfg, 0, count_tokens(self.cfg, length))
