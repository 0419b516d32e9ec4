"""The three-block CNN of TS-TCC, which CPC, SimCLR and SSL-ECG share.

A block is a convolution of 8 samples, batch normalisation, ReLU and max pooling by 2. A token is
the last block's output at one position: token j is made of samples 8j - 35 to 8j + 21.

A series ends where its own samples end: what a convolution or the batch normalisation puts after
them is set to 0, as if there were nothing, so that padding changes nothing. Missing samples are 0,
which is the mean of a channel.

Shapes: B series, L samples, C channels, T positions of a block, K tokens, D width.
"""

from dataclasses import MISSING, dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from progmem.config import check_fields, choice, number, whole
from progmem.encoding import Encoding
from progmem.series import check_tensor

KERNEL = 8
BLOCKS = 3


def _receptive_field() -> tuple[int, int, int]:
    """First sample of token 0, the sample after its last one, and samples between two tokens."""
    first = last = 0
    step = 1
    for _ in range(BLOCKS):  # position p pools 2p-1 and 2p, and q is made of q-4 .. q+3
        first, last = 2 * first - 1 - KERNEL // 2, 2 * last + KERNEL // 2 - 1
        step *= 2
    return first, last + 1, step


FIRST, END, STEP = _receptive_field()


@dataclass(frozen=True, kw_only=True)
class CNNConfig:
    """The settings ``encoder.*`` that methods on the CNN share."""

    channels: int = whole(MISSING, 1)
    dim: int = whole(128, 4)
    dropout: float = number(0.35, 0, 1)  # after the first block
    normalise: str = choice("channel", "series", "none")

    def __post_init__(self) -> None:
        check_fields(self, "encoder")

    @property
    def patch(self) -> int:
        """One sample is enough: the first convolution has zeros around it."""
        return 1

    @property
    def slots(self) -> int:
        """It has no memory."""
        return 0


