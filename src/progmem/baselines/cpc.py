"""CPC (van den Oord et al. 2018): from what was so far, tell what follows from other series.

An LSTM sums up the tokens of a series up to a drawn one, and linear maps of its state predict each
of the tokens that follow (`prediction_contrast`). The public code that the paper's numbers come
from never trains the LSTM nor the maps, which its optimiser does not know; here they are trained.

Shapes: b own rows, K tokens, D width, S steps ahead, d width of the state.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from progmem.baselines.cnn import CNNConfig, precise
from progmem.baselines.cnn_task import Batch, CNNTask, View, count_existing
from progmem.baselines.prediction import (
    Predictors,
    draw_present,
    prediction_contrast,
    tokens_ahead,
)
from progmem.baselines.transforms import Source
from progmem.config import RunConfig, whole
from progmem.data.windows import TrainingWindows

TRAINING = {  # a constant rate, no clipping, and no autocast
    "epochs": 40, "batch_size": 128, "lr": 1e-3, "lr_end": 1e-3, "warmup": 0.0,
    "weight_decay": 1e-4, "clip": 1e9, "precision": "32",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CPCConfig(CNNConfig):
    """The settings ``encoder.*`` of CPC, as published with TS-TCC's CNN."""

    ahead: int = whole(8, 1)  # tokens that are predicted
    context: int = whole(100, 1)  # width of the LSTM's state


class Draws(NamedTuple):
    """Where the present of each row is, as a share of where it may be."""

    share: Tensor  # (B,)


class Embedded(NamedTuple):
    """What is predicted, what there is, and whether it is observed."""

    predicted: Tensor  # (b, S, D)
    targets: Tensor  # (b, S, D)
    valid: Tensor  # (b, S)


class CPCLearner(nn.Module):
    """The encoder with the LSTM and the predictors that only training needs."""

    def __init__(self, encoder: Any, cfg: CPCConfig) -> None:
        super().__init__()
        self.encoder, self.cfg, self.ahead = encoder, cfg, cfg.ahead
        self.lstm = nn.LSTM(cfg.dim, cfg.context, batch_first=True)
        self.predict = Predictors(cfg.context, cfg.dim, cfg.ahead)

    def draw(self, batch: int, length: int, generator: torch.Generator) -> Draws:
        return Draws(Source(generator).uniform(1).expand(batch))  # one for the batch, as published

    def make_views(
        self, x: Tensor, observed: Tensor, lengths: Tensor, draws: Draws
    ) -> tuple[tuple[Tensor, Tensor], ...]:
        """The series as it is."""
        return ((x, observed),)

    def forward(self, views: tuple[View], draws: Draws) -> tuple[Embedded, Tensor]:
        """What is predicted and what there is, and sequence vectors (b, D)."""
        (view,) = views
        z = self.encoder(view.x, view.observed, lengths=view.lengths)
        present = draw_present(draws.share, count_existing(view, z), self.ahead)  # (b,)
        states, _ = self.lstm(z.tokens)  # (b, K, d)
        index = present[:, None, None].expand(-1, -1, states.shape[2])
        state = states.gather(1, index)[:, 0]  # of the past only: an LSTM runs forwards
        valid = tokens_ahead(z.token_mask[..., None], present, self.ahead)[..., 0]
        targets = tokens_ahead(z.tokens, present, self.ahead)
        embedded = Embedded(precise(self.predict(state)), precise(targets), valid)
        return embedded, z.sequence.detach().float()

    def losses(self, embedded: Embedded, batch: Batch) -> dict[str, Tensor]:
        return {"loss": prediction_contrast(*embedded, batch.overlap, batch.group)}


def make_task(
    encoder: Any, rows: TrainingWindows, cfg: RunConfig, *, total: int, device: torch.device
) -> CNNTask:
    """The task of a run."""
    return CNNTask(CPCLearner(encoder, encoder.cfg), rows, cfg, device=device)
