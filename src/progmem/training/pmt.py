"""What PMT learns without labels: two views of each series, embedded and compared (eq. 5), and
predicted where they were hidden.

Shapes: B rows of the global batch, b own rows, L samples, C channels, K tokens, N windows,
W window, D width.
"""

from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from progmem.config import LossConfig, RunConfig
from progmem.data.windows import TrainingWindows, fetch_from
from progmem.geometry import count_tokens, count_windows, unfold_windows
from progmem.losses.pairs import overlapping
from progmem.losses.predict import squared_errors
from progmem.losses.total import Embedded, Group, StepNegatives, draw_step_negatives, total_loss
from progmem.model.pmt import PMT
from progmem.ops.layers import linear, linear_gelu
from progmem.training import randomness
from progmem.training.distributed import call_with_cast_weights, split_batch
from progmem.training.trainer import parameter_groups, to_device
from progmem.views import View, draw_view, make_view

ICL_WIDTH = 128  # of the projections that ICL compares


def make_task(
    model: PMT, rows: TrainingWindows, cfg: RunConfig, *, total: int, device: torch.device
) -> "PretrainTask":
    """The task of a run of ``total`` steps, with fresh projection heads."""
    return PretrainTask(Learner(model, cfg.loss), rows, cfg, total=total, device=device)


class Learner(nn.Module):
    """The model with its projection heads: embeds two views of a batch for the losses."""

    def __init__(self, model: PMT, cfg: LossConfig) -> None:
        super().__init__()
        self.model, self.cfg = model, cfg
        self.heads = make_heads(model.cfg.dim, cfg)

    def forward(
        self, views: tuple[View, View], lengths: Tensor, *, gaps: bool, by_time: bool
    ) -> tuple[tuple[Embedded, Embedded], Tensor]:
        """Both views embedded, and the first view's sequence vectors (B, D) for diagnostics."""
        both = View._make(torch.cat(pair) for pair in zip(*views, strict=True))
        cfg = self.model.cfg
        mask, hidden = both.observed if gaps else None, both.hidden if cfg.mask_vector else None
        z = call_with_cast_weights(
            self.model, both.x, mask, lengths=lengths.repeat(2), hidden=hidden
        )
        assert z.window_mask is not None
        precise = torch.promote_types(z.sequence.dtype, torch.float32)  # losses in float32
        sequence = tokens = memory = token_time = window_time = errors = error_counts = None
        if self.cfg.icl:
            sequence = self.heads["icl"](z.sequence).to(precise)
        if self.cfg.hgcl:
            tokens = self.heads["hgcl"](z.tokens).to(precise)
        if self.cfg.pcl and z.memory is not None:
            memory = z.memory.to(precise)
        if self.cfg.predict:
            errors, error_counts = squared_errors(
                self.model.decode(z.tokens).to(precise), both.clean,
                hidden=both.hidden, valid=z.token_mask, stride=cfg.patch_stride,
            )  # fmt: skip
        if by_time:
            token_time, window_time = self._times(both.time, z.token_mask, z.window_mask.shape[1])
        embedded = Embedded(
            sequence, memory, tokens, z.token_mask, z.window_mask, token_time, window_time,
            errors, error_counts,
        )  # fmt: skip
        halves = zip(*((t, t) if t is None else t.chunk(2) for t in embedded), strict=True)
        first, second = (Embedded._make(half) for half in halves)
        return (first, second), z.sequence.detach()[: len(lengths)].float()

    def _times(self, time: Tensor, valid: Tensor, windows: int) -> tuple[Tensor, Tensor]:
        """Input time of each token's middle, (B, K), and of each window's tokens, (B, N)."""
        cfg = self.model.cfg
        token = time.unfold(1, cfg.patch, cfg.patch_stride).mean(2)  # (B, K)
        total, count = (
            unfold_windows(t, cfg, windows).sum(2) for t in (token * valid, valid.to(token.dtype))
        )
        return token, total / count.clamp(min=1)


def make_heads(dim: int, cfg: LossConfig) -> nn.ModuleDict:
    """Projection heads of the objectives that have one and are switched on.

    Only the losses see their output; probes use what comes before.
    """
    heads = nn.ModuleDict()
    if cfg.icl:
        heads["icl"] = ProjectionHead(dim, 2 * dim, ICL_WIDTH)
    if cfg.hgcl:
        heads["hgcl"] = ProjectionHead(dim, dim, dim)
    return heads


class ProjectionHead(nn.Sequential):
    """Two linear maps with a gelu between them."""

    def __init__(self, dim: int, hidden: int, out: int) -> None:
        super().__init__(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, out))

    def forward(self, x: Tensor) -> Tensor:
        first, last = cast(nn.Linear, self[0]), cast(nn.Linear, self[2])
        return linear(linear_gelu(x, first.weight, first.bias), last.weight, last.bias)


