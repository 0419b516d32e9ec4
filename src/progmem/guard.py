"""What a file would take in memory, told by what it declares, before anything is read of it.

A file is refused where its content would take more than `allowed`: fifty times its size on disk,
or `LEAST` where that is more, and never more than the memory that is free. Honest files take a few
times their size; a bomb takes thousands. ``limit`` of `progmem.read` (``--limit`` of the commands)
puts a number of the user's in place of all this.

Tables, archives and headers of signals are measured here in bytes; yaml and json by how deep they
are nested. Readers call this module and decide nothing themselves.
"""

import gzip
import json
import math
import os
import re
import zipfile
import zlib
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import yaml

from progmem.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

LEAST = 64 * 2**20  # bytes that the content of any file may take
RATIO = 50  # of a larger file's content to the file
CELL = 16  # bytes of a number in a table and in the array made of it
TEXT_CELL = 64  # of a number that is held as a text
COLUMN, CASE = 4096, 4096  # of what a table holds for each
SERIES = 512  # of what is held for each series of an array
SETTINGS = 2**18  # bytes of a yaml text, which takes seconds to read where it is longer
LONGEST = 1000  # characters of a value that is not in quotes
DEPTH = 32  # of nested mappings and lists; ours have three levels
FIRST_LINES = 9  # of a text table, whose columns are counted
PIECE = 2**20  # bytes read at once
NPY = b"\x93NUMPY"  # begins a .npy file
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNREADABLE = (  # what reading a damaged or made file may raise
    OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError, MemoryError,
    RecursionError, OverflowError,
)  # fmt: skip
_LIMIT = re.compile(r"(\d+(?:\.\d*)?)\s*([KMGT]?B?)", re.IGNORECASE)


def read_limit(limit: Any) -> int | None:
    """A number of bytes, also as a text such as 4GB."""
    if limit is None:
        return None
    found = _LIMIT.fullmatch(str(limit).strip())
    unit = None if found is None else found[2].upper().removesuffix("B") + "B"
    size = 0 if found is None or unit is None else int(float(found[1]) * UNITS[unit])
    if isinstance(limit, bool) or size < 1:
        raise InputError(f"limit must be a number of bytes or a text such as 4GB, got {limit!r}")
    return size


def allowed(size: int, limit: Any = None) -> int:
    """The most bytes that what is made of ``size`` bytes may take in memory."""
    if limit is not None:
        return read_limit(limit) or 0
    return min(max(LEAST, RATIO * size), free_memory())


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def check(
    source: Path | str, needed: int, limit: Any, what: str, *, size: int | None = None
) -> None:
    """Refuse ``what`` a source declares where it would take more bytes than are allowed.

    ``size`` is that of the source in bytes, by default of the file that it is.
    """
    if needed <= LEAST and limit is None:
        return
    most = allowed(size_of(Path(source)) if size is None else size, limit)
    if needed <= most:
        return
    ask = f"{-(-needed // 10**6)}MB"
    why = "limit" if limit is not None else "memory that is free"
    if limit is None and most < free_memory():
        why = "what one of its size may take"
    raise InputError(
        f"{source} declares {what}, which would take about {_size(needed)}, more than the "
        f"{_size(most)} of {why}; if you trust it: limit='{ask}' (--limit {ask})"
    )


def check_table(
    name: str, table: "pd.DataFrame", limit: Any, *, rows: int, columns: int, cases: int = 1
) -> None:
    """Refuse a table that would grow too much: by filled gaps, by columns, by its many cases."""
    needed = rows * columns * CELL + columns * COLUMN + cases * CASE
    split = f" in {cases} cases" if cases > 1 else ""
    what = f"{rows} rows of {columns} columns{split}"
    check(name or "the table", needed, limit, what, size=table.size * CELL)


def check_series(path: Path, count: int, limit: Any) -> None:
    """Refuse an array of more series than there is room for, if it holds no value even."""
    check(path, count * SERIES, limit, f"{count} series")


def check_text(
    path: Path, sep: str, limit: Any, *, column: int = COLUMN, whole: bool = False
) -> None:
    """Refuse a text table of more cells than there is room for; a packed one is unpacked for that.

    A plain one is as large as it is, and only its first lines are looked at, unless its ``whole``
    is asked for. ``column`` is what each column takes beside its cells.
    """
    packed = path.suffix.lower() == ".gz"
    most, mark = allowed(path.stat().st_size, limit), sep.encode()
    cells = columns = read = lines = 0
    here, piece = 1, b""  # columns of this line
    with gzip.open(path) if packed else path.open("rb") as stream:
        while max(CELL * cells, read) <= most and (packed or whole or lines < FIRST_LINES):
            by_line = whole or lines < FIRST_LINES
            piece = stream.readline(PIECE) if by_line else stream.read(PIECE)
            if not piece:
                break
            marks, ends = piece.count(mark), piece.count(b"\n")
            cells, read = cells + marks + ends, read + len(piece)
            if by_line:
                here += marks
                columns = max(columns, here)
                lines, here = (lines + 1, 1) if ends else (lines, here)
    cells += here > 1  # a last line that is not ended
    size = _unpacked_size(path) if packed else path.stat().st_size
    if piece and size > read:  # what is left is taken to be like this
        cells, read = cells * size // read, size
    needed = max(CELL * cells, read) + column * columns
    more = " or more" if packed and piece else ""
    check(path, needed, limit, f"{cells} cells{more} in {columns} columns")


