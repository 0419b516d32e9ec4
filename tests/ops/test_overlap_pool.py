"""The overlap pool: its fused form against plain torch, values and gradients."""

import pytest
import torch
from kernel_setup import DEVICE, QUIET, assert_equal_forms, drawn, fused, in_both_forms

import progmem
from progmem.geometry import count_windows, window_masks
from progmem.model.block import OverlapAggregator

pytest.importorskip("triton")

from progmem.ops.fused import overlap_means, overlap_pool

pytestmark = QUIET


@pytest.mark.parametrize("window, stride, tokens", [(6, 3, 13), (8, 3, 20), (5, 2, 4), (3, 1, 9)])
def test_overlap_aggregator(window, stride, tokens, request):
    if tokens != 9:  # of one case every tile, of the others fewer and larger ones
        request.getfixturevalue("coarse")
    cfg = progmem.ModelConfig(
        channels=1, window=window, stride=stride, dim=12, heads=3, blocks=1, slots=0
    )
    aggregator = OverlapAggregator(cfg).to(DEVICE)
    for parameter in aggregator.parameters():
        torch.nn.init.normal_(parameter)
    counts = torch.tensor([tokens, max(1, tokens - 3)], device=DEVICE)  # unequal lengths
    valid = torch.arange(tokens, device=DEVICE) < counts[:, None]
    N = count_windows(cfg, tokens)
    exists = window_masks(cfg, valid, counts, N, gaps=False).copies
    rows = drawn(2, N, window, 12)
    some = exists.any(2)[..., None]  # a token without copies has a row that means nothing
    both = in_both_forms(lambda: aggregator(rows, exists) * some)
    assert_equal_forms(*both, [rows, *aggregator.parameters()])


def test_the_cast_of_a_pool_hands_its_gradient_back():
    rows, taps = drawn(2, 3, 4, 8), drawn(3, 8)
    exists = torch.ones(2, 10, 2, dtype=torch.bool, device=DEVICE)
    made = overlap_means.copy_means(rows, exists, taps, stride=3, dtype=torch.bfloat16)
    skip, mixed, cast = made
    assert cast.dtype == mixed.dtype == torch.bfloat16
    torch.testing.assert_close(cast.float(), rows.detach(), rtol=2**-7, atol=0)
    (apart,) = torch.autograd.grad(skip.sum(), rows, retain_graph=True)
    (both,) = torch.autograd.grad([skip.sum(), cast.float().sum()], rows)
    torch.testing.assert_close(both, apart + 1)


def test_the_pool_keeps_nothing_without_a_gradient(monkeypatch):
    kept, kernel = [], overlap_pool._attend_copies_forward

    class Watched:
        def __getitem__(self, grid):
            def run(*given, KEEP, **sizes):
                kept.append(KEEP)
                kernel[grid](*given, KEEP=KEEP, **sizes)

            return run

    monkeypatch.setattr(overlap_pool, "_attend_copies_forward", Watched())
    cfg = progmem.ModelConfig(channels=1, dim=8, heads=2, blocks=1, window=4, stride=2, slots=1)
    pool = OverlapAggregator(cfg).to(DEVICE)
    rows, exists = drawn(1, 2, 4, 8), torch.ones(1, 6, 2, dtype=torch.bool, device=DEVICE)
    with fused():
        with_gradient = pool(rows, exists)
        with torch.no_grad():
            torch.testing.assert_close(pool(rows, exists), with_gradient)
    assert kept == [True, False]
