"""The published sets, written back as their publishers do, are converted into the known arrays."""

import gzip
import hashlib
import os
from pathlib import Path

import made_archives as made
import numpy as np
import pytest

from progmem.data import datasets
from progmem.data.convert import convert

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get("PROGMEM_DATA"), reason="PROGMEM_DATA is not set"),
]


def published(name):
    with np.load(Path(os.environ["PROGMEM_DATA"]) / f"{name}.npz") as archive:
        return {key: archive[key] for key in archive.files}


def overlaps(arrays, part):
    recording = arrays[f"subject_{part}"].astype(int) * 1000 + arrays[f"experiment_{part}"]
    start = arrays[f"start_{part}"].astype(int)
    return (recording[:, None] == recording) & (abs(start[:, None] - start) < 128)


def test_har_is_the_known_one_and_its_windows_overlap_as_those_in_the_recordings(tmp_path):
    arrays = published("HAR")
    lines, good = convert(made.har_zip(tmp_path / "UCI HAR Dataset.zip", arrays), tmp_path)
    assert good and lines[1].split()[:2] == ["HAR", "ok"]
    with np.load(tmp_path / "HAR.npz") as archive:
        found = {key: archive[key] for key in archive.files}
    for part in ("train", "test"):
        np.testing.assert_array_equal(overlaps(found, part), overlaps(arrays, part))


def test_epilepsy_is_the_known_one_from_the_published_bytes(tmp_path):
    arrays = published("Epilepsy")
    both = {
        key: np.concatenate([arrays[f"{key}_train"], arrays[f"{key}_test"]])
        for key in ("X", "y", "recording", "chunk", "row")
    }
    order = np.argsort(both["row"])
    x, y, recording, chunk = (both[key][order] for key in ("X", "y", "recording", "chunk"))
    text = made.epilepsy_csv(x[:, :, 0].astype(int), y + 1, recording, chunk).encode()
    blob = hashlib.sha1(b"blob %d\0" % len(text) + text).hexdigest()
    assert blob == "1e9be75184ecde9b850eff698364c374209b8372"  # git's name of the published file
    (tmp_path / "data.csv").write_bytes(text)
    lines, good = convert(tmp_path / "data.csv", tmp_path)
    assert good and lines[1].split()[:2] == ["Epilepsy", "ok"]


@pytest.mark.parametrize("name", ["Wafer", "FordA", "PhalangesOutlinesCorrect", "ElectricDevices"])
def test_sets_of_the_ucr_archive_are_the_known_ones(tmp_path, name):
    arrays, texts = published(name), {}
    for part in ("train", "test"):
        labels = arrays["classes"][arrays[f"y_{part}"]]
        texts[f"{name}/{name}_{part.upper()}.tsv"] = made.tsv(labels, arrays[f"X_{part}"][:, :, 0])
    lines, good = convert(made.zipped(tmp_path / "ucr.zip", texts), tmp_path)
    assert good and lines[1].split()[:2] == [name, "ok"]


def test_etth1_is_the_known_file(tmp_path):
    known = Path(os.environ["PROGMEM_DATA"]) / datasets.FILES["ETTh1"].file
    (tmp_path / "ETTh1.csv").write_bytes(gzip.decompress(known.read_bytes()))
    lines, good = convert(tmp_path / "ETTh1.csv", tmp_path)
    assert good and lines[1].split()[:2] == ["ETTh1", "ok"]
    assert "17420 rows of 7 columns" in lines[0]
