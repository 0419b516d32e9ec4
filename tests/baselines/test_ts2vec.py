"""TS2Vec and SoftCLT: their losses by loops, closed forms and by hand; crops, averages, DTW."""

import itertools
import math

import numpy as np
import pytest
import torch
from test_contract import recordings, settings, task_of

import progmem
from progmem.baselines import make_encoder
from progmem.baselines.softclt import Likeness, SoftCLTConfig, distances_of
from progmem.baselines.ts2vec import (
    TS2Vec,
    TS2VecConfig,
    _convolve,
    hierarchical_loss,
    instance_contrast,
    nearness,
    steps,
    temporal_contrast,
)
from progmem.config import read_config
from progmem.data.recordings import Recording
from progmem.errors import ConfigError, InputError
from progmem.ops.dtw import dtw_distances
from progmem.training.defaults import fill_defaults
from progmem.training.pretrain import pretrain

ALL = {B: ~torch.eye(B, dtype=torch.bool) for B in range(1, 7)}


def softmax_term(anchor, others, positive, weights):
    """-sum of weight * log softmax over ``others`` of the products with ``anchor``."""
    products = [float(anchor @ other) for other in others]
    largest = max(products)
    total = largest + math.log(sum(math.exp(p - largest) for p in products))
    return -sum(weights[i] * (products[i] - total) for i in positive)


def loop_instance(first, second, alike):
    """The instance contrast, anchor by anchor."""
    (B, T, _), total = first.shape, 0.0
    for crop, t, i in itertools.product(range(2), range(T), range(B)):
        both = [(c, j) for c in range(2) for j in range(B) if (c, j) != (crop, i)]
        others = [(first, second)[c][j, t] for c, j in both]
        weights = [float(alike[i, j]) for _, j in both]
        anchor = (first, second)[crop][i, t]
        total += softmax_term(anchor, others, range(len(both)), weights)
    return total / (2 * B * T)


def loop_temporal(first, second, near):
    """The temporal contrast, anchor by anchor."""
    (B, T, _), total = first.shape, 0.0
    for crop, i, t in itertools.product(range(2), range(B), range(T)):
        both = [(c, s) for c in range(2) for s in range(T) if (c, s) != (crop, t)]
        others = [(first, second)[c][i, s] for c, s in both]
        weights = [float(near[t, s]) for _, s in both]
        anchor = (first, second)[crop][i, t]
        total += softmax_term(anchor, others, range(len(both)), weights)
    return total / (2 * B * T)


