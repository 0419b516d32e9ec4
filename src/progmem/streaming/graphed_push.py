"""Pushes of one size, recorded once and replayed: on a GPU a push is then one launch.

Once a stream's buffers are full, a push of whole strides of tokens leaves every tensor in the
shape it had, and every counter moves on by a constant. When such a push is repeated it is recorded
as a CUDA graph, which reads the state out of fixed tensors and writes it back there. Whatever else
comes (another size, the end, autocast, weights that moved) is run plainly, on the same state.

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

MOST = 4  # recorded pushes that a stream keeps: each has its own copy of the state


class Steady:
    """Runs the pushes of one stream, and records those that are repeated."""

    def __init__(self, model: nn.Module, capture: Callable[[Run], Run]) -> None:
        """``capture`` turns a function of fixed tensors into its replay, running it as it likes."""
        self.capture = capture
        self.weights = [part._parameters for part in model.modules() if part._parameters]
        self.recorded: dict[object, Recorded] = {}  # by size, shapes and place of the weights
        self.current: Recorded | None = None  # the last replayed
        self.repeats: object = None  # the last push, if it left all shapes as they were

    def step(self, stream: "Stream", x: Tensor, observed: Tensor) -> Levels:
        """`Stream.step` for normalised samples (B, L, C), L from 0 up."""
        if torch.is_autocast_enabled(x.device.type):  # casts weights and keeps them: not static
            return stream.step(x, observed)
        samples, shapes = x.shape[1], self._shapes(stream)
        # a graph reads weights where they were: changes in place are seen, moves are not
        place = tuple(w.data_ptr() for part in self.weights for w in part.values() if w is not None)
        here = samples, shapes, place
        recorded = self.recorded.get(here)
        if recorded is None and here != self.repeats:
            levels = stream.step(x, observed)
            self.repeats = here if samples and self._shapes(stream) == shapes else None
            return levels
        if recorded is None:
            recorded = Recorded(stream, x, observed, shapes, self.capture)
            while len(self.recorded) >= MOST:
                del self.recorded[next(iter(self.recorded))]  # the oldest
            self.recorded[here] = recorded
        self.current = recorded
        return recorded.step(stream, x, observed)

    def _shapes(self, stream: "Stream") -> Shapes:
        """All that a push's course depends on: shapes, and counters relative to each other."""
        if self.current is not None and self.current.holds(stream):
            return self.current.shapes
        S, seen = stream.model.cfg.stride, stream.backbone.seen
        states = [block.state for block in stream.backbone.blocks]
        return (
            tuple((s.done, s.emitted - s.window * S, seen - s.window * S) for s in states),
            tuple((t.shape, t.dtype) for t in tensors(stream).values()),
        )


class Recorded:
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
        finally:  # whatever was run meanwhile was no push
            put_tensors(stream, before)
            put_counters(stream, count)

    def holds(self, stream: "Stream") -> bool:
        """Whether the state lies in the fixed tensors; a plain push leaves it in new ones."""
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
        return (  # the caller's own: the next replay writes over these
            tokens.clone(), None if memory is None else memory.clone(), sequence.clone(),
            None if eos is None else eos.clone(), token_mask.clone(), window_mask.clone(),
        )  # fmt: skip
