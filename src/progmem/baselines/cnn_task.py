"""How the methods on the three-block CNN are trained: transformed series of a batch, compared.

A method's learner says what is drawn, which views are made of a series by that, and what is
compared. Batch normalisation makes an embedding depend on all rows that are embedded with it. So a
batch cannot be held in parts, and several processes normalise by the rows of all.

Shapes: B rows of the global batch, b own rows, L samples, C channels.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from progmem.baselines.cnn import count_tokens
from progmem.config import RunConfig
from progmem.data.windows import TrainingWindows, fetch_from
from progmem.encoding import Encoding
from progmem.errors import InputError
from progmem.losses.pairs import overlapping
from progmem.losses.total import Group
from progmem.training import randomness
from progmem.training.distributed import split_batch
from progmem.training.trainer import parameter_groups, to_device


class View(NamedTuple):
    """A batch of series, or of what a transform makes of them."""

    x: Tensor  # (b, L, C), 0 where not observed
    observed: Tensor | None  # (b, L, C); None: all of it
    lengths: Tensor | None  # (b,); None: all are of one length


class Learner(Protocol):
    """An encoder, with what only its training needs."""

    encoder: Any  # a Baseline
    ahead: int  # tokens that are predicted; 0 where none are

    def draw(self, batch: int, length: int, generator: torch.Generator) -> Any:
        """The random numbers of ``batch`` series, a named tuple of tensors (B, ...)."""

    def make_views(self, x: Tensor, observed: Tensor, lengths: Tensor, draws: Any) -> Any:
        """Pairs of samples and what is observed of them."""

    def losses(self, embedded: Any, batch: "Batch") -> dict[str, Tensor]:
        """The own rows' share of the ``loss``, and of its parts."""


class Batch(NamedTuple):
    """The inputs of a step, before they are embedded."""

    size: int  # B
    group: Group
    views: tuple[View, ...]  # of the own rows
    lengths: Tensor  # (b,)
    draws: Any  # of the own rows
    overlap: Tensor  # (B, B), rows that share samples
    alike: Tensor | None  # (B, B), how much a row is a positive of another, if that is soft
    shortest: int  # samples of the shortest row of the global batch

    def rows(self, part: slice) -> "Batch":
        """Some of the own rows."""
        return self._replace(
            views=tuple(_rows(view, part) for view in self.views),
            lengths=self.lengths[part],
            draws=_rows(self.draws, part),
        )


class CNNTask:
    """The loss of a learner; all random numbers are functions of seed and step.

    ``alike`` gives the soft positives (B, B) of rows (B,), where the learner takes them.
    """

    compares_rows = True
    fixed_shapes = False  # the warm-up of a graph would change the statistics that norms keep

    def __init__(
        self,
        learner: Any,
        rows: TrainingWindows,
        cfg: RunConfig,
        *,
        device: torch.device,
        alike: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.learner = to_device(learner, device, cfg.train)
        self.rows, self.cfg, self.device, self.alike = rows, cfg, device, alike
        assert cfg.train.batch_size is not None  # defaults are filled in
        self.batch_size = randomness.whole_batch(len(rows), cfg.train.batch_size)
        self.row_spans = [t.to(device) for t in (rows.recording, rows.start, rows.length)]
        encoder = learner.encoder
        self.fetch = fetch_from(rows, encoder.cfg, encoder.stats, next(encoder.parameters()))
        self.one_length = int(rows.length.min()) == int(rows.length.max())
        shortest = int(rows.length.argmin())
        length = int(rows.length[shortest])
        if count_tokens(length) <= learner.ahead:
            raise InputError(
                f"{rows.describe(shortest)} has {length} samples, which give "
                f"{count_tokens(length)} tokens, too few to predict {learner.ahead}; leave it out, "
                f"or set encoder.ahead below {count_tokens(length)}"
            )

    def make_batch(self, step: int, *, batch_size: int | None = None) -> Batch:
        """Rows and views of a step."""
        rows, seed = self.rows, self.cfg.train.seed
        chosen = randomness.batch_rows(len(rows), batch_size or self.batch_size, seed, step)  # (B,)
        group = split_batch(len(chosen))
        fetched = self.fetch(chosen[group.rows])
        length = int(rows.length[chosen].max())  # of the global batch: draws fit every process
        pad = length - fetched.x.shape[1]
        x, observed = (F.pad(t, (0, 0, 0, pad)) for t in fetched[:2])
        source = randomness.generator(seed, step, "views", self.device)
        draws = _rows(self.learner.draw(len(chosen), length, source), group.rows)
        draws = type(draws)._make(t.to(x.dtype) for t in draws)
        lengths = None if self.one_length else fetched.lengths
        views = tuple(
            View(torch.where(seen, made, 0.0), seen if rows.gaps else None, lengths)
            for made, seen in self.learner.make_views(x, observed, fetched.lengths, draws)
        )
        index = chosen.to(self.device)
        overlap = overlapping(*(t[index] for t in self.row_spans))
        alike = None if self.alike is None else self.alike(chosen).to(self.device)
        shortest = int(rows.length[chosen].min())
        return Batch(len(chosen), group, views, fetched.lengths, draws, overlap, alike, shortest)

    def embed(self, learner: nn.Module, batch: Batch) -> tuple[Any, Tensor]:
        """What is compared of the own rows, and the first view's sequence vectors."""
        return learner(batch.views, batch.draws)

    def losses(self, batch: Batch, embedded: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of the own rows to be differentiated; it and its parts over all processes."""
        parts = self.learner.losses(embedded, batch)
        values = torch.stack([part.detach() for part in parts.values()])
        return parts["loss"], dict(zip(parts, batch.group.total(values), strict=True))

    def row_losses(self, batch: Batch, embedded: Any) -> Tensor:
        """How far the samples of each own row lie out."""
        return torch.stack([view.x.abs().amax((1, 2)) for view in batch.views]).amax(0)  # (b,)

    def parameter_groups(self) -> list[dict[str, Any]]:
        return parameter_groups(self.learner, self.cfg.train.weight_decay)

    def updated(self) -> None:
        """Nothing follows an update."""


def count_existing(view: View, z: Encoding) -> Tensor:
    """How many tokens each series of a view has, observed or not: (b,)."""
    if view.lengths is not None:
        return count_tokens(view.lengths)
    return torch.full((len(z.tokens),), z.tokens.shape[1], device=z.tokens.device)


def _rows(values: Any, part: slice) -> Any:
    """Some rows of a named tuple of tensors."""
    return type(values)._make(t if t is None else t[part] for t in values)
