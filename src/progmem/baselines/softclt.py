"""SoftCLT (Lee et al., ICLR 2024) on TS2Vec: how alike two series are says how much they attract.

Each series is a positive of each other one, by a weight that falls with their distance, by dynamic
time warping (DTW); and each time is one of each other, by a weight that falls with the time between
them, the faster the coarser the scale is. All else is TS2Vec's.

Shapes: B rows of a batch, R training rows, L samples, C channels.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from progmem.baselines.encoder import Baseline
from progmem.baselines.ts2vec import TS2VecConfig, TS2VecTask
from progmem.config import RunConfig, check_fields, choice, number
from progmem.data.windows import TrainingWindows
from progmem.errors import ConfigError, InputError
from progmem.ops.dtw import dtw_distances

MOST_ROWS = 20_000  # whose distances are kept: 1.6 GB
CLOSEST = 0.5  # the largest weight of another series; a series' own is 1


@dataclass(frozen=True, kw_only=True)
class SoftCLTConfig(TS2VecConfig):
    """The settings ``encoder.*`` of SoftCLT; the public code has other sharpnesses for each set."""

    distance: str = choice("dtw", "euclidean")  # of two series
    band: float = number(1.0, 0)  # of DTW: how far times may be moved, as a share of a series
    instance_sharpness: float = number(20.0, 0)  # of the weights of series; 0: not soft
    temporal_sharpness: float = number(1.0, 0)  # of the weights of times; 0: not soft

    def __post_init__(self) -> None:
        check_fields(self, "encoder")


class Likeness:
    """How much each training row is a positive of each other, by their distances."""

    def __init__(self, distances: Tensor, sharpness: float) -> None:
        R = len(distances)
        self.distances, self.sharpness = distances, sharpness  # (R, R) float32
        if R < 2:
            raise InputError("soft positives need at least 2 rows")
        others = distances.clone().fill_diagonal_(torch.inf)
        self.least = float(others.min())  # also stands for the distance of a row to itself
        self.most = distances.clone().fill_diagonal_(self.least).amax(0)  # (R,), of each column

    def __call__(self, rows: Tensor) -> Tensor:
        """The weights of rows (B,) for each other, (B, B); a row's own is 1.

        Distances are scaled to [0, 1] in each column, over all rows, as published.
        """
        found = self.distances[rows][:, rows].fill_diagonal_(self.least)
        span = self.most[rows] - self.least
        scaled = (found - self.least) / torch.where(span > 0, span, 1.0)
        soft = 2 * CLOSEST * torch.sigmoid(-self.sharpness * scaled)
        return soft + (1 - CLOSEST) * torch.eye(len(rows))


def distances_of(
    series: Sequence[np.ndarray], cfg: SoftCLTConfig, device: torch.device | str = "cpu"
) -> Tensor:
    """The distance of each two of series (L_i, C), each scaled to [0, 1], (R, R) float32."""
    if len(series) > MOST_ROWS:
        raise ConfigError(
            f"encoder.instance_sharpness compares all pairs of rows, at most {MOST_ROWS}, got "
            f"{len(series)}; set it to 0, or give fewer recordings"
        )
    scaled = [torch.from_numpy(_scaled(one)).to(device) for one in series]
    if cfg.distance == "dtw":
        return dtw_distances(scaled, band=cfg.band).cpu()
    if len({len(one) for one in scaled}) > 1:
        raise InputError(
            "encoder.distance=euclidean needs series of one length; set dtw, or cut them alike by "
            "data.longest and data.window"
        )
    flat = torch.stack(scaled).flatten(1)
    return torch.cat([torch.cdist(some, flat) for some in torch.split(flat, 1024)]).cpu()


def _scaled(values: np.ndarray) -> np.ndarray:
    """Each channel (L, C) from 0 to 1, float32; 0 where it is missing or does not vary."""
    values = np.asarray(values, dtype=np.float64)
    low, high = np.fmin.reduce(values, axis=0), np.fmax.reduce(values, axis=0)
    span = np.where(high > low, high - low, 1.0)
    return np.nan_to_num((values - low) / span).astype(np.float32)


def make_task(
    encoder: Baseline, rows: TrainingWindows, cfg: RunConfig, *, total: int, device: torch.device
) -> TS2VecTask:
    """The task of a run; distances of all pairs of rows are taken first."""
    own: SoftCLTConfig = encoder.network.cfg
    alike = None
    if own.instance_sharpness:
        everything = rows.cut(torch.arange(len(rows)))
        alike = Likeness(distances_of(everything, own, device), own.instance_sharpness)
    return TS2VecTask(
        encoder, rows, cfg, device=device, alike=alike, sharpness=own.temporal_sharpness
    )
