"""One vector from all scales, of a whole series or of a stream so far, collected piece by piece.

It joins the sequence vector, three statistics of each feature of the tokens, and the detail below
the tokens (`progmem.detail`). The statistics are the largest value, the standard deviation, and the
share of tokens above the feature's median over the training tokens. What two stretches of one
training series differ by is then scaled down (`progmem.whitening`).

Shapes: B series, L samples, C channels, K tokens, D width, H convolutions of the detail.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from progmem.detail import CONVOLUTIONS, Detail, DetailSummary, blank_detail
from progmem.encoding import Encoding
from progmem.errors import InputError
from progmem.series import follow_device
from progmem.whitening import Whitening, no_whitening

SOFTNESS = 0.1  # of the step from below the median to above it, in units of the feature's spread


class FeatureStats(NamedTuple):
    """What was fitted to training series: median and spread of token features, and the rest."""

    median: Tensor  # (D,) float64
    scale: Tensor  # (D,) float64, above 0
    detail: Detail
    whitening: Whitening

    def tensors(self) -> dict[str, Tensor]:
        """All of it by name."""
        detail = {f"detail_{name}": t for name, t in self.detail._asdict().items()}
        whitening = {f"whitening_{name}": t for name, t in self.whitening._asdict().items()}
        return {"median": self.median, "scale": self.scale, **detail, **whitening}

    @classmethod
    def of_tensors(cls, held: Mapping[str, Tensor]) -> "FeatureStats":
        detail = Detail(*(held[f"detail_{name}"] for name in Detail._fields))
        whitening = Whitening(*(held[f"whitening_{name}"] for name in Whitening._fields))
        return cls(held["median"], held["scale"], detail, whitening)

    @classmethod
    def blank(cls, dim: int, channels: int) -> "FeatureStats":
        """Zeros in the shapes of an encoder's statistics."""
        zeros = torch.zeros(dim, dtype=torch.float64)
        whitening = no_whitening(features_in_all(dim))
        return cls(zeros, zeros.clone(), blank_detail(channels), whitening)

    @property
    def unwhitened(self) -> "FeatureStats":
        """The same without whitening, by which features are what their parts are."""
        return self._replace(whitening=no_whitening(len(self.whitening.centre)))

    @property
    def fitted(self) -> bool:
        """Whether all numbers are such as a fit gives, not zeros nor damaged."""
        held = self.tensors()
        above_0 = ("scale", "detail_channel_scale", "detail_width", "detail_dilation")
        finite = all(bool(t.isfinite().all()) for t in held.values())
        return finite and all(bool((held[name] > 0).all()) for name in above_0)


def features_in_all(dim: int) -> int:
    """How many numbers the vector from all scales has."""
    return 4 * dim + CONVOLUTIONS


class FeatureStatsBuffers(nn.Module):
    """The feature statistics of a model, zeros until fitted, whatever type it is cast to."""

    def __init__(self, dim: int, channels: int) -> None:
        super().__init__()
        for name, tensor in FeatureStats.blank(dim, channels).tensors().items():
            self.register_buffer(name, tensor)

    @property
    def values(self) -> FeatureStats | None:
        """A copy of what was fitted, if anything was: whoever keeps it sees no later fit."""
        stats = FeatureStats.of_tensors({n: t.clone() for n, t in self.named_buffers()})
        return stats if stats.fitted else None

    def set(self, stats: FeatureStats | None) -> None:
        given = {} if stats is None else stats.tensors()
        for name, buffer in self.named_buffers():
            buffer.copy_(given[name]) if given else buffer.zero_()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "FeatureStatsBuffers":
        return follow_device(self, fn)


