"""The one format of what is kept: back to the bit, or refused in one line that names the file."""

import hashlib
import json
import os
import pickle

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from progmem import artifact
from progmem.errors import ArtifactError

TENSORS = {
    "w": torch.arange(6.0).reshape(2, 3),
    "half": torch.ones(3, dtype=torch.bfloat16),
    "count": torch.tensor(7),
    "none": torch.zeros(0, 4, dtype=torch.float64),
}
NOTE = {"classes": ["langsam, größer", '"quoted" \\ '], "rate": 0.1, "step": 3, "deep": {"a": None}}


@pytest.fixture
def path(tmp_path):
    artifact.write(tmp_path / "kept.safetensors", "label probe", TENSORS, NOTE)
    return tmp_path / "kept.safetensors"


def sealed(header, body=b""):
    """A file with a digest that fits, whatever comes after where it stands."""
    header = artifact.PREFIX + artifact.ZEROS + header
    data = bytearray(len(header).to_bytes(8, "little") + header + body)
    data[artifact.START : artifact.END] = hashlib.sha256(data).hexdigest().encode()
    return bytes(data)


def test_tensors_and_note_come_back_to_the_bit(path):
    found = artifact.read(path, "label probe")
    assert found.note == NOTE and found.tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert torch.equal(found.tensors[name], tensor)
        assert found.tensors[name].dtype == tensor.dtype


def test_the_same_content_gives_the_same_bytes_and_the_digest_that_is_returned(path, tmp_path):
    again = tmp_path / "again"
    backwards = {name: TENSORS[name] for name in reversed(TENSORS)}
    digest = artifact.write(again, "label probe", backwards, NOTE)
    assert again.read_bytes() == path.read_bytes()
    assert artifact.read(path, "label probe").sha256 == digest
    other = artifact.write(again, "label probe", TENSORS, NOTE | {"step": 4})
    assert other != digest


def test_any_reader_of_safetensors_finds_the_tensors_and_the_metadata(path):
    with safe_open(path, "pt") as file:
        found = file.metadata()
        assert torch.equal(file.get_tensor("w"), TENSORS["w"])
    assert found["format"] == "progmem artifact 1" and found["kind"] == "label probe"
    assert json.loads(found["note"]) == NOTE
    data = path.read_bytes().replace(found["sha256"].encode(), b"0" * 64)
    assert hashlib.sha256(data).hexdigest() == found["sha256"]


def test_every_single_flipped_bit_and_every_cut_is_noticed(tmp_path):
    path = tmp_path / "kept"
    artifact.write(path, "stream", {"w": torch.ones(3)}, {"step": 1})
    good = path.read_bytes()
    for place in range(len(good)):
        for bit in range(8):
            bad = bytearray(good)
            bad[place] ^= 1 << bit
            path.write_bytes(bad)
            with pytest.raises(ArtifactError, match=str(path)):
                artifact.read(path, "stream")
        path.write_bytes(good[:place])
        with pytest.raises(ArtifactError, match=str(path)):
            artifact.read(path, "stream")
    path.write_bytes(good + b"\0")
    with pytest.raises(ArtifactError, match="is damaged"):
        artifact.read(path, "stream")


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "cannot be read as a model: it does not begin as the files of progmem do"),
        (b"\x93NUMPY" + bytes(200), "it does not begin as the files of progmem do"),
        (
            sealed(b"").replace(b"artifact 1", b"artifact 2"),
            "has format 'progmem artifact 2'; this version reads 'progmem artifact 1'",
        ),
        (sealed(b'","kind":"model","note":"{}"}}').replace(b"model", b"modem"), "is damaged"),
        (sealed(b'","kind":"encoder","note":"{}"}}'), "as a model: it is an encoder"),
        (sealed(b'","kind":"model","note":"[]"}}'), "its note is not a mapping"),
        (sealed(b'","kind":"model","note":"{"}}'), "cannot be read as a model: Expecting"),
        (sealed(b'","note":"{}"}}'), "cannot be read as a model: 'kind'"),
        (sealed(f'","kind":"model","note":"{DEEP}"}}}}'.encode()), "cannot be read as a model"),
        (
            sealed(b'","kind":"model","note":"{}"},"w":{"dtype":"F32","shape":[1000000000000],'
                   b'"data_offsets":[0,4000000000000]}}', bytes(8)),
            "cannot be read as a model",
        ),
        (
            sealed(b'","kind":"model","note":"{}"},"w":{"dtype":"F32","shape":[3],'
                   b'"data_offsets":[0,8]}}', bytes(8)),
            "cannot be read as a model",
        ),
    ],
)  # fmt: skip
def test_what_is_not_such_a_file_is_refused_in_one_line(tmp_path, content, message):
    (tmp_path / "odd").write_bytes(content)
    with pytest.raises(ArtifactError) as caught:
        artifact.read(tmp_path / "odd", "model")
    text = str(caught.value)
    assert message in text and text.startswith(str(tmp_path / "odd"))
    assert "\n" not in text and len(text) < 500 + len(str(tmp_path))


