"""Windows with their memory scan: fused forms against plain torch, values and gradients."""

import pytest
import torch
import torch.nn.functional as F
from kernel_setup import (
    DEVICE,
    QUIET,
    SLOW_INTERPRETED,
    assert_equal_forms,
    drawn,
    fused,
    in_both_forms,
)

import progmem
from progmem import ops
from progmem.geometry import count_windows, unfold_windows, window_masks
from progmem.ops.layers import Rotation, merge_heads, rotate, rotation, split_heads
from progmem.ops.window_attention import Below, memory_scan

pytest.importorskip("triton")

from progmem.ops.fused import long_scan, window_layout

pytestmark = QUIET


SLOW = SLOW_INTERPRETED  # what test_fused_model shows too


@pytest.mark.parametrize(("slots", "gaps", "windows", "block"), [
    pytest.param(5, False, "cover", 1, marks=SLOW), pytest.param(2, True, "cover", 1, marks=SLOW),
    pytest.param(2, False, "cover", 1, marks=SLOW),
    pytest.param(2, False, "cover", 0, marks=SLOW), pytest.param(1, False, "cover", 1, marks=SLOW),
    pytest.param(1, False, "floor", 1, marks=SLOW),
])  # fmt: skip
def test_a_block_of_short_windows(slots, gaps, windows, block, coarse):
    cfg = progmem.ModelConfig(
        channels=1, window=4, stride=3, dim=12, heads=3, blocks=2, slots=slots, windows=windows
    )
    model = progmem.PMT(cfg).to(DEVICE)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    layer = model.blocks[block]
    B, K = 3, 12
    counts = torch.tensor([12, 6, 9], device=DEVICE)
    valid = torch.arange(K, device=DEVICE) < counts[:, None]
    if gaps:
        valid &= torch.rand(B, K, device=DEVICE) > 0.3
    N = count_windows(cfg, K)
    masks = window_masks(cfg, valid, counts, N, gaps=gaps)
    tokens = drawn(B, K, 12)
    below = drawn(B, N, slots, 12) if block else drawn(1, 1, slots, 12)
    there = masks.in_window if gaps else masks.windows[:, :, None].expand(-1, -1, 4)
    ours, theirs = in_both_forms(lambda: windows_of(layer, tokens, below, masks, there))
    learnt = [*layer.slots.parameters(), *layer.layer.parameters(), layer.segment]
    assert_equal_forms(ours, theirs, [tokens, below, *learnt])


def windows_of(block, rows, below, masks, there):
    """W^out where a window is ``there``, and the memory, from gated tokens ``rows``."""
    rows, qkv = block.layer.project(rows, block.segment)
    weights = block.slots.scan_weights(block.layer)
    known = block.slots.gate_below(block.layer, weights, below)
    attended, memory = ops.window_attention.window_attention(
        qkv, block.slots.reset_state(), known, weights, masks, cfg=block.cfg, training=False
    )
    windows = unfold_windows(rows, block.cfg, masks.windows.shape[1])
    out = block.layer.attention_output_windows(windows, attended)
    return torch.where(there[..., None], out, 0.0), memory


def made_scan(window, stride, slots, heads, width):
    """A block to scan with, all weights drawn."""
    cfg = progmem.ModelConfig(
        channels=1, dim=heads * width, heads=heads, blocks=2, slots=slots, window=window,
        stride=stride, encoder_layers=1,
    )  # fmt: skip
    block = progmem.PMT(cfg).blocks[1].to(DEVICE)
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return block, cfg


