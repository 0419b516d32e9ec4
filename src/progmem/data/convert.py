"""Conversion of a publisher's archive into a file that `progmem.data.datasets` reads."""

import difflib
import gzip
import io
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from progmem.data import datasets
from progmem.data.converters import CONVERTERS, Converter
from progmem.data.converters.archive import Archive, open_archive
from progmem.data.datasets import DATA_VARIABLE, check_line, data_folder
from progmem.errors import InputError
from progmem.files import make_folder, write_file
from progmem.progress import Log


def convert(
    archive: str | Path,
    out: str | Path | None = None,
    *,
    name: str | None = None,
    overwrite: bool = False,
    limit: Any = None,
    log: Log | None = None,
) -> tuple[list[str], bool]:
    """Write a set of an archive to the folder ``out``; the set is recognised by the content.

    Args:
        archive: a zip as it was downloaded, the folder it was unpacked to, or one file.
        out: None: the folder of the environment variable PROGMEM_DATA.
        name: of the set, where an archive has several.
        limit: how much memory what it unpacks to may take, as in `progmem.read`.

    Returns:
        What was written, one line each, and whether it matches what is known of that set.
    """
    folder = data_folder(out)
    if folder is None:
        raise InputError(f"give the folder to write to with -o or in {DATA_VARIABLE}")
    if folder.is_file():
        raise InputError(f"{folder} is a file; give the folder to write to")
    try:
        with open_archive(Path(archive), limit) as opened:
            name, converter = _choose(opened, name)
            path = folder / f"{name}{converter.suffix}"
            if path.exists() and not overwrite:
                raise InputError(f"{path} is there already; --overwrite replaces it")
            if log is not None:
                log(f"it holds {name}: reading its series ...")
            found = converter.read(opened, name)
    except (OSError, RuntimeError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        # RuntimeError: a password, or a compression that Python does not know
        raise InputError(
            f"{archive} cannot be read: {error}; the folder it unpacks to will do too"
        ) from error
    make_folder(folder)
    if log is not None:
        log(f"packing {_describe(found)} ...")
    write_file(path, _packed(found))
    lines = [f"{name}: {_describe(found)}, written to {path}"]
    if name not in datasets.FILES:
        return [
            *lines,
            f"{name:26}not one of the paper's sets: there is no reference to compare with",
        ], True
    line, good = check_line(name, folder)
    return [*lines, line], good


def _choose(archive: Archive, name: str | None) -> tuple[str, Converter]:
    """The name of the set to convert, and the converter of its archive."""
    found = {one: converter for converter in CONVERTERS.values() for one in converter.find(archive)}
    if not found:
        known = ", ".join(converter.what for converter in CONVERTERS.values())
        raise InputError(f"{archive.path} is not recognised; what can be converted: {known}")
    if name is None and len(found) == 1:
        name = next(iter(found))
    if name in found:
        return name, found[name]
    near = difflib.get_close_matches(name or "", found, n=1)
    shown = ", ".join(sorted(found)[:8]) + (" and others" if len(found) > 8 else "")
    if name is None:
        raise InputError(f"{archive.path} has several sets, choose one by --name: {shown}")
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise InputError(f"{archive.path} has no set {name!r}; {hint}it has {shown}")


def _packed(content: dict[str, np.ndarray] | bytes) -> bytes:
    if isinstance(content, bytes):
        return gzip.compress(content, mtime=0)  # the same bytes at any time
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, **content)
    return file.getvalue()


def _describe(content: dict[str, np.ndarray] | bytes) -> str:
    if isinstance(content, bytes):
        header, *rows = content.splitlines()
        return f"{len(rows)} rows of {header.count(b',')} columns"
    train, test = len(content["X_train"]), len(content["X_test"])
    _, length, channels = content["X_train"].shape
    classes = len(content["classes"])
    return f"{train} + {test} series of {length} samples, {channels} channels, {classes} classes"
