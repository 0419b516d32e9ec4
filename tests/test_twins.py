"""Weights cast once a step: the values and gradients of weights cast at every use."""

import pytest
import torch
from test_reference import gradients, make_model, weighted_sum

from progmem.baselines.vanilla import VanillaTransformer
from progmem.model import twins
from progmem.model.pmt import PMT
from progmem.model.twins import cast_once
from progmem.training.classifier import Classifier


def test_weights_cast_once_give_the_values_and_gradients_of_weights_cast_at_every_use():
    model = make_model(6, 3, 2).float()
    x = torch.randn(2, 60, 2)
    found = []
    for twin in (model, cast_once(model, torch.bfloat16)):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            z = twin(x)
        found.append((z.tokens, z.memory, gradients(model, weighted_sum((z.tokens, z.memory)))))
    torch.testing.assert_close(found[1][:2], found[0][:2], rtol=1e-2, atol=1e-2)
    for name, gradient in found[0][2].items():
        if gradient is not None:
            assert found[1][2][name].dtype == torch.float32
            error = (found[1][2][name] - gradient).norm() / gradient.norm().clamp(min=1e-3)
            assert error < 0.05, name


@pytest.mark.parametrize("kind", [PMT, VanillaTransformer])
def test_a_classifier_casts_its_weights_once_and_only_under_autocast(kind, monkeypatch):
    encoder = kind(make_model(6, 3, 2).cfg)
    classifier = Classifier(encoder, ("a", "b"), only_head=False)
    torch.nn.init.normal_(classifier.head.weight)
    calls = []
    monkeypatch.setattr(twins, "cast_once", lambda *a: calls.append(a) or cast_once(*a))
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
    both = torch.nn.ModuleDict({"used": torch.nn.Linear(3, 3), "idle": torch.nn.Linear(2, 2)})
    twin, x = cast_once(both, torch.bfloat16), torch.randn(uses, 5, 3)
    back = torch.randn(uses, 5, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        total = sum((twin["used"](x[i]) * back[i]).sum() for i in range(uses))
    total.backward()
    torch.testing.assert_close(
        both["used"].weight.grad, torch.einsum("uro,uri->oi", back, x), rtol=0.05, atol=0.1
    )
    torch.testing.assert_close(both["used"].bias.grad, back.sum((0, 1)), rtol=0.05, atol=0.1)
    assert both["used"].weight.grad.dtype == torch.float32
    assert both["idle"].weight.grad is None and both["idle"].bias.grad is None


def test_a_twin_lists_its_weights_by_name():
    twin = cast_once(torch.nn.Sequential(torch.nn.Linear(3, 3)), torch.bfloat16)
    assert {name: w.dtype for name, w in twin.named_parameters()} == {
        "0.weight": torch.bfloat16, "0.bias": torch.float32
    }  # fmt: skip


def test_a_twin_of_a_twin_hands_back_to_the_first_module():
    own = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.LayerNorm(3))
    twin = cast_once(cast_once(own, torch.bfloat16), torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        twin(torch.randn(4, 3)).square().sum().backward()
    assert all(w.grad is not None and w.grad.dtype == torch.float32 for w in own.parameters())
