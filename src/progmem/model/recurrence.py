"""The scan itself: one step after the other, and a backward pass that forms weight gradients once.

Plain autograd through N steps would add up the gradient of every weight N times. Instead, each
step is run on its own, from a copy of the state that is a leaf; then all steps are made once more
in one batch from those states, and it is this batch that the weights and the windows' keys get
their gradients from. What the batch cannot know is how a state acts on the windows after it: that
is added in backward, from the last window to the first, by

    a_w = dL/dM_w + J_{w+1}' (a_{w+1}, dL/dk_{w+1}, dL/dv_{w+1})

with J the derivative of a step by its state alone.

Shapes: B series, N windows, W window, n slots, D width, H heads, d = D / H.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class Seen(NamedTuple):
    """What the slots of each window see beside the carry; a window's part drops the N."""

    bar: Tensor  # (B, N, n, D), M-bar of the block below
    bar_q: Tensor  # (B, N, H, n, d)
    k: Tensor  # (B, N, H, n+W, d), of the block below and of the window's tokens
    v: Tensor  # (B, N, H, n+W, d)
    mask: Tensor  # (B, N, 1, 1, 2n+W)
    alive: Tensor  # (B, N), windows that write

    def window(self, w: int) -> "Seen":
        return Seen._make(t[:, w] for t in self)


class Stepped(NamedTuple):
    """The memory after a window, and the keys and values of the carry that the window saw."""

    memory: Tensor  # (B, n, D)
    carry_k: Tensor  # (B, H, n, d)
    carry_v: Tensor  # (B, H, n, d)


Step = Callable[[Tensor, Seen], Stepped]


def scan(step: Step, state: Tensor, seen: Seen) -> Stepped:
    """Carry ``state`` (B, n, D) through all windows, in order: each result with an axis N."""
    found = []
    for w in range(seen.alive.shape[1]):
        found.append(step(state, seen.window(w)))
        state = found[-1].memory
    return Stepped._make(torch.stack(parts, dim=1) for parts in zip(*found, strict=True))


def scan_with_adjoint(alone: Step, step: Step, state: Tensor, seen: Seen) -> Stepped:
    """The same values and gradients as `scan`, every weight's gradient formed once.

    ``alone`` is the step with weights that want no gradient.
    """
    apart = Seen._make(t.detach() for t in seen)
    before, steps = [], []
    carried = state
    for w in range(seen.alive.shape[1]):
        before.append(carried.detach().requires_grad_())
        steps.append(alone(before[-1], apart.window(w)))
        carried = steps[-1].memory
    together = step(torch.stack([leaf.detach() for leaf in before], dim=1), seen)
    passed = _Adjoint.apply(before, steps, state, *together)  # type: ignore[no-untyped-call]
    return Stepped._make(passed)


class _Adjoint(torch.autograd.Function):
    """Passes memory, keys and values on; in backward adds what a state does to later windows."""

    @staticmethod
    def forward(
        ctx: Any, before: Sequence[Tensor], steps: Sequence[Stepped], state: Tensor, *made: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.before, ctx.steps = before, steps
        return tuple(t.view_as(t) for t in made)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, memory: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor | None, ...]:
        adjoints = list(memory.unbind(1))  # dL/dM_w as the windows' own readers have it
        back = adjoints[-1]
        for w in reversed(range(len(ctx.steps))):
            adjoints[w] = back
            (back,) = torch.autograd.grad(
                ctx.steps[w], ctx.before[w], (back, k[:, w], v[:, w]), retain_graph=True
            )
            if w > 0:
                back = adjoints[w - 1] + back
        return None, None, back, torch.stack(adjoints, dim=1), k, v