class CNN(nn.Module):
    """Series (B, L, C) to one token for about every 8 samples, with their mean as the sequence."""

    def __init__(self, cfg: CNNConfig) -> None:
        super().__init__()
        self.cfg = cfg
        widths = (cfg.channels, cfg.dim // 4, cfg.dim // 2, cfg.dim)
        self.blocks = nn.ModuleList(ConvBlock(*pair) for pair in pairwise(widths))

    def forward(
        self, x: Tensor, mask: Tensor | None = None, *, lengths: Tensor | None = None
    ) -> Encoding:
        """Encode normalised series (B, L, C), as `PMT.forward` does."""
        check_tensor(x, self.cfg)
        return self.encoding(self.outputs(x, mask, lengths=lengths), x, mask, lengths)

    def encoding(
        self, outputs: list[Tensor], x: Tensor, mask: Tensor | None, lengths: Tensor | None
    ) -> Encoding:
        """What the ``outputs`` of the blocks tell of the series they were made of."""
        tokens = outputs[-1]  # (B, K, D)
        valid = valid_tokens(x, mask, lengths, tokens.shape[1])
        tokens = torch.where(valid[..., None], tokens, 0.0)
        return Encoding(
            tokens=tokens,
            memory=None,
            sequence=tokens.sum(1) / valid.sum(1, keepdim=True).clamp(min=1),
            eos=None,
            token_mask=valid,
            window_mask=None,
            token_spans=self.token_spans(x.shape[1]),
            window_spans=None,
        )

    def token_spans(self, length: int) -> Tensor:
        """Samples [from, to) that the tokens of ``length`` samples are made of, (K, 2)."""
        first = torch.arange(count_tokens(length)) * STEP + FIRST
        return torch.stack([first.clamp(min=0), (first + END - FIRST).clamp(max=length)], dim=1)

    def outputs(
        self, x: Tensor, mask: Tensor | None = None, *, lengths: Tensor | None = None
    ) -> list[Tensor]:
        """What each block makes of series, (B, T, width), 0 past their ends; last the tokens."""
        if mask is not None:
            x = torch.where(mask if mask.dim() == 3 else mask[..., None], x, 0.0)
        if lengths is not None:
            x = torch.where(_before(lengths, x.shape[1])[..., None], x, 0.0)
        x, found = x.transpose(1, 2), []  # (B, C, L)
        for i, block in enumerate(self.blocks):
            x = block(x, lengths)
            if i == 0:
                x = F.dropout(x, self.cfg.dropout, self.training)
            lengths = None if lengths is None else count_pooled(lengths)
            found.append(x.transpose(1, 2))
        return found


class ConvBlock(nn.Module):
    def __init__(self, channels: int, dim: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, dim, KERNEL, padding=KERNEL // 2, bias=False)
        self.norm = BatchNorm(dim)

    def forward(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        """Series (B, C, L), 0 past their ends, to (B, D, T), T = (L + 1) // 2 + 1."""
        x = self.conv(x)  # (B, D, L+1)
        there = None if lengths is None else _before(lengths + 1, x.shape[2])[:, None]
        x = F.relu(self.norm(x, there))
        if there is not None:
            x = torch.where(there, x, 0.0)  # nothing is below 0, so that it never is the maximum
        return F.max_pool1d(x, 2, padding=1)


class BatchNorm(nn.BatchNorm1d):
    """Batch normalisation over what is there, of the rows of all processes."""

    def forward(self, x: Tensor, there: Tensor | None = None) -> Tensor:
        """Normalise (B, D, T) by the mean and variance over all positions ``there`` (B, 1, T)."""
        together = dist.is_initialized() and dist.get_world_size() > 1
        if not self.training or (there is None and not together):
            return super().forward(x)
        values = precise(x)
        weight = torch.ones_like(values[:, :1]) if there is None else there.to(values.dtype)
        count = _total(weight.sum())
        mean = _total((values * weight).sum((0, 2))) / count  # (D,)
        apart = (values - mean[:, None]) * weight
        variance = _total(apart.square().sum((0, 2))) / count
        with torch.no_grad():
            assert self.momentum is not None
            assert self.running_mean is not None and self.running_var is not None
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
            unbiased = variance * count / (count - 1).clamp(min=1)
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), self.momentum)
            if self.num_batches_tracked is not None:
                self.num_batches_tracked.add_(1)
        scale = self.weight * (variance + self.eps).rsqrt()
        return ((values - mean[:, None]) * scale[:, None] + self.bias[:, None]).to(x.dtype)


class ProjectionHead(nn.Module):
    """What the contrast of whole series sees of a vector (B, d); probes see the vector itself."""

    def __init__(self, dim: int, hidden: int, out: int) -> None:
        super().__init__()
        self.first, self.norm, self.last = (
            nn.Linear(dim, hidden),
            BatchNorm(hidden),
            nn.Linear(hidden, out),
        )

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.first(x)[..., None])[..., 0]
        return self.last(F.relu(hidden))


class _AllReduce(torch.autograd.Function):
    """The sum over processes, in both passes: each process holds a share of the loss."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad


def _total(x: Tensor) -> Tensor:
    if not dist.is_initialized():
        return x
    total: Tensor = _AllReduce.apply(x)  # type: ignore[no-untyped-call]
    return total


def precise(x: Tensor) -> Tensor:
    """In float32 at least, as losses take it."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def count_pooled(length: Any) -> Any:
    """Positions that a block makes of ``length``: the convolution adds one, pooling halves."""
    return (length + 1) // 2 + 1


def count_tokens(length: Any) -> Any:
    """Tokens of series of ``length`` samples, a number or a tensor."""
    for _ in range(BLOCKS):
        length = count_pooled(length)
    return length


def valid_tokens(x: Tensor, mask: Tensor | None, lengths: Tensor | None, tokens: int) -> Tensor:
    """Which tokens exist and are made of an observed sample at least, (B, K)."""
    B, L, _ = x.shape
    seen = x.new_ones(B, L, dtype=torch.bool)
    if mask is not None:
        seen = mask if mask.dim() == 2 else mask.any(2)
    exists = seen.new_ones(B, tokens)
    if lengths is not None:
        seen, exists = seen & _before(lengths, L), _before(count_tokens(lengths), tokens)
    padded = F.pad(seen.to(x.dtype), (-FIRST, (tokens - 1) * STEP + END - L))
    return exists & (F.max_pool1d(padded[:, None], END - FIRST, STEP)[:, 0] > 0)


def _before(lengths: Tensor, positions: int) -> Tensor:
    """Which of so many positions come before the end of each series, (B, positions)."""
    return torch.arange(positions, device=lengths.device) < lengths[:, None]
