"""Batches of one shape through a model on a GPU: recorded at the second, replayed from then on.

A forward of many small launches takes as long as the host needs to launch them; a replay is one
launch. Recording takes the host as long as a plain batch does, so a shape must come a few times.

Shapes: B series, L samples, C channels.
"""

from collections import Counter

import torch
from torch import Tensor, nn

from progmem.encoding import Encoding
from progmem.model.capture import record, warm_up

Given = tuple[Tensor, Tensor | None, Tensor | None]  # x (B, L, C), mask (B, L, C), lengths (B,)

LEAST = 3  # batches of a shape that are worth a recording
MOST = 2  # recordings at a time, complete series and such with gaps: each has memory of its own


def watched(model: nn.Module) -> bool:
    """Whether someone looks on by hooks, which no replay would call."""
    return any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


class Replayed:
    """``model`` in eval mode, without a gradient. Every result is written over by the next."""

    def __init__(self, model: nn.Module, coming: Counter[tuple[int, int]]) -> None:
        """``coming`` counts the batches (B, L) that will be given."""
        self.model, self.coming = model, Counter(coming)
        self.recordings: dict[object, Recording] = {}  # by the shapes of what is given

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
            self.recordings[shapes] = Recording(self.model, given)
        return self.recordings[shapes](given)


class Recording:
    """A model on fixed tensors: its first run is the warm-up, its second is recorded."""

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
