"""The objectives: loops from the formulas, closed forms, values by hand, symmetries, masks."""

import itertools
import math

import pytest
import reference_losses as loops
import torch

from progmem.config import ModelConfig
from progmem.losses import bounded
from progmem.losses.align import Match, match
from progmem.losses.contrast import Bank
from progmem.losses.hgcl import Level, token_level
from progmem.losses.negatives import draw_negatives, overlapping
from progmem.losses.total import Embedded, draw, total_loss
from progmem.settings import LossConfig
from progmem.training.group import OneProcess

B, D = 4, 6


def make_embedded(cfg, *, K=11, n=2, gaps=True, requires_grad=True):
    N = -(-(K - cfg.window) // cfg.stride) + 1

    def leaf(*shape):
        return torch.randn(shape, dtype=torch.float64, requires_grad=requires_grad)

    token_mask = torch.ones(B, K, dtype=torch.bool)
    window_mask = torch.ones(B, N, dtype=torch.bool)
    if gaps:
        token_mask[1, 2:5] = token_mask[2, -3:] = False
        window_mask[2, -1] = False
    return Embedded(
        leaf(B, 5), leaf(B, N, n, D), leaf(B, K, D), token_mask, window_mask, None, None
    )


def setting(window, stride):
    return ModelConfig(channels=1, size="tiny", window=window, stride=stride)


def draws_for(views, n=2, overlap=None, count=13):
    K, N = views[0].token_mask.shape[1], views[0].window_mask.shape[1]
    if overlap is None:
        overlap = torch.eye(B, dtype=torch.bool)
        overlap[0, 1] = overlap[1, 0] = True  # two rows share samples
    generator = torch.Generator().manual_seed(3)
    return draw(overlap, K, N, n, count=count, generator=generator)


def entry_of(negatives):
    """Which entries each sequence meets, (B, M)."""
    B, M = negatives.mask.shape
    pool = len(negatives.order)
    place = torch.arange(B)[:, None] * (pool // B) + torch.arange(M)
    return negatives.order[place % pool]


def run(views, drawn, cfg, model, **settings):
    settings = {
        "icl_temperature": 0.3,
        "token_temperature": 0.5,
        "window_temperature": 0.4,
    } | settings
    loss_cfg = LossConfig(**settings)
    return total_loss(views, drawn, OneProcess(B), cfg=loss_cfg, model=model, pcl_temperature=0.25)


@pytest.mark.parametrize("form", ["printed", "soft_positive"])
@pytest.mark.parametrize("window, stride", [(6, 3), (5, 2), (4, 4)])
def test_losses_are_the_papers_formulas(window, stride, form):
    model = setting(window, stride)
    views = make_embedded(model), make_embedded(model)
    drawn = draws_for(views)
    loss, parts = run(views, drawn, LossConfig(), model, hgcl_form=form)

    expected = {"icl": loops.icl(views[0].sequence, views[1].sequence, 0.3, drawn.overlap)}
    terms = {"pcl": [], "hgcl_tokens": [], "hgcl_windows": []}
    sigma = max(0.5 * (window - stride), 1e-3)
    for a, k in (views, views[::-1]):
        slots = entry_of(drawn.slots), drawn.slots.mask
        terms["pcl"].append(
            loops.pcl_direction(a.memory, k.memory, a.window_mask, k.window_mask, *slots, 0.25)
        )
        masks = a.window_mask, a.token_mask, k.token_mask
        of_tokens = entry_of(drawn.tokens), drawn.tokens.mask
        terms["hgcl_tokens"].append(
            loops.hgcl_tokens(
                a.tokens, k.tokens, *masks, *of_tokens, window, stride, 0.25 * window, 0.5, form
            )
        )
        means = [loops.window_mean(v.tokens, v.token_mask, window, stride) for v in (a, k)]
        of_windows = entry_of(drawn.windows), drawn.windows.mask
        terms["hgcl_windows"].append(
            loops.hgcl_windows(
                *means, a.window_mask, k.window_mask, *of_windows, stride, sigma, 0.4, form
            )
        )
    expected |= {name: torch.stack(both).mean() for name, both in terms.items()}
    for name, value in expected.items():
        torch.testing.assert_close(parts[name], value, rtol=0, atol=1e-10)
    hgcl = 0.5 * expected["hgcl_tokens"] + 0.5 * expected["hgcl_windows"]
    total = expected["icl"] + expected["pcl"] + hgcl
    torch.testing.assert_close(loss, total, rtol=0, atol=1e-10)

    leaves = [t for v in views for t in (v.sequence, v.memory, v.tokens)]
    for ours, theirs in zip(
        torch.autograd.grad(loss, leaves), torch.autograd.grad(total, leaves), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def constant(views):
    return tuple(
        v._replace(**{n: torch.ones_like(getattr(v, n)) for n in ("sequence", "memory", "tokens")})
        for v in views
    )


def test_a_collapsed_encoder_gives_the_values_of_not_knowing():
    model = setting(4, 4)
    views = constant((make_embedded(model, K=12, gaps=False),) * 2)
    drawn = draws_for(views, overlap=torch.eye(B, dtype=torch.bool), count=10_000)
    _, parts = run(views, drawn, LossConfig(), model)
    assert parts["icl"].item() == pytest.approx(math.log(2 * B - 1))
    N, K = 3, 12
    assert parts["pcl"].item() == pytest.approx(math.log(1 + (B - 1) * N * 2))
    # windows side by side: the bucket is an empty sum, e^0 as printed, against e^{1/tau}
    negatives = (B - 1) * N
    window = math.log(1 + negatives + math.exp(-1 / 0.4))
    assert parts["hgcl_windows"].item() == pytest.approx(window)
    tau, tokens = 0.5, []
    for k in range(4):  # position in its window decides the bucket
        T = sum(math.exp(-((k - j) ** 2) / 2) for j in range(4) if j != k)  # sigma = W/4 = 1
        tokens.append(math.log(1 + (B - 1) * K + math.exp((T - 1) / tau)))
    assert parts["hgcl_tokens"].item() == pytest.approx(sum(tokens) / 4)


def test_one_value_of_each_loss_by_hand():
    """Two sequences at right angles, views equal: cosines are 1 and 0, temperature 1."""
    model = ModelConfig(channels=1, size="tiny", window=2, stride=2)
    e = torch.eye(2, dtype=torch.float64)
    mask = torch.ones(2, 2, dtype=torch.bool)
    view = Embedded(e, e[:, None, None], e[:, None].repeat(1, 2, 1), mask, mask[:, :1], None, None)
    drawn = draw(
        torch.eye(2, dtype=torch.bool),
        2,
        1,
        1,
        count=99,
        generator=torch.Generator().manual_seed(0),
    )
    cfg = LossConfig(icl_temperature=1, token_temperature=1, window_temperature=1, token_width=0.5)
    _, parts = total_loss(
        (view, view), drawn, OneProcess(2), cfg=cfg, model=model, pcl_temperature=1
    )
    # ICL: e / (e + 2): the positive against two vectors of the other sequence
    assert parts["icl"].item() == pytest.approx(math.log((math.e + 2) / math.e))
    assert parts["pcl"].item() == pytest.approx(math.log((math.e + 1) / math.e))
    # tokens: sigma 1, one neighbour of cosine 1 weighs e^-1/2; two negatives of cosine 0
    bucket = math.exp(math.exp(-0.5))
    expected = math.log((math.e + bucket + 2) / math.e)
    assert parts["hgcl_tokens"].item() == pytest.approx(expected)
    # windows: no neighbour, printed as e^0; one negative of cosine 0
    assert parts["hgcl_windows"].item() == pytest.approx(math.log((math.e + 1 + 1) / math.e))


def test_as_printed_neighbours_are_repelled_and_as_soft_positives_attracted():
    """The sign that makes the two forms differ."""
    model = setting(6, 3)
    for form, sign in (("printed", 1), ("soft_positive", -1)):
        views = make_embedded(model, gaps=False), make_embedded(model, gaps=False)
        similarity = []
        for step in (0.0, 1e-4):
            anchor = torch.nn.functional.normalize(views[0].tokens.detach(), dim=-1)
            moved = views[1].tokens.detach().clone()
            moved[0, 4] += step * anchor[0, 3]  # a neighbour of token 3 moves towards it
            keys = torch.nn.functional.normalize(moved, dim=-1)
            mask = views[0].token_mask
            both, there = torch.cat([anchor, keys]), torch.ones_like(mask).repeat(2, 1)
            place = torch.arange(mask.shape[1]).expand(there.shape)
            bank = Bank(
                torch.stack([anchor, keys]).flatten(1, 2), there.view(2, -1),
                draws_for(views).tokens, slice(0, B),
            )  # fmt: skip
            level = Level(
                both, both.roll(B, 0), there, Match(place, _only(there, 0, 3)), bank
            )  # fmt: skip
            windows = torch.ones_like(views[0].window_mask).repeat(2, 1)
            sums = token_level(level, windows, model, temperature=0.2, width=0.25, form=form)
            similarity.append(sums.loss.sum().item())
        assert sign * (similarity[1] - similarity[0]) > 0


def _only(mask, row, place):
    only = torch.zeros_like(mask)
    only[row, place] = True
    return only


def test_swapping_the_views_changes_nothing():
    model = setting(6, 3)
    views = make_embedded(model), make_embedded(model)
    drawn = draws_for(views)
    there, back = (run(v, drawn, LossConfig(), model)[0] for v in (views, views[::-1]))
    torch.testing.assert_close(there, back, rtol=0, atol=1e-12)


def test_the_order_of_the_rows_does_not_matter_when_all_negatives_are_taken():
    model = setting(6, 3)
    views = make_embedded(model), make_embedded(model)
    order = torch.tensor([2, 0, 3, 1])
    overlap = torch.eye(B, dtype=torch.bool)
    losses = []
    for pair in (views, tuple(v._make(None if t is None else t[order] for t in v) for v in views)):
        drawn = draws_for(pair, overlap=overlap, count=10_000)
        losses.append(run(pair, drawn, LossConfig(), model)[0])
    torch.testing.assert_close(*losses, rtol=0, atol=1e-12)


def test_padding_does_not_change_a_loss_at_given_negatives():
    """The same anchors and negatives among more tokens and windows that are not there."""
    model = setting(6, 3)
    views = make_embedded(model, K=9, gaps=False), make_embedded(model, K=9, gaps=False)
    drawn = draws_for(views)
    plain = run(views, drawn, LossConfig(), model)[0]
    padded = []
    for v in views:
        pad_tokens = torch.full((B, 3, D), 7.0, dtype=torch.float64)
        pad_slots = torch.full((B, 1, 2, D), 7.0, dtype=torch.float64)
        more = torch.zeros(B, 3, dtype=torch.bool)
        padded.append(
            v._replace(
                tokens=torch.cat([v.tokens, pad_tokens], 1),
                memory=torch.cat([v.memory, pad_slots], 1),
                token_mask=torch.cat([v.token_mask, more], 1),
                window_mask=torch.cat([v.window_mask, more[:, :1]], 1),
            )
        )

    def moved(negatives, old, new):
        order = negatives.order
        return negatives._replace(order=order // old * new + order % old)

    wide = drawn._replace(
        tokens=moved(drawn.tokens, 9, 12),
        slots=moved(drawn.slots, 4, 6),
        windows=moved(drawn.windows, 2, 3),
    )
    torch.testing.assert_close(run(tuple(padded), wide, LossConfig(), model)[0], plain)


def test_sums_in_pieces_are_the_same_with_gradients(monkeypatch):
    model = setting(6, 3)
    views = make_embedded(model), make_embedded(model)
    drawn = draws_for(views)
    leaves = [t for v in views for t in (v.sequence, v.memory, v.tokens)]
    results = []
    for limit in (2**25, 1):
        monkeypatch.setattr(bounded, "LIMIT", limit)
        loss, _ = run(views, drawn, LossConfig(), model)
        results.append((loss, *torch.autograd.grad(loss, leaves)))
    for whole, pieces in zip(*results, strict=True):
        torch.testing.assert_close(whole, pieces, rtol=0, atol=1e-12)


def test_rows_that_share_samples_are_found():
    recording, start = torch.tensor([0, 0, 0, 1]), torch.tensor([0, 64, 128, 0])
    overlap = overlapping(recording, start, torch.full((4,), 128))
    expected = [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 1]]
    assert overlap.int().tolist() == expected


def test_negatives_are_distinct_reproducible_and_never_own():
    overlap = torch.eye(5, dtype=torch.bool)
    first, again = (
        draw_negatives(overlap, 7, count=20, generator=torch.Generator().manual_seed(1))
        for _ in range(2)
    )
    assert torch.equal(first.order, again.order)
    entry = entry_of(first)
    assert all(len(set(row.tolist())) == 20 for row in entry)
    own = entry // 7 == torch.arange(5)[:, None]
    assert torch.equal(first.mask, ~own)
    every = draw_negatives(overlap, 7, count=512, generator=torch.Generator().manual_seed(1))
    assert entry_of(every).shape == (5, 35)


def test_positives_are_matched_by_time_and_masked_where_there_is_none():
    time = torch.tensor([[0.0, 10.0, 20.0, 30.0]])
    other = torch.tensor([[9.0, 19.5, 31.0, 99.0]])
    valid = torch.ones(1, 4, dtype=torch.bool)
    found = match(time, valid, other, valid, tolerance=4)
    assert found.place.tolist() == [[0, 0, 1, 2]]
    assert found.found.tolist() == [[False, True, True, True]]
    gone = match(time, valid, other, valid & (other != 31.0), tolerance=4)
    assert gone.found.tolist() == [[False, True, True, False]]


def test_time_matching_of_equal_times_is_matching_by_position():
    model = setting(6, 3)
    views = make_embedded(model), make_embedded(model)
    K, N = views[0].token_mask.shape[1], views[0].window_mask.shape[1]
    timed = [
        v._replace(
            token_time=torch.arange(K, dtype=torch.float64).expand(B, K) * 2,
            window_time=torch.arange(N, dtype=torch.float64).expand(B, N) * 6,
        )
        for v in views
    ]
    drawn = draws_for(views)
    by_time = run(tuple(timed), drawn, LossConfig(), model)[0]
    torch.testing.assert_close(by_time, run(views, drawn, LossConfig(), model)[0])


@pytest.mark.parametrize("on", [c for c in itertools.product([0, 1], repeat=3) if any(c)])
def test_only_active_objectives_are_computed(on):
    model = setting(6, 3)
    views = make_embedded(model), make_embedded(model)
    icl, pcl, hgcl = on
    weights = {"icl": 2.0 * icl, "pcl": 3.0 * pcl, "hgcl": 5.0 * hgcl}
    loss, parts = run(views, draws_for(views), LossConfig(), model, **weights)
    assert {n for n in ("icl", "pcl", "hgcl") if n in parts} == {n for n, w in weights.items() if w}
    assert loss.item() == pytest.approx(sum(w * parts[n].item() for n, w in weights.items() if w))
