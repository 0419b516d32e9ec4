"""What makes the network of a baseline an `Encoder` that is used wherever PMT is.

Shapes: B series, L samples, C channels, K tokens, D width, R rows.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from progmem.config import EncoderConfig
from progmem.data.given_dates import with_dates
from progmem.data.recordings import ChannelInfo
from progmem.encoding import Encoding
from progmem.features import FeatureStatsBuffers
from progmem.missing import tell_of_missing
from progmem.model import saving
from progmem.model.encode import consecutive, encode_rows, eval_mode, moments_for
from progmem.provenance import History
from progmem.series import ChannelStats, Series, check_count, check_finite

SAMPLES_AT_ONCE = 2**16  # of a batch
PER_TOKEN = ("tokens", "token_mask")
PER_WINDOW = ("memory", "window_mask")
PER_SERIES = ("sequence", "eos")


class Network(Protocol):
    """A module that is made of its config alone, and embeds normalised series."""

    cfg: Any  # an EncoderConfig

    def __call__(
        self, x: Tensor, mask: Tensor | None = None, *, lengths: Tensor | None = None
    ) -> Encoding:
        """Encode series (B, L, C), finite where observed, as `PMT.forward` does."""

    def token_spans(self, length: int) -> Tensor:
        """Samples [from, to) of each token of a series of ``length`` samples, (K, 2)."""


class Baseline(nn.Module):
    """A network of `progmem.baselines.ENCODERS` with all that an encoder needs beside it.

    Example:
        >>> import torch
        >>> from progmem.baselines import make_encoder
        >>> encoder = make_encoder("ts2vec", channels=3, dim=16)
        >>> z = encoder.encode([torch.randn(200, 3), torch.randn(120, 3)])
        >>> z.tokens.shape, z.token_mask.sum(1).tolist()
        (torch.Size([2, 200, 16]), [200, 120])
    """

    def __init__(self, name: str, network: Any) -> None:
        super().__init__()
        self.name, self.network = name, network
        self.cfg: EncoderConfig = network.cfg
        self.info = ChannelInfo()  # of what it was trained on
        self.history: History | None = ()  # its trainings
        self.stats = ChannelStats(self.cfg.channels)
        self.feature_stats = FeatureStatsBuffers(self.cfg.dim, self.cfg.channels)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        *,
        lengths: Tensor | None = None,
        hidden: Tensor | None = None,
    ) -> Encoding:
        """Encode normalised series (B, L, C), as `PMT.forward` does.

        Only networks that learn by the objectives of PMT can have ``hidden`` samples.
        """
        more = {} if hidden is None else {"hidden": hidden}
        z: Encoding = self.network(x, mask, lengths=lengths, **more)
        return z

    def decode(self, tokens: Tensor) -> Tensor:
        """As `PMT.decode`, for networks that learn by the objectives of PMT."""
        samples: Tensor = self.network.decode(tokens)
        return samples

    def token_spans(self, length: int) -> Tensor:
        """Samples [from, to) of each token of a series of ``length`` samples, (K, 2)."""
        spans: Tensor = self.network.token_spans(length)
        return spans

    @torch.no_grad()
    def encode(
        self, x: Any, *, lengths: Any = None, dates: Any = None, batch_size: int | None = None
    ) -> Encoding:
        """Encode series as they are, as `PMT.encode` does.

        Args:
            x, lengths, dates: as `PMT.encode` takes them.
            batch_size: the most series encoded at a time; None: as many as have 65,536 samples.
        """
        x, calendars, names = with_dates(x, dates, self.info, self.cfg.channels)
        series = Series(x, lengths, self.cfg, names, columns=self.info.columns)
        tell_of_missing(series.arrays, series.names, self.info.columns, lengths=series.lengths)
        if batch_size is not None:
            check_count("batch_size", batch_size)
        like = next(self.network.parameters())
        parts = []
        with eval_mode(self):
            for rows in consecutive(series.lengths, SAMPLES_AT_ONCE, most_rows=batch_size):
                moments = moments_for(self.cfg, self.stats, series, rows)
                part = encode_rows(self.network, series, rows, moments=moments, like=like)
                parts.append(part)
        z = _joined(parts, series.device)
        check_finite(z.sequence, series.names)
        known = None if self.info == ChannelInfo() else self.info
        return z._replace(channels=known, calendars=calendars)

    def untrained(self) -> "Baseline":
        """Another of the same config, freshly drawn."""
        from progmem.baselines import build  # it imports this module

        other: Baseline = build(self.name, self.cfg)
        return other

    def save(self, folder: str | Path) -> None:
        """Write weights and config under a checksum; `progmem.load` reads them back."""
        saving.save(self, Path(folder))


def last_row(rows: Tensor, valid: Tensor) -> Tensor:
    """The last of the rows (B, R, D) that are ``valid`` (B, R), (B, D); 0 where there is none."""
    number = torch.arange(1, rows.shape[1] + 1, device=rows.device)
    last = torch.where(valid, number, 0).amax(1)  # (B,), from 1 on
    index = (last - 1).clamp(min=0)[:, None, None].expand(-1, 1, rows.shape[2])
    return torch.where(last[:, None] > 0, rows.gather(1, index)[:, 0], 0.0)


def _joined(parts: Sequence[Encoding], device: torch.device) -> Encoding:
    """The encodings of consecutive series as one, zeros past the end of shorter ones."""
    joined: dict[str, Any] = {name: getattr(parts[0], name) for name in Encoding._fields}
    for name in (*PER_TOKEN, *PER_WINDOW, *PER_SERIES):
        tensors = [getattr(part, name) for part in parts]
        if tensors[0] is None:
            continue
        if name not in PER_SERIES:
            most = max(t.shape[1] for t in tensors)
            tensors = [F.pad(t, (*(0, 0) * (t.dim() - 2), 0, most - t.shape[1])) for t in tensors]
        joined[name] = torch.cat([t.to(device) for t in tensors])
    for name in ("token_spans", "window_spans"):
        spans = [getattr(part, name) for part in parts]
        if spans[0] is not None:
            joined[name] = max(spans, key=len)
    return Encoding(**joined)