@torch.no_grad()
def test_the_scan_without_a_gradient():
    block, cfg = made_scan(4, 2, 2, 3, 4)
    B, N, n, H, W, D, d = 3, 4, 2, 3, 4, 12, 4
    nonempty = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [0, 1, 1, 1]], device=DEVICE).bool()
    valid = torch.rand(B, N, W, device=DEVICE) > 0.3
    k, v = torch.randn(2, B, N, H, W, d, device=DEVICE)
    below = Below(*(torch.randn(B, N, n, m * D, device=DEVICE) for m in (1, 3)))
    state = torch.randn(B, n, D, device=DEVICE)
    weights = block.slots.scan_weights(block.layer)
    settings = {"valid": valid, "nonempty": nonempty, "cfg": cfg, "training": False}
    ours, theirs = in_both_forms(lambda: memory_scan(state, below, weights, k, v, **settings))
    torch.testing.assert_close(tuple(ours), tuple(theirs), rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize(
    "shape", [(3, 3, 10, 4, 2, 3, 4), (2, 2, 70, 40, 1, 2, 6), (9, 2, 5, 5, 2, 1, 8)]
)
def test_the_scan_of_long_windows(shape):
    B, N, W, S, n, H, d = shape
    D, K = H * d, (N - 1) * S + W
    block, cfg = made_scan(W, S, n, H, d)
    k, v = torch.randn(2, B, K, D, device=DEVICE)
    valid, nonempty = torch.rand(B, K, device=DEVICE) > 0.3, torch.rand(B, N, device=DEVICE) > 0.3
    below = Below(*(torch.randn(B, N, n, m * D, device=DEVICE) for m in (1, 3)))
    state, weights = block.slots.initial_memory(B), block.slots.scan_weights(block.layer)
    heads = split_heads(unfold_windows(k, cfg, N), H)
    values = split_heads(unfold_windows(v, cfg, N), H)
    in_window = unfold_windows(valid, cfg, N)
    with ops.use_backend("plain"):
        expected = memory_scan(
            state, below, weights, rotate(heads, rotation(heads)), values,
            valid=in_window, nonempty=nonempty, cfg=cfg, training=False,
        )  # fmt: skip

    place = rotation(split_heads(k, H))
    from_start = merge_heads(rotate(split_heads(k, H), place))
    _, below_k, below_v = below.qkv.chunk(3, dim=-1)
    views = (unfold_windows(t, cfg, N) for t in (from_start, v))
    visible = long_scan.SlotKeys(below_k, below_v, *views, in_window, *place)
    found = long_scan.scan(weights.cast_products(), state, visible, nonempty, heads=H, stride=S)
    torch.testing.assert_close(found.memory, expected.memory, rtol=1e-4, atol=1e-5)
    own_v = split_heads(found.carry_v, H)
    torch.testing.assert_close(own_v, expected.carry_v, rtol=1e-4, atol=1e-5)
    for w in range(N):
        back = Rotation(place.cos[w * S], -place.sin[w * S])
        own_k = rotate(split_heads(found.carry_k[:, w], H), back)
        torch.testing.assert_close(own_k, expected.carry_k[:, w], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("before", [0, 3])
def test_laying_out_windows(before):
    B, K, H, d, W, S = 2, 8, 3, 4, 5, 3
    geometry = window_layout.WindowGeometry(W, S, windows=3, pad_left=before)
    x, below = drawn(B, K, 3, H, d), drawn(1, 1, 2, 3, H, d)
    rope = rotation(torch.empty(W, d, device=DEVICE))
    padded = F.pad(x, (0, 0, 0, 0, 0, 0, before, 11 - K - before)) if before else x
    padded = F.pad(padded, (0, 0, 0, 0, 0, 0, 0, 11 - padded.shape[1]))
    rows = padded.unfold(1, W, S).movedim(-1, 2)  # (B, N, W, 3, H, d)
    q, k, v = (t.transpose(2, 3) for t in rows.unbind(3))
    expected = torch.stack([rotate(q, rope), rotate(k, rope), v], dim=4).transpose(2, 3)
    expected = expected.movedim(4, 3)
    made = window_layout.unfold_rotate(x, below, *rope, geometry)
    torch.testing.assert_close(made[:, :, 2:], expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(made[:, :, :2], below.expand(B, 3, -1, -1, -1, -1))
    back = torch.randn_like(made)
    silent = 2 if before else 0
    weight = back[:, :, 2:].clone()
    weight[:, :, :silent, 0] = 0.0
    found = torch.empty_like(x)
    window_layout.unfold_rotate_backward(back, *rope, geometry, out=found, key_only=silent)
    (expected,) = torch.autograd.grad(expected, x, weight)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("window, stride", [(6, 3), (8, 3), (4, 4)])
def test_windows_and_back(window, stride):
    cfg = progmem.ModelConfig(channels=1, window=window, stride=stride)
    x = drawn(2, 3 * stride + window, 5)
    assert_equal_forms(*in_both_forms(lambda: unfold_windows(x, cfg, 4)), [x])
    with fused():
        assert "_Unfold" in type(unfold_windows(x, cfg, 4).grad_fn).__name__
