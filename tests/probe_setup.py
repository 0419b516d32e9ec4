"""Series that a probe can tell apart, for its tests."""

import numpy as np


def waves(count, seed, channels=2):
    """Slow and fast oscillations, (count, 60, channels), and which they are."""
    rng = np.random.default_rng(seed)
    y = np.arange(count) % 2
    time = np.arange(60)[:, None] + rng.uniform(0, 60, size=(count, 1, channels))
    x = np.sin(time * np.where(y, 0.9, 0.3)[:, None, None]) + 0.05 * rng.normal(size=time.shape)
    return x.astype(np.float32), y
