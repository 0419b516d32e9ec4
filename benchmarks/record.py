"""What a result must say about where it came from, and the file it goes into."""

import json
import platform
import subprocess
from pathlib import Path
from typing import Any

import numpy
import torch

import progmem

RESULTS = Path("results")


def environment(device: str = "cpu", commit: str | None = None) -> dict[str, Any]:
    """Commit (given where there is no repository), versions and device of this run."""
    name = torch.cuda.get_device_name() if device == "cuda" else platform.machine() + " CPU"
    return {
        "commit": commit or _git("rev-parse", "HEAD"),
        "dirty": commit is None and bool(_git("status", "--porcelain", "--untracked-files=no")),
        "versions": {
            "progmem": progmem.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": numpy.__version__,
        },
        "device": name,
        "threads": torch.get_num_threads(),
    }


def save(experiment: str, name: str, result: dict[str, Any]) -> Path:
    """Write ``result`` to results/<experiment>/<name>.json."""
    path = RESULTS / experiment / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    return path


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip()
