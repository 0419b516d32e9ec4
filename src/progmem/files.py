"""Files and folders that are written whole or not at all, by one writer at a time.

Whoever writes PATH holds the lock .progmem-NAME.lock beside it and writes to .progmem-NAME.<hex>,
which becomes PATH in one rename. The system frees the lock of a process that is killed, so what
nobody has locked is a leftover, and the next writer in that folder removes it.
"""

import ctypes
import errno
import hashlib
import json
import os
import secrets
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np
from filelock import FileLock, Timeout

from progmem.errors import InputError, WriteError

UNFINISHED = ".progmem-"  # so begins all that lies beside a path while it is written
LOCK, FORMER = "lock", "former"
SUMS = "SHA256SUMS"  # in a folder of files that have no digest of their own
WAIT = 60.0  # seconds for another writer to finish
AT_ONCE = 1.0  # where that would take long: only for one who is removing leftovers
NOT_WRITABLE = {
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM,
    errno.ENAMETOOLONG,
}  # fmt: skip
T = TypeVar("T")


def write_file(path: Path, data: bytes | bytearray) -> None:
    """Replace ``path`` whole or not at all, whatever happens meanwhile."""
    with unfinished(path) as new:
        new.write_bytes(data)


@contextmanager
def unfinished(path: Path, *, wait: float = WAIT) -> Iterator[Path]:
    """Where to make a file or a folder that becomes ``path`` at the end, in place of what is there.

    If anything fails, ``path`` is as it was. Another writer of ``path`` is waited for.
    """
    if path.is_symlink() or not path.name:
        path = path.resolve()
    with explained(path):
        remove_leftovers(path.parent)
        with locked(path, wait=wait):
            new = _beside(path, secrets.token_hex(6))
            try:
                yield new
                _sync(new)
                _put(new, path)
            except BaseException:
                _remove(new)
                raise


def make_folder(folder: Path) -> None:
    """Make ``folder`` and those above it; one that is there is left as it is."""
    with explained(folder):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            file = next((path for path in (folder, *folder.parents) if path.is_file()), folder)
            raise InputError(f"{folder} cannot be made: {file} is a file") from error


@contextmanager
def locked(path: Path, *, wait: float = WAIT) -> Iterator[None]:
    """Be the only writer of ``path``; what killed writers of it have left is removed."""
    lock = _beside(path, LOCK)
    with held(lock, path, wait=wait):
        try:
            _settle(path)
            yield
        finally:
            lock.unlink(missing_ok=True)  # as long as it is held: nobody else has it


@contextmanager
def held(lock: Path, what: Path, *, wait: float) -> Iterator[None]:
    """Hold the file ``lock``, or say who does and writes ``what``."""
    file = FileLock(lock)
    try:
        with explained(what):
            file.acquire(timeout=wait, poll_interval=0.01)
    except Timeout as error:
        raise InputError(
            f"{what} is in use by {_holder(lock)}; wait for it, or give another path"
        ) from error
    try:
        if type(file) is FileLock:  # where a file system has no locks, it holds other text
            with suppress(OSError):
                lock.write_text(f"process {os.getpid()} on {socket.gethostname()}")
        yield
    finally:
        file.release()


def remove_leftovers(folder: Path) -> None:
    """Remove what killed writers have left in ``folder``, and nothing that another is writing."""
    names = [p.removeprefix(UNFINISHED) for p in os.listdir(folder) if p.startswith(UNFINISHED)]
    for name in {name.rpartition(".")[0] for name in names} - {""}:
        with suppress(OSError, InputError), locked(folder / name, wait=0):
            pass


def reserve(path: Path) -> None:
    """Give every byte of a file its place on the disk, so that a full one is noticed here.

    A mapped file that has holes would end the process by a signal instead.
    """
    size = path.stat().st_size
    with path.open("r+b") as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        else:
            for start in range(0, size, 1 << 20):
                part = os.pread(file.fileno(), min(1 << 20, size - start), start)
                os.pwrite(file.fileno(), part, start)


def new_array(path: Path, kind: str, shape: tuple[int, ...]) -> Any:
    """An array on disk, for all of which there is space."""
    create: Any = np.lib.format.open_memmap
    array = create(path, "w+", kind, shape)
    reserve(path)
    return array


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_sums(folder: Path) -> None:
    """Digests of all files in ``folder``, as `sha256sum --check` reads them."""
    lines = [f"{sha256_of(path)}  {path.name}\n" for path in sorted(folder.iterdir())]
    (folder / SUMS).write_text("".join(lines))


