"""A saved encoder: back to the bit, or refused with a reason."""

import json

import numpy as np
import pandas as pd
import pytest
from estimator_setup import made, small

from progmem import ModelFolderError, PMTEncoder


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


def change_note(folder, change):
    note = json.loads((folder / "estimator.json").read_text())
    change(note)
    (folder / "estimator.json").write_text(json.dumps(note))


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda f: (f / "estimator.json").unlink(), "it has no estimator.json"),
        (lambda f: (f / "estimator.json").write_text("{"), "estimator.json is damaged"),
        (lambda f: (f / "estimator.json").write_text("[]"), "estimator.json is damaged"),
        (
            lambda f: change_note(f, lambda note: note["facts"]["params"].update(lr=1.0)),
            "its sha256 is not the one in it",
        ),
        (lambda f: change_note(f, lambda note: note.update(format="2")), "has format '2'"),
        (lambda f: (f / "model/manifest.json").unlink(), "it has no manifest.json"),
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
