"""Each kernel against its plain twin: values and gradients. Interpreted where there is no GPU."""

import inspect

import pytest
import torch
import torch.nn.functional as F
from kernel_setup import DEVICE, QUIET, assert_twins, drawn

import progmem
from progmem import kernels
from progmem.losses.heads import Head
from progmem.model.aggregator import OverlapAggregator
from progmem.model.attention import attend_plainly
from progmem.model.geometry import align_copies, count_windows, unfold_windows
from progmem.model.pma import lay_out
from progmem.model.rotary import Turn, turned

pytest.importorskip("triton")

from progmem.kernels import (
    attend,
    biased,
    few_keys,
    few_queries,
    lay,
    mix,
    norm,
    overlap_backward,
    overlap_means,
    overlap_pool,
    turn,
    unit,
    widen,
    windows,
)

pytestmark = QUIET


def phases(rows, width):
    phase = 6 * torch.rand(rows, width // 2, device=DEVICE)
    return Turn(phase.cos(), phase.sin())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    "shape", [(2, 3, 3, 6, 2, 6, 10), (2, 1, 2, 1, 1, 9, 4), (1, 2, 4, 2, 0, 5, 8)]
)
def test_attention_over_few_keys(shape, masked, causal):
    B, N, H, T, first, J, d = shape
    q = drawn(B, N, T, H, d).transpose(2, 3)  # heads as a projection leaves them
    k, v = drawn(B, N, H, J, d), drawn(B, N, H, J, d)
    before = (drawn(B, N, H, first, d), drawn(B, N, H, first, d)) if first else None
    mask = None
    if masked:
        mask = torch.rand(B, N, 1, T, first + J, device=DEVICE) > 0.4
        mask[..., 0] = True  # no row is empty
    ours = attend.attend(q, before, k, v, None if mask is None else mask.squeeze(2), causal=causal)
    theirs = attend_plainly(q, k, v, mask, first=before, causal=causal)
    assert_twins(ours, theirs, [q, k, v, *(before or ())])


def test_attention_takes_windows_as_views_of_their_tokens():
    tokens = drawn(2, 12, 3 * 8)
    q, k, v = (
        t.unfold(1, 4, 2).movedim(-1, 2).unflatten(-1, (2, 4)).transpose(2, 3)
        for t in tokens.chunk(3, dim=-1)
    )  # (B, N, H, W, d), windows overlap
    ours = attend.attend(q, None, k, v, None, causal=True)
    assert_twins(ours, attend_plainly(q, k, v, None, first=None, causal=True), [tokens])


def test_which_attention_is_of_few_keys():
    assert few_keys.takes(6, 8, 40) and not few_keys.takes(6, 65, 40)
    assert not few_keys.takes(65, 8, 40) and not few_keys.takes(6, 8, 130)


def test_attention_of_very_many_series_can_be_launched():
    x = torch.empty(8).expand(2**17, 1, 2, 2, 8)
    mask = torch.ones(1, dtype=torch.bool).expand(2**17, 1, 2, 4)
    given = few_keys.Given(x, x, x, x, x, mask)
    for grid in (few_keys._grid(given, {"G": 1}), few_queries._grid(given)):
        assert all(size < 2**16 for size in grid[1:])  # CUDA's bound, but for the first axis


def test_a_device_that_is_not_the_current_one_is_left_to_torch(monkeypatch):
    class There:
        is_cuda, dtype = True, torch.float32

        def get_device(self):
            return 1

    monkeypatch.setattr(kernels, "works", lambda _: True)
    for current in (0, 1):
        monkeypatch.setattr(torch.cuda, "current_device", lambda current=current: current)
        assert kernels.fit(There()) == (current == 1)


@pytest.mark.parametrize("segmented", [False, True])
@pytest.mark.parametrize("shape", [(7, 3, 10), (33, 20), (1, 1, 5)])
def test_norm(shape, segmented):
    D = shape[-1]
    x, weight, bias, segment = drawn(*shape), drawn(D), drawn(D), drawn(D)
    more = segment if segmented else None
    ours = norm.norm(x, weight, bias, eps=1e-5, segment=more, dtype=torch.float32)
    theirs = F.layer_norm(x, (D,), weight, bias, 1e-5)
    theirs = theirs + segment if segmented else theirs
    assert_twins(ours, theirs, [x, weight, bias, *([segment] if segmented else [])])


@pytest.mark.parametrize("shape", [(7, 3, 10), (33, 20)])
def test_norm_of_a_sum(shape):
    D = shape[-1]
    x, more, shift, weight, bias = drawn(*shape), drawn(*shape), drawn(D), drawn(D), drawn(D)
    ours = norm.add_norm(x, more, shift, weight, bias, eps=1e-5, dtype=torch.float32)
    total = x + more + shift
    theirs = (total, F.layer_norm(total, (D,), weight, bias, 1e-5))
    assert_twins(ours, theirs, [x, more, shift, weight, bias])