def read_whole(folder: Path, read: Callable[[], T]) -> T:
    """What ``read`` makes of the files in ``folder``, all of one save.

    It is called again where another has replaced the folder meanwhile.
    """
    for _ in range(100):
        before = _identity(folder)
        try:
            found = read()
        except Exception:
            if _identity(folder) == before:
                raise
        else:
            if _identity(folder) == before:
                return found
    raise InputError(f"{folder} is being replaced all the time; read it when it is not")


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        found = folder.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_ctime_ns


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(f"{UNFINISHED}{path.name}.{ending}")


def _holder(lock: Path) -> str:
    try:
        return lock.read_text()[:100].strip() or "another process"
    except (OSError, UnicodeDecodeError):
        return "another process"


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """One line that names ``path`` and what is kept, where it cannot be written."""
    was_there = path.exists()
    try:
        yield
    except OSError as error:
        raise_not_written(error, path, was_there=was_there)


def raise_not_written(error: OSError, path: Path, *, was_there: bool) -> NoReturn:
    """Raise an error in writing ``path`` as one that says so, and any other as it is."""
    if error.errno not in NOT_WRITABLE:  # a part of a folder may have been told of by its own name
        raise error
    kept = "what was there before is kept" if was_there else "nothing of it is left"
    why = os.strerror(error.errno)
    raise WriteError(error.errno, f"{path} was not written: {why}; {kept}") from error


def _settle(path: Path) -> None:
    """Make of what killed writers of ``path`` have left what it was before."""
    former = _beside(path, FORMER)
    if former.exists() and not path.exists():
        former.rename(path)
    begin = f"{UNFINISHED}{path.name}."
    for name in os.listdir(path.parent):
        ending = name.removeprefix(begin)
        if name.startswith(begin) and "." not in ending and ending != LOCK:
            _remove(path.with_name(name))


def _put(new: Path, path: Path) -> None:
    if new.is_dir() and path.exists():
        shutil.copymode(path, new)
        if not _exchange(new, path):
            former = _beside(path, FORMER)
            path.rename(former)
            try:
                new.rename(path)
            except BaseException:
                former.rename(path)
                raise
            _remove(former)
        _remove(new)  # which is what was there before
    else:
        os.replace(new, path)
    _sync(path.parent, inside=False)


def _exchange(one: Path, other: Path) -> bool:
    """Let two paths change places at once; whether this system and file system can do that."""
    system, a, b = ctypes.CDLL(None), os.fsencode(one), os.fsencode(other)
    here, exchange = -100, 2  # AT_FDCWD; RENAME_EXCHANGE, and RENAME_SWAP of macOS
    for name, arguments in {
        "renameat2": (here, a, here, b, exchange),
        "renamex_np": (a, b, exchange),
    }.items():
        if hasattr(system, name) and getattr(system, name)(*arguments) == 0:
            return True
    return False


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _sync(path: Path, *, inside: bool = True) -> None:
    """Have a file, or a folder with all that is in it, on the disk."""
    if inside and path.is_dir():
        for one in path.iterdir():
            _sync(one)
    handle = os.open(path, os.O_RDONLY)
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
    """Refuse what cannot be written, or is one of the files ``read``, before the work is done.

    A table in a folder of recordings is one of them.
    """
    if any(file is not None and path.resolve() == file.resolve() for file in read):
        raise InputError(f"{path} is what is read, and would be written over; name another file")
    if path.suffix == ".csv":
        check_outside(path, *read)
    if path.is_dir():
        raise InputError(f"{path} is a folder; name the file to write")
    if not path.parent.is_dir():
        raise InputError(f"there is no folder {path.parent} to write {path.name} into")


def check_outside(path: Path, *read: Path | None) -> None:
    """Refuse to write into a folder of recordings, where ``path`` would be read as one of them."""
    for source in read:
        if source is not None and source.is_dir() and source.resolve() in path.resolve().parents:
            raise InputError(
                f"{path} lies in {source}, whose files are read as recordings; name a place outside"
            )


def to_json(value: Any) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()
