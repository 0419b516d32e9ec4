"""PMT's windows and gradients, and tracing; what all encoders promise is in tests/baselines."""

import pytest
import torch
from model_setup import make_model, make_series, weighted_sum

import progmem
from progmem.baselines import build, make_encoder


def floats(z):
    return {n: t for n, t in z._asdict().items() if t is not None and t.is_floating_point()}


def assert_equal_rows(ours, theirs, tolerance):
    """Equal up to the tolerance, relative to the largest value."""
    for name, ours_part in floats(ours).items():
        theirs_part = getattr(theirs, name)
        apart = (ours_part - theirs_part[:, : ours_part.shape[1]]).abs().max()
        assert apart <= tolerance * theirs_part.abs().max(), name


def whole(x):
    return {"x": x}


def gaps(x):
    x[torch.rand(x.shape) < 0.1] = torch.nan
    x[5, 10:70] = torch.nan
    return {"x": x}


def sensors_that_failed(x):
    x[:, :, 1], x[3], x[4, :, 0] = torch.nan, torch.nan, torch.nan
    return {"x": x}


def lengths(x):
    return {"x": x, "lengths": torch.randint(8, x.shape[1], (len(x),))}


def unequal(x):
    return {"x": [one[: 8 + 30 * (i // 16)] for i, one in enumerate(x)]}


def long(x):
    return gaps(x.repeat(1, 2, 1))


@pytest.mark.parametrize("kind", [whole, gaps, sensors_that_failed, lengths, unequal, long])
def test_one_series_at_a_time_or_64_is_the_same_to_a_millionth(kind, monkeypatch):
    if kind is long:
        monkeypatch.setattr("progmem.model.pmt.SAMPLES_AT_ONCE", 150)
        monkeypatch.setattr("progmem.model.pmt.SHORTEST_CHUNK", 60)  # of 64 series; of one 150
    model = progmem.PMT(progmem.ModelConfig(channels=3, size="tiny"))
    given = kind(torch.randn(64, 100, 3))
    together = model.encode(**given, batch_size=64)
    assert_equal_rows(model.encode(**given, batch_size=1), together, 1e-6)
    assert all(t.isfinite().all() for t in floats(together).values())


def test_every_window_of_a_missing_series_passes_the_reset_state_on():
    model = make_model(6, 3, 2)
    z = model.encode(torch.full((1, 61, 2), torch.nan))
    assert not z.window_mask.any()
    reset = model.pma_blocks[-1].slots.reset
    assert torch.equal(z.memory[0], reset.expand_as(z.memory[0]))


def test_a_missing_window_passes_its_carry_on():
    model = make_model(6, 3, 2)
    x = torch.randn(1, 101, 2).double()
    x[:, 30:70] = torch.nan
    z = model.encode(x)
    missing = (~z.window_mask[0]).nonzero().flatten()
    assert len(missing) > 2
    for w in missing:
        assert torch.equal(z.memory[0, w], z.memory[0, w - 1])


@pytest.mark.parametrize("readout", ["carry", "block"])
@pytest.mark.parametrize("gate_carry", [True, False])
@pytest.mark.parametrize("slots", [0, 1, 3])
@pytest.mark.parametrize("window, stride", [(6, 3), (7, 2), (5, 5)])
def test_every_parameter_gets_a_gradient(window, stride, slots, readout, gate_carry):
    model = make_model(window, stride, slots, readout=readout, gate_carry=gate_carry)
    x = torch.randn(2, 61, 2).double()
    weighted_sum(model(x)).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, name


def test_a_mask_may_leave_out_the_channels():
    model = make_model(6, 3, 2)
    x = torch.randn(2, 61, 2).double()
    mask = torch.rand(2, 61) > 0.5
    mask[:, 20:40] = False
    ours, theirs = model(x, mask), model(x, mask[..., None].expand_as(x))
    assert torch.equal(ours.tokens, theirs.tokens) and not ours.token_mask.all()


def test_tokens_of_no_window_still_give_finite_gradients():
    model = make_model(6, 4, 2, windows="floor")
    z = model(torch.randn(1, 3 + 2 * 26, 2).double())  # 27 tokens, the last in no window
    weighted_sum(z).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("name", ["pmt", "vanilla"])
def test_values_that_overflow_the_model_are_reported_not_returned(name):
    encoder = build(name, make_model(6, 3, 2).cfg)
    with pytest.raises(progmem.InputError, match=r"series 1 gave values that are not finite"):
        encoder.half().encode(torch.stack([torch.zeros(61, 2), 6e4 * torch.randn(61, 2).sign()]))


def test_full_attention_does_not_see_missing_tokens_and_knows_their_order():
    model = make_encoder("vanilla", channels=2, size="tiny", patch=4, patch_stride=4).double()
    x = torch.randn(1, 60, 2).double()
    short = model.encode(x[:, :40])
    assert not torch.allclose(model.encode(x[:, :40].flip(1)).sequence, short.sequence)
    x[:, 40:] = torch.nan  # after the last observed token: nothing moves
    long = model.encode(x)
    torch.testing.assert_close(long.sequence, short.sequence, rtol=0, atol=1e-12)
    torch.testing.assert_close(long.tokens[:, :10], short.tokens, rtol=0, atol=1e-12)


def test_dropout_acts_in_training_only():
    cfg = progmem.ModelConfig(channels=2, size="tiny", dropout=0.5)
    model = progmem.PMT(cfg)
    x = torch.randn(1, 100, 2)
    assert not torch.equal(model(x).tokens, model(x).tokens)
    assert torch.equal(model.encode(x).tokens, model.encode(x).tokens)


def small_model_and_inputs():
    model = make_model(6, 3, 2)
    series = make_series(20, gaps=True)
    x = torch.nn.utils.rnn.pad_sequence(series, batch_first=True)
    return model, x.nan_to_num(), ~x.isnan()


def test_forward_can_be_exported():
    model, x, mask = small_model_and_inputs()
    exported = torch.export.export(model, (x, mask)).module()
    for ours, theirs in zip(exported(x, mask), model(x, mask), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.slow
def test_forward_can_be_compiled_as_one_graph():
    model, x, mask = small_model_and_inputs()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    for ours, theirs in zip(compiled(x, mask), model(x, mask), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_bf16_autocast_keeps_the_memory_in_float32():
    model = progmem.PMT(progmem.ModelConfig(channels=2, size="tiny"))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = model(torch.randn(2, 100, 2))
    assert z.memory.dtype == z.eos.dtype == torch.float32
    assert all(t.isfinite().all() for t in floats(z).values())
