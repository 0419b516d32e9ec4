"""Attention over few keys: the fused form against torch's, values and gradients."""

import pytest
import torch
from kernel_setup import DEVICE, QUIET, assert_equal_forms, drawn, in_both_forms

from progmem.ops.layers import attend

pytest.importorskip("triton")

from progmem.ops.fused import short_attention, slot_attention

pytestmark = QUIET


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
    both = in_both_forms(lambda: attend(q, k, v, mask, first=before, causal=causal))
    assert_equal_forms(*both, [q, k, v, *(before or ())])


def test_attention_of_series_without_windows():
    q, k, v, first = drawn(3, 2, 4, 6), drawn(3, 2, 5, 6), drawn(3, 2, 5, 6), drawn(3, 2, 1, 6)
    mask = torch.rand(3, 1, 1, 6, device=DEVICE) > 0.4
    mask[..., 0] = True
    both = in_both_forms(lambda: attend(q, k, v, mask, first=(first, first)))
    assert_equal_forms(*both, [q, k, v, first])


def test_attention_takes_windows_as_views_of_their_tokens():
    tokens = drawn(2, 12, 3 * 8)
    q, k, v = (
        t.unfold(1, 4, 2).movedim(-1, 2).unflatten(-1, (2, 4)).transpose(2, 3)
        for t in tokens.chunk(3, dim=-1)
    )  # (B, N, H, W, d), windows overlap
    assert_equal_forms(*in_both_forms(lambda: attend(q, k, v, causal=True)), [tokens])


def test_which_attention_is_of_few_keys():
    supports_sizes = short_attention.supports_sizes
    assert supports_sizes(6, 8, 40) and not supports_sizes(6, 65, 40)
    assert not supports_sizes(65, 8, 40) and not supports_sizes(6, 8, 130)


def test_attention_of_very_many_series_can_be_launched():
    x = torch.empty(8).expand(2**17, 1, 2, 2, 8)
    mask = torch.ones(1, dtype=torch.bool).expand(2**17, 1, 2, 4)
    given = short_attention.Inputs(x, x, x, x, x, mask)
    for grid in (short_attention._grid(given, {"G": 1}), slot_attention._grid(given)):
        assert all(size < 2**16 for size in grid[1:])  # CUDA's bound, but for the first axis
