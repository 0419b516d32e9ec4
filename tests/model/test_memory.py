"""The memory stays alive: it neither grows, nor freezes, nor forgets at once."""

import pytest
import torch
import torch.nn.functional as F

import progmem


def memories(windows, *, dtype, series=16, change_first=False):
    """Last-block memories of noise, (series, windows, slots * D), as float64."""
    cfg = progmem.ModelConfig(
        channels=2, dim=32, heads=2, blocks=2, window=4, stride=2, patch=4, patch_stride=4
    )
    torch.manual_seed(0)
    model = progmem.PMT(cfg).to(dtype)
    x = torch.randn(series, 4 * (2 * windows + 2), 2)
    if change_first:
        x[:, :16] = -x[:, :16]  # the samples of the first window
    memory = model.encode(x).memory
    assert memory.shape[1] == windows
    assert memory.dtype == torch.promote_types(dtype, torch.float32)
    return memory.flatten(2).double()


def assert_alive(memory):
    norm = memory.norm(dim=2)
    assert (norm / norm[:, :1]).max() <= 3
    step = 1 - F.cosine_similarity(memory[:, 1:], memory[:, :-1], dim=2)
    step = step.mean(0)  # over series: a single step of one series may be small by chance
    assert step[9] > 1e-4
    assert step[10:].min() >= 0.1 * step[9]


def test_over_300_windows_of_noise_the_memory_stays_alive():
    assert_alive(memories(300, dtype=torch.bfloat16))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_over_10000_windows_of_noise_the_memory_stays_alive(dtype):
    assert_alive(memories(10_000, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_change_in_the_first_window_is_still_visible_in_the_twentieth(dtype):
    plain, changed = (memories(21, dtype=dtype, change_first=c) for c in (False, True))
    apart = (plain - changed).norm(dim=2) / plain.norm(dim=2)
    assert apart[:, 19].median() > 1e-3


def test_the_alternatives_fail_as_the_decisions_say():
    """Ungated carries grow, block read-outs forget: why the default is what it is."""
    x = torch.randn(4, 4 * 402, 2)
    settings = {"dim": 32, "heads": 2, "blocks": 2, "window": 4, "stride": 2, "patch": 4}
    model = progmem.PMT(progmem.ModelConfig(channels=2, **settings, gate_carry=False))
    norm = model.encode(x).memory.flatten(2).norm(dim=2)
    assert (norm[:, -1] / norm[:, 0]).min() > 30
    model = progmem.PMT(progmem.ModelConfig(channels=2, **settings, readout="block")).double()
    changed = x.clone()
    changed[:, :16] *= -1
    plain, other = (model.encode(y).memory for y in (x, changed))
    assert (plain - other)[:, 30].abs().max() < 1e-6


def test_the_reset_state_has_its_own_seed():
    cfg = progmem.ModelConfig(channels=1, size="tiny")
    first, again = (progmem.PMT(cfg).state_dict() for _ in range(2))
    other = progmem.PMT(progmem.ModelConfig(channels=1, size="tiny", reset_seed=1)).state_dict()
    name = "blocks.1.slots.reset"
    assert torch.equal(first[name], again[name])
    assert not torch.equal(first[name], other[name])
    assert not torch.equal(first["encoder.cls"], again["encoder.cls"])
    assert not torch.equal(first["blocks.0.slots.reset"], first[name])  # each block its own
    assert not torch.equal(first[name][0], first[name][1])  # each slot its own
