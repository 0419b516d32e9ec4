"""Which of the paper's data sets are there, and whether they are the right ones."""

from pathlib import Path

from progmem.data import registry
from progmem.data.registry import VARIABLE, find, folder_of, load
from progmem.errors import InputError


def list_lines(data_dir: str | Path | None) -> list[str]:
    """One line a set: name, what it is, and whether its file is there."""
    folder = folder_of(data_dir)
    lines = [f"files are looked for in {folder or f'no folder yet: give --data-dir or {VARIABLE}'}"]
    for name, file in registry.FILES.items():
        there = folder is not None and (folder / file.file).is_file()
        state = "there  " if there else "missing"
        lines.append(f"{name:26}{state}  {file.file}: {file.describe()}")
    return lines


def check_lines(data_dir: str | Path | None) -> tuple[list[str], bool]:
    """One line a set after reading it whole, and whether all that are there are right."""
    folder = folder_of(data_dir)
    if folder is None:
        raise InputError(f"give the folder of the files with --data-dir or in {VARIABLE}")
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}")
    if not any((folder / file.file).is_file() for file in registry.FILES.values()):
        raise InputError(f"none of the files is in {folder}")
    checked = [check_line(name, folder) for name in registry.FILES]
    return [line for line, _ in checked], all(good for _, good in checked)


def check_line(name: str, data_dir: str | Path | None) -> tuple[str, bool]:
    """What reading a set whole says of it, and whether nothing is wrong with it."""
    file = registry.FILES[name]
    try:
        path = find(name, data_dir)
    except InputError:
        return f"{name:26}missing  {file.file}", True
    try:
        load(name, data_dir)
    except InputError as error:
        return f"{name:26}WRONG    {error}", False
    checked = f"content sha256 {file.sha256[:12]}…" if file.sha256 else "no checksum is known"
    return f"{name:26}ok       {path}, {file.describe()}, {checked}", True
