"""The package as a user gets it: a wheel, in a new environment, away from the checkout."""

import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


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
