"""What experiments with trainings on labelled sets have in common."""

from collections.abc import Sequence
from typing import Any

from progmem.config import RunConfig
from progmem.data.recordings import Recording
from progmem.data.windows import TrainingWindows
from progmem.model.pmt import PMT
from progmem.series import ChannelStats
from progmem.training.defaults import fill_defaults
from progmem.training.distributed import choose_device
from progmem.training.pretrain import initial_model, model_for
from progmem.training.randomness import steps_per_epoch

STEPS, BATCH = 400, 256
SETTINGS = ("model.size=small", "train.lr=3e-4", f"train.batch_size={BATCH}")
TRAINING_SEEDS = (0, 1)


def epochs_for(steps: int, rows: int) -> int:
    """The fewest epochs of at least ``steps`` steps."""
    return -(-steps // steps_per_epoch(rows, BATCH))


def untrained_model(recordings: Sequence[Recording], cfg: RunConfig) -> PMT:
    """The model that a training on ``recordings`` starts from."""
    rows = TrainingWindows(recordings, cfg.data)
    length = int(rows.length.median())
    cfg = fill_defaults(cfg, length, device=choose_device(cfg), begun={})
    stats = ChannelStats(rows.channels)
    rows.set_statistics(stats)
    return initial_model(model_for(rows, cfg), stats, cfg.train.seed).eval()


def take_labelled_rows(rows: Sequence[dict[str, Any]]) -> Any:
    """The labelled rows of every draw, out of all ``rows``: every encoder had the same."""
    found = [row.pop("labelled_rows") for row in rows]
    assert all(each == found[0] for each in found)
    return found[0]
