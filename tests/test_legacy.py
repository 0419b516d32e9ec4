"""Files of version 0.1.0 (`legacy/0.1.0/make.py`): each still gives what it gave then."""

import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import progmem
from progmem.config import read_config
from progmem.data.recordings import Recording
from progmem.model.saving import weights_sha256
from progmem.training.checkpoint import newest_checkpoint
from progmem.training.classifier import SequenceClassifier
from progmem.training.pretrain import pretrain

HERE = Path(__file__).parent / "legacy/0.1.0"


@pytest.fixture(scope="module")
def known():
    return np.load(HERE / "expected.npz")


@pytest.fixture
def old(tmp_path):
    """The files, to be changed at will."""
    shutil.copytree(HERE, tmp_path / "old")
    return tmp_path / "old"


def older(path):
    return pytest.warns(UserWarning, match=f"{path} is in the older format .* is read unverified;")


def assert_close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_model_gives_what_it_gave_and_is_verified_once_it_is_saved_again(old, known):
    with older(old / "model"):
        model = progmem.load(old / "model")
    assert_close(model.encode(known["x"]).sequence.numpy(), known["model"])
    model.save(old / "model")
    assert [path.name for path in (old / "model").iterdir()] == ["model.safetensors"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = progmem.load(old / "model")
    assert (again.encode(known["x"]).sequence == model.encode(known["x"]).sequence).all()


def test_a_saved_encoder_gives_what_it_gave_and_is_verified_once_it_is_saved_again(old, known):
    x = known["x"].transpose(0, 2, 1)
    with older(old / "encoder"), older(old / "encoder/model"):
        encoder = progmem.PMTEncoder.load(old / "encoder")
    assert encoder.lr == 1e-2 and isinstance(encoder.settings, tuple)
    assert encoder.level == "sequence"  # the default of its time
    with pytest.raises(progmem.ConfigError, match=r"fit it again, or give level='sequence'"):
        encoder.transform(x, "all")
    assert_close(encoder.transform(x), known["encoder"])
    encoder.save(old / "encoder")
    names = [path.name for path in (old / "encoder").iterdir()]
    assert sorted(names) == ["encoder.safetensors", "model"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = progmem.PMTEncoder.load(old / "encoder")
    np.testing.assert_array_equal(again.transform(x), encoder.transform(x))


def test_a_forecaster_gives_what_it_gave_and_is_verified_once_it_is_saved_again(old, known):
    with older(old / "model"):
        model = progmem.load(old / "model")
    path, hours = old / "forecaster.safetensors", pd.date_range("2024-01-01", periods=90, freq="h")
    with older(path):
        forecaster = progmem.PMTForecaster.load(path, model)
    found = forecaster.predict(3, known["series"], hours)
    np.testing.assert_allclose(found.to_numpy(), known["forecaster"], rtol=1e-3)
    forecaster.save(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = progmem.PMTForecaster.load(path, model)
    pd.testing.assert_frame_equal(again.predict(3, known["series"], hours), found)


@pytest.mark.filterwarnings("ignore:.*older format")
def test_a_damaged_forecaster_is_named(old):
    model, path = progmem.load(old / "model"), old / "forecaster.safetensors"
    good = path.read_bytes()
    for place in range(0, len(good), 7):
        path.write_bytes(good)
        flip(path, place)
        with pytest.raises(progmem.InputError, match=r"forecaster.safetensors (is damaged|cannot)"):
            progmem.PMTForecaster.load(path, model)


def test_a_stream_goes_on_and_is_verified_once_it_is_saved(old, known):
    with older(old / "model"):
        model = progmem.load(old / "model")
    path = old / "stream.safetensors"
    with older(path):
        stream = progmem.Stream.load(model, path)
    stream.save(path)
    assert_close(stream.push(known["x"][:, 9:]).tokens.numpy(), known["stream"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert progmem.Stream.load(model, path).samples == 9


def resumed(folder, x, log):
    recordings = [Recording(str(i), values) for i, values in enumerate(x)]
    return pretrain(recordings, folder, read_config(folder / "config.yaml", []), log=log)


def test_a_run_begun_by_it_goes_on_and_ends_where_it_would_have_ended(old, known):
    folder, said = old / "run/checkpoints", []
    with older(folder / "step-00000004.safetensors"):
        model = resumed(old / "run", known["x"], said.append)
    assert f"going on from step 4 of {old / 'run'}" in said
    assert_close(model.encode(known["x"]).sequence.numpy(), known["run"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the newest checkpoint is of today's format
        assert newest_checkpoint(folder, log=pytest.fail).step == 6
        resumed(old / "run", known["x"], said.append)
    assert "has finished its 6 steps" in said[-1]


@pytest.mark.parametrize(
    "damage",
    [
        lambda f: flip(f / "step-00000004.safetensors"),
        lambda f: change(f / "step-00000004.json", step=5),
        lambda f: change(f / "step-00000004.json", sha256=None),
        lambda f: (f / "step-00000004.json").write_text("null"),
        lambda f: (f / "step-00000004.json").unlink(),
        lambda f: (f / "step-00000004.json").write_bytes(b"\xff\xfe"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*older format")
def test_a_damaged_checkpoint_is_passed_over(old, damage):
    said = []
    damage(old / "run/checkpoints")
    assert newest_checkpoint(old / "run/checkpoints", log=said.append) is None
    assert "step-00000004" in said[0] and "damaged and passed over" in said[0]


def test_the_digest_of_a_network_is_the_one_it_had(old):
    with older(old / "tuned/model"):
        model = progmem.load(old / "tuned/model")
    assert weights_sha256(model) == json.loads((old / "tuned/head.json").read_text())["encoder"]
    assert any("feed_forward.fc1" in name for name in model.state_dict())
    assert model.feature_stats.values is None


def test_a_classifier_gives_what_it_gave_and_is_verified_once_it_is_saved_again(old, known):
    with older(old / "tuned"), older(old / "tuned/model"):
        classifier = SequenceClassifier.load(old / "tuned")
    assert classifier.classes == ("slow", "fast")
    assert_close(classifier.scores(known["x"]), known["tuned"])
    classifier.save(old / "tuned")
    assert sorted(p.name for p in (old / "tuned").iterdir()) == ["head.safetensors", "model"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = SequenceClassifier.load(old / "tuned")
    np.testing.assert_array_equal(again.scores(known["x"]), classifier.scores(known["x"]))


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda f: flip(f / "head.safetensors"), "damaged, or head.json is"),
        (lambda f: change(f / "head.json", format="2"), "has format '2'"),
        (lambda f: change(f / "head.json", encoder="2"), "its head belongs to another network"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*older format")
def test_a_damaged_head_is_named(old, damage, message):
    damage(old / "tuned")
    with pytest.raises(progmem.ModelFolderError, match=f"not a finetuned run: .*{message}"):
        SequenceClassifier.load(old / "tuned")


def flip(path, place=-1):
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def weights(folder):
    (path,) = folder.glob("model-*.safetensors")
    return path


def change(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


OTHER = {"name": "model-/../../x.safetensors", "sha256": "0"}


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda f: flip(weights(f)), "safetensors is damaged, or manifest.json is"),
        (lambda f: weights(f).unlink(), "safetensors cannot be read"),
        (lambda f: (f / "manifest.json").write_text("{"), "manifest.json is damaged"),
        (lambda f: (f / "manifest.json").write_text("[]"), "manifest.json is damaged"),
        (lambda f: change(f / "manifest.json", format="other"), "has format 'other'"),
        (lambda f: change(f / "manifest.json", files={}), "manifest.json is damaged: KeyError"),
        (
            lambda f: change(f / "manifest.json", files={"weights": OTHER, "config": OTHER}),
            "manifest.json is damaged: it names other files",
        ),
    ],
)
def test_a_damaged_model_is_named(old, damage, message):
    damage(old / "model")
    with pytest.raises(progmem.ModelFolderError, match=message):
        progmem.load(old / "model")


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda f: (f / "estimator.json").write_text("{"), "estimator.json is damaged"),
        (lambda f: change(f / "estimator.json", format="2"), "has format '2'"),
        (lambda f: change(f / "estimator.json", facts={}), "its sha256 is not the one in it"),
    ],
)
def test_a_damaged_encoder_is_named(old, damage, message):
    damage(old / "encoder")
    with pytest.raises(progmem.ModelFolderError, match=message):
        progmem.PMTEncoder.load(old / "encoder")


@pytest.mark.filterwarnings("ignore:.*older format")
def test_an_encoder_and_a_model_of_another_save_are_told_apart(old):
    shutil.rmtree(old / "encoder/model")
    shutil.copytree(old / "model", old / "encoder/model")
    with pytest.raises(progmem.ModelFolderError, match="are not of one save"):
        progmem.PMTEncoder.load(old / "encoder")
