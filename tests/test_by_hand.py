"""What is written out by hand for a GPU, against the plain modules: values and gradients."""

import pytest
import torch
import torch.nn.functional as F
from kernel_setup import DEVICE, QUIET, assert_twins, drawn

import progmem
from progmem import kernels
from progmem.model.gates import TokenGate
from progmem.model.geometry import count_windows
from progmem.model.pma import Projected, lay_out
from progmem.model.recurrence import Seen, scan
from progmem.model.rotary import turned, turns

pytest.importorskip("triton")

from progmem.kernels import (
    lay,
    norm_rows,
)
from progmem.model.gate_by_hand import gated

pytestmark = QUIET


def test_the_token_gate_by_hand():
    gate = TokenGate(8).to(DEVICE)
    for parameter in gate.parameters():
        torch.nn.init.normal_(parameter)
    a, b = drawn(3, 7, 8), drawn(3, 7, 8)
    layer = norm_rows.Normed(gate.norm.weight, gate.norm.bias, gate.norm.eps)
    ours = gated(a, b, layer, gate.mix.weight, gate.mix.bias)
    with kernels.plain_torch():
        assert_twins(ours, gate(a, b), [a, b, *gate.parameters()])


@pytest.mark.parametrize(("slots", "gaps", "windows", "block"), [
    (2, False, "cover", 1), (2, True, "cover", 1), (2, False, "cover", 0), (5, False, "cover", 1),
    (1, False, "cover", 1), (1, False, "floor", 1),
])  # fmt: skip
def test_a_block_by_hand(slots, gaps, windows, block):
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
    layout = lay_out(cfg, valid, counts, N, gaps=gaps)
    gated = drawn(B, K, 12)
    below = drawn(B, N, slots, 12) if block else drawn(1, 1, slots, 12)
    ours, found = layer.attend_by_hand(layer.slots, gated, below, layout)
    with kernels.plain_torch():
        projected = Projected(gated, *layer.layer.project(gated, layer.segment))
        theirs, expected = layer.attend_windows(projected, below, layout)
    learnt = [*layer.slots.parameters(), *layer.layer.parameters(), layer.segment]
    there = layout.in_window if gaps else layout.windows[:, :, None].expand(-1, -1, 4)
    ours, theirs = (torch.where(there[..., None], x, 0.0) for x in (ours, theirs))
    assert_twins(
        (ours, found.memory, found.state), (theirs, expected.memory, expected.state),
        [gated, below, *learnt],
    )  # fmt: skip


def test_the_scan_by_hand_without_a_gradient(monkeypatch):
    cfg = progmem.ModelConfig(channels=1, window=4, stride=2, dim=12, heads=3, blocks=2, slots=2)
    block = progmem.PMT(cfg).blocks[1].to(DEVICE)
    B, N, n, H, D, d = 3, 4, 2, 3, 12, 4
    alive = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [0, 1, 1, 1]], device=DEVICE).bool()
    mask = torch.rand(B, N, 1, 1, 2 * n + 4, device=DEVICE) > 0.3
    mask[..., : 2 * n] = True
    parts = [(B, N, n, D), (B, N, H, n, d), (B, N, H, n + 4, d), (B, N, H, n + 4, d)]
    seen = Seen(*(torch.randn(*shape, device=DEVICE) for shape in parts), mask, alive)
    state = torch.randn(B, n, D, device=DEVICE)
    slots, layer = block.slots, block.layer
    with torch.no_grad():
        theirs = scan(slots.stepper(layer, slots.ready()), state, seen)
        monkeypatch.setattr(slots, "by_hand", lambda *_, keys: True)
        ours = slots.run(layer, state, seen, slots.ready())
    torch.testing.assert_close(tuple(ours), tuple(theirs), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("K", "reach"), [(10, 3), (2, 3), (9, 1)])
def test_the_encoder_by_hand(K, reach):
    cfg = progmem.ModelConfig(channels=1, window=reach, stride=1, dim=12, heads=3, blocks=1)
    encoder = progmem.PMT(cfg).encoder.to(DEVICE)
    tokens = drawn(3, K, 12)
    valid = torch.rand(3, K, device=DEVICE) > 0.3
    ours = encoder.run_by_hand(tokens, valid)
    with kernels.plain_torch():
        theirs = encoder(tokens, valid)
    assert_twins(ours, theirs, [tokens, *encoder.parameters()])


@pytest.mark.parametrize("before", [0, 3])
def test_laying_out_windows(before):
    B, K, H, d, W, S = 2, 8, 3, 4, 5, 3
    places = lay.Places(W, S, windows=3, before=before)
    x, below = drawn(B, K, 3, H, d), drawn(1, 1, 2, 3, H, d)
    turn = turns(torch.empty(W, d, device=DEVICE))
    padded = F.pad(x, (0, 0, 0, 0, 0, 0, before, 11 - K - before)) if before else x
    padded = F.pad(padded, (0, 0, 0, 0, 0, 0, 0, 11 - padded.shape[1]))
    rows = padded.unfold(1, W, S).movedim(-1, 2)  # (B, N, W, 3, H, d)
    q, k, v = (t.transpose(2, 3) for t in rows.unbind(3))
    expected = torch.stack([turned(q, turn), turned(k, turn), v], dim=4).transpose(2, 3)
    expected = expected.movedim(4, 3)
    made = lay.lay(x, below, *turn, places)
    torch.testing.assert_close(made[:, :, 2:], expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(made[:, :, :2], below.expand(B, 3, -1, -1, -1, -1))
    back = torch.randn_like(made)
    silent = 2 if before else 0
    weight = back[:, :, 2:].clone()
    weight[:, :, :silent, 0] = 0.0
    found = torch.empty_like(x)
    lay.gather(back, *turn, places, out=found, silent=silent)
    (expected,) = torch.autograd.grad(expected, x, weight)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
