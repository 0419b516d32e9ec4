"""An encoder that fits in a moment, and series for it."""

import numpy as np
import torch

from progmem import PMTEncoder

TINY = ("model.dim=8", "model.heads=2", "model.blocks=1", "model.encoder_layers=1")


def small(**params):
    return PMTEncoder(**{"epochs": 1, "batch_size": 16, "device": "cpu", "settings": TINY} | params)


def made(cases=12, channels=2, length=40):
    rng = np.random.default_rng(0)
    return rng.normal(size=(cases, channels, length)).cumsum(2)


def assert_same_weights(one, other):
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name