class PretrainBatch(NamedTuple):
    """The inputs of a step, before they are embedded."""

    size: int  # B
    group: Group
    views: tuple[View, View]  # of the own rows
    lengths: Tensor  # (b,)
    negatives: StepNegatives
    pcl_temperature: Tensor

    def rows(self, part: slice) -> "PretrainBatch":
        """Some of the own rows, with the negatives of the whole batch."""
        weak, strong = (View._make(t[part] for t in view) for view in self.views)
        return self._replace(views=(weak, strong), lengths=self.lengths[part])


class PretrainTask:
    """The losses of two views of a batch; all random numbers are functions of seed and step."""

    compares_rows = True
    fixed_shapes = True

    def __init__(
        self,
        learner: Learner,
        rows: TrainingWindows,
        cfg: RunConfig,
        *,
        total: int,
        device: torch.device,
    ) -> None:
        self.learner = to_device(learner, device, cfg.train)
        self.rows, self.cfg, self.total, self.device = rows, cfg, total, device
        assert cfg.train.batch_size is not None  # defaults are filled in
        self.batch_size = randomness.whole_batch(len(rows), cfg.train.batch_size)
        self.row_spans = [t.to(device) for t in (rows.recording, rows.start, rows.length)]
        model, like = learner.model, next(learner.model.parameters())
        self.fetch = fetch_from(rows, model.cfg, model.stats, like)

    def make_batch(self, step: int, *, batch_size: int | None = None) -> PretrainBatch:
        """Rows, views and negatives of a step."""
        cfg, rows, seed = self.cfg, self.rows, self.cfg.train.seed
        chosen = randomness.batch_rows(len(rows), batch_size or self.batch_size, seed, step)  # (B,)
        B = len(chosen)
        group = split_batch(B)
        model = self.learner.model
        batch = self.fetch(chosen[group.rows])
        length = int(rows.length[chosen].max())  # of the global batch: draws fit every process
        pad = length - batch.x.shape[1]
        x, observed = (F.pad(t, (0, 0, 0, pad)) for t in batch[:2])
        views = []
        for name in ("weak", "strong"):
            source = randomness.generator(seed, step, name, self.device)
            draws = draw_view(
                B, length, rows.channels, cfg.views, strong=name == "strong", generator=source
            )
            draws = draws.rows(group.rows)
            views.append(make_view(x, observed, batch.lengths, draws.to(x.dtype)))
        K = count_tokens(model.cfg, length)
        index = chosen.to(self.device)
        overlap = overlapping(*(t[index] for t in self.row_spans))
        negatives = draw_step_negatives(
            overlap, K, count_windows(model.cfg, K), model.cfg.slots,
            count=cfg.loss.negatives,
            generator=randomness.generator(seed, step, "negatives", self.device),
        )  # fmt: skip
        progress = step / max(1, self.total - 1)
        start, end = cfg.loss.pcl_temperature_start, cfg.loss.pcl_temperature_end
        temperature = torch.full(
            (), start + (end - start) * progress, dtype=torch.float64, device=self.device
        )
        return PretrainBatch(B, group, (views[0], views[1]), batch.lengths, negatives, temperature)

    def embed(
        self, learner: nn.Module, batch: PretrainBatch
    ) -> tuple[tuple[Embedded, Embedded], Tensor]:
        """Both views of the own rows, and the first view's sequence vectors."""
        return learner(
            batch.views, batch.lengths, gaps=self.rows.gaps,
            by_time=self.cfg.views.align == "time",
        )  # fmt: skip

    def losses(
        self, batch: PretrainBatch, embedded: tuple[Embedded, Embedded]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of the own rows to be differentiated; it and its parts over all processes."""
        loss, parts = total_loss(
            embedded, batch.negatives, batch.group, cfg=self.cfg.loss, model=self.learner.model.cfg,
            pcl_temperature=batch.pcl_temperature,
        )  # fmt: skip
        values = torch.stack([loss.detach(), *(p.detach() for p in parts.values())])
        return loss, dict(zip(["loss", *parts], batch.group.total(values), strict=True))

    def row_losses(self, batch: PretrainBatch, embedded: tuple[Embedded, Embedded]) -> Tensor:
        """The prediction errors of each own row; without them, how far its samples lie out."""
        losses = torch.stack([view.x.abs().amax((1, 2)) for view in batch.views]).amax(0)  # (b,)
        if embedded[0].errors is not None:
            errors, counts = (
                torch.stack([getattr(view, name) for view in embedded]).sum(0)
                for name in ("errors", "error_counts")
            )
            losses = errors / counts.clamp(min=1)
        for view in embedded:
            for values in (view.sequence, view.memory, view.tokens):
                if values is not None:
                    losses = losses + 0 * values.flatten(1).sum(
                        1
                    )  # which is NaN where one is not finite
        return losses

    def parameter_groups(self) -> list[dict[str, Any]]:
        return parameter_groups(self.learner, self.cfg.train.weight_decay)

    def updated(self) -> None:
        """Nothing follows an update."""
