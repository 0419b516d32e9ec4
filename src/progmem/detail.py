"""Detail below the tokens: how often each of many short convolutions of a series is high.

A token is one linear map of a patch, and is a coarse thing where classes differ in a few samples.
So convolutions of `TAPS` samples, with holes between these that grow from convolution to
convolution, go over every sample, and the share of samples at which the result is above a threshold
says how often their shape occurs. The shares of positive values of many convolutions are what
MiniRocket (Dempster, Schmidt and Webb, 2021) classifies series by. Weights are drawn once,
thresholds are quantiles of training series, and nothing of it needs labels or training.

    share_h = mean over observed samples s of step(sum_{c,k} w_h(c, k) x_c(s + (k - 4) d_h) - b_h)

Past its ends a series is 0, which is the mean of its channels. The step is a ramp from 0 to 1 over
a few quantiles around the threshold, so that rounding does not flip it.

Shapes: B series, L samples, C channels, H convolutions, R reach to each side in samples.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from progmem.series import as_float64

CONVOLUTIONS = 1024  # H
TAPS = 9
MOST_CHANNELS = 9  # that a convolution adds up
LONGEST = 2048  # samples that the widest convolutions span, if series are so long
FITTED_PIECES, FITTED_SAMPLES = 64, 2048  # series that thresholds are fitted to, samples of each
FITTED_PLACES = 4096  # of these, where convolutions are looked at
QUANTILES = 0.05  # a step rises within so many quantiles to each side of its threshold
LEAST_WIDTH = 1e-3  # of a step, in units of the channels' spread
GOLDEN = (5**0.5 - 1) / 2  # its multiples, modulo 1, fill [0, 1] evenly
MOST_DILATION = LONGEST // (TAPS - 1)
AT_ONCE = 2**11  # samples, so that results stay in a CPU's cache
AT_ONCE_ON_GPU = 2**17


class Detail(NamedTuple):
    """Convolutions with their thresholds, and the scaling of the channels they were fitted to."""

    channel_mean: Tensor  # (C,) float64
    channel_scale: Tensor  # (C,) float64, above 0
    weight: Tensor  # (H, C, TAPS) float32
    dilation: Tensor  # (H,) int64, in ascending order
    threshold: Tensor  # (H,) float64
    width: Tensor  # (H,) float64, above 0


def blank_detail(channels: int) -> Detail:
    """Zeros in the shapes of a `Detail` for so many channels."""
    H, double = CONVOLUTIONS, torch.float64
    return Detail(
        torch.zeros(channels, dtype=double), torch.zeros(channels, dtype=double),
        torch.zeros(H, channels, TAPS, dtype=torch.float32), torch.zeros(H, dtype=torch.int64),
        torch.zeros(H, dtype=double), torch.zeros(H, dtype=double),
    )  # fmt: skip


def fit_detail(series: Sequence[Any]) -> Detail:
    """Convolutions for series (L_i, C): widths by their median length, thresholds by their values.

    Of all series, `FITTED_PIECES` evenly spaced ones count, of each at most the `FITTED_SAMPLES` in
    its middle: the same series give the same thresholds.
    """
    chosen = range(0, len(series), max(1, -(-len(series) // FITTED_PIECES)))
    pieces = [_middle(as_float64(series[i]).cpu()) for i in chosen]
    values = pad_sequence(pieces, batch_first=True, padding_value=torch.nan)  # (B, L, C)
    mean, scale = _channel_moments(values.flatten(0, 1).numpy())
    length = int(np.median([len(series[i]) for i in chosen]))
    weight, dilation = draw_convolutions(values.shape[2], min(length, LONGEST))
    blank = torch.zeros(len(weight), dtype=torch.float64)
    detail = Detail(mean, scale, weight, dilation, threshold=blank, width=blank + 1)
    x, observed = scaled(values, detail)
    places = observed.nonzero()
    one, sample = places[:: max(1, -(-len(places) // FITTED_PLACES))].T[..., None]  # (n, 1) each
    reach = int(dilation.max()) * (TAPS // 2)
    around = F.pad(x, (0, 0, reach, reach)).float()
    found = []
    for rows, d in groups(dilation):
        seen = around[one, sample + reach + d * (torch.arange(TAPS) - TAPS // 2)]  # (n, TAPS, C)
        found.append(seen.mT.flatten(1) @ weight[rows].flatten(1).T)
    threshold, width = _quantiles(torch.cat(found, dim=1))
    return detail._replace(threshold=threshold, width=width)


def groups(dilation: Tensor) -> list[tuple[slice, int]]:
    """The convolutions of each dilation."""
    ordered = dilation.tolist()
    return [
        (slice(bisect_left(ordered, d), bisect_right(ordered, d)), d) for d in sorted({*ordered})
    ]


def scaled(values: Tensor, detail: Detail) -> tuple[Tensor, Tensor]:
    """Scaled samples (B, L, C), 0 where missing, and which have any observed value (B, L)."""
    x = (values.to(torch.float64) - detail.channel_mean) / detail.channel_scale
    return x.nan_to_num(0.0), ~x.isnan().all(2)


def _middle(values: Tensor) -> Tensor:
    start = max(0, (len(values) - FITTED_SAMPLES) // 2)
    return values[start : start + FITTED_SAMPLES]


def _channel_moments(values: np.ndarray) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (C,) of samples (n, C), NaN left out; 1 if none varies."""
    there = ~np.isnan(values)
    count, known = there.sum(0).clip(1), np.where(there, values, 0.0)
    mean = known.sum(0) / count
    spread = np.sqrt((np.where(there, values - mean, 0.0) ** 2).sum(0) / count)
    # equal values have a mean with a rounding error, which is not a spread
    varies = spread > 1e-9 * np.abs(known).max(0, initial=0.0)
    return torch.from_numpy(mean), torch.from_numpy(np.where(varies, spread, 1.0))


