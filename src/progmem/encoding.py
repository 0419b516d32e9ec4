"""What an encoder returns, and what makes something an encoder.

Shapes: B series, L samples, C channels, K tokens, N windows, D width.
"""

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from torch import Tensor

from progmem.errors import InputError

if TYPE_CHECKING:
    from progmem.data.dates import Calendar
    from progmem.data.recordings import ChannelInfo


class Encoding(NamedTuple):
    """One batch of series at three scales, with the samples each part was made from.

    A mask is False where a series has no such token or window, or where all of it is missing.
    Spans are ``[start, end)`` in samples and shared by the batch. Encoders without a memory
    leave ``memory`` at None, those without windows the masks and spans of windows too.
    What is known of channels and dates goes with what ``encode`` returns.

    Example:
        >>> import progmem, torch
        >>> model = progmem.PMT(progmem.ModelConfig(channels=1, size="tiny"))
        >>> x = torch.randn(2, 100, 1)  # (batch, time, channels)
        >>> x[0, 20:40] = torch.nan  # missing
        >>> z = model.encode(x)
        >>> isinstance(z, progmem.Encoding)
        True
        >>> z.tokens.shape, z.memory.shape, z.sequence.shape
        (torch.Size([2, 47, 64]), torch.Size([2, 5, 2, 64]), torch.Size([2, 64]))
        >>> z.token_spans[10].tolist(), z.token_mask[:, 10].tolist()
        ([20, 28], [False, True])
    """

    tokens: Tensor  # (B, K, D), 0 where token_mask is False
    memory: Tensor | None  # (B, N, slots, D), 0 where a series has no such window
    sequence: Tensor  # (B, D)
    # (B, D): mean slots of the last window (on a stream: that is complete); without a memory what
    # the last token is, if that is made of the whole series
    eos: Tensor | None
    token_mask: Tensor  # (B, K) bool
    window_mask: Tensor | None  # (B, N) bool
    token_spans: Tensor  # (K, 2) int64
    window_spans: Tensor | None  # (N, 2) int64
    channels: "ChannelInfo | None" = None  # what the model was trained on: names, units, rate
    calendars: "tuple[Calendar | None, ...] | None" = None  # of each series: when it was taken

    def times(self, level: str = "tokens", *, series: int = 0) -> Any:
        """When each part of ``level``, tokens or memory, begins in one of the series.

        Dates where these are known, otherwise seconds from the start of the series, by the rate of
        what the model was trained on.
        """
        spans = {"tokens": self.token_spans, "memory": self.window_spans}.get(level)
        if spans is None:
            raise InputError(
                f"level must be tokens or memory, and one that is there, got {level!r}"
            )
        starts = spans[:, 0].cpu().numpy()
        calendar = None if self.calendars is None else self.calendars[series]
        if calendar is not None:
            return calendar.at(starts)
        if self.channels is not None and self.channels.rate is not None:
            return starts / self.channels.rate
        raise InputError("neither dates nor a rate are known; give encode the dates of the series")


class Encoder(Protocol):
    """Anything that turns series (B, L, C) into an `Encoding`: PMT and every baseline.

    Example:
        >>> import progmem, torch
        >>> class Means:
        ...     '''The mean of a series as its only token.'''
        ...
        ...     def encode(self, x):
        ...         mean = torch.as_tensor(x).mean(1)  # (B, C)
        ...         there = torch.ones(len(mean), 1, dtype=torch.bool)
        ...         spans = torch.tensor([[0, x.shape[1]]])
        ...         return progmem.Encoding(
        ...             tokens=mean[:, None], memory=None, sequence=mean, eos=None,
        ...             token_mask=there, window_mask=None, token_spans=spans, window_spans=None,
        ...         )
        >>> encoder: progmem.Encoder = Means()
        >>> encoder.encode(torch.ones(2, 100, 3)).sequence.tolist()
        [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    """

    def encode(self, x: Any) -> Encoding: ...
