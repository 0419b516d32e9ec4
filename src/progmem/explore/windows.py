"""What describes a window of a recording: statistics of its samples and of its tokens.

A window is as many samples as lie between the starts of two windows of the model; the last one of a
recording goes on to its end. Its description is the mean and the standard deviation of each
channel, the share of its tokens above the training median of each feature, and the detail below the
tokens (`progmem.detail`). These three are the best of those that were compared (docs/LOG.md,
2026-11-18). Beside them are the means of a few parts of its samples, by which the shapes of
stretches are compared (`progmem.explore.shapes`). Recordings go through a stream, so memory does
not grow with their length.

Shapes: B recordings of one length, L samples, C channels, K tokens, D width, H convolutions,
n windows, h samples of a window, P parts of it, R samples that a convolution reaches to each side.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from progmem.config import ModelConfig
from progmem.detail import DetailSummary, scaled
from progmem.features import SOFTNESS, FeatureStats
from progmem.model.pmt import PMT
from progmem.series import Moments
from progmem.streaming.stream import Stream

PARTS = 8  # of a window, in which its samples are averaged


def window_length(cfg: ModelConfig) -> int:
    """h: so many that every window holds the middle of a token."""
    return max(cfg.stride * cfg.patch_stride, cfg.patch // 2 + cfg.patch_stride)


def parts_of(h: int) -> int:
    """P: the parts of a window of ``h`` samples."""
    return min(PARTS, h)


def window_starts(length: int, h: int) -> range:
    """Where the windows of a recording of ``length`` samples begin."""
    return range(0, max(1, length // h) * h, h)


class Described(NamedTuple):
    """Windows that are final; what describes one without an observed sample is 0."""

    mean: Tensor  # (B, n, C) float64, in the units of the channels; NaN where not observed
    deviation: Tensor  # (B, n, C)
    tokens: Tensor  # (B, n, D): shares above the median
    detail: Tensor  # (B, n, H): shares of high convolutions
    points: Tensor  # (B, n, P, C): means of the parts of a window, NaN where not observed
    observed: Tensor  # (B, n): has it any sample

    def groups(self) -> tuple[Tensor, ...]:
        """What describes a window, in groups that count the same; channels first."""
        channels = torch.cat([self.mean, self.deviation], dim=2)
        return channels, self.tokens, self.detail


class WindowStream:
    """The descriptions of the windows of recordings whose samples come piece by piece.

    ``moments`` are those that the recordings are normalised by, if the model does not know them.
    """

    def __init__(
        self, model: PMT, stats: FeatureStats, *, batch_size: int = 1,
        moments: Moments | None = None, names: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        if moments is not None:
            assert batch_size == 1  # each would need a model of its own
            model = _normalising_by(model, moments)
        self.stream = Stream(model, batch_size, horizon=1)
        self.stream.names = names or self.stream.names
        self.cfg, self.h = model.cfg, window_length(model.cfg)
        device, dtype = model.stats.mean.device, torch.float32
        self.detail = DetailSummary(stats.detail, batch_size, device, dtype)
        self.median = stats.median.to(device, dtype)
        self.width = (SOFTNESS * stats.scale).to(device, dtype)
        self.windows = 0  # given out
        reach, C = self.detail.reach, model.cfg.channels
        # samples from R before the first window that was not given out; 0 before a recording begins
        self.x = torch.zeros(batch_size, reach, C, dtype=torch.float64, device=device)
        self.observed = torch.zeros(batch_size, reach, dtype=torch.bool, device=device)
        self.values = torch.zeros(batch_size, 0, C, dtype=torch.float64, device=device)
        # tokens from the first of that window on
        self.above = torch.zeros(batch_size, 0, model.cfg.dim, device=device)
        self.valid = torch.zeros(batch_size, 0, dtype=torch.bool, device=device)
        self.dropped = 0  # tokens of windows that were given out

    def push(self, values: Tensor) -> Described:
        """Take in samples (B, L, C), NaN where missing; the windows that became final."""
        return self._advance(values, ended=False)

    def finish(self) -> Described:
        """End the recordings; their last windows."""
        return self._advance(self.values[:, :0], ended=True)

    @torch.no_grad()
    def _advance(self, values: Tensor, *, ended: bool) -> Described:
        values = values.to(self.values.device, torch.float64)
        z = self.stream.finish() if ended else self.stream.push(values)
        x, observed = scaled(values, self.detail.detail)
        self.values = torch.cat([self.values, values], dim=1)
        self.x = torch.cat([self.x, x], dim=1)
        self.observed = torch.cat([self.observed, observed], dim=1)
        above = torch.sigmoid((z.tokens.float() - self.median) / self.width)
        self.above = torch.cat([self.above, above], dim=1)
        self.valid = torch.cat([self.valid, z.token_mask], dim=1)
        seen = self.stream.samples
        if ended:
            starts = list(window_starts(seen, self.h))[self.windows :]
            return self._describe([*starts, seen])
        # a window is final when a whole one follows, and its convolutions and tokens are there
        middle = self.stream.tokens * self.cfg.patch_stride + self.cfg.patch // 2
        final = min(seen // self.h - 1, (seen - self.detail.reach) // self.h, middle // self.h)
        return self._describe([i * self.h for i in range(self.windows, final + 1)])

    def _describe(self, edges: list[int]) -> Described:
        """The windows between ``edges``; the last one of a recording may be longer than h."""
        last = edges[-1] - edges[-2] if len(edges) > 1 else self.h
        n = max(0, len(edges) - 1)
        whole = n if last == self.h else n - 1
        parts = [self._of_one_length(0, whole, self.h)]
        if whole < n:
            parts.append(self._of_one_length(whole * self.h, 1, last))
        described = Described(*(torch.cat(part, dim=1) for part in zip(*parts, strict=True)))
        if n:
            self._drop(edges[-1], n)
        return described

    def _of_one_length(self, start: int, n: int, length: int) -> Described:
        """``n`` windows of ``length`` samples from ``start`` on, counted from what is held."""
        B, R, C = len(self.x), self.detail.reach, self.cfg.channels
        stop = start + n * length
        values = self.values[:, start:stop].view(B, n, length, C)
        there = ~values.isnan()
        count = there.sum(2)
        total = values.nansum(2)
        mean = total / count  # NaN where nothing is observed
        apart = torch.where(there, values - mean[:, :, None], 0.0)
        deviation = (apart.square().sum(2) / count).sqrt()
        shares = torch.zeros(B, n, self.detail.above.shape[1], device=self.x.device)
        if n:
            x = F.pad(self.x, (0, 0, 0, R))[:, start : stop + 2 * R].to(torch.float32)
            observed = F.pad(self.observed, (0, R))[:, start : stop + 2 * R]
            pieces = x.unfold(1, length + 2 * R, length).mT.flatten(0, 1)  # (B n, length + 2R, C)
            seen = observed.unfold(1, length + 2 * R, length).flatten(0, 1)
            sums, number = self.detail.sums(pieces, seen)
            shares = (sums / number.clamp(min=1)).float().view(B, n, -1)
        tokens, points = self._tokens(start, n, length), self._points(values, there, length)
        return Described(mean, deviation, tokens, shares, points, count.sum(2) > 0)

    def _points(self, values: Tensor, there: Tensor, length: int) -> Tensor:
        """Means (B, n, P, C) of the parts of windows (B, n, length, C)."""
        part = torch.arange(parts_of(self.h) + 1, device=values.device)
        edge = part * length // parts_of(self.h)
        first, last = edge[:-1], torch.maximum(edge[1:], edge[:-1] + 1)
        total, count = (
            F.pad(x.cumsum(2), (0, 0, 1, 0)) for x in (values.nan_to_num(), there.to(values.dtype))
        )
        return (total[:, :, last] - total[:, :, first]) / (count[:, :, last] - count[:, :, first])

    def _tokens(self, start: int, n: int, length: int) -> Tensor:
        """Shares of tokens above the median, (B, n, D); a token is where its middle is."""
        B, _, D = self.above.shape
        number = torch.arange(self.dropped, self.dropped + self.above.shape[1])
        middle = number * self.cfg.patch_stride + self.cfg.patch // 2 - self.windows * self.h
        window = ((middle - start) // length).to(self.above.device)
        inside = (window >= 0) & (window < n)
        valid = self.valid[:, inside, None].to(self.above.dtype)
        sums = self.above.new_zeros(B, n, D).index_add_(
            1, window[inside], self.above[:, inside] * valid
        )
        count = self.above.new_zeros(B, n, 1).index_add_(1, window[inside], valid)
        return sums / count.clamp(min=1)

    def _drop(self, edge: int, n: int) -> None:
        """Forget what lies before sample ``edge``, but for what convolutions reach back to."""
        samples = edge - self.windows * self.h
        self.windows += n
        self.values, self.x, self.observed = (
            held[:, samples:].clone() for held in (self.values, self.x, self.observed)
        )
        first = -(-(edge - self.cfg.patch // 2) // self.cfg.patch_stride)  # whose middle is there
        gone = max(0, first - self.dropped)
        self.above, self.valid = self.above[:, gone:].clone(), self.valid[:, gone:].clone()
        self.dropped += gone


def _normalising_by(model: PMT, moments: Moments) -> PMT:
    """``model`` with the moments of a recording in place of statistics of the training data."""
    own = copy.deepcopy(model)
    own.cfg = replace(model.cfg, normalise="channel")
    own.stats.mean.copy_(moments.mean.view(-1))
    own.stats.scale.copy_(moments.scale.view(-1))
    return own
