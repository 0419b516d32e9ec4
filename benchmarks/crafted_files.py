"""Files that are made to harm whoever reads them, of every format that progmem reads.

They declare more than they hold, unpack to gigabytes, are nested without end, hold code, or lead
out of their folder. Each is small on disk and made in memory, and says by which command it is read.
"""

import gzip
import hashlib
import io
import json
import os
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from progmem import artifact

MARK = "executed"  # the folder that appears where code in a file was run
MB = 2**20
BLOCKS = 3000  # of a megabyte, which a bomb unpacks to
DEEP = 100_000  # levels


class Crafted(NamedTuple):
    """A file, and how it is read."""

    name: str  # its path
    content: Callable[[], bytes]
    command: tuple[str, ...]  # of progmem, which has FILE where the path belongs

    @property
    def kind(self) -> str:
        """What is told of it in a table."""
        return self.name.rsplit(".", 1)[-1].replace("gz", "csv.gz")


class Payload:
    """What makes a folder when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, (MARK,)


RECORDINGS = ("check", "FILE")
PICKLE = pickle.dumps(Payload())


def crafted_files() -> list[Crafted]:
    """All of them; the same each time."""
    return [
        Crafted(f"{i}-{made}{ending}" if ending[0] == "." else ending, content, command)
        for i, (made, ending, content, command) in enumerate(
            (made, ending, content, command)
            for family in FAMILIES
            for made, ending, content, command in family()
        )
    ]


Made = Iterator[tuple[str, str, Callable[[], bytes], tuple[str, ...]]]


def npy(shape: object, kind: object = "<f4", body: bytes = bytes(64)) -> bytes:
    """A .npy file that declares ``shape`` and ``kind``, which are written as they are."""
    head = f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    head += b" " * (-(len(head) + 11) % 64) + b"\n"
    if len(head) >= 2**16:
        return b"\x93NUMPY\x02\x00" + struct.pack("<I", len(head)) + head + body
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + body


def _npy() -> Made:
    shapes: list[object] = [
        (10**12, 0, 3), (10**8, 0), (0, 10**12), (10**9, 1), (10**12,), (2**31, 2**31, 2**31),
        (2**63, 0), (2**64, 1), (-1,), (-5, -5), (), (1,) * 64, (1,) * 4000, "(1e9, 2)", "'ab'",
        "None", "[3, 4]", "(True, 4)", "(" * DEEP, "(" * 50 + ")" * 50,
        f"__import__('os').mkdir({MARK!r})", "9" * 5000, "(\x00,)", "{}",
    ]  # fmt: skip
    for shape in shapes:
        yield "shape", ".npy", partial(npy, shape), RECORDINGS
    for kind in (
        "|O", "<U99999999", "V4000000000", "|S0", "<M8[as]", "<c16", ">f16", "<f4, <f4",
        "f4" * DEEP,
        [("a", "|O"), ("b", "<f4")], [("a", "<f4", (1 << 30,))], "<f2", "?", "nonsense",
    ):  # fmt: skip
        yield "dtype", ".npy", partial(npy, (2, 2), kind), RECORDINGS
    objects = npy((1,), "|O", PICKLE)
    yield "pickle", ".npy", lambda: objects, RECORDINGS
    yield "only-pickle", ".npy", lambda: PICKLE, RECORDINGS
    yield "header-of-4-gb", ".npy", lambda: b"\x93NUMPY\x02\x00" + b"\xff" * 200, RECORDINGS
    labels = ("classify", "x.npy", "--labels", "FILE", "--model", "run/model", "-o", "out.csv")
    for shape in ((10**12,), (10**12, 0), (4 * 10**9,), (-1,)):
        yield "labels", ".npy", partial(npy, shape, "<i8"), labels
    yield "labels-pickle", ".npy", lambda: objects, labels


def bomb(block: bytes = bytes(MB), blocks: int = BLOCKS) -> bytes:
    """Deflated: ``block`` again and again."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)  # which forgets all before
    return packed * blocks + b"\x03\x00"