def test_a_file_that_is_not_there_or_of_others_is_refused(tmp_path):
    with pytest.raises(ArtifactError, match="none cannot be read: No such file"):
        artifact.read(tmp_path / "none", "model")
    with pytest.raises(ArtifactError, match="cannot be read: Is a directory"):
        artifact.read(tmp_path, "model")
    save_file(TENSORS, tmp_path / "theirs", {"format": "pt"})
    with pytest.raises(ArtifactError, match="theirs cannot be read as a model: it does not begin"):
        artifact.read(tmp_path / "theirs", "model")


def test_reading_never_runs_code(tmp_path):
    """A pickle is refused, not opened, even behind a good beginning and a fitting digest."""

    class Hostile:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    (tmp_path / "odd").write_bytes(
        sealed(b'","kind":"model","note":"{}"}}', pickle.dumps(Hostile()))
    )
    with pytest.raises(ArtifactError):
        artifact.read(tmp_path / "odd", "model")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_write_that_breaks_off_leaves_what_was_there(path, failing, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    before = path.read_bytes()
    monkeypatch.setattr(os, failing, full)
    with pytest.raises(OSError, match="No space"):
        artifact.write(path, "label probe", {}, {})
    monkeypatch.undo()
    assert path.read_bytes() == before and list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda t: t.pop("w"), "x: missing or unknown tensors w"),
        (lambda t: t.update(v=t["w"]), "x: missing or unknown tensors v"),
        (lambda t: t.update({f"v{i}": t["w"] for i in range(5)}), "v0, v1, v2 and 2 more"),
        (lambda t: t.update(w=t["w"].T), r"w has shape \(3, 2\) and torch.float32, not \(2, 3\)"),
        (lambda t: t.update(w=t["w"].double()), "w has shape .* torch.float64, not .*float32"),
    ],
)
def test_tensors_that_do_not_fit_are_named(change, message):
    expected = {name: tensor.to("meta") for name, tensor in TENSORS.items()}
    artifact.check_tensors(TENSORS, expected, "x")
    found = dict(TENSORS)
    change(found)
    with pytest.raises(ArtifactError, match=message):
        artifact.check_tensors(found, expected, "x")


@pytest.mark.parametrize(
    "value, kind, of",
    [(None, str, object), (True, int, object), ("a", list, str), ([1], list, str),
     ({"a": 1}, dict, str), (1.0, int, object)],
)  # fmt: skip
def test_what_a_note_should_not_hold_is_named(value, kind, of):
    with pytest.raises(ArtifactError, match="x: rate in its note is"):
        artifact.noted({"rate": value}, "rate", kind, "x", of=of)
    assert artifact.noted({"rate": ["a"]}, "rate", list, "x", of=str) == ["a"]
    assert artifact.noted({"rate": 2}, "rate", (int, float), "x") == 2
