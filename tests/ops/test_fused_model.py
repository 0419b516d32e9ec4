"""The whole model through fused operations, against plain torch: forward and every gradient.

On a GPU in float32 and bf16; elsewhere in float32 by Triton's interpreter, on small shapes.
"""

import pytest
import torch
from kernel_setup import DEVICE, QUIET, SLOW_INTERPRETED, fused

import progmem
from progmem import ops

pytest.importorskip("triton")

from progmem.model import layers
from progmem.ops.fused import neighbourhood_attention, short_attention, window_attention

pytestmark = [*QUIET, pytest.mark.usefixtures("coarse")]
HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float16  # the interpreter has no bf16
WHOLE, GAPPY = "nothing", "gaps and ends"
# window, stride, slots, tokens, more settings, what is missing: the geometries of test_reference
TRAINED = {
    "overlap of two": (6, 3, 2, 7, {}, WHOLE),
    "overlap of two, gaps": (6, 3, 2, 10, {}, GAPPY),
    "the stride does not divide the window": (8, 3, 1, 9, {}, GAPPY),
    "no overlap": (5, 5, 2, 8, {}, GAPPY),
    "four copies, three slots": (7, 2, 3, 8, {}, GAPPY),
    "a stride of one": (4, 1, 1, 6, {}, GAPPY),
    "one window, not full": (6, 3, 2, 4, {}, GAPPY),
    "no memory": (6, 3, 0, 7, {}, GAPPY),
    "read-out of the block": (6, 3, 2, 7, {"readout": "block"}, GAPPY),
    "a carry without a gate": (6, 3, 2, 7, {"gate_carry": False}, GAPPY),
    "neither": (6, 3, 2, 7, {"readout": "block", "gate_carry": False}, WHOLE),
    "tokens after the last window": (6, 4, 1, 11, {"windows": "floor"}, WHOLE),
}
TRAINED_FAST = ("overlap of two", "the stride does not divide the window", "no memory", "neither")


def drawn_model(window, stride, slots, more, **size):
    torch.manual_seed(1)
    cfg = progmem.ModelConfig(
        channels=2, slots=slots, patch=4, patch_stride=2, window=window, stride=stride,
        **{"dim": 8, "heads": 2, "blocks": 2, "encoder_layers": 1} | size | more,
    )  # fmt: skip
    model = progmem.PMT(cfg).to(DEVICE)
    for parameter in model.parameters():  # such that nothing is almost zero
        if parameter.dim() < 2:
            parameter.data += 0.3 * torch.randn_like(parameter)
    return model


def outputs(z):
    return {name: t for name, t in zip(z._fields[:4], z[:4], strict=True) if t is not None}


def forward_and_gradients(model, given):
    z = outputs(model(*given[:2], lengths=given[2]))
    torch.manual_seed(2)
    loss = sum((torch.randn_like(t) * t).sum() for t in z.values())
    names, weights = zip(*model.named_parameters(), strict=True)
    found = torch.autograd.grad(loss, weights, allow_unused=True)
    return z, dict(zip(names, found, strict=True))


@pytest.mark.parametrize("shape", [
    pytest.param(shape, marks=[] if shape in TRAINED_FAST else SLOW_INTERPRETED)
    for shape in TRAINED
])  # fmt: skip
def test_forward_and_every_gradient(shape):
    window, stride, slots, tokens, more, missing = TRAINED[shape]
    model = drawn_model(window, stride, slots, more)
    samples = 4 + 2 * (tokens - 1)
    x, mask, lengths = torch.randn(2, samples, 2, device=DEVICE), None, None
    if missing == GAPPY:
        mask = torch.rand(2, samples, device=DEVICE) > 0.3
        lengths = torch.tensor([samples, samples - 5], device=DEVICE)
    with ops.use_backend("plain"):
        theirs, expected = forward_and_gradients(model, (x, mask, lengths))
    with fused():
        ours, found = forward_and_gradients(model, (x, mask, lengths))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert {n for n, g in found.items() if g is None} == {
        n for n, g in expected.items() if g is None
    }
    for name, gradient in expected.items():
        if gradient is not None:
            scale = gradient.abs().max().item()
            torch.testing.assert_close(
                found[name], gradient, rtol=1e-3, atol=1e-4 * scale + 1e-5, msg=name
            )


