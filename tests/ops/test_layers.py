"""Norms, linear maps and gates: fused forms against plain torch, values and gradients."""

import pytest
import torch
import torch.nn.functional as F
from kernel_setup import DEVICE, QUIET, assert_equal_forms, drawn, in_both_forms

from progmem.model.block import TokenGate
from progmem.ops import layers
from progmem.ops.layers import FeedForwardWeights, NormWeights
from progmem.training.pmt import ProjectionHead

pytest.importorskip("triton")

from progmem.ops.fused import gated_mix, linear, norm, window_layout

pytestmark = QUIET


@pytest.mark.parametrize("segmented", [False, True])
@pytest.mark.parametrize("shape", [(7, 3, 10), (33, 20), (1, 1, 5)])
def test_norm(shape, segmented):
    D = shape[-1]
    x, weight, bias, segment = drawn(*shape), drawn(D), drawn(D), drawn(D)
    more = segment if segmented else None
    layer = NormWeights(weight, bias, 1e-5)
    ours = norm.layer_norm(x, layer, dtype=torch.float32, segment=more)
    theirs = F.layer_norm(x, (D,), weight, bias, 1e-5)
    theirs = theirs + segment if segmented else theirs
    assert_equal_forms(ours, theirs, [x, weight, bias, *([segment] if segmented else [])])


@pytest.mark.parametrize("shape", [(7, 3, 10), (33, 20)])
def test_norm_of_a_sum(shape):
    D = shape[-1]
    x, more, shift, weight, bias = drawn(*shape), drawn(*shape), drawn(D), drawn(D), drawn(D)
    ours = norm.add_norm(x, more, shift, NormWeights(weight, bias, 1e-5), dtype=torch.float32)
    total = x + more + shift
    theirs = (total, F.layer_norm(total, (D,), weight, bias, 1e-5))
    assert_equal_forms(ours, theirs, [x, more, shift, weight, bias])


def test_norm_of_windows_that_are_views():
    x, more, shift, weight, bias = drawn(2, 9, 8), drawn(2, 3, 5, 8), drawn(8), drawn(8), drawn(8)
    rows = window_layout.unfold(x, 5, 2)
    ours = norm.add_norm(rows, more, shift, NormWeights(weight, bias, 1e-5), dtype=torch.float32)
    total = x.unfold(1, 5, 2).movedim(-1, 2) + more + shift
    theirs = total, F.layer_norm(total, (8,), weight, bias)
    assert_equal_forms(ours, theirs, [x, more, shift, weight, bias])


def test_what_passes_a_norm_meets_its_gradient():
    x, weight, bias = drawn(5, 8), drawn(8), drawn(8)
    ours = norm.norm_residual(x, NormWeights(weight, bias, 1e-5), dtype=torch.float32)
    theirs = x * 1, F.layer_norm(x, (8,), weight, bias)
    assert_equal_forms(ours, theirs, [x, weight, bias])


@pytest.mark.parametrize("rows", [3, 50])
def test_gelu_and_sum_with_their_bias(rows):
    h, x, weight, bias = drawn(rows, 7), drawn(rows, 150), drawn(150, 7), drawn(150)

    def y():
        return F.linear(h, weight) + bias

    assert_equal_forms(linear.linear_gelu(h, weight, bias), F.gelu(y()), [h, weight, bias])
    assert_equal_forms(linear.linear_add(x, h, weight, bias), x + y(), [x, h, weight, bias])
    valid = torch.rand(x.shape[:-1], device=DEVICE) > 0.5
    theirs = torch.where(valid[..., None], x + y(), 0.0)
    ours = linear.linear_add(x, h, weight, bias, valid=valid)
    assert_equal_forms(ours, theirs, [x, h, weight, bias])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_product_with_its_gelu(dtype):
    R, K, C = 70, 40, 100
    x, weight, bias = torch.randn(R, K), torch.randn(C, K) / 6, torch.randn(C)
    x, weight, bias = x.to(DEVICE, dtype), weight.to(DEVICE, dtype), bias.to(DEVICE)
    wide, out, back = (torch.empty(R, C, dtype=dtype, device=DEVICE) for _ in range(3))
    linear.matmul_gelu(x, weight, bias, hidden=wide, out=out)
    close = {"rtol": 2e-3, "atol": 2e-3} if dtype == torch.float16 else {}
    torch.testing.assert_close(wide.float(), x.float() @ weight.float().T, **close)
    y = (wide.float() + bias).requires_grad_()
    torch.testing.assert_close(out.float(), F.gelu(y).detach(), **close)
    pull = torch.randn(R, K, device=DEVICE).to(dtype)
    linear.matmul_gelu_backward(pull, weight.T.contiguous(), bias, hidden=wide, out=back)
    (slope,) = torch.autograd.grad(F.gelu(y), y, pull.float() @ weight.float().T)
    torch.testing.assert_close(back.float(), slope, **close)