def _unpacked_size(path: Path) -> int:
    """What a gzip file says at its end of what it unpacks to, if that is less than 4 GB."""
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - 4))
        return int.from_bytes(stream.read(), "little")


def check_parquet(path: Path, limit: Any) -> None:
    """Refuse a parquet file whose columns would take too much, unpacked and repeated."""
    import pyarrow.parquet

    try:
        found = pyarrow.parquet.ParquetFile(path).metadata
    except Exception as error:  # of a library; a damaged file can raise anything
        raise ValueError(first_line(error)) from error
    groups = [found.row_group(i) for i in range(found.num_row_groups)]
    size = sum(abs(group.total_byte_size) for group in groups)
    rows = max(found.num_rows, sum(group.num_rows for group in groups))
    needed = max(size, rows * found.num_columns * CELL) + found.num_columns * COLUMN
    check(path, needed, limit, f"{rows} rows of {found.num_columns} columns")


def check_npy(stream: IO[bytes], size: int) -> None:
    """Refuse a .npy file of ``size`` bytes that declares more than it holds."""
    if stream.read(6) != NPY:
        raise ValueError("it does not begin as .npy files do")
    version = tuple(stream.read(2))
    form: Any = np.lib.format  # which has no types
    headers = {(1, 0): form.read_array_header_1_0, (2, 0): form.read_array_header_2_0}
    if version not in headers:
        raise ValueError("it holds no plain numbers")
    shape, _, kind = headers[version](stream)
    if any(isinstance(count, bool) or count < 0 for count in shape):
        raise ValueError(f"its header declares the shape {shape}")
    declared, there = math.prod(shape) * kind.itemsize, size - stream.tell()
    if declared > there and not kind.hasobject:
        raise ValueError(f"its header declares {declared} bytes of numbers, and it has {there}")


def load_npz(path: Path, limit: Any) -> dict[str, np.ndarray]:
    """The arrays of an .npz file; objects, which could run code, are refused by numpy."""
    found = {}
    form: Any = np.lib.format
    with path.open("rb") as stream:
        head = stream.read(2)
        if head != b"PK":
            raise ValueError("it does not begin as .npz files do" if head else "No data in it")
        with zipfile.ZipFile(stream) as archive:
            check_zip(path, [archive], limit)
            if any(info.flag_bits & 1 for info in archive.infolist()):
                raise ValueError("it is encrypted")
            for info in archive.infolist():
                try:
                    with archive.open(info) as member:
                        check_npy(member, info.file_size)
                    with archive.open(info) as member:
                        array = form.read_array(member, allow_pickle=False)
                except ValueError as error:
                    raise ValueError(f"{info.filename} in it: {first_line(error)}") from error
                found[info.filename.removesuffix(".npy")] = array
    return found


def check_zip(path: Path, archives: list[zipfile.ZipFile], limit: Any) -> None:
    """Refuse a zip, with those in it, that unpacks to too much.

    What is declared bounds what is read: Python stops there, and finds another checksum.
    """
    members = [info for archive in archives for info in archive.infolist()]
    size = sum(info.file_size for info in members)
    check(path, size, limit, f"{len(members)} packed files of {_size(size)}")


def load_yaml(text: str | bytes) -> Any:
    """What a yaml text holds, plain values only; a ValueError of one line if that is too much."""
    if len(text) > SETTINGS:
        raise ValueError(f"it has {len(text)} bytes, and settings have {SETTINGS} at most")
    try:
        depth = 0
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                raise ValueError(f"{_line(event.start_mark)}: *{event.anchor} is an alias, which "
                                 "settings need not; write its value out")  # fmt: skip
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > DEPTH:
                raise ValueError(f"{_line(event.start_mark)}: nested deeper than {DEPTH} levels")
            plain = isinstance(event, yaml.ScalarEvent) and event.implicit[0]
            if plain and len(event.value) > LONGEST:  # 1:1:1:… would be a number without end
                raise ValueError(
                    f"{_line(event.start_mark)}: a value of {len(event.value)} characters; write "
                    "it in quotes"
                )
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{_line(mark)}: " if mark is not None else ""
        raise ValueError(
            f"{place}{getattr(error, 'problem', None) or first_line(error)}"
        ) from error
    except (ValueError, OverflowError) as error:  # no such date; a byte that is no text
        raise ValueError(first_line(error)) from error


def load_json(data: str | bytes) -> Any:
    """What a json text holds; a ValueError of one line if that is too much."""
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except ValueError as error:
        raise ValueError(first_line(error)) from error


def free_memory() -> int:
    """Bytes that this process could still take."""
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if Path("/proc/meminfo").exists():
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next((int(li.split()[1]) * 1024 for li in lines if "MemAvailable" in li), free)
    group = Path("/sys/fs/cgroup")
    try:  # of a container
        most, used = ((group / f"memory.{name}").read_text() for name in ("max", "current"))
        return min(free, max(0, int(most) - int(used)))
    except (OSError, ValueError):  # there is no container, or its memory is not bounded ("max")
        return free


def _line(mark: Any) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}"


def first_line(error: BaseException) -> str:
    """What an error says, without what follows in other lines."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def _size(count: int) -> str:
    for unit in ("TB", "GB", "MB"):
        if count >= UNITS[unit]:
            return f"{count / UNITS[unit]:.1f} {unit}"
    return f"{count} bytes"
