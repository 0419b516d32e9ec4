"""A small file that would take much memory is refused in one line, and read if a user says so."""

import gzip
import json
import zipfile

import numpy as np
import pytest

import progmem
from progmem import guard
from progmem.cli import main
from progmem.config import read_config
from progmem.errors import ConfigError, InputError


def head_of_npy(path, shape):
    """A file of 128 bytes that claims any number of values."""
    with path.open("wb") as file:
        header = {"descr": "<f8", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)


def packed(path, data):
    path.write_bytes(gzip.compress(data))


def one_in_a_zip(path, size):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", bytes(size))


FORMER = {  # once these hung, or took gigabytes
    "as many series as there are stars": (
        "x.npy", lambda p: head_of_npy(p, (10**12, 0, 3)), "declares 1000000000000 series",
    ),
    "an array that is not there": (
        "x.npy", lambda p: head_of_npy(p, (10**9, 3)), "x.npy cannot be read: .*",
    ),
    "zeros in a zip": (
        "x.npz", lambda p: one_in_a_zip(p, 2**24), r"declares 1 packed files of 16\.8 MB",
    ),
    "zeros in gzip": (
        "x.csv.gz", lambda p: packed(p, b"a,b\n" + b"0,0\n" * 2**20), "cells or more in 2 columns",
    ),
    "columns without end": (
        "x.csv", lambda p: p.write_text(",".join("1" * 20_000)), "declares 20000 cells in 20000 ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name, write, message", FORMER.values(), ids=FORMER)
def test_a_file_that_would_take_much_memory_is_refused(name, write, message, tmp_path, monkeypatch):
    """With a thousandth of what is allowed otherwise, so that the files stay small too."""
    monkeypatch.setattr(guard, "LEAST", guard.LEAST // 1024)
    path = tmp_path / name
    write(path)
    assert path.stat().st_size < 2**17
    with pytest.raises(InputError, match=message) as caught:
        progmem.read(path)
    assert "\n" not in str(caught.value)
    assert main(["check", str(path)]) == 2


def test_a_file_that_is_trusted_is_read_with_the_limit_that_the_message_names(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(guard, "LEAST", guard.LEAST // 1024)
    path = tmp_path / "x.csv.gz"
    packed(path, b"a,b\n" + b"0,1\n" * 50_000)
    with pytest.raises(InputError, match="if you trust it: limit='") as caught:
        progmem.read(path)
    limit = str(caught.value).split("limit='")[1].split("'")[0]
    assert progmem.read(path, limit="1GB")[0].values.shape == (50_000, 2)
    with pytest.raises(InputError, match=r"more than the .* of limit"):
        progmem.read(path, limit="0.01MB")
    assert guard.read_limit(limit) > guard.LEAST


def test_what_one_case_takes_is_never_refused():
    guard.check("x", guard.LEAST, None, "a little", size=1)
    with pytest.raises(
        InputError, match=r"more than the 67\.1 MB of what one of its size may take"
    ):
        guard.check("x", guard.LEAST + 1, None, "more", size=1)


NESTED = {
    "aliases of aliases": ("a: &a [1]\nb: &b [*a, *a]\n", r"line 2, column 8: \*a is an alias"),
    "lists in lists": ("a: " + "[" * 100 + "]" * 100, "nested deeper than 32 levels"),
    "a date that is none": ("a: 2024-13-45", "month must be in 1"),
}


@pytest.mark.parametrize("text, message", NESTED.values(), ids=NESTED)
def test_settings_that_would_grow_or_nest_without_end_are_refused(text, message, tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        read_config(path, [])
    assert "\n" not in str(caught.value)


def test_json_that_is_nested_too_deeply_is_no_error_of_python():
    with pytest.raises(ValueError, match="nested too deeply"):
        guard.load_json("[" * 200_000)
    assert guard.load_json(json.dumps({"a": [1]})) == {"a": [1]}


@pytest.mark.parametrize(
    "text, bytes_", [("4GB", 4 * 10**9), ("1.5 kb", 1500), ("12", 12), (12, 12), ("3M", 3 * 10**6)]
)
def test_limits_are_bytes_or_texts(text, bytes_):
    assert guard.read_limit(text) == bytes_


@pytest.mark.parametrize("limit", ["much", "-1", "0", 0, True, "1XB", "nan"])
def test_other_limits_are_refused(limit):
    with pytest.raises(InputError, match="limit must be a number of bytes or a text such as 4GB"):
        guard.read_limit(limit)
