"""Two augmented views of each series: the strong one is also warped in time and magnitude.

A series is resampled once (crop and time-warp together), then scaled, and noise is added. A view
has the input time of each of its samples, so that losses can match positions that show the same
part of a recording. Spans of a view may be hidden: the model does not see them and predicts them.
All draws come from one generator; no series depends on others of the batch.

Shapes: B series, L samples, C channels, k knots.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from progmem.config import ViewConfig

SPANS = 2  # hidden in a series
LEAST_HIDDEN = 0.1  # of a series that has hidden spans
HIDING_ROWS = 0.7  # chance that a series has any


class View(NamedTuple):
    """One view of a batch of series."""

    x: Tensor  # (B, L, C), 0 where not observed
    observed: Tensor  # (B, L, C)
    time: Tensor  # (B, L), the input sample that each sample shows, not always whole
    clean: Tensor  # (B, L, C), x before the noise
    hidden: Tensor  # (B, L, C), observed, but to be predicted


class Draws(NamedTuple):
    """The random numbers of one view of one batch."""

    scale: Tensor  # (B, 1, C)
    noise: Tensor  # (B, L, C)
    channel_mask: Tensor  # (B, 1, C), 0 for a dropped channel
    crop: Tensor  # (B, 2), share cropped away, and the share of that at the start, in [0, 1)
    speed: Tensor  # (B, k), log speed at the knots
    magnitude: Tensor  # (B, k, C), factor at the knots
    spans: Tensor  # (B, SPANS, 2), start and end of what is hidden, as shares of the length

    def rows(self, part: slice) -> "Draws":
        return Draws(*(t[part] for t in self))

    def to(self, dtype: torch.dtype) -> "Draws":
        return Draws(*(t.to(dtype) for t in self))


def draw_view(
    batch: int,
    length: int,
    channels: int,
    cfg: ViewConfig,
    *,
    strong: bool,
    generator: torch.Generator,
) -> Draws:
    """The random numbers of one view of ``batch`` series of ``length`` samples."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=generator.device)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, device=generator.device)

    channel_mask = uniform(batch, 1, channels) >= cfg.channel_dropout
    undropped = uniform(batch, 1, channels).argmax(2, keepdim=True)  # one channel always stays
    jitter = cfg.jitter_strong if strong else cfg.jitter_weak
    time_warp, magnitude_warp = (cfg.time_warp, cfg.magnitude_warp) if strong else (0.0, 0.0)
    return Draws(
        scale=1 + cfg.scale * normal(batch, 1, channels),
        noise=jitter * normal(batch, length, channels),
        channel_mask=channel_mask.scatter(2, undropped, True).float(),
        crop=torch.stack([cfg.crop * uniform(batch), uniform(batch)], dim=1),
        speed=time_warp * normal(batch, cfg.knots),
        magnitude=1 + magnitude_warp * normal(batch, cfg.knots, channels),
        spans=_draw_spans(batch, cfg.hide, uniform),
    )


def _draw_spans(batch: int, most: float, uniform: Callable[..., Tensor]) -> Tensor:
    """Spans of together ``LEAST_HIDDEN`` to ``most`` of a series, in some series; (B, SPANS, 2)."""
    least = min(LEAST_HIDDEN, most)  # both 0: nothing is hidden
    share = least + (most - least) * uniform(batch, 1)
    share = torch.where(uniform(batch, 1) < HIDING_ROWS, share, 0.0)
    parts = uniform(batch, SPANS)
    lengths = share * parts / parts.sum(1, keepdim=True)
    starts = (1 - lengths) * uniform(batch, SPANS)
    return torch.stack([starts, starts + lengths], dim=2)


def make_view(x: Tensor, observed: Tensor, lengths: Tensor, draws: Draws) -> View:
    """One view of normalised series (B, L, C) of ``lengths`` (B,) samples."""
    time = time_map(lengths, draws, x.shape[1])
    x, observed = resample(x, observed, lengths, time)
    magnitude = interpolate_knots(draws.magnitude, lengths, x.shape[1])  # (B, L, C)
    mask = draws.channel_mask
    clean = x * draws.scale * magnitude * mask
    x = clean + draws.noise * mask
    hidden = inside_spans(draws.spans, lengths, x.shape[1])[..., None] & observed & (mask > 0)
    return View(torch.where(observed, x, 0.0), observed, time, clean, hidden)


def inside_spans(spans: Tensor, lengths: Tensor, length: int) -> Tensor:
    """Whether each sample is in one of the spans (B, SPANS, 2) of its series, (B, L)."""
    sample = torch.arange(length, device=spans.device, dtype=spans.dtype)
    place = (sample / lengths[:, None])[..., None]  # (B, L, 1)
    return ((place >= spans[:, None, :, 0]) & (place < spans[:, None, :, 1])).any(2)


def time_map(lengths: Tensor, draws: Draws, length: int) -> Tensor:
    """Input time of each sample, (B, L): increasing, from the crop's start to its end."""
    last = (lengths - 1).clamp(min=1)[:, None]  # (B, 1)
    speed = interpolate_knots(draws.speed[..., None], lengths, length).squeeze(2).exp()
    inside = torch.arange(length, device=speed.device) < last  # steps between samples
    steps = torch.where(inside, speed, 0.0)
    elapsed = torch.cat([torch.zeros_like(steps[:, :1]), steps.cumsum(1)[:, :-1]], dim=1)
    share = elapsed / steps.sum(1, keepdim=True)  # 0 .. 1 over each series
    cut, before = draws.crop[:, :1], draws.crop[:, 1:]
    return last * (cut * before + (1 - cut) * share)


def resample(x: Tensor, observed: Tensor, lengths: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
    """Linear interpolation at ``time`` (B, L); observed where all samples it is made of are."""
    last = (lengths - 1)[:, None]
    left = time.floor().long().clamp(min=0).minimum(last)
    right = (left + 1).minimum(last)
    weight = (time - left)[..., None].clamp(0, 1).to(x.dtype)

    def at(values: Tensor, index: Tensor) -> Tensor:
        return values.gather(1, index[..., None].expand(-1, -1, values.shape[2]))

    value = (1 - weight) * at(x, left) + weight * at(x, right)
    valid = (at(observed, left) | (weight == 1)) & (at(observed, right) | (weight == 0))
    inside = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
    return value, valid & inside[..., None]


def interpolate_knots(knots: Tensor, lengths: Tensor, length: int) -> Tensor:
    """A smooth curve (B, L, C) through knots (B, k, C) spread evenly over each series."""
    k = knots.shape[1]
    last = (lengths - 1).clamp(min=1)[:, None]
    knot = torch.arange(length, device=knots.device, dtype=knots.dtype) / last * (k - 1)  # (B, L)
    left = knot.floor().long().clamp(0, k - 2)
    u = (knot - left).clamp(0, 1)
    u = (u * u * (3 - 2 * u))[..., None]  # smoothstep: no corners at the knots

    def at(index: Tensor) -> Tensor:
        return knots.gather(1, index[..., None].expand(-1, -1, knots.shape[2]))

    return (1 - u) * at(left) + u * at(left + 1)
