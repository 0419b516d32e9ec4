"""The package as a user gets it: a wheel, in a new environment, away from the checkout."""

import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent


def pinned():
    """The versions of constraints.txt by name."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if "==" in line]
    return {canonicalize_name(name): version for name, version in pairs}


def locked():
    """The versions of requirements.lock by name, and the digests of their files."""
    text = (ROOT / "requirements.lock").read_text()
    found = {}
    for name, version, rest in re.findall(r"^([^\s=#]+)==(\S+)((?:.*\\\n)+.*)", text, flags=re.M):
        found.setdefault(name, []).append(
            (version, re.findall(r"--hash=sha256:[0-9a-f]{64}", rest))
        )
    return found


def test_every_package_but_torch_is_locked_at_its_pin_with_the_digests_of_its_files():
    lock, pins = locked(), pinned()
    assert set(pins) - set(lock) == {"torch"}  # another build of it may be there
    assert not any(name.startswith(("nvidia", "cuda")) for name in lock)
    for name, entries in lock.items():
        versions, digests = zip(*entries, strict=True)
        assert all(digests), f"{name} has no digest"
        assert name not in pins or pins[name] in versions, f"{name}: run make lock"


def test_every_lower_bound_is_met_by_the_version_that_is_tested():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    asked = [Requirement(text) for texts in (project["dependencies"], *extras) for text in texts]
    pins = pinned() | {name: entries[0][0] for name, entries in locked().items()}
    for one in asked:
        if one.name != "progmem":
            assert one.specifier.contains(pins[canonicalize_name(one.name)]), str(one)


@pytest.mark.slow
def test_the_wheel_runs_the_demo_outside_the_checkout(tmp_path):
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", "-w", tmp_path, ROOT]
    subprocess.run(build, check=True)
    (wheel,) = tmp_path.glob("progmem-*.whl")
    # a new environment that may use this one's dependencies, but not its progmem
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env/bin/python"
    install = [python, "-m", "pip", "install", "-q", "--no-deps", wheel]
    subprocess.run(install, check=True)
    (own,) = (tmp_path / "env/lib").glob("python*/site-packages")
    (ours,) = (Path(sys.prefix) / "lib").glob("python*/site-packages")
    hide = "import sys; sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in repr(f)]"
    (own / "dependencies.pth").write_text(f"{ours}\n{hide}\n")
    where = subprocess.run(
        [python, "-c", "import progmem; print(progmem.__file__)"],
        check=True, capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert str(own) in where.stdout
    done = subprocess.run(
        [tmp_path / "env/bin/progmem", "demo"], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [line.split() for line in done.stdout.splitlines()]
    trained, raw = (
        next([float(row[at]) for at in (-6, -3)] for row in rows if row[: len(name)] == name)
        for name in (["trained"], ["raw", "values"])
    )
    assert all(ours > theirs + 10 for ours, theirs in zip(trained, raw, strict=True))
    report = (tmp_path / "progmem-demo/report.html").read_text()
    assert report.count("data:image/png") == 4