class FeatureSummary:
    """What is kept of series so far; its size does not depend on how long they are.

    Sums are float64 and deviations are taken from the mean, so that neither many tokens nor a
    large offset cost digits. The detail is computed in ``dtype``, in float32 at least.
    """

    def __init__(
        self, stats: FeatureStats, batch_size: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.median, self.scale = (t.to(device, torch.float64) for t in stats[:2])  # (D,)
        zeros = torch.zeros(batch_size, len(self.median), dtype=torch.float64, device=device)
        self.count = torch.zeros(batch_size, 1, dtype=torch.int64, device=device)
        self.mean = zeros  # (B, D)
        self.square = zeros  # summed squared deviations from the mean
        self.highest = zeros - torch.inf
        self.above = zeros  # summed over tokens: near 1 above the median, near 0 below
        precise = torch.promote_types(dtype, torch.float32)
        self.detail = DetailSummary(stats.detail, batch_size, device, precise)
        self.whitening = stats.whitening.to(device)

    _TOKENS = ("median", "scale", "count", "mean", "square", "highest", "above")
    _DETAIL = (("x", "x"), ("observed", "observed"), ("shares", "above"), ("samples", "count"))

    def tensors(self) -> dict[str, Tensor]:
        """All that is held, by name, not copied."""
        held = {name: getattr(self, name) for name in self._TOKENS}
        held |= {name: getattr(self.detail, kept) for name, kept in self._DETAIL}
        held |= {f"detail_{name}": t for name, t in self.detail.detail._asdict().items()}
        return held | {f"whitening_{name}": t for name, t in self.whitening._asdict().items()}

    def put_tensors(self, held: Mapping[str, Tensor]) -> None:
        """Make ``held`` what is held, of a summary with the same statistics."""
        for name in self._TOKENS:
            setattr(self, name, held[name])
        for name, kept in self._DETAIL:
            setattr(self.detail, kept, held[name])

    def add_samples(self, values: Tensor) -> None:
        """Take in samples (B, L, C) as they are, L from 0 up, NaN where missing or past an end."""
        self.detail.add(values)

    def add_tokens(self, tokens: Tensor, token_mask: Tensor) -> None:
        """Take in tokens (B, K, D), K from 0 up, of which those of ``token_mask`` (B, K) count."""
        if not tokens.shape[1]:
            return
        x = tokens.to(torch.promote_types(tokens.dtype, torch.float32))
        valid = token_mask[..., None]
        new = valid.sum(1)  # (B, 1)
        mean = torch.where(valid, x, 0.0).sum(1).double() / new.clamp(min=1)
        apart = torch.where(valid, x - mean[:, None].to(x.dtype), 0.0)
        median, width = self.median.to(x.dtype), (SOFTNESS * self.scale).to(x.dtype)
        # a step would flip between 0 and 1 with the rounding of a token that is near the median
        above = torch.where(valid, torch.sigmoid((x - median) / width), 0.0)
        total = self.count + new
        share = new.double() / total.clamp(min=1)  # of the tokens so far that are new
        shift = mean - self.mean
        between = shift.square() * self.count * share
        self.square = self.square + apart.square().sum(1) + between
        self.mean = self.mean + shift * share
        self.highest = self.highest.maximum(x.masked_fill(~valid, -torch.inf).amax(1).double())
        self.above = self.above + above.sum(1)
        self.count = total

    def statistics(self) -> Tensor:
        """Maximum, standard deviation and share above the median, (B, 3D); 0 without a token."""
        count = self.count.clamp(min=1)
        highest = torch.where(self.count > 0, self.highest, 0.0)
        return torch.cat([highest, (self.square / count).sqrt(), self.above / count], dim=1)

    def features(self, sequence: Tensor) -> Tensor:
        """The sequence vectors (B, D), the statistics and the detail, whitened: (B, 4D + H)."""
        precise = torch.promote_types(sequence.dtype, torch.float32)
        parts = (sequence, self.statistics(), self.detail.shares())
        return self.whitening(torch.cat([part.to(precise) for part in parts], dim=1))


def all_scales(z: Encoding, values: Tensor, stats: FeatureStats) -> Tensor:
    """One vector (B, 4D + H) for each series of samples (B, L, C), NaN where missing.

    The statistics of tokens are 0 where no token is valid, the detail where nothing is observed.
    """
    fitted, given = len(stats.median), z.tokens.shape[2]
    if fitted != given:
        raise InputError(
            f"the feature statistics are of {fitted} features, the encoder gives {given}; fit them "
            "on its own tokens"
        )
    summary = FeatureSummary(stats, len(z.tokens), z.tokens.device, z.tokens.dtype)
    summary.add_tokens(z.tokens, z.token_mask)
    summary.add_samples(values)
    return summary.features(z.sequence)
