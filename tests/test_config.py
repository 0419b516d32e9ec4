"""Settings out of range are refused with the range; unknown ones with the nearest name."""

import dataclasses
import json

import numpy as np
import pytest

from progmem import ConfigError, ModelConfig
from progmem.config import RunConfig, TrainConfig, read_config, read_finetune_config, run_config
from progmem.training.randomness import total_steps


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"channels": 0}, "model.channels must be a whole number from 1 up, got 0"),
        ({"channels": 2.0}, "model.channels must be a whole number from 1 up, got 2.0"),
        ({"channels": True}, "model.channels must be a whole number"),
        ({"blocks": -1}, "model.blocks must be a whole number from 1 up, got -1"),
        ({"slots": -1}, "model.slots must be a whole number from 0 up, got -1"),
        ({"window": 0}, "model.window must be a whole number from 1 up"),
        ({"window": 8, "stride": 9}, r"model.stride must be in 1..8 \(model.window\), got 9"),
        ({"patch": 4, "patch_stride": 5}, r"model.patch_stride must be in 1..4 \(model.patch\)"),
        ({"dim": 20, "heads": 4}, r"multiple of 2 x model.heads \(8\), got 20"),
        ({"readout": "both"}, "model.readout must be one of carry, block, got 'both'"),
        ({"windows": "ceil"}, "model.windows must be one of cover, floor, got 'ceil'"),
        ({"dropout": 1.0}, r"model.dropout must be in \[0, 1\), got 1.0"),
        ({"dropout": "no"}, r"model.dropout must be in \[0, 1\), got 'no'"),
        ({"gate_carry": 1}, "model.gate_carry must be true or false, got 1"),
        ({"encoder_layers": 0}, "model.encoder_layers must be a whole number from 1 up"),
        ({"size": "huge"}, "model.size must be one of small, tiny, base, custom, got 'huge'"),
        ({"windw": 8}, "unknown setting 'model.windw'; did you mean 'model.window'?"),
        ({"size": ["tiny"]}, "model.size must be one of"),
        ({"dim": 0.0}, "model.dim must be a whole number from 2 up, got 0.0"),
        ({"reset_seed": 2**70}, "model.reset_seed must be a whole number from 0 up, below"),
        ({"size": "custom"}, "model.dim must be a whole number from 2 up, got None"),
        ({"dim": 0}, "model.dim must be a whole number from 2 up, got 0"),
        ({"colour": 8}, "unknown setting 'model.colour'; known: channels, size"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        ModelConfig.from_dict({"channels": 3, **settings})


def test_channels_must_be_given():
    with pytest.raises(ConfigError, match=r"model\.channels is missing"):
        ModelConfig.from_dict({"size": "tiny"})
    with pytest.raises(ConfigError, match=r"model\.channels is missing"):
        ModelConfig.from_dict({"channels": None})
    with pytest.raises(TypeError, match="channels"):
        ModelConfig(size="tiny")
    with pytest.raises(ConfigError, match="model must be a mapping of settings, got None"):
        ModelConfig.from_dict(None)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"length": 2049}, "length must be in 1..2048 samples, got 2049: .*data.window"),
        ({"length": 0}, "length must be in 1..2048 samples, got 0"),
        ({"length": 99, "patch": "a"}, "model.patch must be a whole number from 1 up, got 'a'"),
        ({"length": 10, "patch": 11}, r"model.patch must be in 1..10 \(the length\), got 11"),
        ({"length": 100, "stride": "3"}, "model.stride must be a whole number from 1 up, got '3'"),
        ({"length": 100, "window": "a"}, "model.window must be a whole number from 1 up, got 'a'"),
        ({"length": 100, "strid": 3}, "did you mean 'model.stride'?"),
    ],
)
def test_for_length_refuses_what_it_cannot_use(arguments, message):
    with pytest.raises(ConfigError, match=message):
        ModelConfig.for_length(channels=1, **arguments)


def test_for_length_derives_what_is_not_given():
    cfg = ModelConfig.for_length(500, channels=1, stride=20)
    assert (cfg.window, cfg.stride) == (40, 20)
    cfg = ModelConfig.for_length(500, channels=1, window=12, size="base")
    assert (cfg.window, cfg.stride, cfg.dim) == (12, 6, 320)


def test_numpys_whole_numbers_are_whole_numbers():
    cfg = ModelConfig(channels=np.int64(3), window=np.int32(8), stride=4, dropout=np.float32(0.5))
    assert cfg.channels == 3 and type(cfg.channels) is int and type(cfg.dropout) is float
    json.dumps(cfg.to_dict())


def test_size_fills_in_what_is_not_given():
    assert dataclasses.astuple(ModelConfig(channels=1))[1:5] == ("small", 128, 4, 3)
    assert ModelConfig(channels=1, size="base").size == "base"
    tiny = ModelConfig(channels=1, size="tiny", blocks=5)
    assert (tiny.size, tiny.dim, tiny.heads, tiny.blocks) == ("custom", 64, 4, 5)


def test_a_config_survives_its_dict_and_cannot_be_changed():
    cfg = ModelConfig.for_length(300, channels=4, size="base", slots=3, reset_seed=7)
    assert ModelConfig.from_dict(cfg.to_dict()) == cfg
    assert dataclasses.replace(cfg, slots=1).slots == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        cfg.slots = 5


def test_null_is_as_good_as_leaving_a_setting_out():
    empty = read_config(None, ["train.lr=null", "model.dim=null", "data.hop=null", "views.crop="])
    assert empty == read_config(None) == RunConfig()
    assert ModelConfig.from_dict({"channels": 2, "dim": None}) == ModelConfig(channels=2)
    assert ModelConfig.for_length(99, 2, patch=None) == ModelConfig.for_length(99, 2)
    for text in ("data.hop=0", "views.crop=-1", "train.steps=0"):
        with pytest.raises(ConfigError, match="must be"):
            read_config(None, [text])


def test_a_run_is_as_long_as_its_epochs_or_its_steps_say():
    assert (TrainConfig().epochs, TrainConfig().steps) == (None, None)  # decided by the device
    assert read_finetune_config(None).run.train.epochs == 50
    short = TrainConfig(steps=7)
    assert (short.epochs, short.steps) == (None, 7)
    assert total_steps(20, short) == 7
    assert total_steps(20, TrainConfig(epochs=3, batch_size=8)) == 6
    for text, other in (("train.steps=7", "epochs"), ("train.epochs=3", "steps")):
        cfg = read_config(None, [text])
        assert other not in cfg.to_dict()["train"] and run_config(cfg.to_dict()) == cfg
    message = "train.epochs is 3 and train.steps is 4; give one of them"
    for read in (read_config, read_finetune_config):
        with pytest.raises(ConfigError, match=message):
            read(None, ["train.epochs=3", "train.steps=4"])
    tuned = read_finetune_config(None, ["train.steps=4"]).run.train
    assert (tuned.epochs, tuned.steps, tuned.batch_size) == (None, 4, 64)
    assert read_finetune_config(None).run.train.epochs == 50


def test_a_settings_file_of_the_version_that_wrote_0_for_no_hop_is_read(tmp_path):
    (tmp_path / "config.yaml").write_text("data:\n  hop: 0\n")
    assert read_config(tmp_path / "config.yaml").data.hop is None


def test_a_file_that_is_not_yaml_is_named_with_the_line(tmp_path):
    (tmp_path / "config.yaml").write_text("train:\n  steps: 5\n   lr: 3\n")
    with pytest.raises(
        ConfigError, match=r"config.yaml is not yaml: line 3, column 6: mapping val"
    ):
        read_config(tmp_path / "config.yaml")
