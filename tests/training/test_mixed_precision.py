"""Weights cast once a step: the values and gradients of weights cast at every use."""

import pytest
import torch
from model_setup import gradients, make_model, weighted_sum
from torch.func import functional_call

from progmem.baselines import build
from progmem.training import distributed
from progmem.training.classifier import SequenceClassifier
from progmem.training.distributed import call_with_cast_weights, cast_weights


def test_weights_cast_once_give_the_values_and_gradients_of_weights_cast_at_every_use():
    model = make_model(6, 3, 2).float()
    x = torch.randn(2, 60, 2)
    found = []
    for call in (model, lambda x: call_with_cast_weights(model, x)):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            z = call(x)
        found.append((z.tokens, z.memory, gradients(model, weighted_sum((z.tokens, z.memory)))))
    torch.testing.assert_close(found[1][:2], found[0][:2], rtol=1e-2, atol=1e-2)
    for name, gradient in found[0][2].items():
        if gradient is not None:
            assert found[1][2][name].dtype == torch.float32
            error = (found[1][2][name] - gradient).norm() / gradient.norm().clamp(min=1e-3)
            assert error < 0.05, name


@pytest.mark.parametrize("kind", ["pmt", "vanilla"])
def test_a_classifier_casts_its_weights_once_and_only_under_autocast(kind, monkeypatch):
    encoder = build(kind, make_model(6, 3, 2).cfg)
    classifier = SequenceClassifier(encoder, ("a", "b"), only_head=False)
    torch.nn.init.normal_(classifier.head.weight)
    calls = []
    monkeypatch.setattr(distributed, "cast_weights", lambda *a: calls.append(a) or cast_weights(*a))
    x, lengths = torch.randn(4, 60, 2), torch.full((4,), 60)
    exact = gradients(classifier, classifier(x, None, lengths)[0][:, 0].sum())
    assert not calls
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores, _ = classifier(x, None, lengths)
    assert len(calls) == 1 and scores.dtype == torch.float32
    for name, gradient in gradients(classifier, scores[:, 0].sum()).items():
        if exact[name] is not None and exact[name].norm() > 1e-2:
            assert (gradient - exact[name]).norm() < 0.05 * exact[name].norm(), name


@pytest.mark.parametrize("uses", [1, 2, 7, 20])
def test_what_every_use_of_a_weight_hands_back_is_added(uses):
    class Used(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.idle = torch.nn.Linear(3, 3), torch.nn.Linear(2, 2)

        def forward(self, x):
            return sum((self.used(x[i]) * back[i]).sum() for i in range(uses))

    both, x = Used(), torch.randn(uses, 5, 3)
    back = torch.randn(uses, 5, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        call_with_cast_weights(both, x).backward()
    torch.testing.assert_close(
        both.used.weight.grad, torch.einsum("uro,uri->oi", back, x), rtol=0.05, atol=0.1
    )
    torch.testing.assert_close(both.used.bias.grad, back.sum((0, 1)), rtol=0.05, atol=0.1)
    assert both.used.weight.grad.dtype == torch.float32
    assert both.idle.weight.grad is None and both.idle.bias.grad is None


def test_matrices_of_linear_maps_are_cast_and_nothing_else():
    parts = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.LayerNorm(3))
    assert {name: w.dtype for name, w in cast_weights(parts, torch.bfloat16).items()} == {
        "0.weight": torch.bfloat16, "0.bias": torch.float32,
        "1.weight": torch.float32, "1.bias": torch.float32,
    }  # fmt: skip
    assert set(cast_weights(parts[0], torch.bfloat16)) == {"weight", "bias"}


def test_a_weight_is_the_same_tensor_at_every_read():
    class Reads(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.map = torch.nn.Linear(3, 3)

        def forward(self, x):
            assert self.map.weight is self.map.weight
            assert self.map.weight.dtype == torch.bfloat16
            return self.map(x)

    reads = Reads()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        weights = cast_weights(reads, torch.bfloat16)
        functional_call(reads, weights, (torch.randn(2, 3),)).sum().backward()
    assert reads.map.weight.dtype == torch.float32 and reads.map.weight.grad is not None
