"""The objectives: what changes nothing, which rows are negatives, which places positives."""

import itertools

import pytest
import torch
from loss_setup import B, D, draws_for, entry_of, make_embedded, run, setting

from progmem.losses import pairs
from progmem.losses.pairs import draw_negatives, match, overlapping


def test_swapping_the_views_changes_nothing():
    model = setting(6, 3)
    views = make_embedded(model), make_embedded(model)
    drawn = draws_for(views)
    there, back = (run(v, drawn, model)[0] for v in (views, views[::-1]))
    torch.testing.assert_close(there, back, rtol=0, atol=1e-12)


def test_the_order_of_the_rows_does_not_matter_when_all_negatives_are_taken():
    model = setting(6, 3)
    views = make_embedded(model), make_embedded(model)
    order = torch.tensor([2, 0, 3, 1])
    overlap = torch.eye(B, dtype=torch.bool)
    losses = []
    for pair in (views, tuple(v._make(None if t is None else t[order] for t in v) for v in views)):
        drawn = draws_for(pair, overlap=overlap, count=10_000)
        losses.append(run(pair, drawn, model)[0])
    torch.testing.assert_close(*losses, rtol=0, atol=1e-12)


def test_padding_does_not_change_a_loss_at_given_negatives():
    """The same anchors and negatives among more tokens and windows that are not there."""
    model = setting(6, 3)
    views = make_embedded(model, K=9, gaps=False), make_embedded(model, K=9, gaps=False)
    drawn = draws_for(views)
    plain = run(views, drawn, model)[0]
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
    torch.testing.assert_close(run(tuple(padded), wide, model)[0], plain)


def test_sums_in_pieces_are_the_same_with_gradients(monkeypatch):
    model = setting(6, 3)
    views = make_embedded(model), make_embedded(model)
    drawn = draws_for(views)
    leaves = [t for v in views for t in (v.sequence, v.memory, v.tokens)]
    results = []
    for limit in (2**25, 1):
        monkeypatch.setattr(pairs, "LIMIT", limit)
        loss, _ = run(views, drawn, model)
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
    assert found.position.tolist() == [[0, 0, 1, 2]]
    assert found.found.tolist() == [[False, True, True, True]]
    gone = match(time, valid, other, valid & (other != 31.0), tolerance=4)
    assert gone.found.tolist() == [[False, True, True, False]]


def test_matching_by_time_holds_no_more_than_its_share_of_the_batch(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    time, other = (torch.rand(5, 6, generator=generator) * 20 for _ in range(2))
    valid, other_valid = (torch.rand(5, 6, generator=generator) > 0.3 for _ in range(2))
    whole = match(time, valid, other, other_valid, tolerance=4)
    monkeypatch.setattr("progmem.losses.pairs.LIMIT", 2 * 6 * 6)
    sizes, masked_fill = [], torch.Tensor.masked_fill
    monkeypatch.setattr(
        torch.Tensor, "masked_fill", lambda t, *a: sizes.append(t.numel()) or masked_fill(t, *a)
    )
    pieces = match(time, valid, other, other_valid, tolerance=4)
    assert sizes == [72, 72, 36]
    assert all(torch.equal(a, b) for a, b in zip(whole, pieces, strict=True))


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
    by_time = run(tuple(timed), drawn, model)[0]
    torch.testing.assert_close(by_time, run(views, drawn, model)[0])


@pytest.mark.parametrize("on", [c for c in itertools.product([0, 1], repeat=3) if any(c)])
def test_only_active_objectives_are_computed(on):
    model = setting(6, 3)
    views = make_embedded(model), make_embedded(model)
    icl, pcl, hgcl = on
    weights = {"icl": 2.0 * icl, "pcl": 3.0 * pcl, "hgcl": 5.0 * hgcl}
    loss, parts = run(views, draws_for(views), model, **weights)
    assert {n for n in ("icl", "pcl", "hgcl") if n in parts} == {n for n, w in weights.items() if w}
    assert loss.item() == pytest.approx(sum(w * parts[n].item() for n, w in weights.items() if w))
