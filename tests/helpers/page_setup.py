"""Recordings with stretches of two kinds, and a model that describes them at once."""

import numpy as np

import progmem
from progmem.data.recordings import Recording

LENGTH, KIND = 1200, 200  # samples of a recording, and of each stretch in it


def made_recordings(count=3, length=LENGTH):
    """Fast and slow waves in turns, each recording with its own phase; the second has a gap."""
    recordings = []
    for i in range(count):
        rng = np.random.default_rng(i)
        at = np.arange(length)
        fast = (at // KIND + i) % 2
        wave = np.sin(at / np.where(fast, 2.5, 12.0) + i)
        values = np.stack([wave, 0.3 * wave + fast], axis=1) + 0.1 * rng.normal(size=(length, 2))
        if i == 1:
            values[700:900] = np.nan
        recordings.append(Recording(f"walk {i}", values.astype(np.float32)))
    return recordings


def small_model(channels=2):
    return progmem.PMT(progmem.ModelConfig.for_length(200, channels=channels, size="tiny"))
