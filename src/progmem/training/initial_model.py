"""The model before the first step: its shape, from the training rows, and its first weights."""

import torch

from progmem.config import ModelConfig
from progmem.data.rows import Rows
from progmem.errors import ConfigError, InputError
from progmem.model.pmt import PMT
from progmem.series import ChannelStats
from progmem.settings import RunConfig


def model_for(rows: Rows, cfg: RunConfig) -> ModelConfig:
    """The model's shape: as told, the rest from the rows' median length and channels."""
    if rows.channels > 1 and int(rows.length.max()) == 1:
        raise InputError(
            f"recordings of {rows.channels} channels and one sample each have no course of time: "
            "arrays are (series, time, channels), are the last two swapped?"
        )
    length = int(rows.length.median())
    given = dict(cfg.model)
    if given.setdefault("channels", rows.channels) != rows.channels:
        raise ConfigError(
            f"model.channels is {given['channels']}, the recordings have {rows.channels}"
        )
    channels = given.pop("channels")
    model_cfg = ModelConfig.for_length(length, channels, **given)
    shortest = int(rows.length.argmin())
    if rows.length[shortest] < model_cfg.patch:
        name = rows.recordings[int(rows.source[shortest])].name
        raise InputError(
            f"{name} needs at least {model_cfg.patch} samples, got {int(rows.length[shortest])}; "
            "leave it out or set a smaller model.patch"
        )
    if len(rows) < 2:
        raise InputError(
            "training needs at least 2 rows to tell apart, got 1 of shape "
            f"{tuple(rows.recordings[0].values.shape)}: one recording (time, channels)? "
            "Several are (series, time, channels); one is cut into rows by a data.longest and "
            "data.window below its length"
        )
    if model_cfg.slots == 0 and cfg.loss.pcl:
        raise ConfigError("loss.pcl needs memory: set loss.pcl=0 or model.slots to 1 or more")
    return model_cfg


def initial_model(cfg: ModelConfig, stats: ChannelStats, seed: int) -> PMT:
    """The model a run of this seed begins with: statistics of the channels, nothing learnt yet."""
    torch.manual_seed(seed)
    model = PMT(cfg)
    if cfg.normalise == "channel":
        model.stats.load_state_dict(stats.state_dict())
    return model
