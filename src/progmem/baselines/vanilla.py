"""The vanilla transformer: same tokenizer and layers, full attention, no memory.

Windows are only where PMT's objectives compare the means of their tokens. It has as many layers as
PMT has blocks, and about half its parameters.

Shapes: B series, L samples, C channels, K tokens, D width, H heads, d = D / H.
"""

from typing import cast

import torch
from torch import Tensor, nn

from progmem.baselines.encoder import last_row
from progmem.config import ModelConfig
from progmem.encoding import Encoding
from progmem.geometry import count_tokens, count_windows, token_spans, window_masks, window_spans
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
        self.predictor = nn.Linear(cfg.dim, cfg.channels * cfg.patch) if cfg.predictor else None

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        *,
        lengths: Tensor | None = None,
        hidden: Tensor | None = None,
    ) -> Encoding:
        """Encode normalised series (B, L, C), as `PMT.forward` does."""
        cfg = self.cfg
        check_tensor(x, cfg)
        B = x.shape[0]
        tokens, valid = self.tokenizer(x, mask, lengths, hidden)
        rows = torch.cat([self.cls.expand(B, 1, -1), tokens], dim=1)  # (B, 1+K, D)
        seen = None
        if mask is not None or lengths is not None:  # a missing row sees CLS, so none is empty
            seen = torch.cat([valid.new_ones(B, 1), valid], dim=1)[:, None, None]
        for layer in self.layers:
            rows = self._attend(cast(AttentionLayer, layer), rows, seen)
        rows = self.norm(rows)
        K = count_tokens(cfg, x.shape[1])
        N = count_windows(cfg, K)
        counts = self.tokenizer.counts(x, lengths)
        masks = window_masks(cfg, valid, counts, N, gaps=mask is not None)
        return Encoding(
            tokens=torch.where(valid[..., None], rows[:, 1:], 0.0),
            memory=None,
            sequence=rows[:, 0],
            eos=last_row(rows[:, 1:], valid),
            token_mask=valid,
            window_mask=masks.nonempty,
            token_spans=token_spans(cfg, 0, K),
            window_spans=window_spans(cfg, 0, N, tokens=K),
        )

    def decode(self, tokens: Tensor) -> Tensor:
        """What the predictor says of the samples of each token's patch, (B, K, C, patch)."""
        assert self.predictor is not None, "this model was not trained to predict hidden samples"
        return self.predictor(tokens).unflatten(2, (self.cfg.channels, self.cfg.patch))

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
