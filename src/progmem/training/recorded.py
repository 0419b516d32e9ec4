"""A whole update recorded once as a CUDA graph and replayed: the host launches one thing a step.

Draws and views of a step are made as ever, by the plain code, beside the update before it, and
copied into the tensors that the recorded update reads. What an update tells is copied to the host
beside the next one and read one step late; a gradient that is not finite is kept from the weights
on the device meanwhile.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from progmem.model.capture import record, warm_up
from progmem.training.update import Outcome, Update


class RecordedUpdate:
    """An update of static shapes; a batch of another shape takes the plain path."""

    def __init__(self, plain: Update) -> None:
        self.plain = plain
        self.graph: torch.cuda.CUDAGraph | None = None
        self.beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.beside.wait_stream(torch.cuda.current_stream())
        self.taken = torch.cuda.current_stream().record_event()  # the last batch is in its place

    def __call__(self, number: int) -> Outcome:
        self.beside.wait_event(self.taken)  # or its memory would be used again too early
        with torch.cuda.stream(self.beside):
            made = self.plain.step.make(number)
        torch.cuda.current_stream().wait_stream(self.beside)
        if self.graph is None:
            if made.batch < self.plain.step.batch_size:  # the last of an epoch; others follow
                return self.plain(number)
            self._record(made)
        given, kept = list(_tensors(made)), list(_tensors(self.inputs))
        if [t.shape for t in given] != [t.shape for t in kept]:
            return self.plain(number)
        assert self.graph is not None
        torch._foreach_copy_(kept, given)
        self.taken.record()
        self.graph.replay()
        values, sequence = _to_host(self.values), _to_host(self.sequence)
        arrived = torch.cuda.current_stream().record_event()
        return Outcome(number, self.names, values, sequence, made.batch, arrived)

    def _record(self, made: Any) -> None:
        """Warm up, undo what that did to weights and moments, then record one update."""
        self.inputs = _mapped(torch.clone, made)
        undo = _undo(self.plain.optimizer)
        warm_up(self._update)
        undo()
        self.graph, _ = record(self._update)

    def _update(self) -> None:
        told, self.sequence = self.plain.gradients(self.inputs)
        self.names, self.values = tuple(told), torch.stack(list(told.values()))
        optimizer = self.plain.optimizer
        raw = getattr(optimizer, "optimizer", optimizer)  # inside Fabric's wrapper
        raw.found_inf = (~self.values.isfinite().all()).float()  # 1: leave everything as it is
        raw.step()
        del raw.found_inf
        raw.zero_grad()


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