@pytest.mark.parametrize("rows", [3, 50])
def test_gelu_and_sum_with_their_bias(rows):
    h, x, bias = drawn(rows, 150), drawn(rows, 150), drawn(150)
    assert_twins(biased.gelu(h, bias), F.gelu(h + bias), [h, bias])
    assert_twins(biased.add(x, h, bias), x + h + bias, [x, h, bias])
    valid = torch.rand(x.shape[:-1], device=DEVICE) > 0.5
    theirs = torch.where(valid[..., None], x + h + bias, 0.0)
    assert_twins(biased.add(x, h, bias, valid), theirs, [x, h, bias])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_product_with_its_gelu(dtype):
    R, K, C = 70, 40, 100
    x, weight, bias = torch.randn(R, K), torch.randn(C, K) / 6, torch.randn(C)
    x, weight, bias = x.to(DEVICE, dtype), weight.to(DEVICE, dtype), bias.to(DEVICE)
    wide, out, back = (torch.empty(R, C, dtype=dtype, device=DEVICE) for _ in range(3))
    widen.gelu_of_product(x, weight, bias, wide=wide, out=out)
    close = {"rtol": 2e-3, "atol": 2e-3} if dtype == torch.float16 else {}
    torch.testing.assert_close(wide.float(), x.float() @ weight.float().T, **close)
    y = (wide.float() + bias).requires_grad_()
    torch.testing.assert_close(out.float(), F.gelu(y).detach(), **close)
    pull = torch.randn(R, K, device=DEVICE).to(dtype)
    widen.gelu_backward_of_product(pull, weight.T.contiguous(), bias, wide=wide, out=back)
    (slope,) = torch.autograd.grad(F.gelu(y), y, pull.float() @ weight.float().T)
    torch.testing.assert_close(back.float(), slope, **close)


def test_what_passes_a_norm_meets_its_gradient():
    x, weight, bias = drawn(5, 8), drawn(8), drawn(8)
    ours = norm.through(x, weight, bias, eps=1e-5, segment=None, dtype=torch.float32)
    theirs = x * 1, F.layer_norm(x, (8,), weight, bias)
    assert_twins(ours, theirs, [x, weight, bias])


def test_a_head(monkeypatch):
    head, x = Head(6, 8, 5).to(DEVICE), drawn(3, 4, 6)
    with kernels.plain_torch():
        theirs = head(x)
    monkeypatch.setattr(kernels, "fit", lambda _: True)
    assert_twins(head(x), theirs, [x, *head.parameters()])


def test_norm_of_windows_that_are_views():
    x, more, shift, weight, bias = drawn(2, 9, 8), drawn(2, 3, 5, 8), drawn(8), drawn(8), drawn(8)
    rows = windows.unfold(x, 5, 2)
    ours = norm.add_norm(rows, more, shift, weight, bias, eps=1e-5, dtype=torch.float32)
    total = x.unfold(1, 5, 2).movedim(-1, 2) + more + shift
    theirs = total, F.layer_norm(total, (8,), weight, bias)
    assert_twins(ours, theirs, [x, more, shift, weight, bias])


def test_rows_of_length_one():
    x = drawn(3, 5, 12)
    assert_twins(unit.unit(x), F.normalize(x, dim=-1), [x])
    zero = torch.zeros(2, 12, device=DEVICE, requires_grad=True)
    assert_twins(unit.unit(zero), F.normalize(zero, dim=-1), [zero])


def test_the_fast_gelu_is_the_gelu():
    h = torch.linspace(-8, 8, 4000, device=DEVICE).to(torch.float16).view(40, 100)
    bias = torch.zeros(100, device=DEVICE)
    found = biased.run_gelu_forward(h, bias, out=torch.empty_like(h))
    expected = F.gelu(h.double())
    assert ((found - expected).abs() <= 1e-6 + 2**-11 * expected.abs()).all()
    slope = torch.empty_like(h)
    biased.run_gelu_backward(h, bias, torch.ones_like(h), out=slope)
    x = h.double().requires_grad_()
    (expected,) = torch.autograd.grad(F.gelu(x).sum(), x)
    assert ((slope - expected).abs() <= 1e-6 + 2**-11 * expected.abs()).all()


def test_a_linear_map():
    x, weight, bias = drawn(3, 4, 5), drawn(6, 5), drawn(6)
    assert_twins(biased.linear(x, weight, bias), F.linear(x, weight, bias), [x, weight, bias])


