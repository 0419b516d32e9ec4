"""A whole update recorded once as a CUDA graph and replayed: the host launches one thing a step.

The batch of a step is made as ever, by the plain code, beside the update before it, and copied into
the tensors that the recorded update reads. What an update gives is copied to the host beside the
next one, and read when it has arrived.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from progmem.model.capture import record, warm_up


class RecordedUpdate:
    """An update of static shapes.

    Args:
        make_batch: gives the batch of a step, nested tuples of tensors and of what never changes.
        update: makes one update on such a batch and gives such tuples; it never reads a tensor.
        optimizer: its weights and moments are put back after the updates of the warm-up.
    """

    def __init__(
        self, make_batch: Callable[[int], Any], update: Callable[[Any], Any], optimizer: Any
    ) -> None:
        self.make_batch, self.update, self.optimizer = make_batch, update, optimizer
        self.graph: torch.cuda.CUDAGraph | None = None
        self.beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.beside.wait_stream(torch.cuda.current_stream())
        self.taken = torch.cuda.current_stream().record_event()  # the last batch is in its place

    def batch(self, step: int) -> Any:
        """The batch of a step, made beside the update before it."""
        self.beside.wait_event(self.taken)  # or its memory would be used again too early
        with torch.cuda.stream(self.beside):
            batch = self.make_batch(step)
        torch.cuda.current_stream().wait_stream(self.beside)
        return batch

    def __call__(self, batch: Any) -> tuple[Any, torch.cuda.Event] | None:
        """What the update gives, on its way to the host, and when it is there.

        The first batch is the one that is recorded; None for a batch of another shape.
        """
        if self.graph is None:
            self._record(batch)
        given, kept = list(_tensors(batch)), list(_tensors(self.inputs))
        if [t.shape for t in given] != [t.shape for t in kept]:
            return None
        assert self.graph is not None
        torch._foreach_copy_(kept, given)
        self.taken.record()
        self.graph.replay()
        found = _mapped(_to_host, self.outputs)
        return found, torch.cuda.current_stream().record_event()

    def _record(self, batch: Any) -> None:
        """Warm up, undo what that did to weights and moments, then record one update."""
        self.inputs = _mapped(torch.clone, batch)
        undo = _undo(self.optimizer)
        warm_up(lambda: self.update(self.inputs))
        undo()
        self.graph, self.outputs = record(lambda: self.update(self.inputs))


def _tensors(x: Any) -> Iterator[Tensor]:
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, tuple):
        for part in x:
            yield from _tensors(part)


def _mapped(change: Callable[[Tensor], Tensor], x: Any) -> Any:
    if isinstance(x, Tensor):
        return change(x)
    if isinstance(x, tuple):
        parts = [_mapped(change, part) for part in x]
        return x._make(parts) if hasattr(x, "_make") else tuple(parts)
    return x


def _to_host(x: Tensor) -> Tensor:
    return torch.empty_like(x, device="cpu", pin_memory=True).copy_(x, non_blocking=True)


def _undo(optimizer: Any) -> Callable[[], None]:
    """Remember weights and moments; what is returned puts them back into the same tensors."""
    weights = [p for group in optimizer.param_groups for p in group["params"]]
    kept = [p.detach().clone() for p in weights]
    moments = [{k: t.clone() for k, t in optimizer.state.get(p, {}).items()} for p in weights]

    @torch.no_grad()
    def undo() -> None:
        for p, value, state in zip(weights, kept, moments, strict=True):
            p.copy_(value)
            for key, t in optimizer.state[p].items():
                if key in state:
                    t.copy_(state[key])
                else:
                    t.zero_()  # there were none before the first update

    return undo
