"""Files that are whole or not there."""

import json
import os
from pathlib import Path
from typing import Any

UNFINISHED = ".progmem-"  # what a file is called until it is whole


def write_file(path: Path, data: bytes) -> None:
    """Replace ``path`` whole or not at all, whatever happens meanwhile."""
    unfinished = path.with_name(f"{UNFINISHED}{path.name}.{os.getpid()}")
    try:
        with unfinished.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
        _sync_folder(path.parent)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def to_json(value: Any) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()
