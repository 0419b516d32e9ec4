"""A batch that does not fit into memory at once: the same gradients, a part of its rows at a time.

Where a loss compares rows, all rows are first embedded without a graph and the loss' gradients are
taken on the embeddings, which are small; then each part is embedded again, with a graph, and takes
up its gradients (GradCache, Gao et al. 2021). That costs one more forward pass; what is held is one
part. Where rows do not meet, the parts' gradients just add up.

Shapes: b own rows.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from progmem.losses.total import Embedded
from progmem.training import randomness
from progmem.training.distributed import split_rows, world_and_rank

if TYPE_CHECKING:
    from progmem.training.trainer import Task

DIFFERENTIABLE = ("sequence", "memory", "tokens")  # fields of Embedded
Backward = Callable[[Tensor], None]  # takes a loss, adds to the gradients
Apart = Callable[[], AbstractContextManager[None]]  # a backward pass that is not synchronised


def backward_in_parts(
    task: "Task",
    learner: nn.Module,
    batch: Any,
    *,
    parts: int,
    seed: int,
    step: int,
    backward: Backward,
    apart: Apart = nullcontext,
) -> tuple[dict[str, Tensor], Tensor]:
    """Gradients of a batch, over ``parts`` parts of the own rows; its metrics, sequence vectors.

    Args:
        learner: that of the task, or Fabric's wrapper of it.
        seed, step: of the run; they draw the dropout of each part.
        backward: takes a loss, adds to the gradients.
        apart: what data parallelism wants around all parts but the last.
    """
    world, rank = world_and_rank()
    parts = min(parts, max(1, batch.size // world))  # no part is empty anywhere
    slices = [split_rows(len(batch.lengths), parts, part) for part in range(parts)]
    if not task.compares_rows:
        return _accumulate(task, learner, batch, slices, backward, apart)

    def embed(part: int) -> tuple[Any, Tensor]:
        drops = randomness.mixed_seed(seed, step, f"dropout {rank} {part}")
        torch.manual_seed(drops)  # the same drops both times
        return task.embed(learner, batch.rows(slices[part]))

    with torch.no_grad():
        found = [embed(part) for part in range(parts)]
    sequence = torch.cat([vectors for _, vectors in found])
    views = [_joined(list(view)) for view in zip(*(pair for pair, _ in found), strict=True)]
    leaves = [t.requires_grad_() for t in _differentiable(views)]
    loss, metrics = task.losses(batch, views)
    gradients = torch.autograd.grad(loss, leaves)
    for part, rows in enumerate(slices):
        with apart() if part < parts - 1 else nullcontext():
            own = _differentiable(embed(part)[0])
            pulls = [(t * g[rows]).sum() for t, g in zip(own, gradients, strict=True)]
            backward(torch.stack(pulls).sum())
    return metrics, sequence


def _accumulate(
    task: "Task", learner: nn.Module, batch: Any, slices: list[slice], backward: Backward,
    apart: Apart,
) -> tuple[dict[str, Tensor], Tensor]:  # fmt: skip
    """The gradients of a loss that is a sum over rows."""
    found: list[tuple[dict[str, Tensor], Tensor]] = []
    for rows in slices:
        with apart() if rows is not slices[-1] else nullcontext():
            some = batch.rows(rows)
            embedded, sequence = task.embed(learner, some)
            loss, metrics = task.losses(some, embedded)
            backward(loss)
        found.append((metrics, sequence))
    total = {
        name: torch.stack([metrics[name] for metrics, _ in found]).sum() for name in found[0][0]
    }
    return total, torch.cat([sequence for _, sequence in found])


def _joined(parts: list[Embedded]) -> Embedded:
    """One view of all rows, from its parts."""
    return Embedded._make(
        None if columns[0] is None else torch.cat(columns) for columns in zip(*parts, strict=True)
    )


def _differentiable(views: Iterable[Embedded]) -> list[Tensor]:
    """What the loss has gradients on."""
    found = [getattr(view, name) for view in views for name in DIFFERENTIABLE]
    return [t for t in found if t is not None]