def test_the_fast_gelu_is_the_gelu():
    h = torch.linspace(-8, 8, 4000, device=DEVICE).to(torch.float16).view(40, 100)
    bias = torch.zeros(100, device=DEVICE)
    found = linear.run_gelu_forward(h, bias, out=torch.empty_like(h))
    expected = F.gelu(h.double())
    assert ((found - expected).abs() <= 1e-6 + 2**-11 * expected.abs()).all()
    slope = torch.empty_like(h)
    linear.run_gelu_backward(h, bias, torch.ones_like(h), out=slope)
    x = h.double().requires_grad_()
    (expected,) = torch.autograd.grad(F.gelu(x).sum(), x)
    assert ((slope - expected).abs() <= 1e-6 + 2**-11 * expected.abs()).all()


def test_a_linear_map():
    x, weight, bias = drawn(3, 4, 5), drawn(6, 5), drawn(6)
    theirs = F.linear(x, weight, bias)
    assert_equal_forms(linear.linear(x, weight, bias), theirs, [x, weight, bias])


@pytest.mark.parametrize("stride", [2, 5])
def test_patches_of_samples(stride):
    x, weight, bias = drawn(2, 19, 3), drawn(8, 3, 4), drawn(8)
    ours, theirs = in_both_forms(lambda: layers.patch_linear(x, weight, bias, stride=stride))
    assert_equal_forms(ours, theirs, [x, weight, bias])


@pytest.mark.parametrize("masked", [False, True])
def test_the_rest_of_a_layer(masked):
    x, attended, valid = drawn(2, 5, 8), drawn(2, 5, 8), None
    out, out_bias = drawn(8, 8), drawn(8)
    ahead = FeedForwardWeights(
        NormWeights(drawn(8), drawn(8), 1e-5), drawn(32, 8), drawn(32), drawn(8, 32), drawn(8)
    )
    learnt = [*ahead.norm[:2], *ahead[1:]]
    if masked:
        valid = torch.rand(2, 5, device=DEVICE) > 0.4
        both = in_both_forms(lambda: layers.feed_forward(x, ahead, valid=valid))
        assert_equal_forms(*both, [x, *learnt])
        assert not both[0][~valid].any()
    else:
        both = in_both_forms(lambda: layers.attention_output(x, attended, out, out_bias, ahead))
        assert_equal_forms(*both, [x, attended, out, out_bias, *learnt])


def test_a_head():
    head, x = ProjectionHead(6, 8, 5).to(DEVICE), drawn(3, 4, 6)
    assert_equal_forms(*in_both_forms(lambda: head(x)), [x, *head.parameters()])


def test_mixture_of_a_gate():
    z, a, b, reset, logit = drawn(9, 3, 8), drawn(9, 3, 8), drawn(9, 3, 8), drawn(3, 8), drawn(3, 8)
    bias = drawn(1, 8)
    g = torch.sigmoid(z + bias)
    theirs = g * a + (1 - g) * b
    assert_equal_forms(gated_mix.gated_mix(z, bias, a, b), theirs, [z, bias, a, b])
    g = torch.sigmoid(z + logit)
    theirs = g * a + (1 - g) * reset
    ours = gated_mix.gated_mix(z, logit, a, reset)
    assert_equal_forms(ours, theirs, [z, logit, a, reset])


def test_the_token_gate():
    gate = TokenGate(8).to(DEVICE)
    for parameter in gate.parameters():
        torch.nn.init.normal_(parameter)
    a, b = drawn(3, 7, 8), drawn(3, 7, 8)
    assert_equal_forms(*in_both_forms(lambda: gate(a, b)), [a, b, *gate.parameters()])


def test_a_stream_may_have_no_rows_yet():
    x, weight, bias = torch.randn(1, 0, 5, device=DEVICE), drawn(6, 5), drawn(6)
    norm_weights = NormWeights(drawn(5), drawn(5), 1e-5)
    calls = {
        "linear": lambda: layers.linear(x, weight, bias),
        "gelu": lambda: layers.linear_gelu(x, weight, bias),
        "add": lambda: layers.linear_add(x.new_zeros(1, 0, 6), x, weight, bias),
        "norm": lambda: layers.layer_norm(x, norm_weights, dtype=torch.float32),
        "mix": lambda: layers.gated_mix(x, bias[None, :5], x, x),
    }
    for name, call in calls.items():
        with torch.no_grad():
            ours, theirs = in_both_forms(call)
        assert ours.shape == theirs.shape and ours.shape[1] == 0, name


@pytest.mark.parametrize("window, stride, windows", [(6, 3, 4), (8, 3, 3), (5, 5, 2), (4, 1, 3)])
@pytest.mark.parametrize("rest", [(), (2,), (2, 3)])
def test_windows_of_rows_have_the_gradient_of_torchs_unfold(window, stride, windows, rest):
    x = torch.randn(2, (windows - 1) * stride + window, *rest, dtype=torch.float64)
    x.requires_grad_()
    ours = layers.unfold(x, window, stride)
    theirs = x.unfold(1, window, stride).movedim(-1, 2)
    assert torch.equal(ours, theirs)
    d_windows = torch.randn_like(ours)
    gradients = [torch.autograd.grad(y, x, d_windows)[0] for y in (ours, theirs)]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-14)
