"""Series that a probe can tell apart, for its tests."""

import numpy as np

import progmem


def waves(count, seed, channels=2):
    """Slow and fast oscillations, (count, 60, channels), and which they are."""
    rng = np.random.default_rng(seed)
    y = np.arange(count) % 2
    time = np.arange(60)[:, None] + rng.uniform(0, 60, size=(count, 1, channels))
    x = np.sin(time * np.where(y, 0.9, 0.3)[:, None, None]) + 0.05 * rng.normal(size=time.shape)
    return x.astype(np.float32), y


def noise(count=40, length=200, channels=1):
    return np.random.default_rng(0).normal(size=(count, length, channels))


def small(**settings):
    return progmem.ModelConfig.for_length(200, 1, dim=16, heads=2, blocks=1, **settings)
