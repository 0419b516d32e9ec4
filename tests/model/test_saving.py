"""A model folder gives back the model, or says what is wrong with it."""

import os
import pickle
import resource
import threading
import time

import pytest
import torch

import progmem
from progmem import artifact
from progmem.detail import fit_detail
from progmem.features import FeatureStats, features_in_all
from progmem.files import locked
from progmem.model.saving import weights_sha256
from progmem.whitening import Whitening, no_whitening


@pytest.fixture
def folder(tmp_path):
    model = progmem.PMT(progmem.ModelConfig(channels=2, dim=16, heads=2, blocks=2))
    model.stats.mean.fill_(0.1)
    model.save(tmp_path / "model")
    return tmp_path / "model"


def weights(folder):
    return folder / "model.safetensors"


def forge(folder, note=None, **tensors):
    """Another content under a checksum that fits: whole, but not what was saved."""
    found = artifact.read(weights(folder), "model")
    artifact.write(weights(folder), "model", found.tensors | tensors, note or found.note)


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


def test_feature_statistics_are_kept_and_a_model_without_them_has_none(folder):
    model = progmem.load(folder)
    before, width = weights_sha256(model), torch.arange(1.0, 17.0, dtype=torch.float64)
    whitening = Whitening(*(torch.ones_like(t) for t in no_whitening(features_in_all(16))))
    stats = FeatureStats(width, 2 * width, fit_detail(torch.randn(3, 40, 2)), whitening)
    model.feature_stats.set(stats)
    assert weights_sha256(model) == before  # what was fitted on its encodings still belongs to it
    model.save(folder)
    assert torch.equal(progmem.load(folder).feature_stats.values.scale, 2 * width)
    found = artifact.read(weights(folder), "model")
    older = {name: t for name, t in found.tensors.items() if "whitening" not in name}
    artifact.write(weights(folder), "model", older, found.note)
    again = progmem.load(folder).feature_stats.values
    assert torch.equal(again.scale, 2 * width) and not any(t.any() for t in again.whitening)
    kept = {name: t for name, t in found.tensors.items() if "feature_stats" not in name}
    artifact.write(weights(folder), "model", kept, found.note)
    again = progmem.load(folder)
    assert again.feature_stats.values is None
    x = torch.randn(2, 50, 2)
    assert torch.equal(again.encode(x).sequence, model.encode(x).sequence)
    artifact.write(weights(folder), "model", kept | {"feature_stats.scale": width}, found.note)
    with pytest.raises(progmem.ModelFolderError, match=r"unknown tensors feature_stats\.detail"):
        progmem.load(folder)


def test_saving_again_replaces_the_model(folder):
    other = progmem.PMT(progmem.ModelConfig(channels=5, size="tiny"))
    other.save(folder)
    assert progmem.load(folder).cfg.channels == 5
    assert [path.name for path in folder.iterdir()] == ["model.safetensors"]


