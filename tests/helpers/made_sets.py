"""Small files of the paper's sets, and ways to spoil them."""

import gzip
import hashlib

import numpy as np

from progmem.data import datasets
from progmem.data.datasets import DatedFile, LabelledFile

TRAIN, TEST, LENGTH = 50, 20, 128
LABELLED = ("HAR", "Epilepsy", "FordA", "FordB", "Wafer")


def made_arrays(name):
    """Arrays as in the file of a set; the first value of a series is its row's number."""
    channels, count = (3 if name == "HAR" else 1), TRAIN + TEST
    x = np.random.default_rng(0).normal(size=(count, LENGTH, channels)).astype(np.float32)
    x[:, 0] = np.arange(count)[:, None]
    both = {"X": x, "y": np.arange(count) % 2}
    arrays = {"classes": np.array([-1, 1])}
    if name == "HAR":
        both |= {"subject": np.arange(count) // 5, "experiment": np.arange(count) // 5 % 2}
        both["start"] = np.arange(count) % 5 * (LENGTH // 2)
        shuffled = np.random.default_rng(1).permutation(TRAIN).astype(np.int16)
        arrays |= {"tstcc_train_idx": shuffled[:40], "tstcc_val_idx": shuffled[40:]}
    if name == "Epilepsy":
        names = [f"{kind}{i}" for kind in "FS" for i in range(5)]
        both |= {"recording": np.array([names[i % 10] for i in range(count)])}
        both |= {"chunk": np.arange(count) // 10 + 1, "binary": np.arange(count) % 3 // 2}
        arrays |= {"n_train_without_val": np.array(40), "classes": np.array([1, 2])}
        arrays |= {"column_min": x.min((0, 2)) - 1, "column_max": x.max((0, 2)) + 1}
    for key, values in both.items():
        key = f"y_{{}}_{key}" if key == "binary" else f"{key}_{{}}"
        arrays |= {key.format("train"): values[:TRAIN], key.format("test"): values[TRAIN:]}
    return arrays


DATED = b"date,a,OT\n" + b"".join(b"2016-07-01 %02d:00:00,%d,0.5\n" % (2 + i, i) for i in range(10))


def write_files(folder):
    """The made files, and what the registry is to know about them."""
    files = {}
    for name in LABELLED:
        arrays = made_arrays(name)
        np.savez_compressed(folder / f"{name}.npz", **arrays)
        shape, sha256 = arrays["X_train"].shape[1:], datasets.content_sha256(arrays)
        extra = datasets.FILES[name].extra
        extra_sha256 = datasets.content_sha256(arrays, ("classes", *extra))
        files[name] = LabelledFile(f"{name}.npz", TRAIN, TEST, *shape, sha256, extra_sha256, extra)
    (folder / "e.csv.gz").write_bytes(gzip.compress(DATED))
    facts = (10, ("a", "OT"), "a", (6, 8, 10), "2012-01-01", hashlib.sha256(DATED).hexdigest())
    files["Electricity"] = DatedFile("e.csv.gz", *facts)
    return files


def repacked(folder, name="Wafer", without=(), **changed):
    arrays = made_arrays(name) | changed
    np.savez(folder / f"{name}.npz", **{k: v for k, v in arrays.items() if k not in without})


def one_value_changed(folder):
    x = made_arrays("Wafer")["X_test"]
    x[3, 5] += 1e-6
    repacked(folder, X_test=x)


def damaged(folder, file, *, keep=None, flip=None):
    content = bytearray((folder / file).read_bytes()[:keep])
    if flip is not None:
        content[flip : flip + 40] = bytes(b ^ 255 for b in content[flip : flip + 40])
    (folder / file).write_bytes(content)
