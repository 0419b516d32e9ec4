"""The neighbourhood encoder: token t sees t-n .. t, CLS sees every token and itself.

Tokens never see CLS, so their values do not depend on the length of the series and a stream can
emit them at once. The band is cut into pieces of c queries that look at n + c keys each: no
K x K mask or score ever exists.

Shapes: B series, K tokens, n neighbourhood, D width, H heads, d = D / H.
"""

from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from progmem import kernels
from progmem.config import ModelConfig
from progmem.model import lean
from progmem.model.attention import AttentionLayer, Norm, attend, drops, split_heads
from progmem.model.rotary import turns


class Keys(NamedTuple):
    """Keys and values of tokens, and which of them are there."""

    k: Tensor  # (B, K, D)
    v: Tensor  # (B, K, D)
    valid: Tensor  # (B, K)

    def then(self, other: "Keys") -> "Keys":
        return Keys(*(torch.cat(pair, dim=1) for pair in zip(self, other, strict=True)))

    def moved_on(self, other: "Keys") -> "Keys":
        """As many as these, but the last after ``other`` has come; new, as views keep all alive."""
        count, new = self.k.shape[1], other.k.shape[1]
        drop = max(0, new - count)
        pairs = zip(self, other, strict=True)
        return Keys(*(torch.cat([old[:, new:], more[:, drop:]], dim=1) for old, more in pairs))


class NeighbourhoodEncoder(nn.Module):
    """A few pre-norm layers over tokens (B, K, D), with one CLS token beside them."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.cfg = cfg
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
        if self.by_hand(tokens):
            return self.run_by_hand(tokens, valid)
        if lean.takes(tokens, self.cfg, self.attention_layers[0], gaps=gaps):
            return lean.run_encoder(self, tokens, valid)
        cls = self.start(tokens.shape[0])
        for layer in self.attention_layers:
            updated, keys = self.refine(layer, tokens, valid, None)
            cls = self.summarise(layer, cls, keys)
            tokens = updated
        return self.finish(tokens, valid), self.norm(cls).squeeze(1)

    def by_hand(self, tokens: Tensor) -> bool:
        """Whether kernels can take these tokens (B, K, D) whole."""
        if not kernels.fit(tokens) or any(drops(layer.drop) for layer in self.attention_layers):
            return False
        from progmem.kernels import few_keys

        keys = max(2 * self.reach, 1 + tokens.shape[1])
        return few_keys.takes(self.reach, keys, tokens.shape[2] // self.heads)

    def run_by_hand(self, tokens: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """`forward` by kernels: CLS goes through all layers as a row before the tokens."""
        from progmem.model.band_by_hand import attend_band, lay_out_band

        rows = torch.cat([self.start(len(tokens)), tokens], dim=1)  # (B, 1+K, D)
        mask = band_mask(F.pad(valid, (self.reach, 0)), self.reach)
        band = lay_out_band(valid, mask, width=rows.shape[2] // self.heads)
        for layer in self.attention_layers:
            rows, qkv = layer.project_at_once(rows)
            qkv = torch.unflatten(qkv, -1, (3, self.heads, -1))
            rows = layer.complete(rows, attend_band(band, qkv).transpose(1, 2))
        rows = self.norm(rows)
        return torch.where(valid[..., None], rows[:, 1:], 0.0), rows[:, 0]

    @property
    def attention_layers(self) -> list[AttentionLayer]:
        return [cast(AttentionLayer, layer) for layer in self.layers]

    def start(self, batch: int) -> Tensor:
        return self.cls.expand(batch, 1, -1)  # (B, 1, D)

    def finish(self, tokens: Tensor, valid: Tensor) -> Tensor:
        return torch.where(valid[..., None], self.norm(tokens), 0.0)

    def no_keys(self, like: Tensor, count: int) -> Keys:
        """``count`` keys that are not there: what lies before the start of a series."""
        k, v = like.new_zeros(2, like.shape[0], count, like.shape[2])
        return Keys(k, v, torch.zeros(k.shape[:2], dtype=torch.bool, device=like.device))

    def refine(
        self, layer: AttentionLayer, tokens: Tensor, valid: Tensor, before: Keys | None
    ) -> tuple[Tensor, Keys]:
        """One layer for tokens (B, K, D) that follow the n keys ``before``; and their own keys.

        None: the tokens are the first of their series.
        """
        q, k, v = layer.project(tokens)
        keys = Keys(k, v, valid)
        before = before or self.no_keys(k, self.reach)
        attended = band_attention(q, before.then(keys), reach=self.reach, heads=self.heads)
        return layer.complete(tokens, attended), keys

    def summarise(self, layer: AttentionLayer, cls: Tensor, keys: Keys) -> Tensor:
        """CLS (B, 1, D) after one layer; it and what it sees carry no position."""
        q, k, v = layer.project(cls)
        seen = Keys(k, v, keys.valid.new_ones(k.shape[:2])).then(keys)  # CLS itself: never empty
        q, k, v = (split_heads(t, self.heads) for t in (q, seen.k, seen.v))
        return layer.complete(cls, attend(q, k, v, seen.valid[:, None, None]))


def band_attention(q: Tensor, keys: Keys, *, reach: int, heads: int) -> Tensor:
    """Query i of (B, T, D) sees keys i .. i+reach of (B, reach+T, D): (B, H, T, d)."""
    B, T, D = q.shape
    k, v, valid = keys
    mask = band_mask(valid, reach)
    pieces, piece = mask.shape[1:3]
    short = pieces * piece - T
    if short:
        q, k, v = (F.pad(t, (0, 0, 0, short)) for t in (q, k, v))
    k, v = (t.unfold(1, reach + piece, piece).mT for t in (k, v))  # (B, pieces, n+c, D)
    query, key, value = (split_heads(t, heads) for t in (q.view(B, pieces, piece, D), k, v))
    out = attend(query, key, value, mask[:, :, None], q_turn=turns(query, reach), k_turn=turns(key))
    return out.transpose(1, 2).flatten(2, 3)[:, :, :T]  # (B, H, T, d)


def band_mask(valid: Tensor, reach: int) -> Tensor:
    """Which keys the queries of each piece see, (B, pieces, c, n+c), of ``valid`` (B, reach+T)."""
    T = valid.shape[1] - reach
    piece = max(1, min(reach, T))  # c
    pieces = -(-T // piece)
    valid = F.pad(valid, (0, pieces * piece - T)).unfold(1, reach + piece, piece)
    band = torch.ones(piece, reach + piece, dtype=torch.bool, device=valid.device)
    band = band.tril(reach).triu()
    return band & valid[:, :, None] | band.triu(reach)  # a missing token sees itself
