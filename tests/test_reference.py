"""The fast library equals the paper's loops: values and the gradient of every parameter."""

import itertools

import pytest
import reference
import torch

import progmem

GEOMETRIES = [(6, 3, 2), (8, 3, 1), (5, 5, 2), (7, 2, 3), (4, 1, 1)]  # W, S, slots
MEMORIES = list(itertools.product(["carry", "block"], [True, False]))  # readout, gate_carry
MODELS = [g + m for g, m in itertools.product(GEOMETRIES, MEMORIES)] + [(6, 3, 0, "carry", True)]


def make_model(window, stride, slots, *, blocks=2, **settings):
    cfg = progmem.ModelConfig(
        channels=2, dim=16, heads=2, blocks=blocks, window=window, stride=stride, slots=slots,
        patch=3, patch_stride=2, **settings,
    )  # fmt: skip
    model = progmem.PMT(cfg).double()
    with torch.no_grad():  # leave the special values of initialisation: zeros and ones hide errors
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return model


def make_series(tokens, *, gaps):
    """Three series: ``tokens`` tokens, about half of that, and as many again but gappy."""
    lengths = [3 + 2 * (tokens - 1), 3 + 2 * (max(1, tokens // 2) - 1) + 1, 3 + 2 * (tokens - 1)]
    series = [torch.randn(n, 2).double() for n in lengths]
    if gaps:
        series[2][: lengths[2] // 3] = torch.nan  # whole tokens and, in long series, whole windows
        series[2][:, 1] = torch.nan  # one channel never there
        series[1][-1] = torch.nan
    return series


def weighted_sum(parts):
    """A loss that reaches every output with its own weight."""
    generator = torch.Generator().manual_seed(1)
    return sum(
        (torch.randn(p.shape, generator=generator, dtype=p.dtype) * p).sum()
        for p in parts
        if p is not None and p.is_floating_point()
    )


def gradients(model, loss):
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True))


@pytest.mark.parametrize("gaps", [False, True], ids=["whole", "gaps"])
@pytest.mark.parametrize("tokens", [1, 2, 3, 7, 20, 31])
@pytest.mark.parametrize("window, stride, slots, readout, gate_carry", MODELS)
def test_library_equals_the_papers_loops(window, stride, slots, readout, gate_carry, tokens, gaps):
    blocks = 3 if tokens == 7 else 2
    model = make_model(window, stride, slots, readout=readout, gate_carry=gate_carry, blocks=blocks)
    series = make_series(tokens, gaps=gaps)
    assert_equals_reference(model, series if gaps else series[:2], gaps=gaps)


def test_and_over_many_windows():
    assert_equals_reference(make_model(4, 1, 1), make_series(50, gaps=True), gaps=True)


@pytest.mark.parametrize("window, stride, tokens", [(6, 4, 31), (5, 5, 23), (8, 3, 9)])
def test_as_the_papers_tables_count_windows_the_last_tokens_pass_through(window, stride, tokens):
    model = make_model(window, stride, 2, windows="floor")
    assert_equals_reference(model, make_series(tokens, gaps=False)[::2], gaps=False)


def assert_equals_reference(model, series, *, gaps):
    lengths = torch.tensor([len(s) for s in series])
    x = torch.nn.utils.rnn.pad_sequence(series, batch_first=True, padding_value=torch.nan)
    z = model(x.nan_to_num(9e9), ~x.isnan() if gaps else None, lengths=lengths)

    expected_loss, loss = 0, 0
    for i, s in enumerate(series):
        expected = reference.encode(model, s)
        K, N = len(expected[4]), len(expected[5])
        got = (
            z.tokens[i, :K],
            None if z.memory is None else z.memory[i, :N],
            z.sequence[i],
            None if z.eos is None else z.eos[i],
            z.token_mask[i, :K],
            z.window_mask[i, :N],
        )
        for ours, theirs in zip(got, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
        assert not z.token_mask[i, K:].any() and not z.window_mask[i, N:].any()
        assert not z.tokens[i, K:].any()
        assert z.memory is None or not z.memory[i, N:].any()
        loss, expected_loss = loss + weighted_sum(got), expected_loss + weighted_sum(expected)

    ours, theirs = gradients(model, loss), gradients(model, expected_loss)
    for name, ours_grad in ours.items():
        if theirs[name] is None:
            assert ours_grad is None or not ours_grad.any(), name
            continue
        largest = theirs[name].abs().max()
        assert (ours_grad - theirs[name]).abs().max() <= 1e-10 * largest.clamp(min=1e-4), name
