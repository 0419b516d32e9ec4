"""SSL-ECG (Sarkar and Etemad 2020): which transform was a series through?

    loss = sum over transforms j of w_j mean over rows of BCE(head_j(row), row went through j)

Each series of a batch takes part as it is and through six transforms. The heads see the largest
value of each feature over the tokens. As published, but on TS-TCC's CNN.

Shapes: B rows of the global batch, b own rows, L samples, C channels, K tokens, D width,
J transforms.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from progmem.baselines.cnn import CNNConfig, precise
from progmem.baselines.cnn_task import Batch, CNNTask, View
from progmem.baselines.transforms import (
    Segments,
    Source,
    equal_segments,
    permute,
    reverse,
    warp,
)
from progmem.config import RunConfig, number, positive, whole
from progmem.data.windows import TrainingWindows

TRAINING = {  # a constant rate, no clipping, and no autocast
    "epochs": 100, "batch_size": 128, "lr": 1e-3, "lr_end": 1e-3, "warmup": 0.0,
    "weight_decay": 1e-4, "clip": 1e9, "precision": "32",
}  # fmt: skip
# as it is, noise, scaled, negated, backwards, permuted, warped
WEIGHTS = (0.195, 0.195, 0.195, 0.0125, 0.0125, 0.195, 0.195)
HIDDEN = 128  # of a head


@dataclass(frozen=True, kw_only=True)
class SSLECGConfig(CNNConfig):
    """The settings ``encoder.*`` of SSL-ECG, as published."""

    noise: float = positive(15.0)  # signal over noise, in decibels
    scale: float = positive(1.1)
    segments: int = whole(20, 1)  # permuted
    parts: int = whole(9, 1)  # that are played faster or slower
    stretch: float = positive(1.05)  # how much slower; faster is as much
    head_dropout: float = number(0.6, 0, 1)


class Draws(NamedTuple):
    """The random numbers of the transforms of a batch."""

    noise: Tensor  # (B, L, C), of standard deviation 1
    cuts: Tensor  # of the segments
    order: Tensor
    speeds: Tensor  # (B, parts)


class SSLECGLearner(nn.Module):
    """The encoder with a head for each transform, which only training needs."""

    ahead = 0

    def __init__(self, encoder: Any, cfg: SSLECGConfig) -> None:
        super().__init__()
        self.encoder, self.cfg = encoder, cfg
        self.heads = nn.ModuleList(
            nn.Sequential(
                nn.Linear(cfg.dim, HIDDEN), nn.ReLU(), nn.Dropout(cfg.head_dropout),
                nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Dropout(cfg.head_dropout),
                nn.Linear(HIDDEN, 1),
            ) for _ in WEIGHTS
        )  # fmt: skip

    def draw(self, batch: int, length: int, generator: torch.Generator) -> Draws:
        cfg, source = self.cfg, Source(generator)
        segments = equal_segments(batch, cfg.segments, source)
        slower = source.uniform(batch, cfg.parts) < 0.5
        speeds = torch.where(slower, 1 / cfg.stretch, cfg.stretch)
        return Draws(
            source.normal(batch, length, cfg.channels), segments.cuts, segments.order, speeds
        )

    def make_views(
        self, x: Tensor, observed: Tensor, lengths: Tensor, draws: Draws
    ) -> tuple[tuple[Tensor, Tensor], ...]:
        """The series as it is and through each transform, in the order of `WEIGHTS`."""
        samples = observed.sum(1, keepdim=True).clamp(min=1)
        power = torch.where(observed, x, 0.0).square().sum(1, keepdim=True) / samples  # (b, 1, C)
        noise = draws.noise * (power / 10 ** (self.cfg.noise / 10)).sqrt()
        return (
            (x, observed),
            (x + noise, observed),
            (x * self.cfg.scale, observed),
            (-x, observed),
            reverse(x, observed, lengths),
            permute(x, observed, lengths, Segments(draws.cuts, draws.order)),
            warp(x, observed, lengths, draws.speeds),
        )

    def forward(self, views: tuple[View, ...], draws: Draws) -> tuple[Tensor, Tensor]:
        """What each head says of each view, (J, b, J); sequence vectors of the series (b, D)."""
        x, observed, lengths = (
            None if parts[0] is None else torch.cat(parts) for parts in zip(*views, strict=True)
        )
        z = self.encoder(x, observed, lengths=lengths)  # normalised over all transforms together
        highest = z.tokens.amax(1)  # (Jb, D); tokens are 0 where missing, and never below
        said = torch.cat([head(highest) for head in self.heads], dim=1)  # (Jb, J)
        b, J = len(views[0].x), len(WEIGHTS)
        return precise(said.view(J, b, J)), z.sequence[:b].detach().float()

    def losses(self, embedded: Tensor, batch: Batch) -> dict[str, Tensor]:
        rows = batch.group.total(embedded.new_full((), embedded.shape[1]))
        loss, right = transform_loss(embedded)
        return {"loss": loss / rows, "accuracy": right / rows}


def transform_loss(said: Tensor) -> tuple[Tensor, Tensor]:
    """The loss above of logits (J, b, J), and the share of right answers, summed over the rows."""
    went = torch.eye(len(WEIGHTS), device=said.device, dtype=said.dtype)[:, None].expand_as(said)
    each = F.binary_cross_entropy_with_logits(said, went, reduction="none")
    by_head = each.mean(0).sum(0)  # (J,)
    right = ((said > 0) == (went > 0)).to(said.dtype).mean((0, 2)).sum()
    return (by_head * by_head.new_tensor(WEIGHTS)).sum(), right


def make_task(
    encoder: Any, rows: TrainingWindows, cfg: RunConfig, *, total: int, device: torch.device
) -> CNNTask:
    """The task of a run."""
    return CNNTask(SSLECGLearner(encoder, encoder.cfg), rows, cfg, device=device)
