"""Two views of each series: the weak keeps its shape, the strong bends time and magnitude.

A view is made by one resampling (crop and time-warp together) and then by factors and noise. It
comes with the input time of each of its samples, so that losses can match what shows the same
stretch of a recording. All draws come from one generator; nothing depends on the batch mates.

Shapes: B series, L samples, C channels, k knots.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from progmem.config import ViewConfig


class View(NamedTuple):
    """A batch of series as one view shows it."""

    x: Tensor  # (B, L, C), 0 where not observed
    observed: Tensor  # (B, L, C)
    time: Tensor  # (B, L), the input sample that each sample shows, not always whole


class Draws(NamedTuple):
    """The random numbers of one view of one batch."""

    factor: Tensor  # (B, 1, C)
    noise: Tensor  # (B, L, C)
    kept: Tensor  # (B, 1, C), 0 for a silent channel
    crop: Tensor  # (B, 2), length cut away and its part before the start, shares in [0, 1)
    speed: Tensor  # (B, k), log speed at the knots
    magnitude: Tensor  # (B, k, C), factor at the knots

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
    """Draws for ``batch`` series of ``length`` samples."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=generator.device)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, device=generator.device)

    kept = uniform(batch, 1, channels) >= cfg.channel_dropout
    spared = uniform(batch, 1, channels).argmax(2, keepdim=True)  # one channel always speaks
    jitter = cfg.jitter_strong if strong else cfg.jitter_weak
    time_warp, magnitude_warp = (cfg.time_warp, cfg.magnitude_warp) if strong else (0.0, 0.0)
    return Draws(
        factor=1 + cfg.scale * normal(batch, 1, channels),
        noise=jitter * normal(batch, length, channels),
        kept=kept.scatter(2, spared, True).float(),
        crop=torch.stack([cfg.crop * uniform(batch), uniform(batch)], dim=1),
        speed=time_warp * normal(batch, cfg.knots),
        magnitude=1 + magnitude_warp * normal(batch, cfg.knots, channels),
    )


def make_view(x: Tensor, observed: Tensor, lengths: Tensor, draws: Draws) -> View:
    """One view of normalised series (B, L, C) of ``lengths`` (B,) samples."""
    time = time_map(lengths, draws, x.shape[1])
    x, observed = resample(x, observed, lengths, time)
    smooth = interpolate_knots(draws.magnitude, lengths, x.shape[1])  # (B, L, C)
    x = x * draws.factor * smooth * draws.kept + draws.noise * draws.kept
    return View(torch.where(observed, x, 0.0), observed, time)


def time_map(lengths: Tensor, draws: Draws, length: int) -> Tensor:
    """Input time of each sample, (B, L): increasing, from the crop's start to its end."""
    last = (lengths - 1).clamp(min=1)[:, None]  # (B, 1)
    speed = interpolate_knots(draws.speed[..., None], lengths, length).squeeze(2).exp()
    inside = torch.arange(length, device=speed.device) < last  # steps between samples
    steps = torch.where(inside, speed, 0.0)
    passed = torch.cat([torch.zeros_like(steps[:, :1]), steps.cumsum(1)[:, :-1]], dim=1)
    share = passed / steps.sum(1, keepdim=True)  # 0 .. 1 over each series
    cut, before = draws.crop[:, :1], draws.crop[:, 1:]
    return last * (cut * before + (1 - cut) * share)


def resample(x: Tensor, observed: Tensor, lengths: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
    """Linear interpolation at ``time`` (B, L); observed where every sample it needs is."""
    last = (lengths - 1)[:, None]
    left = time.floor().long().clamp(min=0).minimum(last)
    right = (left + 1).minimum(last)
    weight = (time - left)[..., None].clamp(0, 1).to(x.dtype)

    def at(values: Tensor, place: Tensor) -> Tensor:
        return values.gather(1, place[..., None].expand(-1, -1, values.shape[2]))

    value = (1 - weight) * at(x, left) + weight * at(x, right)
    seen = (at(observed, left) | (weight == 1)) & (at(observed, right) | (weight == 0))
    inside = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
    return value, seen & inside[..., None]


def interpolate_knots(knots: Tensor, lengths: Tensor, length: int) -> Tensor:
    """A smooth curve (B, L, C) through knots (B, k, C) spread evenly over each series."""
    k = knots.shape[1]
    last = (lengths - 1).clamp(min=1)[:, None]
    place = torch.arange(length, device=knots.device, dtype=knots.dtype) / last * (k - 1)  # (B, L)
    left = place.floor().long().clamp(0, k - 2)
    u = (place - left).clamp(0, 1)
    u = (u * u * (3 - 2 * u))[..., None]  # no corners at the knots

    def at(number: Tensor) -> Tensor:
        return knots.gather(1, number[..., None].expand(-1, -1, knots.shape[2]))

    return (1 - u) * at(left) + u * at(left + 1)
