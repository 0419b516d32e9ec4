"""Sampled negatives: the plain path against what it means, the kernels against that."""

import pytest
import torch
import torch.nn.functional as F
from kernel_setup import DEVICE, QUIET, fused
from loss_setup import draws_for, make_embedded, run, setting

from progmem import ops
from progmem.losses.pairs import draw_negatives
from progmem.ops.sampled_contrast import Bank, negative_logsumexp

pytestmark = QUIET
CLOSE = 1e-5
BITS = 2**-13  # gradients: factors keep 16 bits (15 in the interpreter), and sums lose some
SHAPES = {  # B, T, P, M, D
    "tokens": (5, 9, 9, 20, 10),
    "slots of many sequences": (40, 4, 4, 50, 70),
    "all of the pool": (4, 7, 7, 999, 6),
    "all but a few": (7, 3, 3, 20, 8),
    "few negatives of many anchors": (3, 70, 12, 7, 24),
    "long stretches": (6, 5, 40, 130, 16),
    "one entry": (3, 1, 1, 1, 4),
}


def by_kernels(bank, temperature):
    with fused():
        return negative_logsumexp(bank, temperature)


def plainly(bank, temperature):
    with ops.use_backend("plain"):
        return negative_logsumexp(bank, temperature)


def unit(*shape, dtype=torch.float32):
    return F.normalize(torch.randn(shape, dtype=dtype), dim=-1).to(DEVICE).requires_grad_()


def made_bank(B, P, M, D, *, own=None, dtype=torch.float32, more=0):
    """A bank of two views; ``more`` entries a sequence that are not drawn."""
    overlap = torch.eye(B, dtype=torch.bool)
    overlap[0] = True  # the first sequence may meet nobody
    drawn = draw_negatives(overlap, P, count=M, generator=torch.Generator().manual_seed(1))
    drawn = drawn._replace(order=drawn.order // P * (P + more) + drawn.order % P)
    vectors = unit(2, B * (P + more), D, dtype=dtype)
    valid = torch.rand(2, B * (P + more)) > 0.2
    drawn = drawn._make(t.to(DEVICE) for t in drawn)
    return Bank(vectors, valid.to(DEVICE), drawn, own or slice(0, B))


def one_by_one(bank, anchors, temperature):
    """Entry by entry, as `Negatives` says."""
    b, P = bank.own.stop - bank.own.start, bank.negatives.entries
    negative_lse = torch.full(anchors.shape[:2], -float("inf"), dtype=anchors.dtype)
    negative_sim = torch.zeros_like(negative_lse)
    for q, own in enumerate(anchors):
        view, i = 1 - q // b, q % b + bank.own.start
        place = [(i * P + m) % len(bank.negatives.order) for m in range(bank.sample_size)]
        entry = [
            e
            for e, ok in zip(
                bank.negatives.order[place].tolist(), bank.negatives.mask[i], strict=True
            )
            if ok and bank.valid[view, e]
        ]
        if entry:
            cosine = own @ bank.vectors[view, entry].T
            negative_lse[q], negative_sim[q] = (
                (cosine / temperature).exp().sum(1).log(),
                cosine.mean(1),
            )
    return negative_lse, negative_sim


def assert_same(ours, theirs, inputs, *, bits=0.0, **tolerance):
    """Equal values, and equal gradients of a random weighting of those that are finite."""
    for found, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(found, expected, **tolerance)
    weight = torch.randn_like(theirs[0])
    pushes = [
        torch.where(negative_lse.isfinite(), negative_lse, 0.0)
        for negative_lse in (ours[0], theirs[0])
    ]
    found, expected = (torch.autograd.grad(negative_lse, inputs, weight) for negative_lse in pushes)
    for f, e in zip(found, expected, strict=True):
        assert (f - e).abs().max() <= max(bits, tolerance["atol"]) * e.abs().max()
    assert not ours[1].requires_grad


@pytest.mark.skipif(DEVICE == "cuda", reason="a loop on the host")
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_negatives_are_the_drawn_entries(shape):
    B, T, P, M, D = shape
    bank = made_bank(B, P, M, D, dtype=torch.float64, more=2)
    anchors = unit(2 * B, T, D, dtype=torch.float64)
    ours = negative_logsumexp(bank, 0.2)(anchors, slice(0, 2 * B))
    theirs = one_by_one(bank, anchors, 0.2)
    assert_same(ours, theirs, [anchors, bank.vectors], rtol=0, atol=1e-10)
    assert not ours[0][0].isfinite().any()


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_kernels_give_what_plain_torch_gives(shape):
    """Every other time with a temperature that lies on the device, and entries never drawn."""
    pointed = list(SHAPES.values()).index(shape) % 2 == 0
    pytest.importorskip("triton")
    B, T, P, M, D = shape
    bank = made_bank(B, P, M, D, more=pointed)
    temperature = torch.full((), 0.2, dtype=torch.float64, device=DEVICE) if pointed else 0.2
    anchors = unit(2 * B, T, D)
    ours, theirs = (
        way(bank, temperature)(anchors, slice(0, 2 * B)) for way in (by_kernels, plainly)
    )
    assert_same(ours, theirs, [anchors, bank.vectors], rtol=CLOSE, atol=CLOSE, bits=BITS)


@pytest.mark.parametrize("way", [by_kernels, plainly])
@pytest.mark.parametrize("own", [slice(0, 4), slice(2, 5), slice(5, 9)], ids=str)
def test_own_rows_in_pieces_are_parts_of_the_whole(own, way):
    """Of the global batch of a process, and of those the pieces that fit into memory."""
    pytest.importorskip("triton")
    whole = made_bank(9, 6, 30, 8)
    anchors = unit(18, 5, 8)
    both = anchors.unflatten(0, (2, 9))[:, own].flatten(0, 1)
    negative_lse, negative_sim = (
        t.unflatten(0, (2, 9))[:, own].flatten(0, 1)
        for t in plainly(whole, 0.5)(anchors, slice(0, 18))
    )
    score_negatives, b = way(whole._replace(own=own), 0.5), own.stop - own.start
    pieces = [slice(0, 1), slice(1, b + 2), slice(b + 2, 2 * b)]
    parts = [score_negatives(both[rows], rows) for rows in pieces]
    ours = [torch.cat(column) for column in zip(*parts, strict=True)]
    tolerance = {"rtol": CLOSE, "atol": CLOSE, "bits": BITS}
    assert_same(ours, (negative_lse, negative_sim), [anchors, whole.vectors], **tolerance)


def test_all_objectives_through_the_kernels():
    pytest.importorskip("triton")

    def leaf(t):
        if t is None or not t.is_floating_point():
            return t if t is None else t.to(DEVICE)
        return t.detach().float().to(DEVICE).requires_grad_()

    model = setting(6, 3)
    views = tuple(v._make(map(leaf, v)) for v in (make_embedded(model), make_embedded(model)))
    leaves = [t for v in views for t in (v.sequence, v.memory, v.tokens)]
    drawn = draws_for(views, overlap=torch.eye(len(leaves[0]), device=DEVICE).bool())
    results = []
    for backend in (fused(), ops.use_backend("plain")):
        with backend:
            loss, parts = run(views, drawn, model)
        results.append((loss, *torch.autograd.grad(loss, leaves), *parts.values()))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=CLOSE, atol=BITS * theirs.abs().max().item())
