"""What a file declares is compared with what it holds, before anything of it is read."""

import gzip
import io
import struct
import zipfile

import pytest

import progmem
from progmem import guard
from progmem.cli import main
from progmem.data import datasets
from progmem.data.labels import read_labels
from progmem.errors import InputError


def npy(shape, kind="<f4", version=1):
    head = f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape}}}\n".encode()
    size = struct.pack("<H" if version == 1 else "<I", len(head))
    return b"\x93NUMPY" + bytes([version, 0]) + size + head + bytes(64)


def zipped(**members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in members.items():
            packed.writestr(name, content)
    return file.getvalue()


SEALED = struct.pack(
    ">6sc c5s2s3s2sHHBBBBHHhhBBBBiHHHHBBBB", b"000001", b"D", b" ", b"STA", b"", b"BHZ", b"NE",
    2020, 1, 0, 0, 0, 0, 0, 200, 1, 1, 0, 0, 0, 1, 0, 64, 48, 1000, 0, 3, 1, 9, 0,
)  # fmt: skip
FILES = {
    "more than it holds": ("x.npy", npy((5, 4)), "declares 80 bytes of numbers, and it has 64"),
    "overflow": ("x.npy", npy((2**31,) * 3), f"declares {2**95} bytes of numbers"),
    "more than 64 bits": ("x.npy", npy((2**64, 1)), "declares 7378"),
    "negative": ("x.npy", npy((-1,)), r"its header declares the shape \(-1,\)"),
    "no number": ("x.npy", npy((True, 4)), r"its header declares the shape \(True, 4\)"),
    "other versions": ("x.npy", npy((4,), version=3), "it holds no plain numbers"),
    "objects": ("x.npy", npy((1,), "|O"), "Python objects"),
    "series without samples": ("x.npy", npy((10**12, 0, 3)), "declares 1000000000000 series"),
    "no array": ("x.npz", zipped(a=b"hello"), "a in it: it does not begin as .npy files do"),
    "an array that lies": ("x.npz", zipped(**{"x.npy": npy((9, 9))}), "x.npy in it: its header d"),
    "many zeros": ("x.npz", zipped(x=bytes(100 * 2**20)), "1 packed files of 104.9 MB"),
    "many cells": ("x.csv.gz", gzip.compress(b"1\n" * 4_300_000, 1), "cells or more in 1 colum"),
    "a line": ("x.csv.gz", gzip.compress(b"1" * 80_000_000, 1), "0 cells or more in 1 columns"),
    "columns": ("x.csv", b"," * 10**5, "100001 cells in 100001 columns, which would take ab"),
    "channels": ("x.ts", b"#\n" * 20 + b"@data\n" + b"1:" * 10**5, "in 100001 columns"),
    "record": ("x.mseed", SEALED + bytes(512 - 56), "lists 200 samples, and has fewer"),
    "cut record": ("x.mseed", SEALED + bytes(300), "at byte 0 is cut off, or does not say"),
    "no length": ("x.mseed", SEALED[:46] + bytes(466), "at byte 0 is cut off, or does not say"),
    "no record": ("x.mseed", bytes(512), "there is no data record of miniSEED at byte 0"),
}  # fmt: skip


@pytest.mark.parametrize("name, content, message", FILES.values(), ids=[*FILES])
def test_what_declares_too_much_is_refused(name, content, message, tmp_path):
    pytest.importorskip({"ts": "aeon", "mseed": "obspy"}.get(name.split(".")[1], "numpy"))
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        progmem.read(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["more than it holds", "no number", "negative"])
def test_labels_that_declare_too_much_are_refused(name, tmp_path):
    (tmp_path / "y.npy").write_bytes(FILES[name][1])
    with pytest.raises(InputError, match=f"y.npy cannot be read: .*{FILES[name][2]}"):
        read_labels(tmp_path / "y.npy")


@pytest.mark.parametrize("name", ["series without samples", "many zeros", "many cells"])
def test_the_option_that_a_message_names_raises_the_limit(name, tmp_path):
    file, content, _ = FILES[name]
    (tmp_path / file).write_bytes(content)
    with pytest.raises(InputError) as caught:
        progmem.read(tmp_path / file)
    limit = str(caught.value).rsplit("--limit ", 1)[1].rstrip(")")
    try:
        assert progmem.read(tmp_path / file, limit=limit).values[0].shape == (4_300_000, 1)
    except InputError as error:
        assert name != "many cells" and "limit" not in str(error), error  # but of another reason


def test_the_option_reaches_the_file_of_labels_too(tmp_path):
    (tmp_path / "wide.csv").write_text("label" + "," * 50_000 + "\n1\n")
    with pytest.raises(InputError, match=r"declares 50... cells.*--limit"):
        read_labels(tmp_path / "wide.csv")
    (tmp_path / "y.csv").write_text("label" + "," * 100 + "\n1\n")
    with pytest.raises(InputError, match="--limit"):
        read_labels(tmp_path / "y.csv", "100B")
    assert read_labels(tmp_path / "y.csv", "1GB").labels.tolist() == ["1"]


def test_a_file_of_a_data_set_that_is_too_large_is_to_be_made_anew(tmp_path):
    for name, content in (
        ("Wafer.npz", zipped(x=bytes(100 * 2**20))), ("ETTh1.csv.gz", FILES["many cells"][1]),
    ):  # fmt: skip
        (tmp_path / name).write_bytes(content)
    for name in ("Wafer", "ETTh1"):
        with pytest.raises(InputError, match="is larger than this set; make its file anew with"):
            datasets.load(name, tmp_path)


def test_gaps_of_working_days_are_counted_before_they_are_filled(tmp_path):
    days = "2024-01-04,1\n2024-01-05,1\n2024-01-08,1\n9999-12-31,1\n"
    (tmp_path / "x.csv").write_text(f"date,a\n{days}")
    with pytest.raises(InputError, match="2080837 rows of 2 columns"):
        progmem.read(tmp_path / "x.csv", fill_gaps=True, limit="1MB")


@pytest.mark.parametrize(
    "text, message",
    [
        ("a: " + "1:" * 600 + "1", "line 1, column 4: a value of 1201 characters; write it in quo"),
        ("#" * 300_000, "it has 300000 bytes, and settings have 262144 at most"),
        ("a: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
    ],
)
def test_yaml_that_is_more_than_settings_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        guard.load_yaml(text)
    assert guard.load_yaml("a: '" + "1" * 1200 + "'") == {"a": "1" * 1200}


def test_a_long_text_out_of_a_file_does_not_fill_the_terminal(tmp_path, capsys):
    (tmp_path / "c.yaml").write_text("'" + "a" * 100_000 + "'")
    assert main(["pretrain", "x.npy", "--print-config", "-c", str(tmp_path / "c.yaml")]) == 2
    said = capsys.readouterr().err
    assert "must be a mapping of settings, got 'aaa" in said and len(said) < 2100
