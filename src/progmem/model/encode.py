"""`PMT.encode`: a user's series through a model, in batches, or in chunks where they are long.

Long series take bounded memory. They go through the blocks of a stream, whose tokens are written
to the result; the neighbourhood encoder then goes over these once per layer, in place, and CLS
attends to them in the same pass by a running softmax.

Shapes: B series, K tokens, N windows, n slots, D width, H heads, d = D / H.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from progmem.config import EncoderConfig, ModelConfig
from progmem.encoding import Encoding
from progmem.geometry import count_tokens, count_windows, token_spans, window_spans
from progmem.model.layers import AttentionLayer
from progmem.ops.layers import merge_heads, split_heads
from progmem.ops.neighbourhood_attention import Keys, no_keys
from progmem.series import ChannelStats, Moments, Series, normalise
from progmem.streaming.block_stream import BackboneStream

if TYPE_CHECKING:
    from progmem.model.pmt import PMT


def blank_encoding(
    cfg: ModelConfig, series: Series, *, like: Tensor, memory: Tensor | None
) -> Encoding:
    """Zeros for the encoding of ``series`` with the dtypes of tokens ``like`` and ``memory``."""
    B, K = len(series), count_tokens(cfg, max(series.lengths))
    N = count_windows(cfg, K)

    def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(*shape, dtype=dtype, device=series.device)

    return Encoding(
        tokens=zeros(B, K, cfg.dim, dtype=like.dtype),
        memory=None if memory is None else zeros(B, N, cfg.slots, cfg.dim, dtype=memory.dtype),
        sequence=zeros(B, cfg.dim, dtype=like.dtype),
        eos=None if memory is None else zeros(B, cfg.dim, dtype=memory.dtype),
        token_mask=zeros(B, K, dtype=torch.bool),
        window_mask=zeros(B, N, dtype=torch.bool),
        token_spans=token_spans(cfg, 0, K),
        window_spans=window_spans(cfg, 0, N, tokens=K),
    )


def consecutive(
    lengths: Sequence[int], most: int, *, most_rows: int | None = None
) -> Iterator[range]:
    """Batches of consecutive series with at most ``most`` padded samples, or of one long series."""
    first = longest = 0
    for i, length in enumerate(lengths):
        longest = max(longest, length)
        full = (i + 1 - first) * longest > most or i - first == most_rows
        if i > first and full:
            yield range(first, i)
            first, longest = i, length
    yield range(first, len(lengths))


def equal_neighbours(lengths: Sequence[int], samples: int, most: int) -> Iterator[Sequence[int]]:
    """Batches of neighbours of equal length, in order, at most so many and of so many samples."""
    for length, group in groupby(range(len(lengths)), key=lengths.__getitem__):
        rows, size = list(group), max(1, min(most, samples // length))
        for first in range(0, len(rows), size):
            yield rows[first : first + size]


def moments_for(
    cfg: EncoderConfig, stats: ChannelStats, series: Series, rows: Sequence[int]
) -> Moments:
    """Mean and scale that these series are normalised by, according to the model's config."""
    return series.own_moments(rows) if cfg.normalise == "series" else stats.moments


def encode_rows(
    model: Callable[..., Encoding],
    series: Series,
    rows: Sequence[int],
    *,
    moments: Moments,
    like: Tensor,
) -> Encoding:
    """``model(x, mask, lengths=...)`` on some of the series, cut to the longest of them."""
    lengths = [series.lengths[i] for i in rows]
    values = series.cut(rows, 0, max(lengths))
    names = [series.names[i] for i in rows]
    x, observed = normalise(values, moments, like, names=names, start=0)
    complete = int(observed.sum()) == sum(lengths) * x.shape[2]
    sizes = None if len(set(lengths)) == 1 else torch.tensor(lengths, device=like.device)
    return model(x, None if complete else observed, lengths=sizes)


def write(out: Encoding, rows: Sequence[int], part: Encoding) -> None:
    """Put the encoding of some series, perhaps shorter than the longest, into ``out``."""
    index = torch.tensor(rows)
    for name in ("tokens", "memory", "token_mask", "window_mask"):
        put(getattr(out, name), index, 0, getattr(part, name))
    for name in ("sequence", "eos"):
        if getattr(out, name) is not None:
            getattr(out, name)[index] = getattr(part, name).to(out.tokens.device)


