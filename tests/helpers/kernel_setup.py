"""Where fused operations run in the tests, and how they are held to their plain forms."""

import pytest
import torch

from progmem import ops

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cuda":  # a thread of autograd's that begins with a product would warn
    torch.ones(1, device=DEVICE, requires_grad=True).exp().backward()
QUIET = [  # what Triton's interpreter warns of
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),
]

# The interpreter takes seconds for what a GPU does at once: there, with the slow tests.
SLOW_INTERPRETED = [pytest.mark.slow] if DEVICE == "cpu" else []


def drawn(*shape):
    return torch.randn(shape, device=DEVICE, requires_grad=True)


def fused():
    """Kernels inside: those of the GPU, or interpreted."""
    return ops.use_backend("interpreted" if DEVICE == "cpu" else "auto")


def in_both_forms(call):
    """What ``call`` gives fused, and plainly."""
    with fused():
        ours = call()
    with ops.use_backend("plain"):
        return ours, call()


def assert_equal_forms(ours, theirs, inputs):
    """Equal values, and equal gradients of a random weighting of them."""
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    ours, theirs = (x if isinstance(x, tuple) else (x,) for x in (ours, theirs))
    weights = [torch.randn_like(t) for t in theirs]
    found = torch.autograd.grad(ours, inputs, weights)
    expected = torch.autograd.grad(theirs, inputs, weights)
    for f, e in zip(found, expected, strict=True):
        torch.testing.assert_close(f, e, rtol=1e-4, atol=1e-5 * e.abs().max().item() + 1e-6)
