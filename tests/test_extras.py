"""Without the packages of an extra: whatever needs one says which to install, in one line."""

import re
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement

import progmem
from progmem import baselines
from progmem.cli import main
from progmem.explore.start import page_of
from progmem.probes.comparison import minirocket

PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"
PAGE = "progmem.explore.page"
CFG = progmem.ModelConfig(channels=1, size="tiny")


def read(name):
    Path(name).touch()
    progmem.read(name)


def export(name):
    progmem.PMT(CFG).export(name)


def import_wrapper():
    import progmem.aeon_transformer  # noqa: F401


def xlstm():
    baselines.build("xlstm", baselines.settled("xlstm", {"channels": 1}))


def page():
    with page_of(None, None, Path("out")):
        pass


NEEDS = [  # a package, its extra, and what needs it
    ("aeon", "data", lambda: read("x.ts")),
    ("aeon", "data", lambda: read("x.arff")),
    ("aeon", "data", lambda: minirocket([np.zeros((60, 1))] * 3)),
    ("aeon", "data", import_wrapper),
    ("edfio", "data", lambda: read("x.edf")),
    ("edfio", "data", lambda: read("x.bdf")),
    ("obspy", "data", lambda: read("x.mseed")),
    ("obspy", "data", lambda: read("x.miniseed")),
    ("pyarrow", "data", lambda: read("x.parquet")),
    ("wfdb", "data", lambda: read("x.hea")),
    ("xlstm", "baselines", xlstm),
    ("dash", "explore", page),
    ("plotly_resampler", "explore", page),
    ("onnx", "export", lambda: export("x.onnx")),
    ("onnxruntime", "export", lambda: export("x.onnx")),
    ("onnxscript", "export", lambda: export("x.onnx")),
]  # fmt: skip


def uses(module, package):
    """Whether something in a module is of a package."""
    values = [*vars(module).values()]
    names = (getattr(v, "__module__", None) or getattr(v, "__name__", "") for v in values)
    return any(str(name).partition(".")[0] == package for name in names)


@pytest.fixture
def without(tmp_path, monkeypatch):
    """Makes a package one that is not installed, and all that has imported it as if it had not."""
    monkeypatch.chdir(tmp_path)

    def hide(package):
        for name, module in [*sys.modules.items()]:
            if name.startswith("progmem.") and (name == PAGE or uses(module, package)):
                monkeypatch.delitem(sys.modules, name)
                parent, _, child = name.rpartition(".")
                monkeypatch.delattr(sys.modules[parent], child, raising=False)
            elif name.startswith(f"{package}."):
                monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.setitem(sys.modules, package, None)

    return hide


def test_every_package_of_an_extra_is_tried():
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    asked = {
        (Requirement(text).name.replace("-", "_"), extra)
        for extra, texts in extras.items()
        for text in texts
        if extra != "dev"
    }
    assert asked - {("plotly", "explore")} == {need[:2] for need in NEEDS}  # dash brings plotly


@pytest.mark.parametrize("package, extra, call", NEEDS)
def test_what_needs_a_package_names_it_and_its_extra(package, extra, call, without):
    if package == "plotly_resampler":
        pytest.importorskip("dash")  # which would be named first
    without(package)
    with pytest.raises((progmem.InputError, progmem.ConfigError, ImportError)) as refused:
        call()
    message = str(refused.value)
    assert package in message and "\n" not in message, message
    assert f"pip install 'progmem[{extra}]'" in message


@pytest.mark.parametrize(
    "package, command",
    [
        ("pyarrow", "check x.parquet"),
        ("edfio", "pretrain x.edf -o run"),
        ("wfdb", "classify x.hea --labels y.csv -o p.csv"),
        ("obspy", "forecast x.mseed --horizon 3"),
        ("aeon", "index run x.ts -o out"),
        ("dash", "explore"),
        ("onnx", "export model -o m.onnx"),
    ],
)
def test_a_command_says_it_in_one_line(package, command, without, capsys):
    for name in re.findall(r"\bx\.\w+", command):
        Path(name).touch()
    model = progmem.PMT(CFG)
    if command.startswith(("export", "index")):
        model.save("model")
        command = command.replace(" run ", " model ")
        capsys.readouterr()
    without(package)
    assert main(command.split()) == 2
    *_, last = capsys.readouterr().err.splitlines()
    assert last.startswith("progmem: ") and package in last and "pip install 'progmem[" in last