def gz(block: bytes, blocks: int = BLOCKS) -> bytes:
    """A gzip file that unpacks to ``block`` again and again; its checksum is wrong."""
    return b"\x1f\x8b\x08" + bytes(6) + b"\x03" + bomb(block, blocks) + bytes(8)


def raw_zip(*members: tuple[str, bytes, int], repeated: int = 1) -> bytes:
    """A zip of deflated members that declare any size; ``repeated`` lists the same again."""
    data, listed = b"", []
    for name, packed, size in members:
        common = struct.pack("<HHHHHIII", 20, 0, 8, 0, 33, 0, len(packed), size)
        for i in range(repeated):
            own = name.replace("#", str(i)).encode()
            sizes = struct.pack("<HHHHHII", len(own), 0, 0, 0, 0, 0, len(data))
            listed.append(b"PK\x01\x02" + struct.pack("<H", 20) + common + sizes + own)
        head = name.replace("#", "0").encode()
        data += b"PK\x03\x04" + common + struct.pack("<HH", len(head), 0) + head + packed
    count, directory = min(len(listed), 65535), b"".join(listed)
    end = struct.pack("<HHHHIIH", 0, 0, count, count, len(directory), len(data), 0)
    return data + directory + b"PK\x05\x06" + end


def honest_zip(texts: dict[str, bytes], kind: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", kind) as packed:
        for name, text in texts.items():
            packed.writestr(name, text)
    return file.getvalue()


def _npz() -> Made:
    size = BLOCKS * MB
    head = npy((size // 4,), body=b"")
    first = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = first.compress(head) + first.flush(zlib.Z_FULL_FLUSH)
    made: dict[str, Callable[[], bytes]] = {
        "bomb": lambda: raw_zip(("x.npy", packed + bomb(), size + len(head))),
        "lying": lambda: raw_zip(("x.npy", packed + bomb(), 1000)),
        "overlapping": lambda: raw_zip(("#.npy", bomb(blocks=50), 50 * MB), repeated=5000),
        "many": lambda: raw_zip(("#.npy", bomb(b"", 0), 0), repeated=60_000),
        "nothing": lambda: raw_zip(),
        "no-arrays": lambda: honest_zip({"a.txt": b"hello"}),
        "out-of-folder": lambda: honest_zip({"../../escaped.npy": npy((2, 2))}),
        "absolute": lambda: honest_zip({"/tmp/escaped.npy": npy((2, 2))}),
        "pickle": lambda: honest_zip({"x.npy": npy((1,), "|O", PICKLE)}),
        "pickle-alone": lambda: honest_zip({"x.npy": PICKLE, "x": PICKLE}),
        "shape": lambda: honest_zip({"x.npy": npy((10**12, 0, 3))}),
        "shape-of-12-gb": lambda: honest_zip({"x.npy": npy((10**9, 3))}),
        "nested": lambda: honest_zip({"x.npz": raw_zip(("x.npy", bomb(), size))}),
        "bzip2": lambda: honest_zip({"x.npy": npy((50 * MB // 4,), body=bytes(50 * MB))},
                                    zipfile.ZIP_BZIP2),
        "lzma": lambda: honest_zip({"x.npy": npy((100 * MB // 4,), body=bytes(100 * MB))},
                                   zipfile.ZIP_LZMA),
        "cut": lambda: honest_zip({"x.npy": npy((2, 2))})[:-30],
        "names": lambda: honest_zip({"\x1b[31mred.npy": npy((16, 1))}),
        "end-alone": lambda: b"PK" + b"PK\x05\x06" + b"\xff" * 18,
    }  # fmt: skip
    for name, content in made.items():
        yield name, ".npz", content, RECORDINGS
    convert = ("data", "convert", "FILE", "-o", "out")
    har = "UCI HAR Dataset/train/Inertial Signals/body_acc_x_train.txt"
    for name in ("bomb", "lying", "overlapping", "many", "out-of-folder"):
        yield f"archive-{name}", ".zip", made[name], convert
    yield "archive-har", ".zip", lambda: raw_zip((har, bomb(), size)), convert
    yield "archive-har-lying", ".zip", lambda: raw_zip((har, bomb(), 100)), convert
    within = raw_zip((har, bomb(blocks=20), 20 * MB))
    inner = {f"{i}.zip": within for i in range(50)}
    yield "archive-of-bombs", ".zip", lambda: honest_zip(inner), convert
    slip = {"../escaped_TRAIN.ts": b"@data\n1,2:0\n", "../escaped_TEST.ts": b"@data\n1,2:0\n"}
    yield "archive-slip", ".zip", lambda: honest_zip(slip), convert
    columns = {"made_TRAIN.tsv": b"1" + b"\t0" * 10 * MB + b"\n", "made_TEST.tsv": b"1\t0\n"}
    yield "archive-columns", ".zip", lambda: honest_zip(columns), convert
    yield "archive-rows", ".zip", lambda: honest_zip({"data.csv": b"1," * 10 * MB}), convert


def _texts() -> Made:
    dates = "date,a\n0001-01-01 00:00:00,1\n9999-12-31 00:00:00,2\n9999-12-31 00:00:01,3\n"
    seconds = "date,a\n1900-01-01 00:00:00,1\n1900-01-01 00:00:01,2\n2260-01-01 00:00:00,3\n"
    texts: dict[str, Callable[[], bytes]] = {
        "many-columns": lambda: b"," * (20 * MB) + b"\n",
        "many-numbers": lambda: b"1," * (10 * MB) + b"\n" + b"1," * 10,
        "one-field": lambda: b'"' + b"a" * (30 * MB) + b'"\n1\n',
        "open-quote": lambda: b'a,b\n1,"' + b"2\n" * (5 * MB),
        "nul": lambda: b"a,b\n" + b"\x00" * MB,
        "utf-16": lambda: "a,b\n1,2\n".encode("utf-16"),
        "bad-utf-8": lambda: b"a,\xff\xfe\xed\xa0\x80\n1,2\n" * 20,
        "infinite": lambda: b"a\n" + b"1e999\n-1e999\n" * 20,
        "long-number": lambda: b"a\n" + b"9" * MB + b"\n1\n",
        "long-exponent": lambda: b"a\n1e" + b"9" * 10_000 + b"\n1\n",
        "dates": lambda: dates.encode(),
        "long-gap": lambda: seconds.encode(),
        "years": lambda: b"date,a\n99999-01-01,1\n-1-01-01,2\n",
        "names": lambda: b"\x1b[2J\x1b]0;owned\x07,=cmd|' /C calc'!A0,@SUM(1)\n1,2,3\n" * 1,
        "same-names": lambda: b"a," * 3000 + b"\n" + b"1," * 3000 + b"\n",
        "lines": lambda: b"\n" * (20 * MB),
        "returns": lambda: b"a\r\r\r\r\n" + b"1\r" * MB,
        "ragged": lambda: b"a\n" + b"".join(b"1," * i + b"\n" for i in range(2000)),
        "surrogate": lambda: "a,b\n\ud800,1\n".encode("utf-8", "surrogatepass"),
        "complex": lambda: b"a,b\n1+2j,1\n",
        "quotes": lambda: b'"' * (10 * MB),
        "gz": lambda: gzip.compress(b"a,b\n1,2\n" * 30),
    }
    for name, content in texts.items():
        yield name, ".csv", content, RECORDINGS
        if name in ("many-columns", "one-field", "nul", "long-number", "lines"):
            yield name, ".tsv", content, RECORDINGS
    gaps = ("check", "FILE", "--fill-gaps")
    yield "filled-gap", ".csv", lambda: seconds.encode(), gaps
    yield "filled-dates", ".csv", lambda: dates.encode(), gaps
    cases = "".join(f"{i},1\n{i},2\n" for i in range(400_000)).encode()
    yield "many-cases", ".csv", lambda: b"case,a\n" + cases, RECORDINGS
    melted = "".join(f"{i},0,{i},1\n" for i in range(30_000)).encode()
    long = ("check", "FILE", "--case", "case", "--time", "t", "--channel", "c", "--value", "v")
    yield "many-channels", ".csv", lambda: b"case,t,c,v\n" + melted, long
    for name, block in (
        ("zeros", bytes(MB)), ("commas", b"," * MB), ("rows", b"1,2\n" * (MB // 4)),
        ("lines", b"\n" * MB), ("quote", b'"' + b"a" * MB),
    ):  # fmt: skip
        yield f"bomb-{name}", ".csv.gz", partial(gz, block), RECORDINGS
    yield "cut", ".csv.gz", lambda: gz(b"1,2\n", 5)[:30], RECORDINGS
    yield "no-gzip", ".csv.gz", lambda: b"a,b\n1,2\n", RECORDINGS
    labels = ("classify", "x.npy", "--labels", "FILE", "--model", "run/model", "-o", "out.csv")
    for name in ("many-columns", "one-field", "nul", "open-quote", "names", "surrogate"):
        yield f"labels-{name}", ".csv", texts[name], labels
    yield "labels-spans", ".csv", lambda: b"label,series,start,end\na,0,-9e99,1e999\n", labels
    yield "labels-long", ".csv", lambda: b"label\n" + b"a\n" * MB, labels


def _archives_of_series() -> Made:
    head = b"@problemName a\n@timeStamps false\n@univariate true\n@classLabel true a b\n"
    ts: dict[str, bytes] = {
        "wide": head + b"@data\n" + b"1," * (3 * MB) + b"1:a\n",
        "dimensions": head.replace(b"univariate true", b"univariate false") + b"@dimensions "
        b"99999999999\n@data\n" + b"1:" * 100_000 + b"a\n",
        "length": head + b"@equalLength true\n@seriesLength 999999999999\n@data\n1,2:a\n",
        "no-data": head,
        "header": b"@problemName " + b"a" * (5 * MB),
        "labels": head + b"@classLabel true " + b"a " * MB + b"\n@data\n1:a\n",
        "times": head.replace(b"Stamps false", b"Stamps true") + b"@data\n(9999999999999,1):a\n",
        "code": head + f"@data\n__import__('os').mkdir('{MARK}'):a\n".encode(),
        "binary": bytes(range(256)) * 1000,
        "rows": head + b"@data\n" + b"1:a\n" * 30_000,
    }
    for name, content in ts.items():
        yield name, ".ts", partial(bytes, content), RECORDINGS
    start = b"@relation a\n"
    arff: dict[str, bytes] = {
        "wide": start + b"@attribute a numeric\n@data\n" + b"1," * (3 * MB) + b"a\n",
        "attributes": start + b"@attribute a numeric\n" * 200_000 + b"@data\n1,2,a\n",
        "relational": start + b"@attribute a relational\n" * 2000 + b"@data\n'1\\n2',a\n",
        "quote": start + b"@data\n'" + b"1," * MB,
        "code": start + f"@data\n__import__('os').mkdir('{MARK}'),a\n".encode(),
        "binary": bytes(range(256)) * 1000,
    }
    for name, content in arff.items():
        yield name, ".arff", partial(bytes, content), RECORDINGS


def parquet(columns: dict[str, Any], metadata: dict[str, str] | None = None) -> bytes:
    """A parquet file of arrays that pyarrow has."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table: Any = pa.table(columns)
    file = io.BytesIO()
    write: Any = pq.write_table
    write(table.replace_schema_metadata(metadata), file)
    return file.getvalue()


def repeated_parquet(rows: int) -> bytes:
    """A file of one value that is repeated, some bytes for a million rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    part: Any = pa.table({"a": np.ones(MB)})
    file = io.BytesIO()
    writer: Any = pq.ParquetWriter(file, part.schema)
    with writer:
        for _ in range(rows // MB):
            writer.write_table(part)
    return file.getvalue()


def _parquet() -> Made:
    import pyarrow as pa

    x = np.arange(20.0)
    deep: Any = pa.array([1.0] * 20)
    for _ in range(30):
        deep = pa.StructArray.from_arrays([deep], ["a"])
    good = parquet({"a": x})
    index = {"pandas": json.dumps({"index_columns": [{"kind": "range", "name": None, "start": 0,
                                                      "stop": 10**12, "step": 1}],
                                   "columns": [], "column_indexes": []})}  # fmt: skip
    python_type = {"ARROW:extension:name": "arrow.py_extension_type",
                   "ARROW:extension:metadata": PICKLE.decode("latin")}  # fmt: skip
    made: dict[str, Callable[[], bytes]] = {
        "rows": lambda: repeated_parquet(60 * MB),
        "columns": lambda: parquet({f"c{i}": x[:1] for i in range(6000)}),
        "nested": lambda: parquet({"a": deep}),
        "lists": lambda: parquet({"a": pa.array([[1.0] * i for i in range(20)])}),
        "binary": lambda: parquet({"a": pa.array([PICKLE] * 20)}),
        "texts": lambda: parquet({"a": pa.array(["a" * MB] * 20).dictionary_encode()}),
        "deep-metadata": lambda: parquet({"a": x}, {"pandas": "[" * DEEP}),
        "index": lambda: parquet({"a": x}, index),
        "extension": lambda: parquet({"a": x}, python_type),
        "schema": lambda: parquet({"a": x}, {"ARROW:schema": "A" * 1000}),
        "names": lambda: parquet({"\x1b[31m": x, "=1+1": x}),
        "dates": lambda: parquet({"date": pa.array(range(0, 20 * 2**58, 2**58),
                                                   pa.timestamp("us")), "a": x}),
        "cut": lambda: good[:-20],
        "footer-of-4-gb": lambda: good[:-8] + b"\xff\xff\xff\x7fPAR1",
        "footer-of-zeros": lambda: b"PAR1" + bytes(5000) + b"\x88\x13\x00\x00PAR1",
        "negative": lambda: good.replace(b"\x28", b"\x27"),
    }  # fmt: skip
    for name, content in made.items():
        yield name, ".parquet", content, RECORDINGS
    rng = np.random.default_rng(0)
    foot = int.from_bytes(good[-8:-4], "little") + 8
    for i in range(10):
        bad = bytearray(good)
        for at in rng.integers(len(good) - foot, len(good) - 8, 4):
            bad[at] = int(rng.integers(256))
        yield f"footer-{i}", ".parquet", partial(bytes, bad), RECORDINGS


def edf(**fields: object) -> bytes:
    """An EDF file of one channel whose header has ``fields`` in place of the right ones."""
    right: dict[str, object] = {
        "version": 0, "patient": "X X X X", "recording": "Startdate X X X X", "date": "01.01.20",
        "time": "00.00.00", "header": 512, "reserved": "", "records": 4, "duration": 1,
        "signals": 1, "label": "a", "transducer": "", "unit": "mV", "low": -1, "high": 1,
        "digital_low": -2048, "digital_high": 2047, "filter": "", "samples": 10, "own": "",
    }  # fmt: skip
    widths = (8, 80, 80, 8, 8, 8, 44, 8, 8, 4, 16, 80, 8, 8, 8, 8, 8, 80, 8, 32)
    parts = zip((right | fields).values(), widths, strict=True)
    return "".join(str(v).ljust(w)[:w] for v, w in parts).encode("latin") + bytes(80)


def _signals() -> Made:
    for fields in (
        {"records": 99999999}, {"records": -1}, {"records": -99}, {"records": "nan"},
        {"samples": 99999999}, {"samples": -1}, {"samples": 0}, {"signals": 9999},
        {"signals": -1}, {"signals": 0}, {"duration": 0}, {"duration": "1e-300"},
        {"duration": -1}, {"header": 99999999}, {"low": 1, "high": 1}, {"digital_low": 2047},
        {"low": "1e999"}, {"date": "99.99.99"}, {"time": "99:99:99"},
        {"reserved": "EDF+D", "label": "EDF Annotations"}, {"label": "\x1b[31mred"},
    ):  # fmt: skip
        yield "header", ".edf", partial(edf, **fields), RECORDINGS
    yield "cut", ".edf", lambda: edf()[:300], RECORDINGS
    yield "header", ".bdf", lambda: b"\xffBIOSEMI" + edf(records=9999)[8:], RECORDINGS
    for head in (
        "r 99999 100 999999999\n" + "r.dat 16 100 12 0 0 0 0 a\n",
        "r 1 100 9999999999999\nr.dat 16 100 12 0 0 0 0 a\n",
        "r 1 100 100\n../../../etc/passwd 16 100 12 0 0 0 0 a\n",
        "r 1 100 100\n/etc/passwd 8 100 12 0 0 0 0 a\n",
        "r 1 100 100\nhttps://localhost/r.dat 16 100 12 0 0 0 0 a\n",
        "HERE/2 1 100 200\nHERE 100\nHERE 100\n",
        "r/999999999 1 100 99999999999\n~ 99999999999\n",
        "r 1 1e999 100\nr.dat 16 100 12 0 0 0 0 a\n",
        "r 1 100 -5\nr.dat 16 100 12 0 0 0 0 a\n",
        "r 1 100 10\nr.dat 16x99999999 100 12 0 0 0 0 a\n",
        "r 1 100 10\nr.dat 16+99999999999 100 12 0 0 0 0 a\n",
        "#" * MB, "r " * 5000, "", "r\x00 1 100\n",
    ):  # fmt: skip
        yield "wfdb", ".hea", partial(str.encode, head), RECORDINGS
    record = struct.pack(
        ">6sc c5s2s3s2sHHBBBBHHhhBBBBiHH", b"000001", b"D", b" ", b"STA  ", b"  ", b"BHZ", b"NE",
        2020, 1, 0, 0, 0, 0, 0, 60000, 32767, 32767, 0, 0, 0, 1, 0, 64, 48,
    )  # fmt: skip
    data = struct.pack(">HHBBBB", 1000, 0, 3, 1, 9, 0) + bytes(512 - 56)
    yield "samples", ".mseed", lambda: (record + data)[:512], RECORDINGS
    later = record.replace(struct.pack(">H", 2020), struct.pack(">H", 2500))
    yield "gap", ".mseed", lambda: (record + data)[:512] + (later + data)[:512], RECORDINGS
    for size in (0, 7, 20, 31):
        long = bytearray((record + data)[:512])
        long[54] = size
        yield "record", ".mseed", partial(bytes, long), RECORDINGS
    yield "cut", ".mseed", lambda: record[:40], RECORDINGS
    yield "zeros", ".mseed", lambda: bytes(MB), RECORDINGS


def _settings() -> Made:
    bomb_of_aliases = "a0: &a0 [x, x]\n" + "".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
    )
    read = ("pretrain", "x.npy", "-o", "out", "--print-config", "-c", "FILE")
    for text in (
        bomb_of_aliases, "[" * DEEP, "{a: " * 5000, "- " * 5000, "? " * 5000, "a: &a [*a]\n",
        f"a: !!python/object/apply:os.mkdir [{MARK}]\n",
        f"!!python/object/new:os.mkdir [{MARK}]\n", "a: !!python/name:os.system\n",
        "a: 9999-99-99\n", f"a: {'9' * 100_000}\n", "a: 1e99999\n", f"a: {'1:' * 20_000}1\n",
        "model: {dim: 1e400}\n", "model: {dim: .nan}\n", "model: {dim: .inf, heads: -.inf}\n",
        "<<: {a: 1}\n", "a: \x00\n", "a: 1\na: 2\n", "--- 1\n--- 2\n", "%YAML 9.9\n---\n",
        "a" * (5 * MB), "#" * (20 * MB), "model:\n" + " x: 1\n" * 5000, "'" * 10_000,
        "model: 3\n", "train: [1, 2]\n", "? {a: b}\n: c\n",
    ):  # fmt: skip
        yield "settings", ".yaml", partial(str.encode, text), read
    yield "settings-bytes", ".yaml", lambda: bytes(range(256)) * 100, read
    given = ("pretrain", "x.npy", "-o", "run", "train.device=cpu")
    for text in (bomb_of_aliases, "[" * DEEP, f"a: !!python/object/apply:os.mkdir [{MARK}]\n"):
        yield "run", "run/config.yaml", partial(str.encode, text), given
    results = ("results", "classify", "--results", "results")
    for name, path, command in (
        ("result", "results/classify/FILE.json", results), ("source", "run/source.json", given),
    ):  # fmt: skip
        for text in (
            "[" * DEEP, '{"a":' * DEEP, f"[{'9' * 100_000}]", '{"rows": 1e999}', "NaN", "3", "",
            '{"a": "\ud800"}', '"' + "a" * (20 * MB), '{"sha256": "' + "0" * 64 + '"}',
        ):  # fmt: skip
            data = text.encode("utf-8", "surrogatepass")
            yield name, path, partial(bytes, data), command


def sealed(header: bytes, body: bytes = b"") -> bytes:
    """An artifact with a header that begins as ours does, and a digest that fits."""
    header = artifact.PREFIX + artifact.ZEROS + header
    data = bytearray(len(header).to_bytes(8, "little") + header + body)
    data[artifact.START : artifact.END] = hashlib.sha256(data).hexdigest().encode()
    return bytes(data)


def kept(kind: str, note: str, tensors: dict[str, Any] | None = None, body: bytes = b"") -> bytes:
    """An artifact of a kind with any note and any list of tensors."""
    rest = json.dumps(tensors or {})[1:-1]
    head = f'","kind":"{kind}","note":{json.dumps(note)}}}{"," + rest if rest else ""}}}'
    return sealed(head.encode(), body)


NOTHING = {  # tensors without numbers, as many as a small model has
    str(i): {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(100)
}


def _kept() -> Made:
    model = ("embed", "run/model", "x.npy", "-o", "out")
    probe = ("classify", "x.npy", "--model", "run/model", "--probe", "FILE", "-o", "out.csv")
    resumed = ("pretrain", "x.npy", "-o", "run", "train.device=cpu")
    one = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}

    def config(**settings: object) -> str:
        return json.dumps({"config": {"channels": 2, **settings}})

    contents: list[Callable[[], bytes]] = [
        lambda: PICKLE, lambda: b"", lambda: b"\xff" * 8, lambda: b"\xff" * 7 + b"\x7f{}",
        lambda: (100 * MB).to_bytes(8, "little") + b"{", lambda: sealed(b"[" * DEEP),
        lambda: sealed(b'":' * MB), lambda: kept("model", "[" * DEEP), lambda: kept("model", "3"),
        lambda: kept("model", "9" * 100_000), lambda: kept("index", "{}"),
        lambda: kept("model", config(blocks=100_000)), lambda: kept("model", config(dim=20_000)),
        lambda: kept("model", config(dim=10**30, heads=10**30)),
        lambda: kept("model", config(patch=10**12)), lambda: kept("model", config(slots=10**9)),
        lambda: kept("model", config(channels=10**9)), lambda: kept("model", config(blocks="a")),
        lambda: kept("model", config(), {"a": {**one, "shape": [2**62, 4]}}, bytes(4)),
        lambda: kept("model", config(), {"a": {**one, "shape": [-1]}}, bytes(4)),
        lambda: kept("model", config(), {"a": {**one, "data_offsets": [0, 2**62]}}, bytes(4)),
        lambda: kept("model", config(), {"a": {**one, "data_offsets": [4, 0]}}, bytes(4)),
        lambda: kept("model", config(), {"a": one, "b": one}, bytes(4)),
        lambda: kept("model", config(), {"a": {**one, "dtype": "O"}}, bytes(4)),
        lambda: kept("model", config(), {f"{i} {name}": entry for i in range(200)
                                         for name, entry in NOTHING.items()}),
        *(
            partial(kept, "model", config(**settings), NOTHING)
            for settings in (
                {"dim": 20_000}, {"slots": 10**9}, {"channels": 10**9}, {"patch": 10**9},
                {"dim": 2**40, "heads": 2**39},
            )
        ),
    ]  # fmt: skip
    for content in contents:
        yield "model", "run/model/model.safetensors", content, model
    for content in contents[:11]:
        yield "probe", ".safetensors", content, probe
    for content in contents[:9]:
        yield "checkpoint", "run/checkpoints/step-00000099.safetensors", content, resumed


FAMILIES = (_npy, _npz, _texts, _archives_of_series, _parquet, _signals, _settings, _kept)
