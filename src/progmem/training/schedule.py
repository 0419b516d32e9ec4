"""The learning rate over a run."""

import math

from progmem.settings import TrainConfig


def learning_rate(step: int, total: int, train: TrainConfig) -> float:
    """Linear warm-up to the peak, then a cosine down to the end."""
    warmup = round(train.warmup * total)
    if step < warmup:
        return train.lr * (step + 1) / warmup
    progress = (step - warmup) / max(1, total - 1 - warmup)
    return train.lr_end + (train.lr - train.lr_end) * (1 + math.cos(math.pi * progress)) / 2
