"""One vector per series from any encoder's levels, some series at a time.

Shapes: B series, L samples, C channels, K tokens, N windows, n slots, D width, H convolutions.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from progmem.detail import fit_detail
from progmem.encoding import Encoder, Encoding
from progmem.errors import InputError
from progmem.features import (
    FeatureStats,
    FeatureStatsBuffers,
    all_scales,
    features_in_all,
)
from progmem.missing import already_told
from progmem.progress import Advance
from progmem.series import as_float64
from progmem.whitening import Whitening, draw_stretches, fit_whitening, no_whitening

MAX_SAMPLES = 2**17  # of the series that are encoded at a time
FITTED_SERIES = 512  # the most that feature statistics are fitted on
FITTED_TOKENS = 2**15  # the most of these series together


def sequence(z: Encoding) -> Tensor:
    return z.sequence


def mean_tokens(z: Encoding) -> Tensor:
    return _mean(z.tokens, z.token_mask)


def max_tokens(z: Encoding) -> Tensor:
    """Largest value of each feature over the valid tokens; 0 where there are none."""
    valid = z.token_mask[..., None]
    highest = z.tokens.masked_fill(~valid, -torch.inf).amax(1)
    return torch.where(valid.any(1), highest, 0.0)


def mean_memory(z: Encoding) -> Tensor:
    if z.memory is None or z.window_mask is None:
        raise InputError("mean_memory needs an encoder with a memory; this one has none")
    return _mean(z.memory.mean(2), z.window_mask)


LEVEL_POOLINGS: dict[str, Callable[[Encoding], Tensor]] = {
    "sequence": sequence,
    "mean_tokens": mean_tokens,
    "max_tokens": max_tokens,
    "mean_memory": mean_memory,
}
POOLINGS = (*LEVEL_POOLINGS, "all")  # the last needs feature statistics


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean (B, D) of values (B, m, D) where ``mask`` (B, m) is true."""
    weight = mask[..., None].to(values.dtype)
    return (values * weight).sum(1) / weight.sum(1).clamp(min=1)


def pool(
    encoder: Encoder,
    x: Any,
    poolings: Sequence[str],
    *,
    stats: FeatureStats | None = None,
    advance: Advance | None = None,
) -> dict[str, np.ndarray]:
    """Features by each of ``poolings`` of series (B, L, C) or a list of (L_i, C).

    They are (B, D), by "all" (B, 4D + H), which takes the feature statistics ``stats``, by default
    the encoder's own (see `feature_stats_for`). The pooling of the memory is left out for an
    encoder that has none. ``advance`` is told how many series are done.
    """
    for name in poolings:
        if name not in POOLINGS:
            raise InputError(f"pooling must be one of {', '.join(POOLINGS)}, got {name!r}")
    if not len(x):
        raise InputError("there are no series to encode; give at least one")
    if "all" in poolings:
        stats = own_feature_stats(encoder) if stats is None else stats
        if stats is None:
            raise InputError(
                "the pooling all needs feature statistics, and this encoder has none; give "
                "stats=feature_stats_for(encoder, training series), or use the pooling sequence"
            )
    found: dict[str, list[np.ndarray]] = {}
    for z, series in encode_batches(encoder, x):
        for name in poolings:
            if name == "mean_memory" and z.memory is None:
                continue
            if name == "all":
                assert stats is not None
                pooled = all_scales(z, padded(series), stats)
            else:
                pooled = LEVEL_POOLINGS[name](z)
            found.setdefault(name, []).append(pooled.float().cpu().numpy())
        if advance is not None:
            advance(len(series))
    return {name: np.concatenate(parts) for name, parts in found.items()}


def own_feature_stats(encoder: Encoder) -> FeatureStats | None:
    """The feature statistics that an encoder keeps, if it does and they are fitted."""
    kept = getattr(encoder, "feature_stats", None)
    return kept.values if isinstance(kept, FeatureStatsBuffers) else None


