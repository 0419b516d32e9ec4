"""Dynamic time warping: its fused form against plain torch, and against numbers by hand."""

import pytest
import torch
from kernel_setup import DEVICE, QUIET, fused, in_both_forms

from progmem.ops.dtw import dtw_distances, pair_costs

pytest.importorskip("triton")
pytestmark = QUIET


def series_of(*lengths, channels=2):
    """Series one after the other, padded with what must not matter: (L, C, R)."""
    x = torch.randn(max(lengths), channels, len(lengths), device=DEVICE)
    return x, torch.tensor(lengths, device=DEVICE)


@pytest.mark.parametrize("reach", [3, 4, 6], ids="reach {}".format)
@pytest.mark.parametrize("channels", [1, 3], ids="channels {}".format)
def test_both_forms_give_the_same_costs(reach, channels):
    (x, x_length), (y, y_length) = series_of(6, 4, channels=channels), series_of(5, 6, 3)
    y = torch.randn(6, channels, 3, device=DEVICE)
    ours, plain = in_both_forms(lambda: pair_costs(x, y, x_length, y_length, reach))
    torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-5)
    assert plain.isfinite().all()


def test_what_lies_beyond_the_end_of_a_series_does_not_matter():
    (x, x_length), (y, y_length) = series_of(6, 3), series_of(4, 6)
    with fused():
        before = pair_costs(x, y, x_length, y_length, 6)
        x[3:, :, 1], y[4:, :, 0] = 1e6, -1e6
        assert torch.equal(pair_costs(x, y, x_length, y_length, 6), before)


def test_a_pulse_that_is_moved_further_than_the_band_costs_two_steps():
    early, late = torch.zeros(2, 12, 1, device=DEVICE)
    early[2], late[5] = 1, 1
    with fused():
        assert float(dtw_distances([early, late])[0, 1]) == 0.0
        # three steps apart, and times may be moved by two: each pulse meets zeros
        assert float(dtw_distances([early, late], band=2 / 12)[0, 1]) == pytest.approx(2**0.5)
