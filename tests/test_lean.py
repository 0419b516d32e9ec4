"""The forward pass of long windows without a gradient, against the plain one."""

import pytest
import torch
from kernel_setup import DEVICE, QUIET

import progmem
from progmem import kernels
from progmem.model import lean

pytest.importorskip("triton")

from progmem.kernels import few_keys

pytestmark = QUIET
HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float16  # the interpreter has no bf16
SHAPES = {  # window, stride, slots, windows, samples
    "overlap of two": (20, 10, 1, "cover", 70),
    "three copies, two slots": (17, 7, 2, "cover", 66),
    "no overlap": (18, 18, 1, "cover", 80),
    "no memory": (20, 10, 0, "cover", 60),
    "one window, not full": (40, 20, 2, "cover", 50),
    "tokens after the last window": (20, 10, 1, "floor", 73),
}
SLOW = ("no overlap", "tokens after the last window")


@pytest.fixture
def with_kernels(monkeypatch):
    """Kernels for every tensor that a GPU could have; says how often they were taken."""
    taken = []
    monkeypatch.setattr(kernels, "fit", lambda x: x.dtype != torch.float64)
    monkeypatch.setattr(few_keys, "takes", lambda *_: False)  # as if these windows were long
    monkeypatch.setattr(lean, "PIECE", 37)  # so that there are several, and a shorter one
    for name in ("run_block", "run_encoder"):
        real = getattr(lean, name)
        monkeypatch.setattr(lean, name, lambda *x, real=real: taken.append(real) or real(*x))
    return taken


def made(shape, **more):
    window, stride, slots, windows, samples = SHAPES[shape]
    torch.manual_seed(1)
    cfg = progmem.ModelConfig(
        channels=2, dim=16, heads=2, blocks=1 + (slots == 1), slots=slots, encoder_layers=1,
        patch=4, patch_stride=2, window=window, stride=stride, windows=windows, **more,
    )  # fmt: skip
    model = progmem.PMT(cfg).to(DEVICE).eval()
    for parameter in model.parameters():  # such that nothing is almost zero
        if parameter.dim() < 2:
            parameter.data += 0.3 * torch.randn_like(parameter)
    return model, torch.randn(2, samples, 2, device=DEVICE)


def levels(z):
    return {
        "tokens": z.tokens, "sequence": z.sequence, "token_mask": z.token_mask,
        "window_mask": z.window_mask,
    } | ({} if z.memory is None else {"memory": z.memory, "eos": z.eos})  # fmt: skip


def plainly(model, x, **given):
    with kernels.plain_torch(), torch.enable_grad():
        return {
            k: t.detach().float() for k, t in levels(model.double()(x.double(), **given)).items()
        }


@pytest.mark.parametrize(("shape", "ends"), [
    pytest.param(shape, shape == "three copies, two slots",
                 marks=[pytest.mark.slow] if shape in SLOW else [])
    for shape in SHAPES
])  # fmt: skip
def test_without_a_gradient_the_model_gives_what_it_gives_with_one(shape, ends, with_kernels):
    model, x = made(shape)
    L = x.shape[1]
    given = {"lengths": torch.tensor([L, L // 3], device=DEVICE)} if ends else {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "fit", lambda _: False)
        expected = plainly(model, x, **given)
    assert not with_kernels
    with torch.no_grad():
        found = {k: t.float() for k, t in levels(model.float()(x, **given)).items()}
    assert len(with_kernels) == model.cfg.blocks + 1  # the encoder too
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)


def test_in_two_bytes_it_is_as_exact_as_they_can_be(with_kernels):
    model, x = made("overlap of two")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "fit", lambda _: False)
        expected = plainly(model, x)
    model.float()
    with torch.no_grad(), torch.autocast(DEVICE, dtype=HALF):
        z = model(x)
    assert len(with_kernels) == 3
    assert z.memory.dtype == torch.float32
    for name in ("tokens", "memory", "sequence"):
        error = (getattr(z, name).float() - expected[name]).norm() / expected[name].norm()
        assert error < 0.02, name


def test_gaps_gradients_training_and_other_memories_take_the_other_way(with_kernels):
    def takes(*, gaps=False, training=False, **more):
        model, x = made("overlap of two", **more)
        layer = model.train(training).blocks[0].layer
        return lean.takes(model.tokenizer(x)[0], model.cfg, layer, gaps=gaps)

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
