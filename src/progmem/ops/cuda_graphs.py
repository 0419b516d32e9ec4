"""CUDA graphs: a call is captured once and replayed by one launch. Only this module captures.

A captured call reads and writes the same memory at every replay, and no Python code runs then. It
is warmed up first, on the stream where it will be captured.

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
# x (B, L, C), mask (B, L, C), lengths (B,)
ModelInputs = tuple[Tensor, Tensor | None, Tensor | None]

WARM_UP = 3  # libraries choose kernels and allocate workspace at first use, outside the graph
MIN_BATCHES = 3  # of one shape, from which on capturing pays
MAX_GRAPHS = 2  # at a time, for series with and without gaps: each has memory of its own
_LOCK = Lock()  # a graph would also capture what another thread runs on the same stream


def warm_up(
    call: Callable[[], T], times: int = WARM_UP, *, device: torch.device | None = None
) -> T:
    """Run ``call`` some times on the stream where it will be captured; the last result.

    Before that it is run once with our kernels compiled but not launched: what ``call`` writes
    must not matter.
    """
    with torch.cuda.device(device), _LOCK:
        current, side = torch.cuda.current_stream(), _stream(torch.cuda.current_device())
        side.wait_stream(current)
        with torch.cuda.stream(side):
            if ops.kernels_work("cuda"):
                _precompile_kernels(call, side)
            for _ in range(times):
                result = call()
        current.wait_stream(side)
    return result


def capture(
    call: Callable[[], T], *, device: torch.device | None = None
) -> tuple[torch.cuda.CUDAGraph, T]:
    """A graph of ``call``, and its result, which every replay overwrites."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device), _LOCK:
        side = _stream(torch.cuda.current_device())
        gc.collect()  # collecting objects may make calls that are not allowed during a capture
        collecting = gc.isenabled()
        gc.disable()
        try:
            # other threads may go on using CUDA
            with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
                result = call()
        finally:
            if collecting:
                gc.enable()
    return graph, result


def graphed(call: Callable[[], T], device: torch.device) -> Callable[[], T]:
    """``call``, a function of fixed tensors, as a graph; each result overwrites the last."""
    warm_up(call, device=device)
    graph, result = capture(call, device=device)

    def replay() -> T:
        graph.replay()
        return result

    return replay


def on_gpu(x: Tensor) -> bool:
    """Whether ``x`` is on a GPU with fused operations, where short series cost mostly launches."""
    return ops.use_fused(x)


def graphed_forward(model: nn.Module, coming: Counter[tuple[int, int]]) -> Forward:
    """``model`` in eval mode without a gradient, captured for shapes (B, L) that come often.

    A forward pass of many small kernels takes as long as the host needs to launch them. Without a
    GPU, or if the model has hooks, which a replay would not call, it is the model itself.
    """
    hooked = any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
    if hooked or not on_gpu(next(model.parameters())):
        return model
    return _GraphedForward(model, coming)


class _GraphedForward:
    """A model whose repeated shapes are captured; each result is overwritten by the next."""

    def __init__(self, model: nn.Module, coming: Counter[tuple[int, int]]) -> None:
        self.model, self.coming = model, Counter(coming)
        self.captured: dict[object, _CapturedForward] = {}  # by the shapes of the inputs

    def __call__(
        self, x: Tensor, mask: Tensor | None = None, *, lengths: Tensor | None = None
    ) -> Encoding:
        """`PMT.forward`."""
        inputs = x, mask, lengths
        shapes = tuple(None if t is None else t.shape for t in inputs)
        size = x.shape[0], x.shape[1]
        left = self.coming[size]
        self.coming[size] -= 1
        if shapes not in self.captured:
            if left < MIN_BATCHES:
                return self.model(x, mask, lengths=lengths)
            while len(self.captured) >= MAX_GRAPHS:
                del self.captured[next(iter(self.captured))]  # the oldest
            self.captured[shapes] = _CapturedForward(self.model, inputs)
        return self.captured[shapes](inputs)


