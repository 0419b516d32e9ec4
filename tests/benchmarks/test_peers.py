"""The comparison with public code: equal code is equal, other code is not, tables by hand."""

import importlib
import sys

import pytest
import torch
from torch import nn

from benchmarks import peers
from benchmarks.baselines_tables import peers_table, step_ratio
from progmem.baselines import make_encoder
from progmem.baselines.ts2vec import hierarchical_loss


class Theirs(nn.Module):
    """Our network in the words of the public code: a gap is NaN."""

    def __init__(self, input_dims, output_dims):
        super().__init__()
        self.network = make_encoder("ts2vec", channels=input_dims, dropout=0.0).network
        self.repr_dropout = nn.Dropout(0.1)

    def forward(self, x, keep):
        missing = x.isnan()
        return self.network(x.masked_fill(missing, 0.0), ~missing, keep=keep).tokens


def loss_of(temporal):
    def loss(first, second):
        apart = ~torch.eye(len(first), dtype=torch.bool)
        return hierarchical_loss(first, second, apart=apart, temporal=temporal)[0]

    return loss


def test_differences_are_none_for_equal_code_and_seen_for_other_code():
    same = peers.compare(Theirs, loss_of(0.5), torch.float64)
    assert same["vectors"] == 0.0 and same["loss"] < 1e-14 and same["gradients"] < 1e-14
    other = peers.compare(Theirs, loss_of(0.500001), torch.float64)
    assert other["vectors"] == 0.0
    assert 1e-8 < other["loss"] < 1e-5 and 1e-8 < other["gradients"] < 1e-4


def test_code_of_two_folders_can_have_modules_of_the_same_name(tmp_path):
    found = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "peer_models.py").write_text(f"name = {folder!r}")
        with peers.code_in(tmp_path / folder):
            found.append(importlib.import_module("peer_models").name)
    assert found == ["a", "b"] and "peer_models" not in sys.modules
    assert not any(str(tmp_path) in path for path in sys.path)


def test_the_table_worked_by_hand():
    ratio, error = step_ratio({"here": [1.0, 3.0], "public": [4.0, 4.0]})
    assert ratio == 0.5 and error == pytest.approx(0.5 * (2**0.5 / 2) / 2**0.5)
    result = {
        "differences": {"TS2Vec": {"float64": {"loss": 3e-16, "weights": 0.0},
                                   "float32": {"loss": 2.4e-7}}},
        "seconds_of_a_step": {"here": [1.0, 3.0], "public": [4.0, 4.0]}, "device": "a CPU",
    }  # fmt: skip
    assert peers_table([result]).splitlines()[2:] == [
        "| TS2Vec | loss | 3e-16 | 2e-07 |",
        "| TS2Vec | weights | 0e+00 | - |",
        "| TS2Vec | time of a step, a CPU | - | 0.50x ± 0.25 |",
    ]