def test_other_peoples_folders_are_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(progmem.ModelFolderError, match="holds other files"):
        progmem.PMT(progmem.ModelConfig(channels=1, size="tiny")).save(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_every_flipped_bit_is_noticed(folder):
    generator = torch.Generator().manual_seed(0)
    path = weights(folder)
    good = path.read_bytes()
    header = 8 + int.from_bytes(good[:8], "little")
    for end in (8, header, len(good)):  # of its length, of names and config, of the weights
        for _ in range(25):
            bad = bytearray(good)
            place = int(torch.randint(end, (1,), generator=generator))
            bad[place] ^= 1 << int(torch.randint(8, (1,), generator=generator))
            path.write_bytes(bytes(bad))
            with pytest.raises(
                progmem.ModelFolderError, match=f"{path.name} (is damaged|cannot|has)"
            ):
                progmem.load(folder)
    path.write_bytes(good)
    progmem.load(folder)


def truncate(folder):
    weights(folder).write_bytes(weights(folder).read_bytes()[:1000])


def change_config(folder, **changes):
    forge(folder, {"config": artifact.read(weights(folder), "model").note["config"] | changes})


@pytest.mark.parametrize(
    "damage, message",
    [
        (truncate, "it is damaged, and ends before its header does"),
        (lambda f: weights(f).write_bytes(b""), "safetensors cannot be read as a model"),
        (lambda f: weights(f).unlink(), "it has no model.safetensors"),
        (lambda f: artifact.write(weights(f), "stream", {}, {}), "as a model: it is a stream"),
        (
            lambda f: weights(f).write_bytes(
                weights(f).read_bytes().replace(b"artifact 1", b"artifact 9")
            ),
            "has format 'progmem artifact 9'; this version reads 'progmem artifact 1'",
        ),
        (lambda f: change_config(f, dim=32), "not a model this version can read"),
        (lambda f: forge(f, {"config": None}), "config in its note is 'None'"),
        (lambda f: forge(f, {"other": 1}), "not a model this version can read"),
        (lambda f: change_config(f, windw=3), "did you mean 'model.window'"),
        (lambda f: change_config(f, stride=99), "model.stride must be in"),
        (lambda f: forge(f, more=torch.ones(1)), "missing or unknown tensors more"),
        (
            lambda f: forge(f, **{"encoder.cls": torch.ones(16, dtype=torch.float64)}),
            "encoder.cls has shape .16,. and torch.float64, not .16,. and torch.float32",
        ),
        (
            lambda f: forge(f, **{"tokenizer.conv.weight": torch.ones(16, 2, 8, dtype=torch.int8)}),
            "not a model this version can read",
        ),
    ],
)
def test_a_damaged_or_foreign_folder_is_refused_by_name(folder, damage, message):
    damage(folder)
    with pytest.raises(progmem.ModelFolderError, match=message) as caught:
        progmem.load(folder)
    assert str(folder) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "claims", [{"blocks": 10**5}, {"dim": 40_000}, {"slots": 10**9}, {"encoder_layers": 10**30}]
)
def test_a_small_file_that_claims_a_large_model_is_refused_before_it_is_built(folder, claims):
    change_config(folder, **claims)
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    with pytest.raises(progmem.ModelFolderError, match="not a model this version can read"):
        progmem.load(folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB
    assert time.perf_counter() - began < 5


def test_statistics_are_not_made_up_for_a_size_that_a_model_only_claims(folder):
    change_config(folder, channels=10**12)
    found = artifact.read(weights(folder), "model")
    kept = {name: t for name, t in found.tensors.items() if "feature_stats" not in name}
    artifact.write(weights(folder), "model", kept, found.note)
    with pytest.raises(progmem.ModelFolderError, match=r"has shape .*, not .*1000000000000"):
        progmem.load(folder)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(progmem.ModelFolderError, match=r"there is no model folder .*nowhere"):
        progmem.load(tmp_path / "nowhere")


def test_a_file_in_place_of_a_folder_is_named(folder):
    with pytest.raises(progmem.ModelFolderError, match="is a file; give the folder it lies in"):
        progmem.load(weights(folder))
    with pytest.raises(progmem.ModelFolderError, match="is a file; save a model into a folder"):
        progmem.load(folder).save(weights(folder))


def test_a_run_is_told_from_its_model(folder):
    with pytest.raises(progmem.ModelFolderError, match=f"did you mean {folder}?"):
        progmem.load(folder.parent)


def test_loading_never_runs_code(folder):
    """A pickle in place of the file is refused, not opened."""

    class Hostile:
        def __reduce__(self):
            return (open, (str(folder / "ran"), "w"))

    weights(folder).write_bytes(pickle.dumps(Hostile()))
    with pytest.raises(progmem.ModelFolderError):
        progmem.load(folder)
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_save_that_breaks_off_leaves_the_model_that_was_there(folder, failing, monkeypatch):
    before = progmem.load(folder).state_dict()

    def breaks(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, failing, breaks)
    other = progmem.PMT(progmem.ModelConfig(channels=2, dim=16, heads=2, blocks=2))
    with pytest.raises(OSError, match="no space"):
        other.save(folder)
    monkeypatch.undo()
    after = progmem.load(folder).state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    killed, writing = folder / ".progmem-model.safetensors.1", folder / ".progmem-x.2"
    with locked(folder / "x"):
        for left in (killed, writing):
            left.write_bytes(b"half")
        other.save(folder)  # what was left lying about is in nobody's way
        assert writing.exists() and not killed.exists()
    other.save(folder)
    assert list(folder.iterdir()) == [weights(folder)]


def test_two_who_save_into_one_folder_leave_one_of_their_models(folder):
    models = [progmem.PMT(progmem.ModelConfig(channels=2, dim=16, heads=2)) for _ in range(2)]
    known = [model.state_dict()["encoder.cls"] for model in models]
    failed = []

    def save(model):
        try:
            for _ in range(20):
                model.save(folder)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=save, args=(model,)) for model in models]
    for thread in threads:
        thread.start()
    progmem.load(folder)  # also meanwhile
    for thread in threads:
        thread.join()
    assert not failed
    found = progmem.load(folder).state_dict()["encoder.cls"]
    assert any(torch.equal(found, one) for one in known)
    assert list(folder.iterdir()) == [weights(folder)]


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
