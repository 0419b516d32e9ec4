"""The comparison with public code on the CNN: equal code is equal, other code is not."""

from types import SimpleNamespace

import pytest
import torch

from benchmarks import peers_cnn
from benchmarks.baselines_tables import peers_cnn_table
from progmem.baselines.ts2vec import instance_contrast, nearness, temporal_contrast

APART = ~torch.eye(6, dtype=torch.bool)


def contrasts(sharpness=1.0, factor=1.0):
    """Our contrasts in the words of the public code."""
    like = torch.empty(0, dtype=torch.float64)
    lags = SimpleNamespace(
        dup_matrix=lambda weights: (weights, weights),
        timelag_sigmoid=lambda T, steep: nearness(T, sharpness * steep, like).numpy(),
    )
    losses = SimpleNamespace(
        inst_CL_soft=lambda a, b, weights, _: factor * instance_contrast(a, b, APART, weights),
        temp_CL_soft=lambda a, b, weights, _: temporal_contrast(a, b, weights),
    )
    return losses, lags


def test_differences_are_none_for_equal_code_and_seen_for_other_code():
    found = peers_cnn.compare_soft(*contrasts(), torch.float64)
    assert found == {"instance contrast": 0.0, "temporal contrast": 0.0, "gradients": 0.0}
    found = peers_cnn.compare_soft(*contrasts(factor=1.001), torch.float64)
    assert found["instance contrast"] == pytest.approx(1e-3, rel=0.01)
    assert found["temporal contrast"] == 0.0 and 1e-5 < found["gradients"] < 1e-2
    found = peers_cnn.compare_soft(*contrasts(sharpness=1.001), torch.float64)
    assert found["instance contrast"] == 0.0 and 1e-7 < found["temporal contrast"] < 1e-2


def test_the_table_worked_by_hand():
    one = {"float64": {"tokens": 0.0, "loss": 3e-16}, "float32": {"tokens": 0.0, "loss": 2.4e-7}}
    assert peers_cnn_table([{"differences": {"TS-TCC": one}}]).splitlines()[2:] == [
        "| TS-TCC | tokens | 0e+00 | 0e+00 |",
        "| TS-TCC | loss | 3e-16 | 2e-07 |",
    ]