def loop_hierarchy(first, second, alike, sharpness, *, instance, temporal):
    """Both contrasts at each scale; a scale is the maximum over pairs of times."""
    B, total, scales = len(first), 0.0, 0
    while True:
        T = first.shape[1]
        total += instance * loop_instance(first, second, alike)
        if T > 1:
            near = torch.eye(T).double()
            if sharpness:
                near = torch.tensor([
                    [2 / (1 + math.exp(sharpness * 2**scales * abs(t - s))) for s in range(T)]
                    for t in range(T)
                ], dtype=torch.float64)  # fmt: skip
                near[near < 1e-6] = 0.0
            total += temporal * loop_temporal(first, second, near)
        scales += 1
        if T == 1:
            return total / scales
        first, second = (
            torch.stack([
                torch.stack([torch.maximum(z[i, 2 * t], z[i, 2 * t + 1]) for t in range(T // 2)])
                for i in range(B)
            ])
            for z in (first, second)
        )  # fmt: skip


@pytest.mark.parametrize("times", [1, 2, 5, 8])
@pytest.mark.parametrize("soft", [False, True])
def test_the_loss_is_that_of_loops_written_from_the_formula(times, soft):
    B = 4
    first, second = torch.randn(2, B, times, 3).double()
    alike = torch.rand(B, B).double().fill_diagonal_(1.0) if soft else None
    found, of_instances, of_times = hierarchical_loss(
        first, second, apart=ALL[B], instance=0.7, temporal=0.4, alike=alike,
        sharpness=1.3 if soft else 0.0,
    )  # fmt: skip
    expected = loop_hierarchy(
        first, second, torch.eye(B).double() if alike is None else alike, 1.3 if soft else 0.0,
        instance=0.7, temporal=0.4,
    )  # fmt: skip
    assert float(found) == pytest.approx(expected, rel=1e-10)
    assert float(0.7 * of_instances + 0.4 * of_times) == pytest.approx(expected, rel=1e-10)


def test_vectors_that_are_all_equal_are_told_apart_by_chance():
    """Closed form: every entry has the same share, so the surprise is the log of their number."""
    z = torch.ones(5, 6, 3).double()
    assert float(instance_contrast(z, z, ALL[5])) == pytest.approx(math.log(9))
    assert float(temporal_contrast(z, z)) == pytest.approx(math.log(11))
    alike = torch.full((5, 5), 0.25).double().fill_diagonal_(1.0)
    # weights of an anchor: 1 for itself in the other crop, .25 for each of 8 others
    assert float(instance_contrast(z, z, ALL[5], alike)) == pytest.approx(3 * math.log(9))


@pytest.mark.parametrize("kernel", [1, 2, 3, 4, 5])
def test_taps_that_see_zeros_alone_are_left_out_and_nothing_changes(kernel):
    for dilation, length in itertools.product((1, 2, 3, 8), (1, 2, 3, 5, 9, 17)):
        conv = torch.nn.Conv1d(2, 3, kernel, dilation=dilation).double()
        x = torch.randn(2, 2, length).double()
        reach = (kernel - 1) * dilation
        around = ((reach + 1) // 2, reach // 2)
        found, expected = _convolve(conv, x), conv(torch.nn.functional.pad(x, around))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)


def test_a_value_worked_by_hand():
    """Two rows of one time and width: 1 and 0 in the first crop, 2 and 0 in the second.

    Products of the anchor 1 are 0 (the other row), 2 (its twin), 0; of 2 they are 2, 0, 0; of both
    zeros all products are 0.
    """
    first, second = torch.tensor([[[1.0]], [[0.0]]]), torch.tensor([[[2.0]], [[0.0]]])
    surprise = math.log(math.exp(2) + 2) - 2
    by_hand = (2 * surprise + 2 * math.log(3)) / 4
    assert float(instance_contrast(first, second, ALL[2])) == pytest.approx(by_hand)


def test_rows_that_share_samples_are_not_told_apart():
    """Rows 0 and 1 overlap: what is left is a contrast of each with row 2."""
    first, second = torch.randn(2, 3, 4, 5).double()
    apart = ALL[3].clone()
    apart[0, 1] = apart[1, 0] = False
    found = instance_contrast(first, second, apart)
    total = 0.0
    for crop, t, i in itertools.product(range(2), range(4), range(3)):
        rows = [j for j in range(3) if j == i or bool(apart[i, j])]
        both = [(c, j) for c in range(2) for j in rows if (c, j) != (crop, i)]
        others = [(first, second)[c][j, t] for c, j in both]
        weights = [float(j == i) for _, j in both]
        total += softmax_term((first, second)[crop][i, t], others, range(len(both)), weights)
    assert float(found) == pytest.approx(total / 24, rel=1e-10)


def test_times_are_positives_of_each_other_the_less_the_farther_they_are():
    near = nearness(20, 1.0, torch.zeros(1).double())
    assert torch.equal(near.diagonal(), torch.ones(20).double())
    assert float(near[3, 5]) == pytest.approx(2 / (1 + math.exp(2)))
    assert float(near[0, 19]) == 0 and float(near[0, 14]) > 0  # what is below 1e-6 is nothing


def test_a_block_is_two_dilated_convolutions_beside_a_skip():
    """The network of one channel and width by a loop over samples."""
    torch.manual_seed(0)
    cfg = TS2VecConfig(channels=1, dim=2, hidden=2, depth=1, dropout=0.0)
    net, x = TS2Vec(cfg).double(), torch.randn(1, 9, 1).double()

    def conv(layer, rows, dilation):
        out = []
        for t in range(len(rows)):
            total = layer.bias.clone()
            for k in range(3):
                s = t + (k - 1) * dilation
                if 0 <= s < len(rows):
                    total = total + layer.weight[:, :, k] @ rows[s]
            out.append(total)
        return out

    rows = [net.input.weight @ value + net.input.bias for value in x[0]]
    for i, block in enumerate(net.blocks):
        skip = rows if block.skip is None else [
            block.skip.weight[:, :, 0] @ row + block.skip.bias for row in rows
        ]  # fmt: skip
        for layer in (block.conv1, block.conv2):
            rows = conv(layer, [torch.nn.functional.gelu(row) for row in rows], 2**i)
        rows = [a + b for a, b in zip(rows, skip, strict=True)]
    z = net(x)
    torch.testing.assert_close(z.tokens[0], torch.stack(rows), rtol=0, atol=1e-12)
    torch.testing.assert_close(z.sequence[0], torch.stack(rows).amax(0), rtol=0, atol=1e-12)


def test_a_vector_sees_as_far_as_is_published():
    """Ten blocks and one: 2 (2^11 - 1) samples on either side."""
    cfg = TS2VecConfig(channels=1, dim=2, hidden=2)
    net = TS2Vec(cfg).double().eval()
    x = torch.zeros(1, 8400, 1).double().requires_grad_()
    net(x).tokens[0, 4200].sum().backward()
    seen = x.grad[0, :, 0].nonzero().flatten()
    assert (4200 - int(seen[0]), int(seen[-1]) - 4200) == (4094, 4094)


def test_crops_overlap_in_what_the_loss_compares_and_stay_within_their_rows():
    task = task_of("ts2vec")
    task.learner.network.eval()
    for step in range(30):
        batch = task.make_batch(step)
        first, second = batch.crops
        n = batch.overlap
        assert n >= 2
        assert torch.equal(first.x[:, -n:], second.x[:, :n])
        assert torch.equal(first.observed[:, -n:], second.observed[:, :n])
        assert first.x.shape[1] + second.x.shape[1] - n <= int(task.rows.length.min())
        again = task.make_batch(step).crops[0]
        assert torch.equal(again.x, first.x) and torch.equal(again.keep, first.keep)
    lengths = {task.make_batch(step).overlap for step in range(30)}
    assert len(lengths) > 8


def test_the_encoder_holds_the_mean_of_the_weights_after_every_update():
    task = task_of("ts2vec")
    parameters = dict(task.learner.network.named_parameters())
    own = dict(task.learner.encoder.network.named_parameters())
    first = {name: p.detach().clone() for name, p in own.items()}
    kept = {name: [] for name in parameters}
    for _ in range(4):
        with torch.no_grad():
            for name, p in parameters.items():
                p.add_(torch.randn_like(p))
                kept[name].append(p.detach().clone())
        task.updated()
    for name, values in kept.items():
        torch.testing.assert_close(own[name], torch.stack(values).mean(0))
        assert not torch.equal(own[name], first[name])


def test_published_steps_depend_on_the_size_of_the_data():
    cfg = read_config(None, ["encoder.name=ts2vec"])
    for values, expected in ((100_000, 200), (100_001, 600)):
        assert steps(values) == expected
        filled = fill_defaults(cfg, 50, device="cpu", begun={}, values=values).train
        assert (filled.steps, filled.batch_size) == (expected, 8)


def test_what_cannot_be_cropped_or_compared_is_refused(tmp_path):
    one = [Recording(str(i), np.ones((1, 1)) * i) for i in range(5)]
    with pytest.raises(InputError, match="needs at least 2 samples to be cropped, got 1"):
        pretrain(one, tmp_path / "a", read_config(None, settings("ts2vec")), log=None)
    given = settings("softclt", "encoder.distance=euclidean")
    with pytest.raises(InputError, match="euclidean needs series of one length"):
        pretrain(recordings(), tmp_path / "b", read_config(None, given), log=None)


def test_too_many_pairs_are_refused(monkeypatch):
    monkeypatch.setattr("progmem.baselines.softclt.MOST_ROWS", 2)
    with pytest.raises(ConfigError, match="compares all pairs of rows, at most 2, got 3"):
        distances_of([np.ones((4, 1))] * 3, SoftCLTConfig(channels=1))


def loop_dtw(x, y, reach):
    """The textbook recursion; times are moved by at most ``reach``."""
    cost = np.full((len(x) + 1, len(y) + 1), np.inf)
    cost[0, 0] = 0
    for i, j in itertools.product(range(len(x)), range(len(y))):
        if abs(i - j) <= reach:
            step = float(((x[i] - y[j]) ** 2).sum())
            cost[i + 1, j + 1] = step + min(cost[i, j], cost[i, j + 1], cost[i + 1, j])
    return math.sqrt(cost[-1, -1])


@pytest.mark.parametrize("lengths", [(12, 12, 12), (12, 7, 10, 12, 9), (1, 2)])
@pytest.mark.parametrize("band", [1.0, 0.25, 0.0])
def test_the_distance_is_that_of_the_textbook_recursion(lengths, band, monkeypatch):
    monkeypatch.setattr("progmem.ops.dtw.CELLS_AT_ONCE", {"cpu": 4 * 12})  # two by two
    series = [torch.randn(n, 2).double() for n in lengths]
    found = dtw_distances(series, band=band)
    apart = [abs(a - b) for a in lengths for b in lengths]
    for i, j in itertools.product(range(len(series)), repeat=2):
        longest = max(lengths)
        exact = loop_dtw(series[i].numpy(), series[j].numpy(), round(band * longest))
        if band == 1.0 or not any(apart):
            assert float(found[i, j]) == pytest.approx(exact, abs=1e-12)
        else:  # a band is at least as wide as lengths differ
            wide = loop_dtw(series[i].numpy(), series[j].numpy(), longest)
            assert wide - 1e-12 <= float(found[i, j]) < math.inf
    assert torch.equal(found, found.T)


def test_series_are_positives_of_each_other_as_their_distances_say():
    """Distances of three rows by hand: scaled by column, then 2 a sigmoid(-s D), 1 for a row's own.

    The least distance is 1 and stands on the diagonal; columns reach up to 3, 4 and 4.
    """
    distances = torch.tensor([[0.0, 1.0, 3.0], [1.0, 0.0, 4.0], [3.0, 4.0, 0.0]])
    found = Likeness(distances, 2.0)(torch.tensor([2, 0]))

    def weight(scaled):
        return 1 / (1 + math.exp(2 * scaled))

    expected = [[1.0, weight((3 - 1) / (3 - 1))], [weight((3 - 1) / (4 - 1)), 1.0]]
    torch.testing.assert_close(found, torch.tensor(expected))


def test_without_softness_softclt_is_ts2vec():
    hard = ("encoder.instance_sharpness=0", "encoder.temporal_sharpness=0")
    ours, theirs = task_of("softclt", *hard), task_of("ts2vec")
    batch = ours.make_batch(0)
    assert batch.alike is None
    for ours_part, theirs_part in zip(batch.crops, theirs.make_batch(0).crops, strict=True):
        assert all(map(torch.equal, ours_part, theirs_part))
    soft = task_of("softclt")
    assert soft.make_batch(0).alike.shape == (5, 5)


def test_distances_do_not_depend_on_scale_or_offset():
    x = [np.random.default_rng(i).normal(size=(15, 2)) for i in range(4)]
    x[1][3] = np.nan
    cfg = SoftCLTConfig(channels=2)
    moved = [5.0 * one - 3.0 for one in x]
    torch.testing.assert_close(distances_of(x, cfg), distances_of(moved, cfg))
    euclidean = SoftCLTConfig(channels=2, distance="euclidean")
    assert (distances_of(x, euclidean) + 1e-5 >= distances_of(x, cfg)).all()


def test_what_lies_past_the_end_of_a_shorter_series_is_as_zeros():
    encoder = make_encoder("ts2vec", channels=1, dim=4, hidden=4, depth=4).double()
    short = torch.randn(1, 20, 1).double()
    padded = torch.cat([short, 9 * torch.ones(1, 30, 1).double()], dim=1)
    z = encoder.eval()(padded, lengths=torch.tensor([20]))
    torch.testing.assert_close(z.tokens[:, :20], encoder(short).tokens, rtol=0, atol=1e-12)
    assert isinstance(z, progmem.Encoding)
