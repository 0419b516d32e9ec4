"""A step whose batch does not fit into memory at once: the same gradient, a part at a time.

First all rows are embedded without a graph and the losses' gradients are taken on the embeddings,
which are small; then each part is embedded again, with a graph, and takes up its gradients. That
costs one more forward pass; what is held is one part.

Shapes: b own rows.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from progmem.losses.total import Embedded
from progmem.training import randomness
from progmem.training.group import split_rows
from progmem.training.step import Step

DIFFERENTIABLE = ("sequence", "memory", "tokens")  # fields of Embedded


def backward_in_parts(
    step: Step,
    number: int,
    parts: int,
    backward: Callable[[Tensor], None],
    *,
    unsynchronised: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> tuple[dict[str, Tensor], Tensor, int]:
    """`Step` and its backward pass over ``parts`` parts of the own rows.

    Args:
        backward: takes a loss, adds to the gradients.
        unsynchronised: what data parallelism wants around all parts but the last.

    Returns what `Step` does, but for the loss.
    """
    made = step.make(number)
    world = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    parts = min(parts, max(1, made.batch // world))  # no part is empty anywhere
    slices = [split_rows(len(made.lengths), parts, part) for part in range(parts)]
    rank = torch.distributed.get_rank() if world > 1 else 0

    def embed(part: int) -> tuple[tuple[Embedded, Embedded], Tensor]:
        seed = randomness.mixed_seed(step.cfg.train.seed, number, f"dropout {rank} {part}")
        torch.manual_seed(seed)  # the same drops both times
        return step.embed(made, slices[part])

    with torch.no_grad():
        found = [embed(part) for part in range(parts)]
    sequence = torch.cat([vectors for _, vectors in found])
    views = [_leaves(_joined([pair[v] for pair, _ in found])) for v in (0, 1)]
    loss, told = step.losses(made, (views[0], views[1]))
    wanted = [t for view in views for t in _tensors(view)]
    gradients = torch.autograd.grad(loss, wanted)
    for part, rows in enumerate(slices):
        with unsynchronised() if part < parts - 1 else nullcontext():
            pair, _ = embed(part)
            own = [t for view in pair for t in _tensors(view)]
            pulls = [(t * g[rows]).sum() for t, g in zip(own, gradients, strict=True)]
            backward(torch.stack(pulls).sum())
    return told, sequence, made.batch


def _joined(parts: list[Embedded]) -> Embedded:
    return Embedded._make(
        None if columns[0] is None else torch.cat(columns) for columns in zip(*parts, strict=True)
    )


def _leaves(view: Embedded) -> Embedded:
    leaves = {name: getattr(view, name) for name in DIFFERENTIABLE}
    return view._replace(
        **{name: t.requires_grad_() for name, t in leaves.items() if t is not None}
    )


def _tensors(view: Embedded) -> list[Tensor]:
    found = [getattr(view, name) for name in DIFFERENTIABLE]
    return [t for t in found if t is not None]