class _CapturedForward:
    """A model on fixed tensors: its first run is the warm-up, its second is captured.

    A capture takes the host as long as an eager batch, so it only pays for shapes that repeat.
    """

    def __init__(self, model: nn.Module, inputs: ModelInputs) -> None:
        self.model = model
        self.x, self.mask, self.lengths = (None if t is None else t.clone() for t in inputs)
        self.warm = False
        self.graph: tuple[torch.cuda.CUDAGraph, Encoding] | None = None

    def __call__(self, inputs: ModelInputs) -> Encoding:
        for own, new in zip((self.x, self.mask, self.lengths), inputs, strict=True):
            if own is not None and new is not None:
                own.copy_(new)
        device = inputs[0].device
        if not self.warm:
            self.warm = True
            return warm_up(self._run, 1, device=device)
        if self.graph is None:
            try:
                self.graph = capture(self._run, device=device)
            except torch.OutOfMemoryError:  # a graph needs memory of its own
                return self._run()
        graph, encoding = self.graph
        graph.replay()
        return encoding

    def _run(self) -> Encoding:
        assert self.x is not None
        kind = self.x.device.type
        cast = torch.is_autocast_enabled(kind)
        # cached casts of weights would be part of the graph's memory, or be freed before it
        with torch.autocast(kind, torch.get_autocast_dtype(kind), cast, cache_enabled=False):
            return self.model(self.x, self.mask, lengths=self.lengths)


class GraphedUpdate:
    """A whole training update with static shapes as one graph: one launch a step.

    The batch of a step is made by ordinary code, on a side stream during the update before it, and
    copied into the tensors that the captured update reads. The results of an update are copied to
    the host during the next one, and read when they have arrived.

    Args:
        make_batch: returns the batch of a step, nested tuples of tensors and constants.
        update: makes one update on such a batch and returns such tuples; it never waits for the
            device.
        optimizer: its weights and moments are restored after the warm-up.
    """

    def __init__(
        self, make_batch: Callable[[int], Any], update: Callable[[Any], Any], optimizer: Any
    ) -> None:
        self.make_batch, self.update, self.optimizer = make_batch, update, optimizer
        self.graph: torch.cuda.CUDAGraph | None = None
        self.side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.side.wait_stream(torch.cuda.current_stream())
        self.copied = torch.cuda.current_stream().record_event()  # the last batch has been copied

    def batch(self, step: int) -> Any:
        """The batch of a step, made on the side stream during the update before it."""
        self.side.wait_event(self.copied)  # or its memory would be reused too early
        with torch.cuda.stream(self.side):
            batch = self.make_batch(step)
        torch.cuda.current_stream().wait_stream(self.side)
        return batch

    def __call__(self, batch: Any) -> tuple[Any, torch.cuda.Event] | None:
        """The update's results, being copied to the host, and the event of their arrival.

        The first batch is the one that is captured. None for a batch of another shape.
        """
        if self.graph is None:
            self._capture(batch)
        new, fixed = list(_tensors(batch)), list(_tensors(self.inputs))
        if [t.shape for t in new] != [t.shape for t in fixed]:
            return None
        assert self.graph is not None
        torch._foreach_copy_(fixed, new)
        self.copied.record()
        self.graph.replay()
        outputs = _mapped(_to_host, self.outputs)
        return outputs, torch.cuda.current_stream().record_event()

    def _capture(self, batch: Any) -> None:
        """Warm up, undo what that did to weights and moments, then capture one update."""
        self.inputs = _mapped(torch.clone, batch)
        restore = _snapshot(self.optimizer)
        try:
            warm_up(lambda: self.update(self.inputs))
        except BaseException:
            restore(drop=True)
            raise
        restore()
        self.graph, self.outputs = capture(lambda: self.update(self.inputs))


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


def _snapshot(optimizer: Any) -> Callable[..., None]:
    """Copy weights and moments; the returned function writes them back into the same tensors.

    With ``drop`` moments that there were not, some perhaps half made, are given up.
    """
    weights = [p for group in optimizer.param_groups for p in group["params"]]
    kept = [p.detach().clone() for p in weights]
    moments = [{k: t.clone() for k, t in optimizer.state.get(p, {}).items()} for p in weights]

    @torch.no_grad()
    def restore(*, drop: bool = False) -> None:
        for p, value, state in zip(weights, kept, moments, strict=True):
            p.copy_(value)
            if drop and not state:
                optimizer.state.pop(p, None)
            for key, t in optimizer.state.get(p, {}).items():
                if key in state:
                    t.copy_(state[key])
                else:
                    t.zero_()  # there were none before the first update

    return restore


def _precompile_kernels(call: Callable[[], T], side: torch.cuda.Stream) -> None:
    from progmem.ops.fused.precompile import precompile  # needs Triton

    with (
        torch.random.fork_rng([side.device]),
        precompile(lambda: torch.cuda.current_stream() == side),
    ):
        call()


@cache
def _stream(device: int) -> torch.cuda.Stream:
    """One for all captures on a device: libraries allocate workspace for each stream."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
