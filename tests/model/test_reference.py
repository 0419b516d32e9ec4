"""The fast library equals the paper's loops: values and the gradient of every parameter."""

import itertools

import pytest
import reference
import torch
from model_setup import gradients, make_model, make_series, weighted_sum

GEOMETRIES = [(6, 3, 2), (8, 3, 1), (5, 5, 2), (7, 2, 3), (4, 1, 1)]  # W, S, slots
MEMORIES = list(itertools.product(["carry", "block"], [True, False]))  # readout, gate_carry
MODELS = [g + m for g, m in itertools.product(GEOMETRIES, MEMORIES)] + [(6, 3, 0, "carry", True)]


LENGTHS = [*itertools.product([1, 2, 3, 7], [False, True]), (20, False), (31, True)]


def every_case():
    """All models with all lengths. In the fast ones each geometry meets each length, with one
    memory in turn: every pair of the three is there, and every model with and without gaps."""
    cases = []
    for (m, model), (n, length) in itertools.product(enumerate(MODELS), enumerate(LENGTHS)):
        geometry, memory = divmod(m, len(MEMORIES))
        turn = n + n // len(MEMORIES)  # n alone would give a model only lengths of one kind
        fast = model[2] == 0 or (geometry + memory + turn) % len(MEMORIES) == 0
        cases.append(pytest.param(*model, *length, marks=[] if fast else pytest.mark.slow))
    return cases


@pytest.mark.parametrize("window, stride, slots, readout, gate_carry, tokens, gaps", every_case())
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
