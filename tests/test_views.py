"""Views: reproducible, gap-aware, and honest about the time they show."""

import pytest
import torch

from progmem.config import PRESETS, ViewConfig
from progmem.views import draw_view, make_view, time_map

STILL = dict.fromkeys(PRESETS["gentle"], 0.0)


def view(x, cfg, *, strong=True, seed=0, lengths=None, observed=None):
    B, L, C = x.shape
    generator = torch.Generator().manual_seed(seed)
    draws = draw_view(B, L, C, cfg, strong=strong, generator=generator)
    lengths = torch.full((B,), L) if lengths is None else lengths
    observed = ~x.isnan() if observed is None else observed
    return make_view(x.nan_to_num(), observed, lengths, draws.to(x.dtype)), draws


def test_without_strength_a_view_is_the_series():
    x = torch.randn(3, 50, 2).double()
    made, _ = view(x, ViewConfig(**STILL))
    torch.testing.assert_close(made.x, x, rtol=0, atol=1e-12)
    torch.testing.assert_close(made.time, torch.arange(50.0).double().expand(3, 50))


def test_a_view_is_a_function_of_its_generator():
    x = torch.randn(3, 50, 2)
    cfg = ViewConfig(preset="strong")
    first, again, other = (view(x, cfg, seed=seed)[0] for seed in (1, 1, 2))
    assert torch.equal(first.x, again.x) and not torch.equal(first.x, other.x)


def test_the_time_map_tells_what_a_sample_shows():
    """On a ramp without noise or factors, a view's values are its times."""
    ramp = torch.arange(100.0).double()[None, :, None].repeat(4, 1, 1)
    cfg = ViewConfig(**STILL | {"time_warp": 0.4, "crop": 0.5})
    made, _ = view(ramp, cfg)
    torch.testing.assert_close(made.x[..., 0], made.time, rtol=0, atol=1e-9)
    assert (made.time.diff(dim=1) > 0).all()
    assert made.time.min() >= 0 and made.time.max() <= 99
    assert (made.time[:, -1] - made.time[:, 0] < 99).all()  # cropped
    assert (made.time[:, -1] - made.time[:, 0] >= 0.5 * 99).all()


def test_a_time_warp_keeps_the_ends():
    cfg = ViewConfig(**STILL | {"time_warp": 0.4})
    lengths = torch.tensor([60, 33, 1])
    draws = draw_view(3, 60, 1, cfg, strong=True, generator=torch.Generator().manual_seed(0))
    time = time_map(lengths, draws, 60)
    assert time[0, 0] == 0 and time[0, 59] == pytest.approx(59)
    assert time[1, 0] == 0 and time[1, 32] == pytest.approx(32)


def test_only_the_strong_view_is_warped():
    x = torch.randn(2, 80, 3)
    cfg = ViewConfig(**STILL | {"time_warp": 0.4, "magnitude_warp": 0.4})
    weak, _ = view(x, cfg, strong=False)
    strong, _ = view(x, cfg, strong=True)
    torch.testing.assert_close(weak.x, x, rtol=0, atol=1e-5)
    assert (strong.x - x).abs().max() > 0.1


def test_gaps_stay_gaps_and_nothing_comes_from_past_the_end():
    x = torch.randn(2, 80, 2).double()
    x[0, 30:50] = torch.nan
    x[1, 60:] = 1e9  # past the end of the second series
    cfg = ViewConfig(**STILL | {"time_warp": 0.3, "crop": 0.3})
    made, _ = view(x, cfg, lengths=torch.tensor([80, 60]))
    shows_gap = (made.time[0] > 29) & (made.time[0] < 50)
    assert torch.equal(made.observed[0, :, 0], ~shows_gap)
    assert not made.observed[1, 60:].any()
    assert made.x.abs().max() < 10


def test_padding_does_not_change_a_view():
    x = torch.randn(1, 40, 2).double()
    cfg = ViewConfig(preset="strong", jitter_strong=0.0)
    alone, draws = view(x, cfg)
    padded = torch.cat([x, torch.full((1, 20, 2), 7.0).double()], dim=1)
    longer = draws._replace(noise=torch.zeros(1, 60, 2)).to(x.dtype)
    beside = make_view(padded, torch.ones_like(padded, dtype=bool), torch.tensor([40]), longer)
    torch.testing.assert_close(beside.x[:, :40], alone.x, rtol=0, atol=1e-12)


def test_at_least_one_channel_always_speaks():
    x = torch.ones(500, 5, 3)
    made, draws = view(x, ViewConfig(**STILL | {"channel_dropout": 0.99}))
    assert (draws.channel_mask.sum(2) >= 1).all() and (draws.channel_mask.sum(2) == 1).any()
    assert ((made.x == 0) == (draws.channel_mask == 0).expand_as(x)).all()


def test_presets_are_ordered_by_strength():
    for weaker, stronger in (("gentle", "medium"), ("medium", "strong")):
        assert all(PRESETS[weaker][name] <= PRESETS[stronger][name] for name in PRESETS[weaker])
    assert ViewConfig(preset="strong", crop=0.1).crop == 0.1


def test_what_is_hidden_is_two_spans_in_some_series_and_the_view_is_as_before():
    x = torch.randn(400, 100, 1)
    made, draws = view(x, ViewConfig(hide=0.5))
    shown, _ = view(x, ViewConfig(hide=0.0))
    assert torch.equal(made.x, shown.x) and not shown.hidden.any()
    share = made.hidden.float().mean((1, 2))
    some = share > 0
    assert 0.6 < some.float().mean() < 0.8
    assert share.max() <= 0.52 and share[some].min() >= 0.03  # spans may lie over each other
    changes = made.hidden[:, :, 0].int().diff(dim=1).abs().sum(1)
    assert changes.max() <= 4
    assert (draws.spans[..., 0] >= 0).all() and (draws.spans[..., 1] <= 1).all()


def test_only_samples_that_are_there_are_hidden():
    x = torch.randn(64, 90, 3)
    x[:, 20:40, 0] = torch.nan
    lengths = torch.randint(30, 91, (64,))
    made, draws = view(x, ViewConfig(hide=0.9), lengths=lengths)
    assert made.hidden.any() and not (made.hidden & ~made.observed).any()
    assert not (made.hidden & (draws.channel_mask == 0)).any()  # a silent channel is no target
    past = torch.arange(90) >= lengths[:, None]
    assert not made.hidden[past].any()


def test_a_target_has_no_noise():
    x = torch.randn(4, 60, 2)
    made, draws = view(x, ViewConfig(**STILL | {"jitter_strong": 0.5, "hide": 0.5}))
    torch.testing.assert_close(made.clean, x)
    torch.testing.assert_close(made.x, x + draws.noise)
