"""A model folder gives back the model, or says what is wrong with it."""

import hashlib
import json
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
    assert sorted(p.name for p in folder.iterdir()) == [
        "config.json",
        "manifest.json",
        "model.safetensors",
    ]


def test_other_peoples_folders_are_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(progmem.ModelFolderError, match="holds other files"):
        progmem.PMT(progmem.ModelConfig(channels=1, size="tiny")).save(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_every_flipped_bit_is_noticed(folder):
    generator = torch.Generator().manual_seed(0)
    for name in ("model.safetensors", "config.json"):
        good = (folder / name).read_bytes()
        for _ in range(25):
            bad = bytearray(good)
            place = int(torch.randint(len(good), (1,), generator=generator))
            bad[place] ^= 1 << int(torch.randint(8, (1,), generator=generator))
            (folder / name).write_bytes(bytes(bad))
            with pytest.raises(
                progmem.ModelFolderError, match=f"{name} is damaged, or manifest.json is"
            ):
                progmem.load(folder)
        (folder / name).write_bytes(good)
    progmem.load(folder)


def truncate(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])


def change_config(folder, **changes):
    """Change the config and its checksum: whole, but not what the weights were made with."""
    config = json.loads((folder / "config.json").read_text()) | changes
    replace_config(folder, json.dumps(config).encode())


def replace_config(folder, data):
    (folder / "config.json").write_bytes(data)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["sha256"]["config.json"] = hashlib.sha256(data).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    "damage, message",
    [
        (truncate, "model.safetensors is damaged"),
        (lambda f: (f / "model.safetensors").write_bytes(b""), "model.safetensors is damaged"),
        (lambda f: (f / "model.safetensors").unlink(), "model.safetensors cannot be read"),
        (lambda f: (f / "config.json").unlink(), "config.json cannot be read"),
        (lambda f: (f / "manifest.json").unlink(), "it has no manifest.json"),
        (lambda f: (f / "manifest.json").write_text("{"), "manifest.json is damaged"),
        (lambda f: (f / "manifest.json").write_text("[]"), "manifest.json is damaged"),
        (
            lambda f: (f / "manifest.json").write_text('{"format": "other", "sha256": {}}'),
            "has format 'other'",
        ),
        (lambda f: change_config(f, dim=32), "not a model this version can read"),
        (lambda f: replace_config(f, b"null"), "not a model this version can read"),
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
        progmem.load(folder / "model.safetensors")
    with pytest.raises(progmem.ModelFolderError, match="is a file; save a model into a folder"):
        progmem.load(folder).save(folder / "config.json")


def test_loading_never_runs_code(folder):
    """A pickle in place of the weights is refused, not opened, even with a fitting checksum."""

    class Hostile:
        def __reduce__(self):
            return (open, (str(folder / "ran"), "w"))

    data = pickle.dumps(Hostile())
    (folder / "model.safetensors").write_bytes(data)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["sha256"]["model.safetensors"] = hashlib.sha256(data).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(progmem.ModelFolderError):
        progmem.load(folder)
    assert not (folder / "ran").exists()
