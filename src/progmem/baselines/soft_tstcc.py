"""SoftCLT (Lee et al. 2024) on TS-TCC: what each block makes of two views is compared softly too.

    loss = TS-TCC's + 0.5 sum over blocks d of (0.5 instance_d + 0.5 temporal_d)

The soft contrasts are those of SoftCLT on TS2Vec: each series is a positive of each other one, by a
weight that falls with their distance, and each position of each other one, by a weight that falls
with the time between them and twice as fast after each block. Positions that the shortest row of a
batch does not have are left out. The public code compares features where it means positions, which
fails by its shapes, so what it has published was computed otherwise.

Shapes: B rows of the global batch, b own rows, T positions of a block.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from progmem.baselines import tstcc
from progmem.baselines.cnn import count_pooled, precise
from progmem.baselines.cnn_task import Batch, CNNTask, View
from progmem.baselines.softclt import Likeness, distances_of
from progmem.baselines.ts2vec import instance_contrast, nearness, temporal_contrast
from progmem.config import RunConfig, check_fields, choice, number
from progmem.data.windows import TrainingWindows

TRAINING = tstcc.TRAINING


@dataclass(frozen=True, kw_only=True)
class SoftTSTCCConfig(tstcc.TSTCCConfig):
    """The settings ``encoder.*`` of SoftCLT on TS-TCC, as published."""

    soft: float = number(0.5, 0)  # weight of the soft contrasts
    instance: float = number(0.5, 0)  # of the instance contrast in them
    temporal: float = number(0.5, 0)  # and of the temporal contrast
    distance: str = choice("dtw", "euclidean")  # of two series
    band: float = number(1.0, 0)  # of DTW: how far times may be moved, as a share of a series
    instance_sharpness: float = number(6.0, 0)  # of the weights of series; 0: not soft
    temporal_sharpness: float = number(1.0, 0)  # of the weights of times; 0: not soft

    def __post_init__(self) -> None:
        check_fields(self, "encoder")


class Embedded(NamedTuple):
    """What the losses compare."""

    contrast: tstcc.Embedded
    outputs: tuple[tuple[Tensor, Tensor], ...]  # of each block, in both views, (b, T, width)


class SoftTSTCCLearner(nn.Module):
    """TS-TCC's learner, which also sees what the blocks before the last make of the views."""

    def __init__(self, encoder: Any, cfg: SoftTSTCCConfig) -> None:
        super().__init__()
        self.tstcc, self.cfg, self.ahead = tstcc.TSTCCLearner(encoder, cfg), cfg, cfg.ahead

    @property
    def encoder(self) -> Any:
        return self.tstcc.encoder

    def draw(self, batch: int, length: int, generator: torch.Generator) -> tstcc.Draws:
        return self.tstcc.draw(batch, length, generator)

    def make_views(
        self, x: Tensor, observed: Tensor, lengths: Tensor, draws: tstcc.Draws
    ) -> tuple[tuple[Tensor, Tensor], ...]:
        """TS-TCC's."""
        return self.tstcc.make_views(x, observed, lengths, draws)

    def forward(self, views: tuple[View, View], draws: tstcc.Draws) -> tuple[Embedded, Tensor]:
        """What is compared, and the weak view's sequence vectors (b, D)."""
        network = self.encoder.network
        weak, strong = (network.outputs(v.x, v.observed, lengths=v.lengths) for v in views)
        encodings = (network.encoding(weak, *views[0]), network.encoding(strong, *views[1]))
        blocks = tuple(zip(map(precise, weak), map(precise, strong), strict=True))
        embedded = Embedded(self.tstcc.compared(views[0], encodings, draws), blocks)
        return embedded, encodings[0].sequence.detach().float()

    def losses(self, embedded: Embedded, batch: Batch) -> dict[str, Tensor]:
        parts = self.tstcc.losses(embedded.contrast, batch)
        instance, temporal = soft_contrasts(
            embedded.outputs, batch, sharpness=self.cfg.temporal_sharpness
        )
        soft = self.cfg.instance * instance + self.cfg.temporal * temporal
        loss = parts["loss"] + self.cfg.soft * soft
        return {**parts, "loss": loss, "soft_instance": instance, "soft_temporal": temporal}


def soft_contrasts(
    outputs: tuple[tuple[Tensor, Tensor], ...], batch: Batch, *, sharpness: float
) -> tuple[Tensor, Tensor]:
    """The own rows' share of the instance and temporal contrasts of all blocks, summed."""
    share = len(batch.lengths) / batch.size  # every process contrasts the instances of all rows
    instance = temporal = torch.zeros((), device=batch.lengths.device)
    positions = batch.shortest
    for depth, views in enumerate(outputs):
        positions = count_pooled(positions)
        own = [view[:, :positions] for view in views]
        near = nearness(positions, sharpness * 2**depth, own[0]) if sharpness else None
        first, second = (batch.group.gather(view) for view in own)
        contrast = instance_contrast(first, second, ~batch.overlap, batch.alike)
        instance = instance + contrast * share
        temporal = temporal + temporal_contrast(own[0], own[1], near) * share
    return instance, temporal


def make_task(
    encoder: Any, rows: TrainingWindows, cfg: RunConfig, *, total: int, device: torch.device
) -> CNNTask:
    """The task of a run; distances of all pairs of rows are taken first."""
    own, alike = encoder.cfg, None
    if own.instance_sharpness:
        everything = rows.cut(torch.arange(len(rows)))
        alike = Likeness(distances_of(everything, own, device), own.instance_sharpness)
    return CNNTask(SoftTSTCCLearner(encoder, own), rows, cfg, device=device, alike=alike)
