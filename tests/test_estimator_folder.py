"""A saved encoder: back to the bit, or refused with a reason."""

import shutil

import numpy as np
import pandas as pd
import pytest
from estimator_setup import TINY, made, small

from progmem import ModelFolderError, PMTEncoder, artifact
from progmem.config import read_config
from progmem.data.recordings import Recording
from progmem.pooling import pool
from progmem.training.pretrain import pretrain


@pytest.fixture(scope="module")
def fitted():
    return small().fit(made())


def test_a_saved_encoder_comes_back_to_the_bit(fitted, tmp_path):
    params = {"level": "memory", "lr": np.float64(1e-3), "seed": np.int64(3)}
    wide = pd.DataFrame(made(channels=1)[:, 0]).rename(columns="t{}".format)
    for encoder, X in ((small(**params).fit(wide), wide), (fitted, made())):
        encoder.save(tmp_path / "encoder")  # the second over the first
        again = PMTEncoder.load(tmp_path / "encoder")
        assert again.get_params() == encoder.get_params()
        assert again.n_features_in_ == encoder.n_features_in_
        assert again.channels_ == encoder.channels_
        np.testing.assert_array_equal(again.transform(X), encoder.transform(X))
        assert hasattr(again, "feature_names_in_") == (X is wide)


def change_note(folder, **changes):
    """Another note under a checksum that fits: whole, but not what was saved."""
    path = folder / "encoder.safetensors"
    artifact.write(path, "encoder", {}, artifact.read(path, "encoder").note | changes)


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda f: (f / "encoder.safetensors").unlink(), "it has no encoder.safetensors"),
        (
            lambda f: (f / "encoder.safetensors").write_text("{"),
            "encoder.safetensors cannot be read as an encoder",
        ),
        (
            lambda f: shutil.copy(f / "model/model.safetensors", f / "encoder.safetensors"),
            "as an encoder: it is a model",
        ),
        (lambda f: flip(f / "encoder.safetensors"), "encoder.safetensors is damaged"),
        (lambda f: change_note(f, params=[]), "params in its note is"),
        (lambda f: change_note(f, params={"sise": 1}), "unexpected keyword argument 'sise'"),
        (lambda f: change_note(f, params={"settings": 3}), "can read: 'int' object is not iter"),
        (lambda f: change_note(f, n_features_in="2"), "n_features_in in its note is '2'"),
        (lambda f: change_note(f, feature_names_in=[1]), "feature_names_in in its note is"),
        (lambda f: change_note(f, channel_names=[[]]), "channel_names in its note is"),
        (lambda f: (f / "model/model.safetensors").unlink(), "it has no model.safetensors"),
        (lambda f: small(seed=1).fit(made()).model_.save(f / "model"), "are not of one save"),
    ],
)
def test_a_damaged_folder_is_named(fitted, tmp_path, damage, message):
    fitted.save(tmp_path / "encoder")
    damage(tmp_path / "encoder")
    with pytest.raises(ModelFolderError, match=message):
        PMTEncoder.load(tmp_path / "encoder")


def test_an_encoder_is_not_saved_among_other_files(fitted, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    for folder, message in ((tmp_path, "holds other files"), (tmp_path / "notes.txt", "is a file")):
        with pytest.raises(ModelFolderError, match=message):
            fitted.save(folder)


def test_an_encoder_saved_with_the_former_word_for_tokens_gives_tokens(fitted, tmp_path):
    fitted.save(tmp_path / "encoder")
    change_note(tmp_path / "encoder", params={**fitted.get_params(), "level": "token"})
    again = PMTEncoder.load(tmp_path / "encoder")
    assert again.level == "tokens"
    np.testing.assert_array_equal(again.transform(made()), fitted.transform(made(), "tokens"))


def test_a_run_and_a_model_are_encoders(fitted, tmp_path):
    """Case 7 of the users: a run of the command line could not become an estimator."""
    cases = made()
    recordings = [Recording(str(i), case.T) for i, case in enumerate(cases)]
    settings = [*TINY, "train.steps=2", "train.batch_size=8", "train.device=cpu"]
    model = pretrain(recordings, tmp_path / "run", read_config(None, settings), log=None)
    expected = pool(model, [r.values for r in recordings], ["all"])["all"]
    for encoder in (
        PMTEncoder.from_run(tmp_path / "run"),
        PMTEncoder.load(tmp_path / "run"),
        PMTEncoder.load(tmp_path / "run/model"),
    ):
        np.testing.assert_allclose(encoder.transform(cases), expected, atol=1e-5)
    encoder.save(tmp_path / "kept")
    assert PMTEncoder.load(tmp_path / "kept").channels_ == 2
    with pytest.raises(ModelFolderError, match="is not the folder of a finished run: it has no mo"):
        PMTEncoder.from_run(tmp_path)
