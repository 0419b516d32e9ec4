"""Pushes of one size, captured once and replayed: on a GPU a push is then one launch.

Once a stream's buffers are full, a push of whole strides of tokens leaves the shape of every tensor
as it was, and adds a constant to every counter. When such a push is repeated it is captured as a
CUDA graph, which reads the state from fixed tensors and writes it back to them. Any other push
(another size, the end, autocast, weights that moved) runs eagerly, on the same state.

Shapes: B series, L samples, C channels.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from progmem.streaming.state import counters, put_counters, put_tensors, tensors

if TYPE_CHECKING:
    from progmem.streaming.stream import Stream


Levels = tuple[Tensor, Tensor | None, Tensor, Tensor | None, Tensor, Tensor]  # Encoding, no spans
Run = Callable[[], Levels]
Shapes = tuple[tuple[object, ...], ...]

MAX_GRAPHS = 4  # of a stream at a time: each has its own copy of the state


class GraphedPush:
    """Runs the pushes of one stream, and captures those that are repeated."""

    def __init__(self, model: nn.Module, capture: Callable[[Run], Run]) -> None:
        """``capture`` turns a function of fixed tensors into its replay; it may run it first."""
        self.capture = capture
        self.weights = [part._parameters for part in model.modules() if part._parameters]
        # by the size of a push, the shapes of the state, and the addresses of the weights
        self.captured: dict[object, CapturedPush] = {}
        self.current: CapturedPush | None = None  # the last replayed
        self.repeats: object = None  # the last push, if it left all shapes as they were

    def step(self, stream: "Stream", x: Tensor, observed: Tensor) -> Levels:
        """`Stream.step` for normalised samples (B, L, C), L from 0 up."""
        if torch.is_autocast_enabled(x.device.type):  # casts weights and keeps them: not static
            return stream.step(x, observed)
        samples, shapes = x.shape[1], self._shapes(stream)
        # a graph reads weights at their addresses: it sees changes in place, but no moves
        addresses = tuple(
            w.data_ptr() for part in self.weights for w in part.values() if w is not None
        )
        key = samples, shapes, addresses
        captured = self.captured.get(key)
        if captured is None and key != self.repeats:
            levels = stream.step(x, observed)
            self.repeats = key if samples and self._shapes(stream) == shapes else None
            return levels
        if captured is None:
            captured = CapturedPush(stream, x, observed, shapes, self.capture)
            while len(self.captured) >= MAX_GRAPHS:
                del self.captured[next(iter(self.captured))]  # the oldest
            self.captured[key] = captured
        self.current = captured
        return captured.step(stream, x, observed)

    def _shapes(self, stream: "Stream") -> Shapes:
        """All that determines a push's operations: shapes, counters relative to each other."""
        if self.current is not None and self.current.holds(stream):
            return self.current.shapes
        S, seen = stream.model.cfg.stride, stream.backbone.seen
        states = [block.state for block in stream.backbone.blocks]
        return (
            tuple((s.done, s.emitted - s.window * S, seen - s.window * S) for s in states),
            tuple((t.shape, t.dtype) for t in tensors(stream).values()),
        )


class CapturedPush:
    """One push of a stream on fixed tensors: input, state and output."""

    def __init__(
        self,
        stream: "Stream",
        x: Tensor,
        observed: Tensor,
        shapes: Shapes,
        capture: Callable[[Run], Run],
    ) -> None:
        self.x, self.observed, self.shapes = x.clone(), observed.clone(), shapes
        before, count = tensors(stream), counters(stream)
        self.state = {name: tensor.clone() for name, tensor in before.items()}
        self.advance: dict[str, int] = {}  # what a push adds to each counter

        def run() -> Levels:
            put_tensors(stream, self.state)
            put_counters(stream, count)
            levels = stream.step(self.x, self.observed, masked=True)
            for name, tensor in tensors(stream).items():
                if tensor is not self.state[name]:
                    self.state[name].copy_(tensor)
            self.advance = {name: n - count[name] for name, n in counters(stream).items()}
            return levels

        try:
            self.replay = capture(run)
        finally:  # runs during the capture do not count as pushes
            put_tensors(stream, before)
            put_counters(stream, count)

    def holds(self, stream: "Stream") -> bool:
        """Whether the state is in the fixed tensors; an eager push leaves it in new ones."""
        return stream.backbone.x is self.state["x"]

    def step(self, stream: "Stream", x: Tensor, observed: Tensor) -> Levels:
        if not self.holds(stream):
            for name, tensor in tensors(stream).items():
                self.state[name].copy_(tensor)
            put_tensors(stream, self.state)
        self.x.copy_(x)
        self.observed.copy_(observed)
        tokens, memory, sequence, eos, token_mask, window_mask = self.replay()
        count = counters(stream)
        put_counters(stream, {name: n + self.advance[name] for name, n in count.items()})
        return (  # copies: the next replay overwrites the originals
            tokens.clone(), None if memory is None else memory.clone(), sequence.clone(),
            None if eos is None else eos.clone(), token_mask.clone(), window_mask.clone(),
        )  # fmt: skip
