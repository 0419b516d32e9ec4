"""Who sees whom inside a block, and how far a block reaches."""

import pytest
import torch
from model_setup import make_model

from progmem.geometry import unfold_windows, window_masks
from progmem.ops.window_attention import window_attention


def run_blocks(model, tokens, depth):
    """W^out (N, W, D) of block ``depth`` before its pool, and that block's memory (N, n, D)."""
    cfg = model.cfg
    K = tokens.shape[1]
    N = -(-(K - cfg.window) // cfg.stride) + 1
    valid = torch.ones(1, K, dtype=torch.bool)
    masks = window_masks(cfg, valid, torch.tensor([K]), N, gaps=False)
    x, memory = tokens, model.first_memory()
    for block in model.pma_blocks[: depth - 1]:
        x, memory = block(x, tokens, memory, masks)
    block = model.pma_blocks[depth - 1]
    below = None if memory is None else memory.expand(1, N, -1, -1).clone()
    if below is not None and not below.requires_grad:
        below.requires_grad_()
    rows, qkv = block.project(x, tokens)
    start = weights = known = None
    if block.slots is not None:
        start, weights = block.slots.reset_state(), block.slots.scan_weights(block.layer)
        known = block.slots.gate_below(block.layer, weights, below)
    attended, memory = window_attention(
        qkv, start, known, weights, masks, cfg=cfg, training=block.training
    )
    rows = block.layer.attention_output_windows(unfold_windows(rows, cfg, N), attended)
    return rows[0], None if memory is None else memory[0], below


def reached(output, source):
    """Which rows of ``source`` (1, K, D) any number of ``output`` depends on."""
    weights = torch.randn_like(output)
    (grad,) = torch.autograd.grad((output * weights).sum(), source, retain_graph=True)
    return (grad[0] != 0).flatten(1).any(1)


@pytest.mark.parametrize("readout", ["carry", "block"])
@pytest.mark.parametrize("gate_carry", [True, False])
def test_tokens_never_see_the_memory_of_their_own_or_a_later_window(readout, gate_carry):
    model = make_model(6, 3, 2, readout=readout, gate_carry=gate_carry)
    rows, memory, below = run_blocks(model, torch.randn(1, 21, 16).double(), depth=2)
    for w in range(len(rows)):
        seen = reached(rows[w], below)
        assert not seen[w:].any()
        if readout == "carry":
            assert seen[:w].all()
        assert reached(memory[w], below)[w]


def test_slots_see_the_whole_window_and_tokens_only_what_came_before():
    model = make_model(6, 3, 2)
    tokens = torch.randn(1, 21, 16).double().requires_grad_()
    rows, memory, _ = run_blocks(model, tokens, depth=1)
    for w in range(len(rows)):
        assert reached(memory[w], tokens).tolist() == [t < 3 * w + 6 for t in range(21)]
        carried = 3 * (w - 1) + 6 if w else 0  # the last token the carry has seen, plus one
        for j in range(6):
            limit = max(carried, 3 * w + j + 1)
            assert reached(rows[w, j], tokens).tolist() == [t < limit for t in range(21)]


@pytest.mark.parametrize("window, stride", [(6, 3), (6, 2), (4, 4), (4, 1)])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_without_memory_each_block_reaches_w_minus_s_tokens_further_left(window, stride, depth):
    model = make_model(window, stride, 0, blocks=3)
    tokens = torch.randn(1, window + 7 * stride, 16).double().requires_grad_()
    rows, _, _ = run_blocks(model, tokens, depth)
    for w in range(len(rows)):
        left = reached(rows[w], tokens)[: w * stride]
        assert left.sum() == min((depth - 1) * (window - stride), w * stride)


@pytest.mark.parametrize("window, stride", [(6, 3), (8, 3), (4, 4)])
def test_with_memory_a_window_reaches_every_earlier_token_in_the_first_block(window, stride):
    model = make_model(window, stride, 1)
    tokens = torch.randn(1, window + 7 * stride, 16).double().requires_grad_()
    rows, _, _ = run_blocks(model, tokens, depth=1)
    for w in range(len(rows)):
        assert reached(rows[w], tokens)[: w * stride + window].all()


def test_where_the_printed_bound_fails_the_reach_is_the_one_in_the_decisions():
    """With S not dividing W the oldest copy lies further back than W - S: (O-1)S a block."""
    model = make_model(8, 3, 0, blocks=3)
    tokens = torch.randn(1, 8 + 7 * 3, 16).double().requires_grad_()
    rows, _, _ = run_blocks(model, tokens, depth=2)
    assert reached(rows[5], tokens)[:15].sum() == 6 > 8 - 3


@pytest.mark.parametrize("slots", [0, 2])
def test_with_windows_side_by_side_the_model_is_causal(slots):
    """S = W: what came before sample t does not change, to the last bit, with what comes after."""
    model = make_model(5, 5, slots)
    x = torch.randn(1, 91, 2).double()
    before = model.encode(x)
    for t in (20, 47, 89):
        changed = x.clone()
        changed[:, t:] = torch.randn_like(changed[:, t:])
        after = model.encode(changed)
        tokens, windows = before.token_spans[:, 1] <= t, before.window_spans[:, 1] <= t
        assert torch.equal(after.tokens[:, tokens], before.tokens[:, tokens])
        assert not torch.equal(after.tokens, before.tokens)
        if slots:
            assert torch.equal(after.memory[:, windows], before.memory[:, windows])
