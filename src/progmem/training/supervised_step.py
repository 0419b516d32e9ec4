"""One step of a training with labels: rows, views, cross-entropy, gradients.

Shapes: B rows of the global batch, b own rows, L samples, C channels, Y classes.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from progmem.data.rows import Rows, fetch_from
from progmem.finetune_settings import FinetuneConfig
from progmem.losses.total import Group
from progmem.training import randomness
from progmem.training.classifier import Classifier
from progmem.training.group import OneProcess, Processes, split_rows
from progmem.views import draw_view, make_view


class Shown(NamedTuple):
    """The own rows of a step."""

    batch: int  # B
    group: Group
    x: Tensor  # (b, L, C)
    observed: Tensor | None  # (b, L, C)
    lengths: Tensor  # (b,)
    y: Tensor  # (b,)

    def rows(self, part: slice) -> "Shown":
        """Some of the own rows; the batch is what it was."""
        observed = None if self.observed is None else self.observed[part]
        return self._replace(
            x=self.x[part], observed=observed, lengths=self.lengths[part], y=self.y[part]
        )


class SupervisedStep:
    """What a classifier makes of one global batch; all draws are functions of seed and step."""

    def __init__(
        self,
        learner: Classifier,
        rows: Rows,
        y: Tensor,
        cfg: FinetuneConfig,
        batch_size: int,
        device: torch.device,
    ) -> None:
        self.learner, self.rows, self.cfg, self.batch_size = learner, rows, cfg, batch_size
        self.device, self.y = device, y.to(device)
        self.forward: Any = learner  # data parallelism puts its wrapper here
        encoder = learner.encoder
        like = encoder.tokenizer.conv.weight
        self.fetch = fetch_from(rows, encoder.cfg, encoder.stats, like)

    def make(self, number: int) -> Shown:
        """Rows and views of step ``number``."""
        rows, seed = self.rows, self.cfg.run.train.seed
        chosen = randomness.batch_rows(len(rows), self.batch_size, seed, number)  # (B,)
        B = len(chosen)
        group: Group = Processes(B) if torch.distributed.is_initialized() else OneProcess(B)
        own = chosen[group.rows]
        batch = self.fetch(own)
        x, observed = batch.x, batch.observed
        kind = self.cfg.finetune.views
        if kind != "none":
            length = int(rows.length[chosen].max())  # of the global batch: draws fit every process
            x, observed = (F.pad(t, (0, 0, 0, length - t.shape[1])) for t in (x, observed))
            source = randomness.generator(seed, number, f"finetune {kind}", self.device)
            draws = draw_view(
                B, length, rows.channels, self.cfg.run.views, strong=kind == "strong",
                generator=source,
            )  # fmt: skip
            view = make_view(x, observed, batch.lengths, draws.rows(group.rows).to(x.dtype))
            x, observed = view.x, view.observed
        mask = observed if rows.gaps else None
        return Shown(B, group, x, mask, batch.lengths, self.y[own.to(self.device)])

    def embed(self, made: Shown, part: slice) -> tuple[Tensor, Tensor]:
        """Scores (b, Y) of a ``part`` of the own rows, and their sequence vectors."""
        some = made.rows(part)
        return self.forward(some.x, some.observed, some.lengths)

    def losses(self, made: Shown, scores: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Share of the mean cross-entropy that the own rows have; loss and accuracy of all."""
        loss = F.cross_entropy(scores, made.y, reduction="sum") / made.batch
        right = (scores.detach().argmax(1) == made.y).sum() / made.batch
        told = made.group.total(torch.stack([loss.detach(), right.to(loss.dtype)]))
        return loss, dict(zip(["loss", "accuracy"], told, strict=True))


def backward_in_parts(
    step: SupervisedStep,
    number: int,
    parts: int,
    backward: Callable[[Tensor], None],
    *,
    unsynchronised: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> tuple[dict[str, Tensor], Tensor, int]:
    """Gradients of step ``number``, some rows at a time; what was told, sequence vectors, B.

    Rows do not meet in this loss, so the parts' gradients add up to those of the batch.
    """
    made = step.make(number)
    world = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    parts = min(parts, max(1, made.batch // world))  # no part is empty anywhere
    values, sequences = [], []
    for part in range(parts):
        some = made.rows(split_rows(len(made.y), parts, part))
        with unsynchronised() if part < parts - 1 else nullcontext():
            scores, sequence = step.embed(some, slice(None))
            loss, told = step.losses(some, scores)
            backward(loss)
        values.append(told)
        sequences.append(sequence)
    total = {name: torch.stack([told[name] for told in values]).sum() for name in values[0]}
    return total, torch.cat(sequences), made.batch
