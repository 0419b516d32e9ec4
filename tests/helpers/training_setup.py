"""A run small enough for tests, the same in this process and in others."""

import json

import numpy as np
import pytest
import torch

import progmem
from progmem.config import read_config
from progmem.data.recordings import Recording
from progmem.training.pretrain import pretrain

SETTINGS = [
    "model.dim=16", "model.heads=2", "model.blocks=2", "model.patch=6", "model.patch_stride=3",
    "model.window=4", "model.stride=2", "train.batch_size=8", "train.epochs=4",
    "train.checkpoint_every=3", "train.log_every=4", "train.device=cpu", "train.lr=1e-3",
    "views.preset=strong", "loss.negatives=40", "data.longest=100", "data.window=60",
]  # fmt: skip

FORKED = pytest.mark.skipif(
    torch.cuda.is_available(), reason="autograd cannot be forked beside a GPU"
)


def made_recordings(count=20):
    """Recordings of unequal length, one gappy, one long enough to be cut into overlapping rows."""
    rng = np.random.default_rng(0)
    lengths = [48 - 3 * (i % 4) for i in range(count - 1)]
    recordings = [rng.normal(size=(n, 2)).cumsum(0).astype(np.float32) for n in lengths]
    recordings[3][10:22] = np.nan
    recordings.append(rng.normal(size=(250, 2)).astype(np.float32))
    return [Recording(str(i), values) for i, values in enumerate(recordings)]


def small_config(*more):
    return read_config(None, [*SETTINGS, *more])


def run(folder, *settings, log=lambda _: None):
    return pretrain(made_recordings(), folder, small_config(*settings), log=log)


def weights(folder):
    return progmem.load(folder / "model").state_dict()


def steps_of(folder):
    return [
        json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()
    ]


def assert_same_model(ours, theirs):
    found, expected = weights(ours), weights(theirs)
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name]), name
