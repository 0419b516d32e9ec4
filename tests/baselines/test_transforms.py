"""Transforms of series: what they move, and what they leave where it is."""

import torch

from progmem.baselines.transforms import (
    Segments,
    Source,
    draw_segments,
    equal_segments,
    permute,
    reverse,
    warp,
)


def source(seed=0):
    return Source(torch.Generator().manual_seed(seed))


def ramp(batch=1, length=10, channels=2):
    """Channel c of series b at time t is t + 100 c + 1000 b."""
    t, c, b = torch.arange(length), torch.arange(channels), torch.arange(batch)
    return (t[None, :, None] + 100 * c + 1000 * b[:, None, None]).double()


def test_segments_follow_each_other_in_the_drawn_order():
    """Cuts at 3 and 6 of ten samples, the last part first."""
    segments = Segments(torch.tensor([[0.3, 0.6]]), torch.tensor([[0.5, 0.9, 0.1]]))
    x = ramp()
    moved, _ = permute(x, ~x.isnan(), torch.tensor([10]), segments)
    assert moved[0, :, 0].tolist() == [6, 7, 8, 9, 0, 1, 2, 3, 4, 5]
    assert torch.equal(moved[..., 1], moved[..., 0] + 100)  # the channels move together


def test_permuted_series_hold_the_same_samples_and_nothing_from_past_their_ends():
    x, lengths = ramp(50, 30, 3), torch.randint(1, 31, (50,))
    observed = torch.rand(x.shape) > 0.3
    for segments in (draw_segments(50, 7, source()), equal_segments(50, 20, source())):
        moved, seen = permute(x, observed, lengths, segments)
        for i, n in enumerate(lengths.tolist()):
            assert torch.equal(moved[i, :n].sort(0)[0], x[i, :n])
            assert torch.equal(moved[i, n:], x[i, n:])
            order = moved[i, :n, 0].long() - 1000 * i
            assert torch.equal(seen[i, :n], observed[i, :n][order])


def test_there_are_one_to_the_most_segments_all_as_likely():
    segments = draw_segments(7000, 7, source())
    counts = (segments.cuts < 1).sum(1) + 1
    share = torch.bincount(counts, minlength=8)[1:] / 7000
    assert counts.min() == 1 and counts.max() == 7 and (share - 1 / 7).abs().max() < 0.02


def test_backwards_is_backwards_inside_each_series():
    x = ramp(2)
    back, _ = reverse(x, ~x.isnan(), torch.tensor([10, 4]))
    assert back[0, :, 0].tolist() == list(range(9, -1, -1))
    assert (back[1, :, 0] - 1000).tolist() == [3, 2, 1, 0, 4, 5, 6, 7, 8, 9]


def test_a_warp_keeps_the_ends_and_its_speeds():
    x = ramp(1, 101, 1)
    speeds = torch.tensor([[1.0, 3.0]]).double()
    moved, _ = warp(x, ~x.isnan(), torch.tensor([101]), speeds)
    steps = moved[0, :, 0].diff()
    assert moved[0, 0, 0] == 0 and abs(moved[0, -1, 0] - 100) < 1e-9
    torch.testing.assert_close(steps[:50], torch.full((50,), 0.5).double())
    torch.testing.assert_close(steps[50:], torch.full((50,), 1.5).double())
