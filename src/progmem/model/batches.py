"""A user's series through a model, some at a time, into arrays for all of them.

Shapes: B series, K tokens, N windows, n slots, D width.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from progmem.config import ModelConfig
from progmem.encoding import Encoding
from progmem.model.geometry import count_tokens, count_windows, token_spans, window_spans
from progmem.series import ChannelStats, Moments, Series, clean


def blank_encoding(
    cfg: ModelConfig, series: Series, *, like: Tensor, memory: Tensor | None, windows: bool = True
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
        window_mask=zeros(B, N, dtype=torch.bool) if windows else None,
        token_spans=token_spans(cfg, 0, K),
        window_spans=window_spans(cfg, 0, N, tokens=K) if windows else None,
    )


def consecutive(lengths: Sequence[int], most: int) -> Iterator[range]:
    """Series one after the other that make at most ``most`` samples, padded; or one alone."""
    first = longest = 0
    for i, length in enumerate(lengths):
        longest = max(longest, length)
        if i > first and (i + 1 - first) * longest > most:
            yield range(first, i)
            first, longest = i, length
    yield range(first, len(lengths))


def moments_for(
    cfg: ModelConfig, stats: ChannelStats, series: Series, rows: Sequence[int]
) -> Moments:
    """What these series are normalised by, as the model's config says."""
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
    x, observed = clean(values, moments, like, names=names, start=0)
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
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode inside; afterwards every part is in the mode it had."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
