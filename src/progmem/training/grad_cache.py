"""A batch that does not fit into memory at once: the same gradients, a part of its rows at a time.

Where a loss compares rows, all rows are first embedded without an autograd graph, and the gradients
of the loss are taken with respect to the embeddings, which are small. Then each part is embedded
again, with a graph, and its embeddings' gradients are backpropagated (GradCache, Gao et al. 2021).
This costs one more forward pass; only one part's activations are in memory at a time. Where a loss
does not compare rows, the gradients of the parts are simply accumulated.

Shapes: b own rows.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from progmem.training import randomness
from progmem.training.distributed import split_rows, world_and_rank

if TYPE_CHECKING:
    from progmem.training.trainer import Task

DIFFERENTIABLE = ("sequence", "memory", "tokens", "errors")  # fields of what is embedded
Backward = Callable[[Tensor], None]  # takes a loss, adds to the gradients
NoSync = Callable[[], AbstractContextManager[None]]  # inside, gradients are not synchronised


def backward_in_parts(
    task: "Task",
    learner: nn.Module,
    batch: Any,
    *,
    parts: int,
    seed: int,
    step: int,
    backward: Backward,
    no_sync: NoSync = nullcontext,
) -> tuple[dict[str, Tensor], Tensor]:
    """Gradients of a batch, over ``parts`` parts of the own rows; its metrics, sequence vectors.

    Args:
        learner: that of the task, or Fabric's wrapper of it.
        seed, step: of the run; they draw the dropout of each part.
        backward: takes a loss, adds to the gradients.
        no_sync: the context of all parts but the last under data parallelism.
    """
    world, rank = world_and_rank()
    parts = min(parts, max(1, batch.size // world))  # no part is empty anywhere
    slices = [split_rows(len(batch.lengths), parts, part) for part in range(parts)]
    if not task.compares_rows:
        return _accumulate(task, learner, batch, slices, backward, no_sync)

    def embed(part: int) -> tuple[Any, Tensor]:
        dropout_seed = randomness.mixed_seed(seed, step, f"dropout {rank} {part}")
        torch.manual_seed(dropout_seed)  # the same dropout in both passes
        return task.embed(learner, batch.rows(slices[part]))

    with torch.no_grad():
        embedded = [embed(part) for part in range(parts)]
    sequence = torch.cat([vectors for _, vectors in embedded])
    views = [_joined(list(view)) for view in zip(*(pair for pair, _ in embedded), strict=True)]
    leaves = [t.requires_grad_() for t in _differentiable(views)]
    loss, metrics = task.losses(batch, views)
    gradients = torch.autograd.grad(loss, leaves)
    for part, rows in enumerate(slices):
        with no_sync() if part < parts - 1 else nullcontext():
            own = _differentiable(embed(part)[0])
            # its gradient with respect to the embeddings is that of the loss
            surrogates = [(t * g[rows]).sum() for t, g in zip(own, gradients, strict=True)]
            backward(torch.stack(surrogates).sum())
    return metrics, sequence


def _accumulate(
    task: "Task", learner: nn.Module, batch: Any, slices: list[slice], backward: Backward,
    no_sync: NoSync,
) -> tuple[dict[str, Tensor], Tensor]:  # fmt: skip
    """The gradients of a loss that is a sum over rows."""
    results: list[tuple[dict[str, Tensor], Tensor]] = []
    for rows in slices:
        with no_sync() if rows is not slices[-1] else nullcontext():
            some = batch.rows(rows)
            embedded, sequence = task.embed(learner, some)
            loss, metrics = task.losses(some, embedded)
            backward(loss)
        results.append((metrics, sequence))
    total = {
        name: torch.stack([metrics[name] for metrics, _ in results]).sum() for name in results[0][0]
    }
    return total, torch.cat([sequence for _, sequence in results])


def _joined(parts: list[Any]) -> Any:
    """One view of all rows, from its parts: named tuples, with fields `DIFFERENTIABLE`."""
    return type(parts[0])._make(
        None if columns[0] is None else torch.cat(columns) for columns in zip(*parts, strict=True)
    )


def _differentiable(views: Iterable[Any]) -> list[Tensor]:
    """The embeddings that the loss is differentiated by."""
    embeddings = [getattr(view, name, None) for view in views for name in DIFFERENTIABLE]
    return [t for t in embeddings if t is not None]
