"""The detail below the tokens: by a loop, by hand, in pieces, and what it is fitted to."""

import numpy as np
import pytest
import torch

from progmem import detail
from progmem.detail import CONVOLUTIONS, TAPS, Detail, DetailSummary, draw_convolutions, fit_detail
from progmem.pooling import padded


def shares(fitted, values, sizes=None, dtype=torch.float64):
    """Of series (B, L, C) that come in pieces of ``sizes``."""
    summary = DetailSummary(fitted, len(values), torch.device("cpu"), dtype)
    for piece in values.split(sizes or values.shape[1], dim=1):
        summary.add(piece)
    return summary.shares()


def gappy(series=3, length=90, channels=2):
    x = torch.randn(series, length, channels, dtype=torch.float64)
    x[0, 10:30], x[1, 40:, 1], x[2, 7] = torch.nan, torch.nan, torch.nan
    return x


def loop(fitted, values):
    """The formula of the module, sample by sample, of one series (L, C)."""
    scaled = (values - fitted.channel_mean) / fitted.channel_scale
    there, scaled = ~scaled.isnan().all(1), scaled.nan_to_num(0.0)
    found = []
    for h in range(CONVOLUTIONS):
        total, count = 0.0, 0
        for s in range(len(values)):
            if there[s]:
                value = 0.0
                for k in range(TAPS):
                    at = s + (k - TAPS // 2) * int(fitted.dilation[h])
                    if 0 <= at < len(values):
                        value += float(fitted.weight[h, :, k].double() @ scaled[at])
                rise = (value - fitted.threshold[h]) / (2 * fitted.width[h]) + 0.5
                total, count = total + min(1.0, max(0.0, float(rise))), count + 1
        found.append(total / count)
    return torch.tensor(found, dtype=torch.float64)


def test_it_is_what_a_loop_over_samples_finds(monkeypatch):
    monkeypatch.setattr(detail, "CONVOLUTIONS", 24)
    monkeypatch.setitem(globals(), "CONVOLUTIONS", 24)
    x = gappy(length=40)
    fitted = fit_detail(list(x))
    assert fitted.dilation.unique().tolist() == [1, 2, 4]
    expected = torch.stack([loop(fitted, one) for one in x])
    torch.testing.assert_close(shares(fitted, x), expected, rtol=0, atol=1e-12)


def test_a_share_worked_by_hand():
    """One difference of neighbours over 0, 3, 6, 5: it is 3, 3, -1 and, past the end, -5."""
    weight = torch.zeros(1, 1, TAPS)
    weight[0, 0, TAPS // 2], weight[0, 0, TAPS // 2 + 1] = -1.0, 1.0
    number = torch.tensor([2.0], dtype=torch.float64)
    fitted = Detail(
        0 * number, number / 2, weight, torch.tensor([1]), threshold=number, width=2 * number
    )
    x = torch.tensor([0.0, 3.0, 6.0, 5.0]).double().reshape(1, 4, 1)
    rises = [(3 - 2) / 8 + 0.5, (3 - 2) / 8 + 0.5, (-1 - 2) / 8 + 0.5, 0.0]
    assert shares(fitted, x).item() == pytest.approx(sum(rises) / 4)


@pytest.mark.parametrize("sizes", [1, 7, [40, 0, 3, 47], [89, 1]])
@pytest.mark.parametrize("dtype, atol", [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_how_series_are_cut_into_pieces_does_not_matter(sizes, dtype, atol):
    x = gappy()
    fitted = fit_detail(list(x))
    whole = shares(fitted, x, dtype=dtype)
    torch.testing.assert_close(shares(fitted, x, sizes, dtype), whole, rtol=0, atol=atol)


def test_nothing_changes_with_the_samples_and_series_taken_at_once(monkeypatch):
    x = gappy(5, 200)
    fitted = fit_detail(list(x))
    whole = shares(fitted, x)
    monkeypatch.setattr(detail, "AT_ONCE", 16)
    torch.testing.assert_close(shares(fitted, x), whole, rtol=0, atol=1e-12)


def test_batch_mates_and_the_padding_to_their_length_change_nothing():
    x = [one[:n] for one, n in zip(gappy(), (90, 41, 9), strict=True)]
    fitted = fit_detail(x)
    together = shares(fitted, padded(x))
    for one, row in zip(x, together, strict=True):
        torch.testing.assert_close(shares(fitted, one[None])[0], row, rtol=0, atol=1e-12)


def test_a_series_without_values_has_no_shares_and_one_of_a_single_sample_has():
    fitted = fit_detail(list(gappy()))
    assert not shares(fitted, torch.full((1, 30, 2), torch.nan)).any()
    assert shares(fitted, torch.randn(1, 1, 2)).any()


def test_what_it_keeps_does_not_grow():
    fitted = fit_detail(list(gappy()))
    summary = DetailSummary(fitted, 1, torch.device("cpu"), torch.float32)
    kept = summary.x.shape
    for _ in range(5):
        summary.add(torch.randn(1, 300, 2))
        assert summary.x.shape == kept and summary.observed.shape == kept[:2]


def test_thresholds_lie_all_over_what_the_convolutions_give():
    x = torch.randn(64, 100, 1, dtype=torch.float64)
    found = shares(fit_detail(list(x)), x).mean(0).sort().values
    even = (torch.arange(CONVOLUTIONS) + 0.5) / CONVOLUTIONS
    torch.testing.assert_close(found, even.double(), rtol=0, atol=0.06)


def test_scale_and_offset_of_a_channel_change_nothing():
    x = gappy()
    moved = x * torch.tensor([1e-3, 50.0]) + torch.tensor([7.0, -1e3])
    same = shares(fit_detail(list(moved)), moved)
    torch.testing.assert_close(same, shares(fit_detail(list(x)), x), rtol=0, atol=1e-5)


def test_the_same_series_give_the_same_fit_and_draw_nothing_from_the_callers_numbers():
    x = list(gappy())
    state = torch.random.get_rng_state()
    assert all(map(torch.equal, fit_detail(x), fit_detail([one.numpy() for one in x])))
    assert torch.equal(torch.random.get_rng_state(), state)


def test_rounding_does_not_flip_what_stands_still():
    """A constant series is at the threshold of many convolutions, give or take a rounding error."""
    x = torch.zeros(4, 60, 1, dtype=torch.float64)
    x[0, 20:30] = torch.randn(10, 1, dtype=torch.float64)
    fitted = fit_detail(list(x))
    tilted = x + 1e-9 * torch.randn(4, 60, 1, dtype=torch.float64)
    torch.testing.assert_close(shares(fitted, tilted), shares(fitted, x), rtol=0, atol=1e-5)


@pytest.mark.parametrize("length, dilations", [(1, 1), (16, 1), (17, 2), (500, 6), (9_999, 8)])
def test_the_widest_convolutions_span_the_series_up_to_a_limit(length, dilations):
    fitted = fit_detail([torch.randn(length, 1)])
    widest = int(fitted.dilation.max())
    assert widest == 2 ** (dilations - 1) <= detail.MOST_DILATION
    assert widest == 1 or widest * (TAPS - 1) < min(length, detail.LONGEST)


@pytest.mark.parametrize("channels", [1, 3, 40])
def test_a_convolution_adds_up_a_few_channels_by_one_shape_of_mean_0(channels):
    weight, _ = draw_convolutions(channels, 100)
    assert weight.shape == (CONVOLUTIONS, channels, TAPS) and weight.dtype == torch.float32
    added = weight.abs().sum(2).gt(0).sum(1)
    assert added.min() == 1 and added.max() == min(channels, detail.MOST_CHANNELS)
    np.testing.assert_allclose(weight.sum(2), 0, atol=1e-5)
    np.testing.assert_allclose(weight.flatten(1).norm(dim=1), 1, rtol=1e-5)


def test_channels_that_never_vary_or_were_never_observed_are_left_as_they_are():
    x = torch.randn(5, 50, 3, dtype=torch.float64)
    x[:, :, 1], x[:, :, 2] = 1e5 + 0.1, torch.nan
    fitted = fit_detail(list(x))
    assert fitted.channel_scale[1:].tolist() == [1.0, 1.0] and fitted.channel_mean[2] == 0
    assert shares(fitted, x).isfinite().all()
