"""CLS over the last tokens of a stream: ring buffers of their keys and values, written in place.

A buffer has a row for each of the last tokens and one more for CLS itself. Its layout is by heads,
since one query reads all of it at every push.

Shapes: B series, R rows for tokens, m new tokens, D width, H heads, d = D / H.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from progmem.model.encoder import NeighbourhoodEncoder
from progmem.ops.layers import attend, merge_heads, split_heads
from progmem.ops.neighbourhood_attention import Keys


@dataclass
class RingBuffer:
    """Keys and values that CLS attends to at one layer."""

    k: Tensor  # (B, H, R+1, d)
    v: Tensor  # (B, H, R+1, d)
    valid: Tensor  # (B, R+1), True in the last row

    def write(self, rows: Tensor, keys: Keys) -> None:
        """Put ``keys`` (B, m, D) into ``rows`` (m,), all different."""
        H = self.k.shape[1]
        self.k.index_copy_(2, rows, split_heads(keys.k, H).to(self.k.dtype))
        self.v.index_copy_(2, rows, split_heads(keys.v, H).to(self.v.dtype))
        self.valid.index_copy_(1, rows, keys.valid)


class ClsRings:
    """The ring buffers of all layers, and the row that the next token goes to."""

    def __init__(self, encoder: NeighbourhoodEncoder, batch: int, horizon: int) -> None:
        self.encoder, self.horizon = encoder, horizon
        weight, H = encoder.cls, encoder.heads
        self.rings = []
        for _ in encoder.layers:
            k, v = weight.new_zeros(2, batch, H, horizon + 1, weight.shape[0] // H)
            valid = torch.zeros(batch, horizon + 1, dtype=torch.bool, device=weight.device)
            valid[:, -1] = True
            self.rings.append(RingBuffer(k, v, valid))
        # on the device, so that a captured push reads what the last one wrote
        self.next = torch.zeros((), dtype=torch.int64, device=weight.device)

    def add(self, keys: list[Keys]) -> None:
        """Write the newest tokens' ``keys`` of every layer, (B, m, D), over the oldest rows."""
        m = keys[0].k.shape[1]
        kept = min(m, self.horizon)
        rows = (self.next + torch.arange(m - kept, m, device=self.next.device)) % self.horizon
        for ring, new in zip(self.rings, keys, strict=True):
            ring.write(rows, Keys(*(t[:, m - kept :] for t in new)))
        self.next = (self.next + m) % self.horizon

    def summarise(self) -> Tensor:
        """The sequence vector (B, D): CLS over the tokens in the buffers."""
        encoder = self.encoder
        cls = encoder.initial_cls(self.rings[0].k.shape[0])
        for layer, ring in zip(encoder.attention_layers, self.rings, strict=True):
            cls, qkv = layer.project(cls)
            q, k, v = (split_heads(t, encoder.heads) for t in qkv.chunk(3, dim=-1))  # (B, H, 1, d)
            ring.k[:, :, -1:], ring.v[:, :, -1:] = k, v
            attended = merge_heads(attend(q, ring.k, ring.v, ring.valid[:, None, None]))
            cls = layer.attention_output(cls, attended)
        return encoder.norm(cls).squeeze(1)
