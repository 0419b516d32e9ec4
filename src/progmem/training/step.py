"""One step of training before the optimiser: rows, views, embeddings, losses.

Shapes: B rows of the global batch, b own rows, L samples, C channels, K tokens.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from progmem.data.rows import Rows, fetch_from
from progmem.losses.negatives import overlapping
from progmem.losses.total import Drawn, Embedded, Group, draw, total_loss
from progmem.model.geometry import count_tokens, count_windows
from progmem.settings import RunConfig
from progmem.training import randomness
from progmem.training.group import OneProcess, Processes
from progmem.training.learner import Learner
from progmem.views import View, draw_view, make_view


class Made(NamedTuple):
    """What a step compares, before it is embedded."""

    batch: int  # B
    group: Group
    views: tuple[View, View]  # of the own rows
    lengths: Tensor  # (b,)
    drawn: Drawn
    pcl_temperature: Tensor


class Step:
    """Everything before the optimiser: rows, views, embeddings, losses of one global batch."""

    def __init__(
        self,
        learner: Learner,
        rows: Rows,
        cfg: RunConfig,
        batch_size: int,
        total: int,
        device: torch.device,
    ) -> None:
        self.learner, self.rows, self.cfg = learner, rows, cfg
        self.batch_size, self.total, self.device = batch_size, total, device
        self.where = [t.to(device) for t in (rows.recording, rows.start, rows.length)]
        self.forward: Any = learner  # data parallelism puts its wrapper here
        model, like = learner.model, learner.model.tokenizer.conv.weight
        self.fetch = fetch_from(rows, model.cfg, model.stats, like)

    def __call__(self, number: int) -> tuple[Tensor, dict[str, Tensor], Tensor, int]:
        """The loss of the own rows; it and its parts over all processes; sequence vectors; B."""
        made = self.make(number)
        views, sequence = self.embed(made, slice(None))
        loss, told = self.losses(made, views)
        return loss, told, sequence, made.batch

    def make(self, number: int) -> Made:
        """Rows, views and negatives of step ``number``."""
        cfg, rows, seed = self.cfg, self.rows, self.cfg.train.seed
        chosen = randomness.batch_rows(len(rows), self.batch_size, seed, number)  # (B,)
        B = len(chosen)
        group: Group = Processes(B) if torch.distributed.is_initialized() else OneProcess(B)
        model = self.learner.model
        batch = self.fetch(chosen[group.rows])
        length = int(rows.length[chosen].max())  # of the global batch: draws fit every process
        pad = length - batch.x.shape[1]
        x, observed = (F.pad(t, (0, 0, 0, pad)) for t in batch[:2])
        views = []
        for name in ("weak", "strong"):
            source = randomness.generator(seed, number, name, self.device)
            draws = draw_view(
                B, length, rows.channels, cfg.views, strong=name == "strong", generator=source
            )
            draws = draws.rows(group.rows)
            views.append(make_view(x, observed, batch.lengths, draws.to(x.dtype)))
        K = count_tokens(model.cfg, length)
        place = chosen.to(self.device)
        overlap = overlapping(*(t[place] for t in self.where))
        drawn = draw(
            overlap, K, count_windows(model.cfg, K), model.cfg.slots,
            count=cfg.loss.negatives,
            generator=randomness.generator(seed, number, "negatives", self.device),
        )  # fmt: skip
        progress = number / max(1, self.total - 1)
        start, end = cfg.loss.pcl_temperature_start, cfg.loss.pcl_temperature_end
        temperature = torch.full(
            (), start + (end - start) * progress, dtype=torch.float64, device=self.device
        )
        return Made(B, group, (views[0], views[1]), batch.lengths, drawn, temperature)

    def embed(self, made: Made, part: slice) -> tuple[tuple[Embedded, Embedded], Tensor]:
        """Both views of a ``part`` of the own rows, and the first view's sequence vectors."""
        weak, strong = (View._make(t[part] for t in view) for view in made.views)
        return self.forward(
            (weak, strong), made.lengths[part], gaps=self.rows.gaps,
            by_time=self.cfg.views.align == "time",
        )  # fmt: skip

    def losses(
        self, made: Made, views: tuple[Embedded, Embedded]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of the own rows to be differentiated; it and its parts over all processes."""
        cfg, group = self.cfg.loss, made.group
        loss, parts = total_loss(
            views, made.drawn, group, cfg=cfg, model=self.learner.model.cfg,
            pcl_temperature=made.pcl_temperature,
        )  # fmt: skip
        told = group.total(torch.stack([loss.detach(), *(p.detach() for p in parts.values())]))
        return loss, dict(zip(["loss", *parts], told, strict=True))
