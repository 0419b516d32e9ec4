"""Splits keep apart what they should, rows know what they share, published sets their counts."""

import os

import numpy as np
import pytest
import torch
from made_sets import LABELLED, TRAIN, made_arrays
from training_setup import small_config

from progmem.data.datasets import load
from progmem.data.splits import options_of, same_rows
from progmem.data.windows import TrainingWindows
from progmem.losses.pairs import overlapping

SPLITS = [(name, split) for name in LABELLED for split in options_of(name)["split"]]


def rows_of(data):
    return set(data.X_train[:, 0, 0].tolist()), set(data.X_test[:, 0, 0].tolist())


@pytest.mark.parametrize("name, split", SPLITS)
def test_no_row_is_trained_on_and_tested_on(made_sets, name, split):
    data = load(name, made_sets, split=split)
    train, test = rows_of(data)
    assert train and test and not train & test
    assert (len(train), len(test)) == (len(data.X_train), len(data.X_test))
    arrays = made_arrays(name)
    key = "y_{}_binary" if name == "Epilepsy" else "y_{}"
    y = np.concatenate([arrays[key.format(part)] for part in ("train", "test")])
    np.testing.assert_array_equal(data.y_train, y[data.X_train[:, 0, 0].astype(int)])
    np.testing.assert_array_equal(data.y_test, y[data.X_test[:, 0, 0].astype(int)])


@pytest.mark.parametrize("name", ["HAR", "Epilepsy", "FordA", "FordB", "Wafer"])
def test_validation_has_no_row_of_a_test_part(made_sets, name):
    train, held = rows_of(load(name, made_sets, split="validation"))
    assert max(train | held) < TRAIN
    if name == "Epilepsy":
        assert not (train | held) & rows_of(load(name, made_sets, split="recording"))[1]
    else:
        assert len(held) == TRAIN / 5 and len(train | held) == TRAIN


def test_whole_subjects_and_recordings_are_held_out(made_sets):
    for name, split in (
        ("HAR", "validation"),
        ("Epilepsy", "validation"),
        ("Epilepsy", "recording"),
    ):
        data = load(name, made_sets, split=split)
        assert not set(data.recording_train) & set(data.recording_test), (name, split)
    _, held = rows_of(load("HAR", made_sets, split="validation"))
    assert held == {*range(5), *range(25, 30)}  # subjects 0 and 5
    for split, shared in (("official", 10), ("tstcc_validation", 10)):
        data = load("Epilepsy", made_sets, split=split)
        assert len(set(data.recording_train) & set(data.recording_test)) == shared
    kinds = load("Epilepsy", made_sets, split="recording").recording_test.astype("<U1")
    assert np.unique(kinds, return_counts=True)[1].tolist() == [7, 7]


def test_splits_of_other_papers_are_theirs(made_sets):
    assert same_rows("FordB", "official", "paper_table")
    assert not same_rows("FordA", "official", "paper_table")
    assert not same_rows("FordA", "unknown", "official")
    ford, swapped = load("FordA", made_sets), load("FordA", made_sets, split="paper_table")
    np.testing.assert_array_equal(swapped.X_train, ford.X_test)
    np.testing.assert_array_equal(swapped.y_test, ford.y_train)
    assert rows_of(load("FordB", made_sets, split="paper_table")) == rows_of(
        load("FordB", made_sets)
    )
    har = load("HAR", made_sets, split="tstcc_validation")
    np.testing.assert_array_equal(har.X_train[:, 0, 0], made_arrays("HAR")["tstcc_train_idx"])
    epilepsy = load("Epilepsy", made_sets, split="tstcc_validation")
    assert rows_of(epilepsy) == (set(range(40)), set(range(40, 50)))


def test_the_scaling_of_tstcc_is_its_formula(made_sets):
    plain, scaled = (load("Epilepsy", made_sets, scaling=s) for s in ("none", "tstcc"))
    arrays = made_arrays("Epilepsy")
    low, high = arrays["column_min"], arrays["column_max"]
    for part in ("X_train", "X_test"):
        expected = (getattr(plain, part) - low) / (high - low)  # by all rows, test rows included
        np.testing.assert_allclose(getattr(scaled, part), expected, rtol=1e-6)
        assert getattr(scaled, part).dtype == np.float32


def test_windows_of_a_recording_that_share_samples_are_known_to_overlap(made_sets):
    har = load("HAR", made_sets)
    rows = TrainingWindows(har.training_recordings(), small_config("data.longest=128").data)
    overlap = overlapping(rows.recording, rows.start, rows.length)
    near = (torch.arange(TRAIN)[:, None] - torch.arange(TRAIN)).abs() <= 1  # hop 64, length 128
    same = torch.arange(TRAIN)[:, None] // 5 == torch.arange(TRAIN) // 5
    assert torch.equal(overlap, near & same) and overlap.sum() > TRAIN
    cut = TrainingWindows(
        har.training_recordings(), small_config("data.longest=100", "data.window=64").data
    )
    assert cut.start[:6].tolist() == [0, 64, 64, 128, 128, 192]
    overlap = overlapping(cut.recording, cut.start, cut.length)
    assert overlap[1].nonzero().flatten().tolist() == [1, 2]
    alone = load("Wafer", made_sets).training_recordings()
    np.testing.assert_array_equal(alone[7].values, made_arrays("Wafer")["X_train"][7])
    rows = TrainingWindows(alone, small_config("data.longest=128").data)
    assert torch.equal(
        overlapping(rows.recording, rows.start, rows.length), torch.eye(TRAIN, dtype=torch.bool)
    )


