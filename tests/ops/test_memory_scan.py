"""The scan's two forms: one after the other, and with the adjoint; same values, same gradients."""

import pytest
import torch
from model_setup import gradients, make_model, weighted_sum

from progmem.ops import window_attention


def encode_both_ways(model, x, monkeypatch):
    """The encoding with the adjoint, and with plain autograd through the loop."""
    adjoint = model(x)
    monkeypatch.setattr(window_attention, "_scan_with_adjoint", window_attention._scan)
    return adjoint, model(x)


@pytest.mark.parametrize("gate_carry", [True, False])
@pytest.mark.parametrize("readout", ["carry", "block"])
def test_the_adjoint_has_the_gradients_of_the_loop(readout, gate_carry, monkeypatch):
    model = make_model(6, 3, 2, readout=readout, gate_carry=gate_carry)
    x = torch.randn(2, 60, 2, dtype=torch.float64, requires_grad=True)
    ours, theirs = encode_both_ways(model, x, monkeypatch)
    torch.testing.assert_close(ours.memory, theirs.memory, rtol=0, atol=1e-13)
    ours, theirs = (weighted_sum((z.tokens, z.memory, z.eos)) for z in (ours, theirs))
    (dx,), (plain_dx,) = (torch.autograd.grad(s, x, retain_graph=True) for s in (ours, theirs))
    torch.testing.assert_close(dx, plain_dx, rtol=0, atol=1e-12)
    ours, theirs = gradients(model, ours), gradients(model, theirs)
    for name, gradient in ours.items():
        if theirs[name] is not None:
            torch.testing.assert_close(gradient, theirs[name], rtol=1e-9, atol=1e-12, msg=name)


def paths_to(loss, parameter):
    """How many parts of the graph hand ``parameter`` a gradient."""
    seen, waiting, found = set(), [loss.grad_fn], 0
    while waiting:
        node = waiting.pop()
        for next_node, _ in node.next_functions:
            if next_node is None:
                continue
            found += getattr(next_node, "variable", None) is parameter
            if next_node not in seen:
                seen.add(next_node)
                waiting.append(next_node)
    return found


def test_a_weights_gradient_is_formed_as_often_for_many_windows_as_for_few(monkeypatch):
    model = make_model(6, 3, 2)
    weight = model.blocks[1].layer.out.weight
    few, many = (model(torch.randn(1, n, 2).double()) for n in (40, 200))
    assert many.memory.shape[1] > 4 * few.memory.shape[1]
    # once for all windows; tokens of the last block reach no memory
    assert paths_to(few.eos.sum(), weight) == paths_to(many.eos.sum(), weight) == 1
    monkeypatch.setattr(window_attention, "_scan_with_adjoint", window_attention._scan)
    plain = model(torch.randn(1, 200, 2).double())
    assert paths_to(plain.eos.sum(), weight) == plain.memory.shape[1]


def test_a_graph_can_be_gone_through_twice():
    model = make_model(6, 3, 2)
    loss = weighted_sum((model(torch.randn(2, 50, 2).double()).memory,))
    weight = model.blocks[0].layer.qkv.weight
    first, second = (torch.autograd.grad(loss, weight, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second) and first.any()


def test_with_dropout_a_step_is_made_once(monkeypatch):
    model = make_model(6, 3, 2, dropout=0.5)
    calls, scan = [], window_attention._scan
    monkeypatch.setattr(
        window_attention, "_scan_with_adjoint", lambda *a: calls.append(a) or scan(*a)
    )
    model.train()(torch.randn(1, 50, 2).double()).memory.sum().backward()
    assert not calls
    model.eval()(torch.randn(1, 50, 2).double())
    assert len(calls) == 2  # both blocks


def test_without_a_gradient_to_make_a_step_is_made_once(monkeypatch):
    model = make_model(6, 3, 2)
    monkeypatch.setattr(window_attention, "_scan_with_adjoint", None)
    x = torch.randn(1, 50, 2).double()
    model.encode(x)
    with torch.no_grad():
        model(x)
    model.requires_grad_(False)(x)


def test_under_autocast_more_windows_keep_no_more_copies_of_weights():
    model = make_model(6, 3, 2, blocks=1).float()
    shape, found = model.blocks[0].layer.feed_forward.fc1.weight.shape, []

    def keep(tensor):
        if tensor.shape in (shape, shape[::-1]):
            kept.append(tensor)
        return tensor

    for samples in (60, 300):
        kept = []
        with (
            torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
            torch.autocast("cpu", dtype=torch.bfloat16),
        ):
            model(torch.randn(1, samples, 2))
        found.append(len({tensor.untyped_storage().data_ptr() for tensor in kept}))
    assert found[0] == found[1] > 0
