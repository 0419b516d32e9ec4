"""The provenance of a result, and the json file it is written to.

The last entry of a file is the sha256 of all others, so that a number that was changed is noticed.
"""

import hashlib
import importlib.metadata
import json
import platform
import subprocess
import warnings
from pathlib import Path
from typing import Any

import torch

import progmem
from progmem import guard
from progmem.errors import ArtifactError
from progmem.files import make_folder, write_file
from progmem.threads import waiting

RESULTS = Path("results")
PACKAGES = ("torch", "numpy", "scikit-learn", "lightning")


def environment(device: str = "cpu", commit: str | None = None) -> dict[str, Any]:
    """Commit, versions and device of this run; ``commit`` is given where there is no repository."""
    name = torch.cuda.get_device_name() if device == "cuda" else platform.machine() + " CPU"
    changed = _git("status", "--porcelain", "--untracked-files=no")
    versions = {"progmem": progmem.__version__, "python": platform.python_version()}
    return {
        "commit": commit or _git("rev-parse", "HEAD"),
        "dirty": None if changed is None or commit else bool(changed),  # None: unknown
        "versions": versions | {name: importlib.metadata.version(name) for name in PACKAGES},
        "device": name,
        "threads": torch.get_num_threads(),
        "waiting_threads": waiting(),
    }


def save(experiment: str, name: str, result: dict[str, Any], *, folder: Path = RESULTS) -> Path:
    """Write ``result`` to <folder>/<experiment>/<name>.json."""
    return write(folder / experiment / f"{name}.json", result)


def write(path: Path, result: dict[str, Any]) -> Path:
    make_folder(path.parent)
    write_file(path, (_text(result | {"sha256": _sha256(result)}) + "\n").encode())
    return path


def read(path: Path) -> dict[str, Any]:
    """What `write` put into ``path``; a file of 0.1.0 has no checksum, which is said."""
    try:
        result = guard.load_json(path.read_bytes())
    except ValueError as error:
        raise ArtifactError(f"{path} is not a result: {' '.join(str(error).split())}") from error
    if not isinstance(result, dict):
        raise ArtifactError(f"{path} is not a result: it holds no mapping")
    sha256 = result.pop("sha256", None)
    if sha256 is None:
        warnings.warn(f"{path} has no checksum, as results of 0.1.0; not verified", stacklevel=2)
    elif sha256 != _sha256(result):
        raise ArtifactError(f"{path} is damaged: its sha256 is not that of what it holds")
    return result


def _sha256(result: dict[str, Any]) -> str:
    """A digest of what ``result`` holds, as it is written."""
    return hashlib.sha256(_text(result).encode()).hexdigest()


def _text(value: Any, depth: int = 0) -> str:
    """Json with one key per line, but lists of numbers on one line."""
    if isinstance(value, dict) and value:
        space = " " * (depth + 1)
        lines = [f"{space}{json.dumps(str(k))}: {_text(v, depth + 1)}" for k, v in value.items()]
        return "{\n" + ",\n".join(lines) + "\n" + " " * depth + "}"
    if isinstance(value, list | tuple) and any(isinstance(v, dict | list | tuple) for v in value):
        space = " " * (depth + 1)
        return (
            "[\n"
            + ",\n".join(space + _text(v, depth + 1) for v in value)
            + "\n"
            + " " * depth
            + "]"
        )
    return json.dumps(value)


def _git(*arguments: str) -> str | None:
    """The output of git in the checkout this package runs from; None where there is none."""
    root = Path(progmem.__file__).parents[2]
    if not (root / ".git").exists():
        return None
    done = subprocess.run(
        ["git", *arguments], capture_output=True, text=True, cwd=root, check=False
    )
    return done.stdout.strip()