def test_the_cast_of_an_aggregator_hands_its_gradient_back():
    rows, taps = drawn(2, 3, 4, 8), drawn(3, 8)
    exists = torch.ones(2, 10, 2, dtype=torch.bool, device=DEVICE)
    made = overlap_means.means(rows, exists, taps, stride=3, dtype=torch.bfloat16, cast=True)
    skip, mixed, cast = made
    assert cast.dtype == mixed.dtype == torch.bfloat16
    torch.testing.assert_close(cast.float(), rows.detach(), rtol=2**-7, atol=0)
    (apart,) = torch.autograd.grad(skip.sum(), rows, retain_graph=True)
    (both,) = torch.autograd.grad([skip.sum(), cast.float().sum()], rows)
    torch.testing.assert_close(both, apart + 1)


def test_mixture_of_a_gate():
    z, a, b, reset, logit = drawn(9, 3, 8), drawn(9, 3, 8), drawn(9, 3, 8), drawn(3, 8), drawn(3, 8)
    bias = drawn(1, 8)
    g = torch.sigmoid(z + bias)
    assert_twins(mix.mixed(z, bias, a, b), g * a + (1 - g) * b, [z, bias, a, b])
    g = torch.sigmoid(z + logit)
    theirs = g * a + (1 - g) * reset
    assert_twins(mix.mixed(z, logit, a, reset), theirs, [z, logit, a, reset])


@pytest.mark.parametrize("window, stride", [(6, 3), (8, 3), (4, 4)])
def test_windows_and_back(window, stride):
    cfg = progmem.ModelConfig(channels=1, window=window, stride=stride)
    x = drawn(2, 3 * stride + window, 5)
    assert_twins(windows.unfold(x, window, stride), unfold_windows(x, cfg, 4), [x])


def test_turning():
    x, phase = drawn(2, 3, 5, 2, 6).transpose(2, 3), phases(5, 6)
    assert_twins(turn.turned(x, *phase), turned(x.contiguous(), phase), [x])


@pytest.mark.parametrize("window, stride, tokens", [(6, 3, 13), (8, 3, 20), (5, 2, 4), (3, 1, 9)])
def test_overlap_aggregator(window, stride, tokens):
    cfg = progmem.ModelConfig(
        channels=1, window=window, stride=stride, dim=12, heads=3, blocks=1, slots=0
    )
    aggregator = OverlapAggregator(cfg).to(DEVICE)
    for parameter in aggregator.parameters():
        torch.nn.init.normal_(parameter)
    counts = torch.tensor([tokens, max(1, tokens - 3)], device=DEVICE)  # unequal lengths
    valid = torch.arange(tokens, device=DEVICE) < counts[:, None]
    N = count_windows(cfg, tokens)
    exists = lay_out(cfg, valid, counts, N, gaps=False).copies
    rows = drawn(2, N, window, 12)
    ours = aggregator.by_kernels(rows, exists)
    theirs = aggregator.of_copies(align_copies(rows, cfg, tokens), exists)
    some = exists.any(2)[..., None]  # a token without copies has a row that means nothing
    ours, theirs = ours * some, theirs * some
    assert_twins(ours, theirs, [rows, *aggregator.parameters()])


def test_the_aggregator_keeps_nothing_without_a_gradient(monkeypatch):
    kept, kernel = [], overlap_pool._attended_forward

    class Watched:
        def __getitem__(self, grid):
            def run(*given, KEEP, **sizes):
                kept.append(KEEP)
                kernel[grid](*given, KEEP=KEEP, **sizes)

            return run

    monkeypatch.setattr(overlap_pool, "_attended_forward", Watched())
    cfg = progmem.ModelConfig(channels=1, dim=8, heads=2, blocks=1, window=4, stride=2, slots=1)
    pool = OverlapAggregator(cfg).to(DEVICE)
    rows, exists = drawn(1, 2, 4, 8), torch.ones(1, 6, 2, dtype=torch.bool, device=DEVICE)
    with_gradient = pool.by_kernels(rows, exists)
    with torch.no_grad():
        torch.testing.assert_close(pool.by_kernels(rows, exists), with_gradient)
    assert kept == [True, False]


def test_where_no_kernel_can_be_made_torch_takes_over_with_a_warning(monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("Failed to find C compiler.\nPlease specify it.")

    kernels.works.cache_clear()
    assert kernels.works(DEVICE)
    kernels.works.cache_clear()
    monkeypatch.setattr(norm, "norm", broken)
    with pytest.warns(UserWarning, match=r"no kernels can be made here.*find C compiler\.$"):
        assert not kernels.works(DEVICE)
    assert not kernels.works(DEVICE)  # said once
    kernels.works.cache_clear()


@pytest.mark.parametrize("module", [lay, overlap_backward, overlap_means, overlap_pool, windows])
def test_no_kernel_is_made_anew_for_another_length(module):
    found = [f for f in vars(module).values() if type(f) is type(lay._lay)]
    assert found
    for kernel in found:
        sizes = inspect.signature(kernel.function.fn).parameters
        for name in {"B", "K", "N", "R", "total"} & set(sizes):
            assert sizes[name].annotation is inspect.Parameter.empty, (kernel.function, name)
