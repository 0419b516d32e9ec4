"""Prediction of hidden samples: a loop from the formula, a closed form, a value by hand."""

import torch

from progmem.losses.predict import squared_errors


def test_it_is_the_formula():
    torch.manual_seed(1)
    B, K, C, P, stride = 3, 5, 2, 4, 3
    L = P + stride * (K - 1) + 1  # one sample is in no patch
    decoded = torch.randn(B, K, C, P, dtype=torch.float64)
    x = torch.randn(B, L, C, dtype=torch.float64)
    hidden, valid = torch.rand(B, L, C) < 0.4, torch.rand(B, K) < 0.8
    total, count = squared_errors(decoded, x, hidden=hidden, valid=valid, stride=stride)
    for i in range(B):
        expected, number = 0.0, 0
        for k in range(K):
            for s in range(P):
                for c in range(C):
                    sample = k * stride + s
                    if valid[i, k] and hidden[i, sample, c]:
                        expected += (decoded[i, k, c, s] - x[i, sample, c]) ** 2
                        number += 1
        torch.testing.assert_close(total[i], torch.as_tensor(expected), rtol=1e-12, atol=0)
        assert count[i] == number


def test_a_value_by_hand():
    """Patches of two samples, one apart; the second of three samples is hidden: two tokens see it,
    one says 1 and the other 4 where 2 is right."""
    x = torch.tensor([[[5.0], [2.0], [7.0]]])
    hidden = torch.tensor([[[False], [True], [False]]])
    decoded = torch.tensor([[[[9.0, 1.0]], [[4.0, 9.0]]]])  # (1, 2, 1, 2)
    given = {"hidden": hidden, "stride": 1}
    total, count = squared_errors(decoded, x, valid=torch.tensor([[True, True]]), **given)
    assert total.tolist() == [1.0 + 4.0] and count.tolist() == [2.0]
    total, count = squared_errors(decoded, x, valid=torch.tensor([[False, True]]), **given)
    assert total.tolist() == [4.0] and count.tolist() == [1.0]


def test_the_best_constant_is_the_mean_and_its_error_the_variance():
    x = torch.randn(2, 30, 1, dtype=torch.float64)
    hidden = torch.ones_like(x, dtype=torch.bool)
    constant = x.mean().clone().requires_grad_()
    decoded = constant.expand(2, 30, 1, 1)
    valid = torch.ones(2, 30, dtype=torch.bool)
    total, count = squared_errors(decoded, x, hidden=hidden, valid=valid, stride=1)
    mean = total.sum() / count.sum()
    torch.testing.assert_close(mean, x.var(unbiased=False))
    assert torch.autograd.grad(mean, constant)[0].abs() < 1e-14


def test_where_nothing_is_hidden_there_is_no_error_and_no_gradient():
    decoded = torch.randn(2, 4, 1, 3, requires_grad=True)
    x = torch.randn(2, 6, 1)
    nothing = torch.zeros_like(x, dtype=torch.bool)
    valid = torch.ones(2, 4, dtype=torch.bool)
    total, count = squared_errors(decoded, x, hidden=nothing, valid=valid, stride=1)
    assert not total.any() and not count.any()
    assert not torch.autograd.grad(total.sum(), decoded)[0].any()