def feature_stats_for(encoder: Encoder, x: Any) -> FeatureStats:
    """The encoder's own feature statistics, or, if it has none, those of training series ``x``."""
    stats = own_feature_stats(encoder)
    if stats is None:
        stats = fit_feature_stats(encoder, x)
    if stats is None:
        raise InputError("no series has an observed value, so feature statistics cannot be fitted")
    return stats


def fit_feature_stats(encoder: Encoder, x: Any) -> FeatureStats | None:
    """Median and spread of each feature over tokens of series, detail, and whitening.

    At most `FITTED_SERIES` series are encoded, evenly spaced from the first one on, and each gives
    as many of its valid tokens, evenly spaced too; all together are at most `FITTED_TOKENS`. So
    memory is bounded, nothing is drawn, and the same series give the same statistics. The scale of
    a feature that does not vary is 1. None if no token is valid.
    """
    step = fitting_step(len(x))
    some = x[::step]
    most, kept = FITTED_TOKENS // max(1, len(some)), []
    try:
        for z, _ in encode_batches(encoder, some):
            for tokens, valid in zip(z.tokens, z.token_mask, strict=True):
                there = tokens[valid]
                kept.append(there[:: max(1, -(-len(there) // most))].cpu())
    except InputError as error:
        if step == 1:
            raise
        raise InputError(f"{error} (counting one series in {step})") from error
    tokens = torch.cat(kept) if kept else torch.empty(0, 0)
    if not len(tokens):
        return None
    values = tokens.to(torch.promote_types(tokens.dtype, torch.float32)).numpy()
    spread = values.std(0, dtype=np.float64)
    # equal values have a mean with a rounding error, which is not a spread
    varies = spread > 1e-6 * np.abs(values).max(0)
    median, scale = np.median(values, 0).astype(np.float64), np.where(varies, spread, 1.0)
    blank = no_whitening(features_in_all(len(median)))
    stats = FeatureStats(torch.from_numpy(median), torch.from_numpy(scale), fit_detail(some), blank)
    return stats._replace(whitening=_fit_whitening(encoder, some, stats))


def _fit_whitening(encoder: Encoder, x: Any, stats: FeatureStats) -> Whitening:
    """What features of two stretches of one series differ by, out of series ``x``."""
    shortest = getattr(getattr(encoder, "cfg", None), "patch", 1)
    pairs = [
        pair for pair in draw_stretches(x, shortest=shortest) if all(_observed(one) for one in pair)
    ]
    if not pairs:
        return stats.whitening
    stretches = [one for column in zip(*pairs, strict=True) for one in column]
    features = torch.from_numpy(pool(encoder, stretches, ["all"], stats=stats)["all"])
    return fit_whitening(*features.chunk(2))


def _observed(series: Any) -> bool:
    return not bool(as_float64(series).isnan().all())


def fitting_step(series: int) -> int:
    """Of so many series, every how many `fit_feature_stats` looks at."""
    return max(1, -(-series // FITTED_SERIES))


def check_observed(x: Any) -> None:
    """Refuse a series without a value: nothing can be predicted from it."""
    for i, series in enumerate(x):
        if bool(as_float64(series).isnan().all()):
            raise InputError(f"series {i} has no observed value; leave it out")


def padded(series: Sequence[Any]) -> Tensor:
    """Series (L_i, C) as one float64 tensor (B, L, C), NaN past their ends."""
    return pad_sequence(
        [as_float64(one) for one in series], batch_first=True, padding_value=torch.nan
    )


def encode_batches(encoder: Encoder, x: Any) -> Iterator[tuple[Encoding, Any]]:
    """The encodings of the series of ``x`` in order, several series at a time, with the series."""
    first = 0
    while first < len(x):
        count, samples = 0, 0
        while first + count < len(x) and (not count or samples < MAX_SAMPLES):
            samples += len(x[first + count])
            count += 1
        try:
            with already_told():
                z = encoder.encode(x[first : first + count])
        except InputError as error:
            if not first:
                raise
            raise InputError(f"{error} (counted from series {first} on)") from error
        yield z, x[first : first + count]
        first += count