def put(target: Tensor | None, index: Tensor, start: int, part: Tensor | None) -> None:
    """Write ``part`` (b, m, ...) into rows ``index`` of ``target`` from ``start`` on."""
    if target is not None and part is not None:
        target[index, start : start + part.shape[1]] = part.to(target.device)


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Eval mode inside; afterwards every part is in the mode it had."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def encode_in_chunks(
    model: "PMT",
    series: Series,
    rows: Sequence[int],
    out: Encoding,
    index: Tensor,
    *,
    moments: Moments,
    chunk: int,
    advance: Callable[[int], None] = lambda samples: None,
) -> None:
    """Encode ``rows``, of one length, ``chunk`` samples at a time, to rows ``index`` of ``out``.

    ``advance`` is called with the number of samples after each chunk.
    """
    length = series.lengths[rows[0]]
    backbone = BackboneStream(model, len(rows))
    names = [series.names[row] for row in rows]
    token = window = 0
    for start in range(0, length, chunk):
        stop = min(start + chunk, length)
        values = series.cut(rows, start, stop)
        x, observed = normalise(values, moments, backbone.x, names=names, start=start)
        final = backbone.push(x, observed, ended=stop == length)
        for target, at, part in (
            (out.tokens, token, final.tokens),
            (out.token_mask, token, final.valid),
            (out.memory, window, final.memory),
            (out.window_mask, window, final.nonempty),
        ):
            put(target, index, at, part)
        token += final.tokens.shape[1]
        window += final.nonempty.shape[1]
        advance(len(rows) * (stop - start))
    memory = backbone.blocks[-1].state.memory
    if out.eos is not None and memory is not None:
        out.eos[index] = memory.mean(1).to(out.eos.device)
    step = max(model.cfg.window, chunk // model.cfg.patch_stride)
    sequence = _encode_stored(model, out, index, token, step=step)
    out.sequence[index] = sequence.to(out.sequence.device)


def _encode_stored(model: "PMT", out: Encoding, index: Tensor, tokens: int, *, step: int) -> Tensor:
    """The neighbourhood encoder over stored tokens, ``step`` at a time, in place; CLS (B, D)."""
    encoder, like = model.encoder, model.encoder.cls
    cls = encoder.initial_cls(len(index))
    for i, layer in enumerate(encoder.attention_layers):
        before = no_keys(cls, encoder.reach)
        attention = _RunningAttention(layer, cls, encoder.heads)
        for start in range(0, tokens, step):
            part = slice(start, min(start + step, tokens))
            x = out.tokens[index, part].to(like.device)
            valid = out.token_mask[index, part].to(like.device)
            x, keys = encoder.refine(layer, x, valid, before)
            attention.add(keys)
            before = before.shifted_by(keys)
            last = i == len(encoder.layers) - 1
            put(out.tokens, index, start, encoder.finish(x, valid) if last else x)
        cls = layer.attention_output(cls, merge_heads(attention.result().to(like.dtype)))
    return encoder.norm(cls).squeeze(1)


class _RunningAttention:
    """Attention of CLS over keys that come in chunks, by a running (online) softmax."""

    def __init__(self, layer: AttentionLayer, cls: Tensor, heads: int) -> None:
        _, qkv = layer.project(cls)
        q, k, v = (split_heads(t, heads) for t in qkv.chunk(3, dim=-1))  # (B, H, 1, d)
        self.heads = heads
        self.q = q.to(torch.promote_types(q.dtype, torch.float32)) * q.shape[-1] ** -0.5
        self.max = (self.q * k).sum(-1, keepdim=True)  # CLS sees itself: (B, H, 1, 1)
        self.total = torch.ones_like(self.max)
        self.sum = v.to(self.q.dtype)  # (B, H, 1, d)

    def add(self, keys: Keys) -> None:
        k, v = (split_heads(t, self.heads).to(self.q.dtype) for t in (keys.k, keys.v))
        score = self.q @ k.mT  # (B, H, 1, K)
        score = score.masked_fill(~keys.valid[:, None, None], -torch.inf)
        new_max = torch.maximum(self.max, score.amax(-1, keepdim=True))
        shrink, weight = (self.max - new_max).exp(), (score - new_max).exp()
        self.total = self.total * shrink + weight.sum(-1, keepdim=True)
        self.sum = self.sum * shrink + weight @ v
        self.max = new_max

    def result(self) -> Tensor:
        return self.sum / self.total  # (B, H, 1, d)
