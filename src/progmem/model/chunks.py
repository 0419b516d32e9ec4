"""Long series in bounded memory: the stream's machinery, writing into the arrays to be returned.

Tokens of the blocks are stored where the final tokens will stand; the neighbourhood encoder then
goes over them once per layer, in place, and CLS gathers its softmax as it passes.

Shapes: B series, K tokens, N windows, n slots, D width, H heads, d = D / H.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from progmem.encoding import Encoding
from progmem.model.backbone_stream import BackboneStream
from progmem.model.batches import put
from progmem.model.layers import AttentionLayer
from progmem.ops.attention import merge_heads, split_heads
from progmem.ops.neighbourhood_attention import Keys, no_keys
from progmem.series import Moments, Series, clean

if TYPE_CHECKING:
    from progmem.model.pmt import PMT


def encode_in_chunks(
    model: "PMT",
    series: Series,
    rows: Sequence[int],
    out: Encoding,
    index: Tensor,
    *,
    moments: Moments,
    chunk: int,
) -> None:
    """Encode ``rows``, of one length, ``chunk`` samples at a time, to rows ``index`` of ``out``."""
    length = series.lengths[rows[0]]
    backbone = BackboneStream(model, len(rows))
    names = [series.names[row] for row in rows]
    token = window = 0
    for start in range(0, length, chunk):
        stop = min(start + chunk, length)
        values = series.cut(rows, start, stop)
        x, observed = clean(values, moments, backbone.x, names=names, start=start)
        final = backbone.push(x, observed, ended=stop == length)
        for target, at, part in (
            (out.tokens, token, final.tokens),
            (out.token_mask, token, final.valid),
            (out.memory, window, final.memory),
            (out.window_mask, window, final.alive),
        ):
            put(target, index, at, part)
        token += final.tokens.shape[1]
        window += final.alive.shape[1]
    memory = backbone.blocks[-1].state.memory
    if out.eos is not None and memory is not None:
        out.eos[index] = memory.mean(1).to(out.eos.device)
    step = max(model.cfg.window, chunk // model.cfg.patch_stride)
    sequence = _encode_stored(model, out, index, token, step=step)
    out.sequence[index] = sequence.to(out.sequence.device)


def _encode_stored(model: "PMT", out: Encoding, index: Tensor, tokens: int, *, step: int) -> Tensor:
    """The neighbourhood encoder over stored tokens, ``step`` at a time, in place; CLS (B, D)."""
    encoder, like = model.encoder, model.encoder.cls
    cls = encoder.start(len(index))
    for i, layer in enumerate(encoder.attention_layers):
        before = no_keys(cls, encoder.reach)
        gathered = _RunningAttention(layer, cls, encoder.heads)
        for start in range(0, tokens, step):
            part = slice(start, min(start + step, tokens))
            x = out.tokens[index, part].to(like.device)
            valid = out.token_mask[index, part].to(like.device)
            x, keys = encoder.refine(layer, x, valid, before)
            gathered.add(keys)
            before = before.moved_on(keys)
            last = i == len(encoder.layers) - 1
            put(out.tokens, index, start, encoder.finish(x, valid) if last else x)
        cls = layer.complete(cls, merge_heads(gathered.result().to(like.dtype)))
    return encoder.norm(cls).squeeze(1)


class _RunningAttention:
    """Attention of CLS over keys that come in pieces: a softmax kept as maximum, sum, average."""

    def __init__(self, layer: AttentionLayer, cls: Tensor, heads: int) -> None:
        _, qkv = layer.project(cls)
        q, k, v = (split_heads(t, heads) for t in qkv.chunk(3, dim=-1))  # (B, H, 1, d)
        self.heads = heads
        self.q = q.to(torch.promote_types(q.dtype, torch.float32)) * q.shape[-1] ** -0.5
        self.most = (self.q * k).sum(-1, keepdim=True)  # CLS sees itself: (B, H, 1, 1)
        self.total = torch.ones_like(self.most)
        self.sum = v.to(self.q.dtype)  # (B, H, 1, d)

    def add(self, keys: Keys) -> None:
        k, v = (split_heads(t, self.heads).to(self.q.dtype) for t in (keys.k, keys.v))
        score = self.q @ k.mT  # (B, H, 1, K)
        score = score.masked_fill(~keys.valid[:, None, None], -torch.inf)
        most = torch.maximum(self.most, score.amax(-1, keepdim=True))
        shrink, weight = (self.most - most).exp(), (score - most).exp()
        self.total = self.total * shrink + weight.sum(-1, keepdim=True)
        self.sum = self.sum * shrink + weight @ v
        self.most = most

    def result(self) -> Tensor:
        return self.sum / self.total  # (B, H, 1, d)
