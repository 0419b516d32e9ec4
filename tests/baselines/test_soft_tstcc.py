"""SoftCLT on TS-TCC: the soft contrasts of its blocks against loops, and what they add."""

import math

import pytest
import torch

from progmem.baselines import make_encoder, tstcc
from progmem.baselines.cnn_task import Batch, View
from progmem.baselines.soft_tstcc import SoftTSTCCLearner, soft_contrasts
from progmem.training.distributed import OneProcess

B, L = 4, 60


def batch_of(alike, shortest=L, overlap=None, views=(), draws=None):
    overlap = torch.eye(B, dtype=torch.bool) if overlap is None else overlap
    lengths = torch.full((B,), L)
    return Batch(B, OneProcess(B), views, lengths, draws, overlap, alike, shortest)


def weighed(rows, weights, allowed):
    """One entry's sum of weights times -log of its share, by one exponential at a time."""
    n = len(rows) // 2
    total = 0.0
    for i, anchor in enumerate(rows):
        others = [j for j in range(2 * n) if allowed(i, j)]
        below = sum(math.exp(anchor @ rows[j]) for j in others)
        for j in others:
            total -= weights[i % n][j % n] * math.log(math.exp(anchor @ rows[j]) / below)
    return total / (2 * n)


def loop(outputs, alike, overlap, positions, sharpness):
    instance = temporal = 0.0
    for depth, (first, second) in enumerate(outputs):
        T = positions[depth]
        for t in range(T):
            rows = torch.cat([first[:, t], second[:, t]]).tolist()
            rows = [torch.tensor(row).double() for row in rows]
            apart = lambda i, j: not overlap[i % B][j % B] or (i != j and i % B == j % B)  # noqa: E731
            instance += weighed(rows, alike, apart) / T
        near = [[2 / (1 + math.exp(sharpness * 2**depth * abs(s - t))) for s in range(T)]
                for t in range(T)]  # fmt: skip
        for b in range(B):
            rows = [*first[b, :T], *second[b, :T]]
            temporal += weighed(rows, near, lambda i, j: i != j) / B
    return float(instance), float(temporal)


def test_the_contrasts_of_all_blocks_equal_their_loops():
    """The shortest row has 12 samples, so 7, 5 and 4 positions of the three blocks count."""
    outputs = tuple(tuple(torch.randn(2, B, T, D).double()) for T, D in ((9, 3), (6, 4), (5, 2)))
    alike = torch.rand(B, B).double().fill_diagonal_(1.0)
    overlap = torch.eye(B, dtype=torch.bool)
    overlap[0, 2] = overlap[2, 0] = True
    found = soft_contrasts(outputs, batch_of(alike, 12, overlap), sharpness=0.3)
    expected = loop(outputs, alike.tolist(), overlap, (7, 5, 4), 0.3)
    assert [part.item() for part in found] == pytest.approx(expected, rel=1e-9)


def test_equal_outputs_have_the_closed_form():
    """All alike, each of 2n - 1 entries has the share 1 / (2n - 1), and weight 1."""
    outputs = tuple((torch.ones(B, T, 2), torch.ones(B, T, 2)) for T in (31, 17, 10))
    batch = batch_of(torch.ones(B, B))
    instance, temporal = soft_contrasts(outputs, batch, sharpness=1e-9)
    assert instance.item() == pytest.approx(3 * (2 * B - 1) * math.log(2 * B - 1), rel=1e-5)
    expected = sum((2 * T - 1) * math.log(2 * T - 1) for T in (31, 17, 10))
    assert temporal.item() == pytest.approx(expected, rel=1e-5)


def learner_and_views(**settings):
    encoder = make_encoder("soft_tstcc", channels=2, dim=8, context=8, ahead=2, **settings)
    learner = SoftTSTCCLearner(encoder, encoder.cfg).double().eval()
    x = torch.randn(B, L, 2).double()
    draws = learner.draw(B, L, torch.Generator().manual_seed(0))
    draws = type(draws)._make(t.double() for t in draws)
    seen, lengths = torch.ones_like(x, dtype=torch.bool), torch.full((B,), L)
    views = tuple(View(v, None, None) for v, _ in learner.make_views(x, seen, lengths, draws))
    return learner, views, draws


def test_half_of_the_contrasts_is_added_to_the_loss_of_ts_tcc():
    learner, views, draws = learner_and_views()
    batch = batch_of(torch.rand(B, B).double(), views=views, draws=draws)
    embedded, sequence = learner(views, draws)
    parts = learner.losses(embedded, batch)
    plain = tstcc.TSTCCLearner(learner.encoder, learner.cfg).eval()
    plain.load_state_dict(learner.tstcc.state_dict())
    expected, same_sequence = plain.double()(views, draws)
    hard = plain.losses(expected, batch)["loss"]
    soft = 0.5 * (parts["soft_instance"] + parts["soft_temporal"])
    assert parts["loss"].item() == pytest.approx((hard + 0.5 * soft).item(), rel=1e-12)
    assert torch.equal(sequence, same_sequence) and next(iter(parts)) == "loss"


def test_the_contrasts_reach_every_block():
    learner, views, draws = learner_and_views()
    embedded, _ = learner(views, draws)
    instance, temporal = soft_contrasts(
        embedded.outputs, batch_of(torch.ones(B, B).double()), sharpness=1.0
    )
    assert len(embedded.outputs) == 3
    for contrast in (instance, temporal):
        for block in learner.encoder.network.blocks:
            (gradient,) = torch.autograd.grad(contrast, block.conv.weight, retain_graph=True)
            assert gradient.abs().max() > 0
