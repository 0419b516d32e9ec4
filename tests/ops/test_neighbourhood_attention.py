"""Band and CLS: fused forms against plain torch, values and gradients."""

import pytest
import torch
from kernel_setup import DEVICE, QUIET, assert_equal_forms, drawn, in_both_forms

import progmem
from progmem.ops.layers import attend, merge_heads, rotate, rotation, split_heads

pytest.importorskip("triton")

from progmem.ops.fused import long_attention

pytestmark = QUIET


@pytest.mark.parametrize(("K", "reach"), [(10, 3), (2, 3), (9, 1)])
def test_the_encoder(K, reach, coarse):
    cfg = progmem.ModelConfig(channels=1, window=reach, stride=1, dim=12, heads=3, blocks=1)
    encoder = progmem.PMT(cfg).encoder.to(DEVICE)
    tokens = drawn(3, K, 12)
    valid = torch.rand(3, K, device=DEVICE) > 0.3
    both = in_both_forms(lambda: encoder(tokens, valid))
    assert_equal_forms(*both, [tokens, *encoder.parameters()])


@torch.no_grad()
@pytest.mark.parametrize(
    ("shape", "reach"),
    [
        ((2, 2, 150, 1, 2, 6), None),
        ((1, 1, 300, 0, 1, 20), 40),
        ((1, 1, 300, 0, 1, 6), 130),
        ((2, 1, 5, 2, 3, 4), None),
        ((1, 1, 140, 2, 1, 4), 1),
        ((1, 1, 70, 0, 1, 4), 500),
    ],
)
def test_a_band_sees_the_rows_within_reach_and_the_first_keys(shape, reach):
    B, N, T, first, H, d = shape
    q, k, v = torch.randn(B, N, T, 3 * H * d, device=DEVICE).chunk(3, dim=-1)
    before = tuple(torch.randn(2, B, N, first, H * d, device=DEVICE)) if first else None
    mask = torch.ones(T, T, dtype=torch.bool, device=DEVICE).tril()
    if reach is not None:
        mask = mask.triu(-reach)
    mask = torch.cat([mask.new_ones(T, first), mask], dim=1)
    as_heads = [split_heads(t, H) for t in (q, k, v)]
    heads_before = None if before is None else tuple(split_heads(t, H) for t in before)
    expected = attend(*as_heads, mask, first=heads_before)
    found = long_attention.attend(q, k, v, before, heads=H, reach=reach)
    torch.testing.assert_close(found, merge_heads(expected), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_positions_are_turned_in_place_and_nothing_beside_them():
    B, T, H, d = 2, 11, 3, 6
    x = torch.randn(B, T, 3 * H * d, device=DEVICE)
    given = x.clone()
    place = long_attention.rotate_rows(x, heads=H)
    expected = merge_heads(rotate(split_heads(given[..., : 2 * H * d], 2 * H), place))
    torch.testing.assert_close(x[..., : 2 * H * d], expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(x[..., 2 * H * d :], given[..., 2 * H * d :])
    assert torch.equal(place.cos, rotation(given[..., :d]).cos)
