"""The one format of everything that is kept: tensors and a note in one safetensors file.

The file begins with its header's length and then always with the same bytes, PREFIX, which end
where the sha256 stands. That is the digest of the whole file with 64 zeros in its place, so it
covers every other byte: tensors, names, shapes, the kind and the note. Any program that reads
safetensors finds ``format``, ``sha256``, ``kind`` and ``note`` (json) in the file's metadata.

A digest finds accidents, not forgeries. Nothing in a file can run code, and whoever builds
something of it checks the tensors and the note first, by `check_tensors` and `noted`.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from progmem import guard
from progmem.errors import ArtifactError, InputError
from progmem.files import write_file
from progmem.names import printable

FORMAT = "progmem artifact 1"
KINDS = (
    "model", "checkpoint", "classifier head", "label probe", "forecaster", "encoder", "classifier",
    "stream", "index", "session",
)  # fmt: skip
LENGTH = 8  # bytes of the header's length, by which a safetensors file begins
PREFIX = f'{{"__metadata__":{{"format":"{FORMAT}","sha256":"'.encode()
ZEROS = b"0" * 64
START = LENGTH + len(PREFIX)  # of the digest
END = START + len(ZEROS)
ANY_FORMAT = re.compile(rb'.{8}\{"__metadata__":\{"format":"(progmem [^"]{1,40})"', re.DOTALL)


class Artifact(NamedTuple):
    """What a file holds, verified."""

    tensors: dict[str, Tensor]
    note: dict[str, Any]
    sha256: str


def write(path: Path, kind: str, tensors: Mapping[str, Tensor], note: Mapping[str, Any]) -> str:
    """Write ``path`` whole or not at all; its sha256. The same content gives the same bytes."""
    assert kind in KINDS, kind
    plain = save_tensors({n: t.detach().cpu().contiguous() for n, t in tensors.items()})
    body = LENGTH + int.from_bytes(plain[:LENGTH], "little")  # where the tensors begin
    metadata = {"format": FORMAT, "sha256": ZEROS.decode(), "kind": kind, "note": json.dumps(note)}
    # safetensors would write metadata in an order that differs from call to call
    entries = {"__metadata__": metadata, **json.loads(plain[LENGTH:body])}
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % LENGTH)  # tensors are aligned, as safetensors has them
    data = bytearray(len(header).to_bytes(LENGTH, "little") + header)
    data += memoryview(plain)[body:]  # tensors may be large: one copy, not three
    assert data[LENGTH:END] == PREFIX + ZEROS
    digest = hashlib.sha256(data).hexdigest()
    data[START:END] = digest.encode()
    write_file(path, data)
    return digest


def read(path: Path, kind: str) -> Artifact:
    """What `write` put into ``path``; anything else is an ArtifactError of one line."""
    unread = f"{path} cannot be read as {_one(kind)}"
    try:
        with path.open("rb") as file:
            data = file.read(100)  # a large file of something else is not read to its end
            if _begins(data):
                _check_header(file, path, kind, unread)
                file.seek(0)
                data = file.read()
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror}") from error
    if not _begins(data):
        other = ANY_FORMAT.match(data)
        if other and other[1].decode("ascii", "replace") != FORMAT:
            name = other[1].decode("ascii", "replace")
            raise ArtifactError(f"{path} has format {name!r}; this version reads {FORMAT!r}")
        raise ArtifactError(f"{unread}: it does not begin as the files of progmem do")
    sha256 = data[START:END].decode("ascii", "replace")
    if sha256 != _digest(data):
        raise ArtifactError(f"{path} is damaged: its sha256 is not that of what it holds")
    try:
        header = json.loads(data[LENGTH : LENGTH + int.from_bytes(data[:LENGTH], "little")])
        found, note = header["__metadata__"]["kind"], json.loads(header["__metadata__"]["note"])
        tensors = load_tensors(data)
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ArtifactError(f"{unread}: {in_one_line(error)}") from error
    if found != kind:
        raise ArtifactError(f"{unread}: it is {_one(str(found)[:40])}")
    if not isinstance(note, dict):
        raise ArtifactError(f"{unread}: its note is not a mapping")
    return Artifact(tensors, note, sha256)


def _check_header(file: IO[bytes], path: Path, kind: str, unread: str) -> None:
    """Refuse a file by its header, before its tensors are read: another kind, another size."""
    size = os.fstat(file.fileno()).st_size
    file.seek(0)
    length = int.from_bytes(file.read(LENGTH), "little")
    if length > size - LENGTH:
        raise ArtifactError(f"{unread}: it is damaged, and ends before its header does")
    if 2 * size > guard.free_memory():  # the file and the tensors in it
        raise ArtifactError(f"{path} is larger than the memory that is free: {size} bytes")
    try:
        header = guard.load_json(file.read(length))
        found = header.pop("__metadata__")["kind"]
        end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
        whole = LENGTH + length + end == size
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise ArtifactError(f"{unread}: {in_one_line(error)}; it is damaged") from error
    if not whole:
        raise ArtifactError(f"{unread}: it is damaged, its size is not what its header lists")
    if found != kind and found in KINDS:
        raise ArtifactError(f"{unread}: it is {_one(found)}")


def begins(path: Path) -> bool:
    """Whether ``path`` begins as an artifact does; the rest may still be damaged."""
    try:
        with path.open("rb") as file:
            return _begins(file.read(START))
    except OSError:
        return False


def check_tensors(
    tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor], where: object
) -> None:
    """Refuse names, shapes or dtypes that are not those ``expected`` (see `shaped`)."""
    odd = sorted(tensors.keys() ^ expected.keys())
    if odd:
        more = f" and {len(odd) - 3} more" if len(odd) > 3 else ""
        raise ArtifactError(f"{where}: missing or unknown tensors {', '.join(odd[:3])}{more}")
    for name, tensor in expected.items():
        found = tensors[name]
        if (found.shape, found.dtype) != (tensor.shape, tensor.dtype):
            raise ArtifactError(
                f"{where}: {name} has shape {tuple(found.shape)} and {found.dtype}, "
                f"not {tuple(tensor.shape)} and {tensor.dtype}"
            )


def shaped(*shape: int) -> Tensor:
    """A float64 tensor without memory, to say what is expected."""
    return torch.empty(shape, dtype=torch.float64, device="meta")


def check_replaceable(path: Path, kind: str) -> None:
    """Refuse to write an artifact of ``kind`` over a file that is something else."""
    if not path.exists():
        return
    try:
        read(path, kind)
    except ArtifactError as error:
        raise InputError(f"{path} would be written over: {error}; name another file") from error


def noted(
    note: Mapping[str, Any], name: str, kind: type | tuple[type, ...], where: object,
    *, of: type | tuple[type, ...] = object,
) -> Any:  # fmt: skip
    """What ``note`` has under ``name``, if it is of ``kind``, and its items, if any, of ``of``."""
    value = note.get(name)
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    flag = isinstance(value, bool) and kind is not bool  # which Python takes for a number
    if not isinstance(value, kind) or flag or not all(isinstance(item, of) for item in items):
        raise ArtifactError(f"{where}: {name} in its note is {str(value)[:60]!r}")
    if isinstance(value, list):
        return [printable(item) if isinstance(item, str) else item for item in value]
    return printable(value) if isinstance(value, str) else value


def in_one_line(error: BaseException) -> str:
    """What an error of a library says, short enough for a message."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def _digest(data: bytes) -> str:
    parts = memoryview(data)
    digest = hashlib.sha256(parts[:START])
    digest.update(ZEROS)
    digest.update(parts[END:])
    return digest.hexdigest()


def _begins(data: bytes) -> bool:
    return data[LENGTH:START] == PREFIX


def _one(kind: str) -> str:
    return f"{'an' if kind[:1] in tuple('aeiou') else 'a'} {kind}"
