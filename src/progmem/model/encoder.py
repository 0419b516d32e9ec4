"""The neighbourhood encoder: token t sees t-n .. t, CLS sees every token and itself.

Tokens never see CLS, so their values do not depend on the length of the series and a stream can
emit them at once. In a batch CLS goes through all layers as a row before the tokens.

Shapes: B series, K tokens, n neighbourhood, D width.
"""

from typing import cast

import torch
from torch import Tensor, nn

from progmem.config import ModelConfig
from progmem.model.layers import AttentionLayer, Norm
from progmem.ops.neighbourhood_attention import Keys, band_attention, neighbourhood_attention


class NeighbourhoodEncoder(nn.Module):
    """A few pre-norm layers over tokens (B, K, D), with one CLS token beside them."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.reach = cfg.window  # n: how many tokens back a token sees
        self.heads = cfg.heads
        self.cls = nn.Parameter(0.02 * torch.randn(cfg.dim))
        self.layers = nn.ModuleList(
            AttentionLayer(cfg.dim, cfg.dropout) for _ in range(cfg.encoder_layers)
        )
        self.norm = Norm(cfg.dim)

    def forward(self, tokens: Tensor, valid: Tensor, *, gaps: bool = True) -> tuple[Tensor, Tensor]:
        """Tokens (B, K, D), 0 where not ``valid`` (B, K), and the sequence vector (B, D).

        ``gaps``: tokens may be missing before a series' end.
        """
        rows = torch.cat([self.initial_cls(tokens.shape[0]), tokens], dim=1)  # (B, 1+K, D)
        for layer in self.attention_layers:
            rows, qkv = layer.project(rows)
            attended = neighbourhood_attention(
                qkv, valid, reach=self.reach, heads=self.heads, gaps=gaps, training=self.training
            )
            del qkv
            rows = self._attention_output(layer, rows, attended)
        rows = self.norm(rows)
        return torch.where(valid[..., None], rows[:, 1:], 0.0), rows[:, 0]

    def _attention_output(self, layer: AttentionLayer, rows: Tensor, attended: Tensor) -> Tensor:
        """The rest of a layer for CLS and tokens, (B, 1+K, D)."""
        if self.training and layer.dropout:  # dropout draws for the tokens first, then for CLS
            tokens = layer.attention_output(rows[:, 1:], attended[:, 1:])
            return torch.cat([layer.attention_output(rows[:, :1], attended[:, :1]), tokens], dim=1)
        return layer.attention_output_rows(rows, attended)

    @property
    def attention_layers(self) -> list[AttentionLayer]:
        return [cast(AttentionLayer, layer) for layer in self.layers]

    def initial_cls(self, batch: int) -> Tensor:
        return self.cls.expand(batch, 1, -1)  # (B, 1, D)

    def finish(self, tokens: Tensor, valid: Tensor) -> Tensor:
        return torch.where(valid[..., None], self.norm(tokens), 0.0)

    def refine(
        self, layer: AttentionLayer, tokens: Tensor, valid: Tensor, before: Keys
    ) -> tuple[Tensor, Keys]:
        """One layer for tokens (B, K, D) that follow the n keys ``before``; and their own keys."""
        tokens, qkv = layer.project(tokens)
        q, k, v = qkv.chunk(3, dim=-1)
        keys = Keys(k, v, valid)
        attended = band_attention(q, before.concat(keys), reach=self.reach, heads=self.heads)
        return layer.attention_output(tokens, attended), keys
