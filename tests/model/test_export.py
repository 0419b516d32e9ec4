"""A model as a file for other software gives what `encode` gives, for every batch and length."""

import json
import sys

import numpy as np
import pytest
import torch

import progmem
from progmem import baselines
from progmem.cli import main
from progmem.model import export

SHAPE = {"channels": 2, "dim": 16, "heads": 2, "blocks": 1, "patch": 5, "patch_stride": 2}
MODELS = {
    "default": {"window": 6, "stride": 3, "blocks": 2},
    "odd windows, ungated, own moments": {
        "window": 7, "stride": 3, "slots": 1, "readout": "block", "gate_carry": False,
        "normalise": "series", "patch_stride": 5,
    },
    "no memory, as the paper counts": {
        "window": 8, "stride": 8, "slots": 0, "windows": "floor", "mask_vector": True,
        "predictor": True,
    },
}  # fmt: skip
SIZES = [(1, 5), (4, 6), (2, 23), (3, 24), (1, 61), (7, 200)]  # batch, samples


def make_model(**shape):
    torch.manual_seed(0)
    model = progmem.PMT(progmem.ModelConfig(**SHAPE | shape))
    model.stats.mean += 1000.0
    model.stats.scale *= torch.tensor([0.5, 3.0])
    return model


def series(batch, time):
    """Gappy series in units of their own, and their lengths."""
    rng = np.random.default_rng(time)
    x = (1000 + 2 * rng.normal(size=(batch, time, 2))).astype(np.float32)
    x[rng.random(x.shape) < 0.2] = np.nan
    x[-1, time // 4 : time // 2] = np.nan
    return x, np.array([time, *rng.integers(5, time + 1, batch - 1)])


def assert_equal(run, model):
    for size in SIZES:
        x, lengths = series(*size)
        found = run(x, lengths)
        for name, right in model.encode(x, lengths=lengths)._asdict().items():
            if not isinstance(right, torch.Tensor):
                assert name not in found
                continue
            torch.testing.assert_close(
                torch.as_tensor(np.asarray(found[name])), right, rtol=0, atol=1e-5
            )


@pytest.mark.slow
@pytest.mark.parametrize("name", [*MODELS][:2])
def test_onnx_gives_what_encode_gives(name, tmp_path, capfd):
    onnxruntime = pytest.importorskip("onnxruntime")
    model = make_model(**MODELS[name])
    model.export(tmp_path / "m.onnx")
    assert capfd.readouterr().out == ""
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    names = [output.name for output in session.get_outputs()]

    def run(x, lengths):
        return dict(zip(names, session.run(names, {"x": x, "lengths": lengths}), strict=True))

    assert_equal(run, model)
    note = json.loads(session.get_modelmeta().custom_metadata_map["progmem"])
    assert progmem.ModelConfig.from_dict(note["config"]) == model.cfg
    assert [file.name for file in tmp_path.iterdir()] == ["m.onnx"]


@pytest.mark.slow
def test_a_torch_program_gives_what_encode_gives(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    model = make_model(**MODELS["no memory, as the paper counts"])
    model.save("saved")
    assert main(["export", "saved", "-o", "m.pt2"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("written: m.pt2, ")
    program = torch.export.load("m.pt2").module(check_guards=False)
    assert_equal(lambda x, n: program(torch.from_numpy(x), torch.from_numpy(n)), model)


BAD = {
    "m.txt": "a model is exported to a .onnx or .pt2 file, got m.txt",
    "nowhere/m.onnx": "there is no folder nowhere to write m.onnx into",
    "folder.onnx": "folder.onnx is a folder; name the file to write",
}


@pytest.mark.parametrize("path, message", BAD.items())
def test_where_no_model_can_be_written_is_said_before_the_work(
    path, message, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.onnx").mkdir()
    with pytest.raises(progmem.InputError, match=message):
        make_model().export(path)


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_package_is_named_with_its_extra(package, tmp_path, monkeypatch, capsys):
    make_model().save(tmp_path / "saved")
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["export", str(tmp_path / "saved"), "-o", str(tmp_path / "m.onnx")]) == 2
    assert f"a .onnx file needs {package}: pip install 'progmem[export]'" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["saved"]


def test_only_a_pmt_is_exported(tmp_path, capsys):
    baselines.build("vanilla", baselines.settled("vanilla", {"channels": 2})).save(
        tmp_path / "saved"
    )
    assert main(["export", str(tmp_path / "saved"), "-o", str(tmp_path / "m.onnx")]) == 2
    assert "an export needs a PMT, and this is vanilla" in capsys.readouterr().err


def test_a_file_that_would_answer_otherwise_is_not_kept(tmp_path, monkeypatch):
    def nearly(form, example, path):
        path.write_bytes(b"a model")
        return lambda x, lengths: {n: t + 1e-3 for n, t in form(x, lengths).items()}

    monkeypatch.setitem(export.FORMATS, ".onnx", nearly)
    with pytest.raises(progmem.InputError, match="cannot be exported: tokens of series of shape"):
        make_model().export(tmp_path / "m.onnx")
    assert not [*tmp_path.iterdir()]


def test_the_command_says_what_it_does_and_the_time_left(tmp_path, monkeypatch, capsys):
    def form_itself(form, example, path):
        path.write_bytes(b"a model")
        return form

    monkeypatch.setitem(export.FORMATS, ".onnx", form_itself)
    monkeypatch.setattr("progmem.progress.EVERY", 0.0)
    make_model().save(tmp_path / "saved")
    assert main(["export", str(tmp_path / "saved"), "-o", str(tmp_path / "m.onnx")]) == 0
    doing = "writing it, and comparing what it gives with what the model gives"
    lines = capsys.readouterr().out.splitlines()
    assert f"{doing} ..." in lines and f"{doing}: 1 of 5, about 0 s left" in lines


def test_what_is_exported_is_encode(monkeypatch, tmp_path):
    """The tensor code that is traced, by itself: gaps, lengths and moments as `encode` has them."""
    for shape in MODELS.values():
        model = make_model(**shape)
        form = export._Encode(model.eval())
        with torch.no_grad():
            assert_equal(lambda x, n, f=form: f(torch.from_numpy(x), torch.from_numpy(n)), model)


def test_a_program_that_does_not_fit_on_the_disk_is_an_error_and_does_not_end_the_process(
    tmp_path, small_files, monkeypatch
):
    """The writer of zip files in torch aborts where a file that it writes to does not take it."""
    monkeypatch.setattr(export, "_program", lambda form, example: torch.zeros(150, 150))
    monkeypatch.setattr(torch.export, "save", torch.save)
    with pytest.raises(OSError, match="File too large"):
        export._make_program(None, (), tmp_path / "m.pt2")
