"""The forward kernels for long windows, each against its plain twin. Interpreted without a GPU."""

import pytest
import torch
from kernel_setup import DEVICE, QUIET

import progmem
from progmem.model.attention import attend_plainly, merge_heads, split_heads
from progmem.model.recurrence import Seen, scan
from progmem.model.rotary import Turn, turned, turns

pytest.importorskip("triton")

from progmem.kernels import band, carry, rows
from progmem.kernels.norm_rows import Normed
from progmem.model.tape import weights_of

pytestmark = QUIET


@pytest.fixture(autouse=True)
def _no_gradient():
    with torch.no_grad():
        yield


def drawn(*shape):
    return torch.randn(shape, device=DEVICE)


def windows_of(x, window, stride):
    return x.unfold(1, window, stride).movedim(-1, 2)


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
    q, k, v = drawn(B, N, T, 3 * H * d).chunk(3, dim=-1)
    before = (drawn(B, N, first, H * d), drawn(B, N, first, H * d)) if first else None
    mask = torch.ones(T, T, dtype=torch.bool, device=DEVICE).tril()
    if reach is not None:
        mask = mask.triu(-reach)
    mask = torch.cat([mask.new_ones(T, first), mask], dim=1)
    as_heads = [split_heads(t, H) for t in (q, k, v)]
    heads_before = None if before is None else tuple(split_heads(t, H) for t in before)
    expected = attend_plainly(*as_heads, mask, first=heads_before, causal=False)
    found = band.attend(q, k, v, before, heads=H, reach=reach)
    torch.testing.assert_close(found, merge_heads(expected), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "shape", [(3, 3, 10, 4, 2, 3, 4), (2, 2, 70, 40, 1, 2, 6), (9, 2, 5, 5, 2, 1, 8)]
)
def test_the_scan_in_two_kernels_a_window(shape):
    B, N, W, S, n, H, d = shape
    D, K = H * d, (N - 1) * S + W
    cfg = progmem.ModelConfig(
        channels=1, dim=D, heads=H, blocks=2, slots=n, window=W, stride=S, encoder_layers=1
    )
    block = progmem.PMT(cfg).blocks[1].to(DEVICE)
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    slots, layer = block.slots, block.layer
    k, v, valid = drawn(B, K, D), drawn(B, K, D), torch.rand(B, K, device=DEVICE) > 0.3
    alive = torch.rand(B, N, device=DEVICE) > 0.3
    bar_k, bar_v = drawn(B, N, n, D), drawn(B, N, n, D)
    state, reset = slots.start(B), slots.ready()

    def heads(x):
        return split_heads(x, H)

    in_windows = heads(windows_of(k, W, S))
    there = torch.cat([alive.new_ones(B, N, 2 * n), windows_of(valid, W, S)], dim=2)
    seen = Seen(
        drawn(B, N, n, D), drawn(B, N, H, n, d),
        torch.cat([heads(bar_k), turned(in_windows, turns(in_windows))], dim=3),
        torch.cat([heads(bar_v), heads(windows_of(v, W, S))], dim=3),
        there[:, :, None, None], alive,
    )  # fmt: skip
    expected = scan(slots.stepper(layer, reset), state, seen)

    weights = weights_of(slots, layer, reset, slots.segments[0], torch.float32)
    turn = turns(heads(k))
    from_start = merge_heads(turned(heads(k), turn))
    given = carry.Seen(bar_k, bar_v, *(windows_of(t, W, S) for t in (from_start, v, valid)), *turn)
    found = carry.scan(
        weights, state, given, alive, heads=H, stride=S, eps=layer.norm.eps
    )  # fmt: skip
    torch.testing.assert_close(found.memory, expected.memory, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(heads(found.carry_v), expected.carry_v, rtol=1e-4, atol=1e-5)
    for w in range(N):
        back = Turn(turn.cos[w * S], -turn.sin[w * S])
        torch.testing.assert_close(
            turned(heads(found.carry_k[:, w]), back), expected.carry_k[:, w], rtol=1e-4, atol=1e-5
        )


def test_rows_are_normalised_and_added_where_they_lie():
    B, K, D, W, S = 2, 13, 12, 5, 4
    x, weight, bias, shift, segment = drawn(B, K, D), *drawn(4, D)
    layer = Normed(weight, bias, 1e-5)

    def normed(t):
        return torch.nn.functional.layer_norm(t, (D,), weight, bias, 1e-5)

    out = torch.zeros(B, K + 1, 2 * D, device=DEVICE)
    rows.norm(x[:, None], layer, out=out[:, 1:, D:], segment=segment)
    torch.testing.assert_close(out[:, 1:, D:], normed(x) + segment, rtol=1e-5, atol=1e-5)
    assert not out[:, 0].any() and not out[..., :D].any()

    view = windows_of(x, W, S)  # (B, 3, W, D)
    more = drawn(9, D)
    total, after = torch.empty_like(more), torch.empty_like(more)
    rows.add_norm(view, more, shift, layer, first=12, total=total, out=after)
    expected = view.flatten(0, 2)[12:21] + more + shift
    torch.testing.assert_close(total, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(after, normed(expected), rtol=1e-5, atol=1e-5)

    cast = torch.empty_like(more, dtype=torch.float16)
    rows.add(total, more, bias, out=after, cast=cast)
    torch.testing.assert_close(after, total + more + bias, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(cast, after.half())


def test_positions_are_turned_in_place_and_nothing_beside_them():
    B, T, H, d = 2, 11, 3, 6
    x = drawn(B, T, 3 * H * d)
    given, turn = x.clone(), turns(x[..., :d])
    rows.turn(x[..., : 2 * H * d], *turn, heads=2 * H)
    expected = merge_heads(turned(split_heads(given[..., : 2 * H * d], 2 * H), turn))
    torch.testing.assert_close(x[..., : 2 * H * d], expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(x[..., 2 * H * d :], given[..., 2 * H * d :])
