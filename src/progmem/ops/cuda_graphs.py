"""CUDA graphs: a call recorded once and replayed by one launch. Only this module records.

What is recorded reads and writes the same memory at every replay, and no Python runs then. A call
is warmed up first, on the stream where it will be recorded.

Shapes: B series, L samples, C channels.
"""

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from threading import Lock
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from progmem import ops
from progmem.encoding import Encoding

T = TypeVar("T")
Forward = Callable[..., Encoding]
Given = tuple[Tensor, Tensor | None, Tensor | None]  # x (B, L, C), mask (B, L, C), lengths (B,)

WARM_UP = 3  # libraries choose kernels and take workspace at first use, which no graph may hold
LEAST = 3  # batches of a shape that are worth a recording
MOST = 2  # recordings at a time, complete series and such with gaps: each has memory of its own
_ALONE = Lock()  # a graph would take in what another thread runs on the same stream


def warm_up(
    call: Callable[[], T], times: int = WARM_UP, *, device: torch.device | None = None
) -> T:
    """Run ``call`` some times where it will be recorded: what it gave last.

    Before that it is run once without our kernels, which are made meanwhile: whatever ``call``
    writes must not matter.
    """
    with torch.cuda.device(device), _ALONE:
        current, side = torch.cuda.current_stream(), _stream(torch.cuda.current_device())
        side.wait_stream(current)
        with torch.cuda.stream(side):
            if ops.kernels_work("cuda"):
                _make_kernels(call, side)
            for _ in range(times):
                result = call()
        current.wait_stream(side)
    return result


def record(
    call: Callable[[], T], *, device: torch.device | None = None
) -> tuple[torch.cuda.CUDAGraph, T]:
    """A graph of ``call``, and what it gives: memory that every replay writes anew."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device), _ALONE:
        side = _stream(torch.cuda.current_device())
        gc.collect()  # what is collected during a recording may do what no recording allows
        collecting = gc.isenabled()
        gc.disable()
        try:
            # threads elsewhere go on working
            with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
                result = call()
        finally:
            if collecting:
                gc.enable()
    return graph, result


def graphed(call: Callable[[], T], device: torch.device) -> Callable[[], T]:
    """``call``, a function of fixed tensors, as a graph; each result writes over the last."""
    warm_up(call, device=device)
    graph, result = record(call, device=device)

    def replay() -> T:
        graph.replay()
        return result

    return replay


def on_gpu(x: Tensor) -> bool:
    """Whether ``x`` lies where launches are what short series cost: on a GPU with fused forms."""
    return ops.use_fused(x)


def graphed_forward(model: nn.Module, coming: Counter[tuple[int, int]]) -> Forward:
    """``model`` in eval mode without a gradient, recorded for batches (B, L) that come often.

    A forward of many small launches takes as long as the host needs to launch them. Where there is
    no GPU, or someone looks on by hooks, which no replay would call, it is the model itself.
    """
    watched = any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
    if watched or not on_gpu(next(model.parameters())):
        return model
    return _GraphedForward(model, coming)


class _GraphedForward:
    """Every result is written over by the next."""

    def __init__(self, model: nn.Module, coming: Counter[tuple[int, int]]) -> None:
        self.model, self.coming = model, Counter(coming)
        self.recordings: dict[object, _Recording] = {}  # by the shapes of what is given

    def __call__(
        self, x: Tensor, mask: Tensor | None = None, *, lengths: Tensor | None = None
    ) -> Encoding:
        """`PMT.forward`."""
        given = x, mask, lengths
        shapes = tuple(None if t is None else t.shape for t in given)
        size = x.shape[0], x.shape[1]
        left = self.coming[size]
        self.coming[size] -= 1
        if shapes not in self.recordings:
            if left < LEAST:
                return self.model(x, mask, lengths=lengths)
            while len(self.recordings) >= MOST:
                del self.recordings[next(iter(self.recordings))]  # the oldest
            self.recordings[shapes] = _Recording(self.model, given)
        return self.recordings[shapes](given)


class _Recording:
    """A model on fixed tensors: its first run is the warm-up, its second is recorded.

    Recording takes the host as long as a plain batch does, so a shape must come a few times.
    """

    def __init__(self, model: nn.Module, given: Given) -> None:
        self.model = model
        self.x, self.mask, self.lengths = (None if t is None else t.clone() for t in given)
        self.warm = False
        self.recorded: tuple[torch.cuda.CUDAGraph, Encoding] | None = None

    def __call__(self, given: Given) -> Encoding:
        for own, new in zip((self.x, self.mask, self.lengths), given, strict=True):
            if own is not None and new is not None:
                own.copy_(new)
        device = given[0].device
        if not self.warm:
            self.warm = True
            return warm_up(self._run, 1, device=device)
        if self.recorded is None:
            try:
                self.recorded = record(self._run, device=device)
            except torch.OutOfMemoryError:  # a recording needs memory of its own
                return self._run()
        graph, encoding = self.recorded
        graph.replay()
        return encoding

    def _run(self) -> Encoding:
        assert self.x is not None
        kind = self.x.device.type
        cast = torch.is_autocast_enabled(kind)
        # weights that autocast keeps would be the graph's memory, or go before it
        with torch.autocast(kind, torch.get_autocast_dtype(kind), cast, cache_enabled=False):
            return self.model(self.x, self.mask, lengths=self.lengths)


class GraphedUpdate:
    """A whole update of static shapes: the host launches one thing a step.

    The batch of a step is made as ever, by the plain code, beside the update before it, and copied
    into the tensors that the recorded update reads. What an update gives is copied to the host
    beside the next one, and read when it has arrived.

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


def _make_kernels(call: Callable[[], T], side: torch.cuda.Stream) -> None:
    from progmem.ops.fused.precompile import made_ahead  # needs Triton

    with (
        torch.random.fork_rng([side.device]),
        made_ahead(lambda: torch.cuda.current_stream() == side),
    ):
        call()


@cache
def _stream(device: int) -> torch.cuda.Stream:
    """One for all recordings on a device: libraries keep workspace for each stream."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
