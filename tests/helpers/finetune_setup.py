"""Series with labels and settings for small trainings with them."""

import numpy as np
import torch
from probe_setup import waves

from progmem.config import read_finetune_config
from progmem.data.labels import LabelledRecordings
from progmem.data.recordings import Recording

SHAPE = ["model.dim=16", "model.heads=2", "model.blocks=1", "train.batch_size=16"]
TINY = [*SHAPE, "train.epochs=3", "train.checkpoint_every=2", "train.device=cpu"]


def made(test_value=0.0, count=40):
    (x, y), (test, test_y) = waves(count, 0), waves(20, 1)
    recordings = [Recording(str(i), values) for i, values in enumerate(x)]
    test = list(test + np.float32(test_value))
    return LabelledRecordings(recordings, y, ("slow", "fast"), test, test_y, {"name": "made"})


def config(*more):
    return read_finetune_config(None, [*TINY, *more])


def same_weights(ours, theirs):
    ours, theirs = ours.state_dict(), theirs.state_dict()
    assert ours.keys() == theirs.keys()
    return all(torch.equal(ours[name], theirs[name]) for name in ours)


def without_last_checkpoint(folder):
    max((folder / "checkpoints").iterdir()).unlink()
