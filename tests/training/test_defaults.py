"""What a run does where nobody has said: by the device, kept when it goes on elsewhere."""

import pytest
import torch

from progmem.config import read_config
from progmem.errors import ConfigError
from progmem.training.defaults import DEFAULTS, fill_defaults


def filled(*settings, device="cpu", begun=None, length=128):
    return fill_defaults(read_config(None, settings), length, device=device, begun=begun or {})


@pytest.mark.parametrize("device", DEFAULTS)
def test_a_run_without_settings_has_what_suits_its_device(device):
    cfg, default = filled(device=device), DEFAULTS[device]
    assert cfg.model["size"] == default.size and cfg.train.batch_size == default.batch_size
    assert (cfg.train.steps, cfg.train.epochs) == (default.steps, None)
    assert cfg.model["patch_stride"] == 16 / default.strides_in_patch
    assert cfg.views.hide > 0 and (cfg.loss.predict, cfg.loss.pcl) == (1, 0)


def test_auto_is_as_good_as_nothing():
    assert filled("model.size=auto") == filled()


def test_what_is_said_stays():
    given = ("model.size=base", "model.patch=10", "train.batch_size=7", "train.epochs=3")
    cfg = filled(*given)
    assert cfg.model == {"size": "base", "patch": 10}
    assert (cfg.train.batch_size, cfg.train.epochs, cfg.train.steps) == (7, 3, None)


def test_a_run_goes_on_as_it_was_begun_on_another_device():
    settings = ("train.seed=4", "model.dim=32", "model.slots=1")
    first = filled(*settings)
    model = {"size": "custom", "dim": 32, "heads": 4, "blocks": 2, "patch": 16, "patch_stride": 4}
    begun = {**first.to_dict(), "model": model}
    again = filled(*settings, device="cuda", begun=begun)
    assert again.train == first.train
    assert again.model == {**model, "slots": 1}


def test_prediction_and_the_memory_objective_follow_the_hidden_spans():
    for settings, weights in (
        (["views.preset=gentle"], (0, 1)),
        (["views.preset=gentle", "views.hide=0.2"], (1, 0)),
        (["loss.predict=0.5"], (0.5, 0)),
        (["loss.pcl=0.5"], (1, 0.5)),
        (["views.hide=0", "loss.pcl=0"], (0, 0)),
    ):
        loss = read_config(None, settings).loss
        assert (loss.predict, loss.pcl) == weights, settings
    with pytest.raises(ConfigError, match=r"loss.predict is 1, but views.hide is 0"):
        read_config(None, ["views.hide=0", "loss.predict=1"])


def test_a_model_that_cannot_hide_is_refused(tmp_path):
    from training_setup import run

    for part, needed_by in (("mask_vector", "views.hide"), ("predictor", "loss.predict")):
        with pytest.raises(ConfigError, match=f"model.{part} is false, but {needed_by} needs it"):
            run(tmp_path / "run", "views.hide=0.3", f"model.{part}=false")


def test_a_run_learns_to_predict_what_is_hidden(tmp_path):
    import json

    from progmem.data.recordings import Recording
    from progmem.training.pretrain import pretrain

    time = torch.arange(60.0)
    waves = [Recording(str(i), torch.sin(time / 3 + i)[:, None].numpy()) for i in range(16)]
    settings = ["model.dim=16", "model.heads=2", "model.blocks=1", "train.steps=40",
                "train.lr=1e-2", "loss.icl=0", "loss.pcl=0", "loss.hgcl=0"]  # fmt: skip
    pretrain(waves, tmp_path / "run", read_config(None, settings), log=lambda _: None)
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    errors = [json.loads(line)["predict"] for line in lines]
    assert sum(errors[-5:]) < 0.5 * sum(errors[:5])
