"""Files that are whole or not there, and can be written."""

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from progmem.errors import InputError

UNFINISHED = ".progmem-"  # what a file is called until it is whole
STALE = 3600  # seconds after which nobody is still writing an unfinished file


def write_file(path: Path, data: bytes | bytearray) -> None:
    """Replace ``path`` whole or not at all, whatever happens meanwhile."""
    writer = f"{os.getpid()}.{threading.get_ident()}"  # several may write one file at once
    unfinished = path.with_name(f"{UNFINISHED}{path.name}.{writer}")
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


def remove_leftovers(folder: Path) -> None:
    """Remove what killed writers left in ``folder``, and nothing that another is writing now."""
    for path in folder.glob(f"{UNFINISHED}*"):
        try:
            if time.time() - path.stat().st_mtime > STALE:
                path.unlink()
        except FileNotFoundError:  # it was finished, or removed by another
            continue


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_result_file(path: Path, option: str = "-o") -> None:
    """Refuse a result file that cannot be written; folders above it are made."""
    if path.suffix != ".json":
        raise InputError(f"{option} must name the .json file to write, got {path}")
    if path.parent.exists():
        check_output(path)


def check_output(path: Path, *read: Path | None) -> None:
    """Refuse what cannot be written, or is one of the files ``read``, before the work is done."""
    if any(file is not None and path.resolve() == file.resolve() for file in read):
        raise InputError(f"{path} is what is read, and would be written over; name another file")
    if path.is_dir():
        raise InputError(f"{path} is a folder; name the file to write")
    if not path.parent.is_dir():
        raise InputError(f"there is no folder {path.parent} to write {path.name} into")


def to_json(value: Any) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()
