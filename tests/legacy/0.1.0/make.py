"""How the files beside this one were made, by version 0.1.0 (commit 79d49a8) on a CPU.

They are what a user of that version may still have. `expected.npz` holds what goes into each and
what that version got out of it. The script is kept to be read: later versions write other files.
"""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from progmem.data.labelled import Labelled
from progmem.finetune_settings import read_finetune_config
from progmem.settings import read_config
from safetensors.torch import save_file

import progmem
from progmem.data.recordings import Recording
from progmem.training.finetune import finetune
from progmem.training.pretrain import pretrain

HERE = Path(__file__).parents[1]
SHAPE = {"dim": 8, "heads": 2, "blocks": 1, "slots": 1, "patch": 1, "patch_stride": 1,
         "window": 4, "stride": 2, "encoder_layers": 1}  # fmt: skip
SETTINGS = [*(f"model.{name}={value}" for name, value in SHAPE.items()), "train.device=cpu",
            "train.batch_size=4", "train.epochs=3", "train.checkpoint_every=2",
            "train.lr=1e-2", "loss.pcl=0", "loss.hgcl=0"]  # fmt: skip


def recordings(x):
    return [Recording(str(i), values) for i, values in enumerate(x)]


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = np.random.default_rng(0).normal(size=(8, 24, 2)).cumsum(1).astype(np.float32)
    known = {"x": x}

    model = progmem.PMT(progmem.ModelConfig(channels=2, **SHAPE))
    model.stats.mean.fill_(0.5)
    model.save(HERE / "model")
    known["model"] = model.encode(x).sequence.numpy()

    stream = progmem.Stream(model, batch_size=8, horizon=16)
    stream.push(x[:, :9])
    save_file(stream.state_dict(), HERE / "stream.safetensors")
    known["stream"] = stream.push(x[:, 9:]).tokens.numpy()

    hours = pd.date_range("2024-01-01", periods=90, freq="h")
    series = np.random.default_rng(1).normal(size=(90, 2)).cumsum(0)
    forecaster = progmem.Forecaster(model, padding=6).fit(series, hours)
    known["series"], known["forecaster"] = series, forecaster.predict(3).to_numpy()
    forecaster.save(HERE / "forecaster.safetensors")

    shape = tuple(text for text in SETTINGS if text.startswith("model."))
    encoder = progmem.PMTEncoder(epochs=1, batch_size=4, device="cpu", lr=1e-2, settings=shape)
    known["encoder"] = encoder.fit(x.transpose(0, 2, 1)).transform(x.transpose(0, 2, 1))
    encoder.save(HERE / "encoder")

    whole = pretrain(recordings(x), HERE / "run", read_config(None, SETTINGS), say=None)
    known["run"] = whole.encode(x).sequence.numpy()
    shutil.rmtree(HERE / "run/model")  # as if broken off after its fourth step
    for file in (HERE / "run/checkpoints").iterdir():
        if file.stem != "step-00000004":
            file.unlink()

    y = np.arange(8) % 2
    data = Labelled(recordings(x), y, ("slow", "fast"), list(x), y, {"name": "made"})
    cfg = read_finetune_config(None, [*SETTINGS[:-2], "train.epochs=1"])
    classifier = finetune(data, HERE / "tuned", cfg, say=None).classifier
    known["tuned"] = classifier.scores(x)
    for path in (HERE / "tuned").iterdir():
        if path.name not in ("model", "head.json", "head.safetensors"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    np.savez_compressed(HERE / "expected.npz", **known)


if __name__ == "__main__":
    main()
