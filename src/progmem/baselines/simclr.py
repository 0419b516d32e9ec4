"""SimCLR (Chen et al. 2020) for series: two views of a series attract, other series repel.

One view has noise, the other is permuted; their sequence vectors are compared by NT-Xent after a
projection head. In the public code the noise has norm 100 in the units of the recordings, here it
is in those of a channel's standard deviation.

Shapes: B rows of the global batch, b own rows, L samples, C channels, D width.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from progmem.baselines.cnn import CNNConfig, ProjectionHead, precise
from progmem.baselines.cnn_task import Batch, CNNTask, View
from progmem.baselines.transforms import Segments, Source, draw_segments, permute
from progmem.config import RunConfig, number, positive, whole
from progmem.data.windows import TrainingWindows
from progmem.losses.total import nt_xent

TRAINING = {  # a constant rate, no clipping, and no autocast
    "epochs": 40, "batch_size": 128, "lr": 1e-3, "lr_end": 1e-3, "warmup": 0.0,
    "weight_decay": 1e-4, "clip": 1e9, "precision": "32",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SimCLRConfig(CNNConfig):
    """The settings ``encoder.*`` of SimCLR, as published with TS-TCC's CNN but for the noise."""

    temperature: float = positive(0.2)
    jitter: float = number(0.8, 0)  # sd of the noise on one view
    segments: int = whole(4, 1)  # most that the other view is cut into and permuted


class Draws(NamedTuple):
    """The random numbers of both views of a batch."""

    noise: Tensor  # (B, L, C)
    cuts: Tensor  # of the segments
    order: Tensor


class SimCLRLearner(nn.Module):
    """The encoder with the projection head that only training needs."""

    ahead = 0

    def __init__(self, encoder: Any, cfg: SimCLRConfig) -> None:
        super().__init__()
        self.encoder, self.cfg = encoder, cfg
        self.project = ProjectionHead(cfg.dim, cfg.dim // 2, cfg.dim // 4)

    def draw(self, batch: int, length: int, generator: torch.Generator) -> Draws:
        cfg, source = self.cfg, Source(generator)
        segments = draw_segments(batch, cfg.segments, source)
        noise = cfg.jitter * source.normal(batch, length, cfg.channels)
        return Draws(noise, segments.cuts, segments.order)

    def make_views(
        self, x: Tensor, observed: Tensor, lengths: Tensor, draws: Draws
    ) -> tuple[tuple[Tensor, Tensor], ...]:
        """The series with noise, and permuted."""
        moved = permute(x, observed, lengths, Segments(draws.cuts, draws.order))
        return (x + draws.noise, observed), moved

    def forward(self, views: tuple[View, View], draws: Draws) -> tuple[Tensor, Tensor]:
        """Projected vectors of both views (2b, D/4), and the first one's sequence vectors."""
        vectors = [self.encoder(v.x, v.observed, lengths=v.lengths).sequence for v in views]
        projected = precise(torch.cat([self.project(vector) for vector in vectors]))
        return projected, vectors[0].detach().float()

    def losses(self, embedded: Tensor, batch: Batch) -> dict[str, Tensor]:
        loss, gap = nt_xent(embedded, batch.overlap, batch.group, temperature=self.cfg.temperature)
        return {"loss": loss, "gap": gap}


def make_task(
    encoder: Any, rows: TrainingWindows, cfg: RunConfig, *, total: int, device: torch.device
) -> CNNTask:
    """The task of a run."""
    return CNNTask(SimCLRLearner(encoder, encoder.cfg), rows, cfg, device=device)