def draw_convolutions(channels: int, length: int) -> tuple[Tensor, Tensor]:
    """Weights (H, C, TAPS) and dilations (H,) for series of ``length`` samples.

    A convolution has one shape, drawn with mean 0, for all of the channels that it adds up, each
    by a factor of its own.
    """
    H, dilations = CONVOLUTIONS, [1]
    while 2 * dilations[-1] * (TAPS - 1) < length:
        dilations.append(2 * dilations[-1])
    source = torch.Generator().manual_seed(0)
    shape = torch.randn(H, 1, TAPS, generator=source, dtype=torch.float32)
    shape = shape - shape.mean(2, keepdim=True)
    most = min(channels, MOST_CHANNELS)
    power = torch.rand(H, 1, generator=source, dtype=torch.float32)
    added = (most + 1) ** power  # few channels more often than many
    rank = torch.rand(H, channels, generator=source, dtype=torch.float32).argsort(1).argsort(1)
    factor = torch.randn(H, channels, generator=source, dtype=torch.float32)
    factor = factor * (rank < added.floor().clamp(max=most))
    weight = F.normalize((shape * factor[..., None]).flatten(1)).view(H, channels, TAPS)
    dilation = torch.tensor(dilations)[torch.arange(H) * len(dilations) // H]
    return weight, dilation


def _quantiles(values: Tensor) -> tuple[Tensor, Tensor]:
    """Thresholds (H,) of convolved samples (n, H), at quantiles all over (0, 1); and widths."""
    n, H = values.shape
    if not n:
        return torch.zeros(H, dtype=torch.float64), torch.ones(H, dtype=torch.float64)
    ordered = torch.from_numpy(np.sort(values.T.contiguous().numpy()))  # (H, n); torch sorts slowly
    place = (torch.arange(1, H + 1, dtype=torch.float64) * GOLDEN) % 1

    def quantile(place: Tensor) -> Tensor:
        index = (place.clamp(0, 1) * (n - 1)).round().long()
        return ordered.gather(1, index[:, None])[:, 0].double()

    rise = quantile(place + QUANTILES) - quantile(place - QUANTILES)
    return quantile(place), (rise / 4).clamp(min=LEAST_WIDTH)


class DetailSummary:
    """The shares of series that come piece by piece; what is kept does not grow with them."""

    def __init__(
        self, detail: Detail, batch_size: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.detail = Detail(*(t.to(device) for t in detail))
        # the ramp of a step is part of the linear map: it is clamped to 0 .. 1
        rise = 1 / (2 * detail.width)
        self.weight = (detail.weight.flatten(1) * rise[:, None]).to(device, dtype)  # (H, C TAPS)
        self.bias = (0.5 - detail.threshold * rise).to(device, dtype)
        self.groups = groups(detail.dilation)
        self.reach = int(detail.dilation.max()) * (TAPS // 2)  # R
        H, C, _ = detail.weight.shape
        # results lag R samples behind; before a series begins it is 0, and not observed
        self.x = torch.zeros(batch_size, 2 * self.reach, C, device=device, dtype=dtype)
        self.observed = torch.zeros(batch_size, 2 * self.reach, device=device, dtype=torch.bool)
        self.above = torch.zeros(batch_size, H, device=device, dtype=torch.float64)
        self.count = torch.zeros(batch_size, 1, device=device, dtype=torch.int64)

    def add(self, values: Tensor) -> None:
        """Take in samples (B, L, C), L from 0 up; NaN is missing, as past the end of a series."""
        length = max(AT_ONCE, 4 * self.reach)
        for start in range(0, values.shape[1], length):
            part = values[:, start : start + length]
            new, there = scaled(part.to(self.x.device), self.detail)
            x = torch.cat([self.x, new.to(self.x.dtype)], dim=1)
            observed = torch.cat([self.observed, there], dim=1)
            above, count = self.sums(x, observed)
            self.above, self.count = self.above + above, self.count + count
            self.x, self.observed = x[:, part.shape[1] :], observed[:, part.shape[1] :]

    def shares(self) -> Tensor:
        """(B, H) of the series so far, as if they ended here; 0 where nothing was observed."""
        above, count = self.sums(
            F.pad(self.x, (0, 0, 0, self.reach)), F.pad(self.observed, (0, self.reach))
        )
        return (self.above + above) / (self.count + count).clamp(min=1)

    def sums(self, x: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        """Summed steps (b, H) and their number (b, 1) of all but R samples at each end.

        Of scaled samples (b, R + L + R, C), which need not be those that were taken in.
        """
        R, L = self.reach, x.shape[1] - 2 * self.reach
        there = observed[:, R : R + L]
        sums = torch.zeros(len(x), self.above.shape[1], device=x.device, dtype=torch.float64)
        at_once = max(1, (AT_ONCE_ON_GPU if x.is_cuda else AT_ONCE) // L)
        for start in range(0, len(x), at_once):
            some = slice(start, start + at_once)
            weight = there[some, None].to(x.dtype)  # (b, 1, L)
            for rows, dilation in self.groups:
                seen = taps(x[some], R, dilation)
                step = torch.addmm(self.bias[rows], seen, self.weight[rows].T).clamp_(0, 1)
                sums[some, rows] = (weight @ step.view(-1, L, step.shape[1]))[:, 0].double()
        return sums, there.sum(1, keepdim=True)


def taps(x: Tensor, reach: int, dilation: int) -> Tensor:
    """What a convolution sees at all but ``reach`` samples at each end of x: (B L, C TAPS)."""
    half = dilation * (TAPS // 2)
    around = x[:, reach - half : x.shape[1] - reach + half]
    return around.unfold(1, 2 * half + 1, 1)[..., ::dilation].flatten(2).flatten(0, 1)