published = pytest.mark.skipif(not os.environ.get("PROGMEM_DATA"), reason="PROGMEM_DATA is not set")
COUNTS = [  # of each class, trained on and tested on
    ("HAR", "official", [1226, 1073, 986, 1286, 1374, 1407], [496, 471, 420, 491, 532, 537]),
    ("HAR", "validation", [883, 801, 733, 1002, 1056, 1089], [343, 272, 253, 284, 318, 318]),
    ("HAR", "tstcc_validation", [979, 873, 780, 1024, 1098, 1127], [247, 200, 206, 262, 276, 280]),
    ("Epilepsy", "official", [1835, 7365], [465, 1835]),
    ("Epilepsy", "validation", [1090, 4405], [368, 1468]),
    ("Epilepsy", "recording", [1840, 7360], [460, 1840]),
    ("Epilepsy", "tstcc_validation", [1456, 5904], [379, 1461]),
    ("Wafer", "official", [97, 903], [665, 5499]),
    ("Wafer", "validation", [78, 722], [19, 181]),
    ("FordA", "official", [1846, 1755], [681, 639]),
    ("FordA", "validation", [1477, 1404], [369, 351]),
    ("FordA", "paper_table", [681, 639], [1846, 1755]),
    ("FordB", "official", [1860, 1776], [401, 409]),
    ("FordB", "validation", [1488, 1421], [372, 355]),
    ("FordB", "paper_table", [1860, 1776], [401, 409]),
    ("PhalangesOutlinesCorrect", "official", [628, 1172], [332, 526]),
    ("PhalangesOutlinesCorrect", "validation", [502, 938], [126, 234]),
    ("ElectricDevices", "official",
     [727, 2231, 851, 1474, 2406, 509, 728], [667, 1956, 755, 1165, 1869, 743, 556]),
    ("ElectricDevices", "validation",
     [582, 1785, 681, 1179, 1925, 407, 582], [145, 446, 170, 295, 481, 102, 146]),
]  # fmt: skip


@published
@pytest.mark.parametrize("name, split, train, test", COUNTS)
def test_published_sets_have_their_counts(name, split, train, test):
    data = load(name, split=split)
    assert np.bincount(data.y_train).tolist() == train
    assert np.bincount(data.y_test).tolist() == test
    shape = (9, 128) if name == "HAR" else (1, data.X_test.shape[2])
    assert data.X_train.shape == (sum(train), *shape) and data.X_test.shape == (sum(test), *shape)
    assert len(data.classes) == len(train)
    if name in ("HAR", "Epilepsy"):
        shared = set(data.recording_train) & set(data.recording_test)
        leaks = split == "tstcc_validation" or (name, split) == ("Epilepsy", "official")
        assert bool(shared) == leaks
    if (name, split) == ("Epilepsy", "official"):
        assert set(data.recording_test) <= set(data.recording_train)
        five = load(name, labels="five")
        np.testing.assert_array_equal(five.y_train == 0, data.y_train == 0)  # class 1 is seizure
        scaled = load(name, scaling="tstcc")
        both = np.concatenate([scaled.X_train, scaled.X_test])
        assert (both.min((0, 1)) == 0).all() and (both.max((0, 1)) == 1).all()


@published
def test_every_split_of_the_published_sets_is_counted():
    names = {name for name, *_ in COUNTS}
    counted = {(name, split) for name, split, *_ in COUNTS}
    assert len(names) == 7
    assert counted == {(name, split) for name in names for split in options_of(name)["split"]}


@published
def test_neighbouring_windows_of_the_published_har_share_samples():
    har = load("HAR")
    x, start, recording = har.X_train[:, 6:], har.start_train, har.recording_train
    near = (np.diff(start) == 64) & (recording[1:] == recording[:-1])
    assert near.mean() > 0.9
    same = (x[1:, :, :64] == x[:-1, :, 64:]).all((1, 2))
    assert same[near].mean() > 0.99 and same[~near].mean() < 0.01


@published
@pytest.mark.parametrize(
    "name, rows, channels, target, first, parts",
    [
        ("ETTh1", 17420, 7, "OT", "2016-07-01T00", (8640, 2880, 2880)),
        ("Electricity", 26304, 2, "0", "2012-01-01T00", (15782, 5261, 5261)),
    ],
)
def test_published_series_have_their_dates_and_parts(name, rows, channels, target, first, parts):
    data = load(name)
    assert data.values.shape == (rows, channels) and data.target == target
    assert len(data.columns) == channels and np.isfinite(data.values).all()
    assert data.dates[0] == np.datetime64(first)
    assert set(np.diff(data.dates)) == {np.timedelta64(1, "h")}
    bounds = list(data.bounds.items())
    assert [name for name, _ in bounds] == ["train", "validation", "test"]
    assert tuple(end - start for _, (start, end) in bounds) == parts
    assert [start for _, (start, _) in bounds] == [0, parts[0], parts[0] + parts[1]]
