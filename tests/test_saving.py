"""A model folder gives back the model, or says what is wrong with it."""

import hashlib
import json
import os
import pickle

import pytest
import torch

import progmem


@pytest.fixture
def folder(tmp_path):
    model = progmem.PMT(progmem.ModelConfig(channels=2, dim=16, heads=2, blocks=2))
    model.stats.mean.fill_(0.1)
    model.save(tmp_path / "model")
    return tmp_path / "model"


def weights(folder):
    (path,) = folder.glob("model-*.safetensors")
    return path


def config(folder):
    (path,) = folder.glob("config-*.json")
    return path


def forge(folder, role, data):
    """Replace a file and its checksum: whole, but not what was saved."""
    path = {"weights": weights, "config": config}[role](folder)
    path.write_bytes(data)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][role]["sha256"] = hashlib.sha256(data).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_model_comes_back_bit_for_bit(tmp_path, dtype):
    model = progmem.PMT(progmem.ModelConfig(channels=2, size="tiny", slots=1)).to(dtype)
    model.stats.mean.fill_(1 / 3)
    model.save(tmp_path / "a")
    back = progmem.load(tmp_path / "a")
    assert back.cfg == model.cfg
    assert back.state_dict().keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(back.state_dict()[name], tensor), name
        assert back.state_dict()[name].dtype == tensor.dtype
    x = torch.randn(2, 50, 2)
    assert torch.equal(back.encode(x).sequence, model.encode(x).sequence)


def test_normalisation_is_there_from_the_first_save(tmp_path):
    progmem.PMT(progmem.ModelConfig(channels=3, size="tiny")).save(tmp_path / "a")
    state = progmem.load(tmp_path / "a").state_dict()
    assert torch.equal(state["stats.mean"], torch.zeros(3, dtype=torch.float64))
    assert torch.equal(state["stats.scale"], torch.ones(3, dtype=torch.float64))


def test_saving_again_replaces_the_model(folder):
    other = progmem.PMT(progmem.ModelConfig(channels=5, size="tiny"))
    other.save(folder)
    assert progmem.load(folder).cfg.channels == 5
    assert len(list(folder.iterdir())) == 3


def test_other_peoples_folders_are_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(progmem.ModelFolderError, match="holds other files"):
        progmem.PMT(progmem.ModelConfig(channels=1, size="tiny")).save(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_every_flipped_bit_is_noticed(folder):
    generator = torch.Generator().manual_seed(0)
    for path in (weights(folder), config(folder)):
        good = path.read_bytes()
        for _ in range(25):
            bad = bytearray(good)
            place = int(torch.randint(len(good), (1,), generator=generator))
            bad[place] ^= 1 << int(torch.randint(8, (1,), generator=generator))
            path.write_bytes(bytes(bad))
            with pytest.raises(progmem.ModelFolderError, match=f"{path.name} is damaged, or"):
                progmem.load(folder)
        path.write_bytes(good)
    progmem.load(folder)


def truncate(folder):
    weights(folder).write_bytes(weights(folder).read_bytes()[:1000])


def change_config(folder, **changes):
    values = json.loads(config(folder).read_text()) | changes
    forge(folder, "config", json.dumps(values).encode())


@pytest.mark.parametrize(
    "damage, message",
    [
        (truncate, "safetensors is damaged"),
        (lambda f: weights(f).write_bytes(b""), "safetensors is damaged"),
        (lambda f: weights(f).unlink(), "safetensors cannot be read"),
        (lambda f: config(f).unlink(), "json cannot be read"),
        (lambda f: (f / "manifest.json").unlink(), "it has no manifest.json"),
        (lambda f: (f / "manifest.json").write_text("{"), "manifest.json is damaged"),
        (lambda f: (f / "manifest.json").write_text("[]"), "manifest.json is damaged"),
        (
            lambda f: (f / "manifest.json").write_text('{"format": "other", "files": {}}'),
            "has format 'other'",
        ),
        (lambda f: change_config(f, dim=32), "not a model this version can read"),
        (lambda f: forge(f, "config", b"null"), "not a model this version can read"),
        (lambda f: change_config(f, windw=3), "did you mean 'model.window'"),
        (lambda f: change_config(f, stride=99), "model.stride must be in"),
    ],
)
def test_a_damaged_or_foreign_folder_is_refused_by_name(folder, damage, message):
    damage(folder)
    with pytest.raises(progmem.ModelFolderError, match=message) as caught:
        progmem.load(folder)
    assert str(folder) in str(caught.value)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(progmem.ModelFolderError, match=r"there is no model folder .*nowhere"):
        progmem.load(tmp_path / "nowhere")


def test_a_file_in_place_of_a_folder_is_named(folder):
    with pytest.raises(progmem.ModelFolderError, match="is a file; give the folder it lies in"):
        progmem.load(weights(folder))
    with pytest.raises(progmem.ModelFolderError, match="is a file; save a model into a folder"):
        progmem.load(folder).save(config(folder))


def test_loading_never_runs_code(folder):
    """A pickle in place of the weights is refused, not opened, even with a fitting checksum."""

    class Hostile:
        def __reduce__(self):
            return (open, (str(folder / "ran"), "w"))

    forge(folder, "weights", pickle.dumps(Hostile()))
    with pytest.raises(progmem.ModelFolderError):
        progmem.load(folder)
    assert not (folder / "ran").exists()


def test_a_manifest_cannot_point_outside_its_folder(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["weights"]["name"] = "model-/../../x.safetensors"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(progmem.ModelFolderError, match="it names other files"):
        progmem.load(folder)


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_a_save_that_breaks_off_leaves_the_model_that_was_there(folder, failing, monkeypatch):
    before = progmem.load(folder).state_dict()
    replace, calls = os.replace, []

    def breaks(source, target):
        calls.append(target)
        if len(calls) == failing:
            raise OSError("no space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", breaks)
    other = progmem.PMT(progmem.ModelConfig(channels=2, dim=16, heads=2, blocks=2))
    with pytest.raises(OSError, match="no space"):
        other.save(folder)
    monkeypatch.undo()
    after = progmem.load(folder).state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    other.save(folder)  # what was left lying about is in nobody's way
    assert len(list(folder.iterdir())) == 3


def test_loading_draws_no_random_numbers(folder):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    progmem.load(folder)
    assert torch.equal(torch.rand(1), expected)


def test_saved_files_can_be_read_by_others(folder):
    umask = os.umask(0o022)
    os.umask(umask)
    assert all(p.stat().st_mode & 0o777 == 0o666 & ~umask for p in folder.iterdir())


def test_a_model_can_be_loaded_onto_a_device(folder):
    assert all(p.is_meta for p in progmem.load(folder, device="meta").parameters())