@pytest.mark.skipif(DEVICE == "cpu", reason="the interpreter has no products of bf16")
@pytest.mark.parametrize("shape", TRAINED)
def test_in_bf16_gradients_are_as_exact_as_those_of_plain_torch(shape):
    window, stride, slots, tokens, more, _ = TRAINED[shape]
    model = drawn_model(window, stride, slots, more, dim=64, heads=4)
    given = torch.randn(8, 4 + 2 * (tokens - 1), 2, device=DEVICE), None, None
    exact = drawn_model(window, stride, slots, more, dim=64, heads=4).double()
    _, expected = forward_and_gradients(exact, (given[0].double(), None, None))
    errors = {}
    for backend in ("plain", "auto"):
        with ops.use_backend(backend), torch.autocast("cuda", torch.bfloat16):
            _, found = forward_and_gradients(model, given)
        parts = [(found[n].double(), g) for n, g in expected.items() if g is not None]
        errors[backend] = (
            sum((f - g).square().sum() for f, g in parts) / sum(g.square().sum() for _, g in parts)
        ).sqrt()
    assert errors["auto"] < max(0.02, 2 * errors["plain"]), errors


LONG = {  # window, stride, slots, samples, more settings
    "overlap of two": (20, 10, 1, 70, {}),
    "three copies, two slots": (17, 7, 2, 66, {"blocks": 1}),
    "no overlap": (18, 18, 1, 80, {}),
    "no memory": (20, 10, 0, 60, {"blocks": 1}),
    "one window, not full": (40, 20, 2, 50, {"blocks": 1}),
    "tokens after the last window": (20, 10, 1, 73, {"windows": "floor"}),
}
LONG_SLOW = ("no overlap", "tokens after the last window", "no memory")


@pytest.fixture
def long(monkeypatch):
    """As if these windows were long; what went through their kernels."""
    taken = []
    monkeypatch.setattr(short_attention, "supports_sizes", lambda *_: False)
    monkeypatch.setattr(layers, "CHUNK", 37)  # so that there are several, and a shorter one
    for module, name in (
        (window_attention, "_long_windows"),
        (neighbourhood_attention, "_long_band"),
    ):
        real = getattr(module, name)

        def noted(*x, real=real, name=name, **more):
            taken.append(name)
            return real(*x, **more)

        monkeypatch.setattr(module, name, noted)
    return taken


@pytest.mark.parametrize(("shape", "ends"), [
    pytest.param(shape, shape == "three copies, two slots",
                 marks=SLOW_INTERPRETED if shape in LONG_SLOW else [])
    for shape in LONG
])  # fmt: skip
def test_long_windows_without_a_gradient_give_what_they_give_with_one(shape, ends, long):
    window, stride, slots, samples, more = LONG[shape]
    model = drawn_model(window, stride, slots, more, dim=16).eval()
    x = torch.randn(2, samples, 2, device=DEVICE)
    given = {"lengths": torch.tensor([samples, samples // 3], device=DEVICE)} if ends else {}
    with ops.use_backend("plain"):
        expected = model.double()(x.double(), **given)
    assert not long
    with torch.no_grad(), fused():
        found = model.float()(x, **given)
    assert len(long) == model.cfg.blocks + 1  # the encoder too
    for name, level in outputs(found).items():
        wanted = getattr(expected, name).detach().float()
        torch.testing.assert_close(level.float(), wanted, rtol=1e-4, atol=2e-5, msg=name)
    assert torch.equal(found.token_mask, expected.token_mask)
    assert torch.equal(found.window_mask, expected.window_mask)


@pytest.mark.parametrize("kind", [pytest.param(HALF, marks=SLOW_INTERPRETED)])
def test_long_windows_in_two_bytes_are_as_exact_as_those_can_be(kind, long):
    window, stride, slots, samples, more = LONG["overlap of two"]
    model = drawn_model(window, stride, slots, more, dim=16).eval()
    x = torch.randn(2, samples, 2, device=DEVICE)
    with ops.use_backend("plain"):
        expected = model.double()(x.double())
    model.float()
    with torch.no_grad(), fused(), torch.autocast(DEVICE, dtype=kind):
        z = model(x)
    assert len(long) == 3
    assert z.memory.dtype == torch.float32
    for name in ("tokens", "memory", "sequence"):
        wanted = getattr(expected, name).detach().float()
        error = (getattr(z, name).float() - wanted).norm() / wanted.norm()
        assert error < 0.02, name


def test_gaps_gradients_training_and_other_memories_take_the_other_way(long):
    def takes(*, gaps=False, training=False, **more):
        model = drawn_model(20, 10, 1, more, dim=16, blocks=1).train(training)
        x = torch.randn(1, 46, 2, device=DEVICE)  # two windows
        mask = torch.ones(1, 46, device=DEVICE).bool() if gaps else None
        long.clear()
        with fused():
            model(x, mask)
        return "_long_windows" in long

    with torch.no_grad():
        assert takes()
        for other in (
            {"readout": "block"},
            {"gate_carry": False},
            {"gaps": True},
            {"training": True},
        ):
            assert not takes(**other)
    assert not takes()
