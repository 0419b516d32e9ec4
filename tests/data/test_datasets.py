"""The paper's sets by name: files found, checked and read."""

import gzip
import shutil

import numpy as np
import pytest
from made_sets import DATED, TEST, TRAIN, damaged, made_arrays, one_value_changed, repacked

from progmem.data import datasets
from progmem.data.datasets import check_lines, list_lines, load
from progmem.errors import InputError


def test_a_set_is_cases_channels_time_with_classes_and_places(made_sets):
    har, arrays = load("HAR", made_sets), made_arrays("HAR")
    np.testing.assert_array_equal(har.X_train, arrays["X_train"].swapaxes(1, 2))
    np.testing.assert_array_equal(har.X_test[3, 2], arrays["X_test"][3, :, 2])
    np.testing.assert_array_equal(har.y_test, arrays["y_test"])
    assert har.classes == ("-1", "1") and (har.name, har.split) == ("HAR", "official")
    assert har.recording_train[[0, 4, 5]].tolist() == ["0-0", "0-0", "1-1"]
    assert har.recording_test[0] == "10-0" and har.start_test[:3].tolist() == [0, 64, 128]
    epilepsy = load("Epilepsy", made_sets)
    assert epilepsy.classes == ("seizure", "other")
    np.testing.assert_array_equal(epilepsy.y_test, made_arrays("Epilepsy")["y_test_binary"])
    five = load("Epilepsy", made_sets, labels="five")
    np.testing.assert_array_equal(five.y_test, made_arrays("Epilepsy")["y_test"])
    assert five.classes == ("1", "2")
    assert epilepsy.recording_train[10] == "F0" and epilepsy.start_train[10] == 178
    assert load("Wafer", made_sets).recording_train is None


def test_a_dated_series_has_true_dates_and_bounds(made_sets):
    found = load("Electricity", made_sets)
    np.testing.assert_array_equal(found.values[:, 0], np.arange(10.0))
    assert found.bounds == {"train": (0, 6), "validation": (6, 8), "test": (8, 10)}
    assert found.dates[0] == np.datetime64("2012-01-01") and found.target == "a"
    assert set(np.diff(found.dates)) == {np.timedelta64(1, "h")}


def test_how_a_file_is_packed_does_not_matter(made_sets):
    before = load("Wafer", made_sets)
    np.savez(made_sets / "Wafer.npz", **dict(reversed(made_arrays("Wafer").items())))
    np.testing.assert_array_equal(load("Wafer", made_sets).X_test, before.X_test)
    (made_sets / "e.csv.gz").write_bytes(gzip.compress(DATED, compresslevel=1, mtime=7))
    assert len(load("Electricity", made_sets).values) == 10


SHORT = made_arrays("Wafer")["X_train"][:, :100]
Y_TEST = made_arrays("Wafer")["y_test"]
OTHER = gzip.compress(DATED.replace(b",7,", b",8,"))


@pytest.mark.parametrize(
    "prepare, name, options, message",
    [
        (one_value_changed, "Wafer", {}, r"Wafer.npz is damaged or another version: the sha256 of"),
        (lambda f: repacked(f, y_test=np.zeros(TEST, int)), "Wafer", {}, "is damaged or another"),
        (lambda f: repacked(f, y_test=Y_TEST.view(float)), "Wafer", {}, "is damaged or another"),
        (lambda f: damaged(f, "Wafer.npz", keep=900), "Wafer", {}, "Wafer.npz cannot be read: .*z"),
        (lambda f: damaged(f, "Wafer.npz", keep=0), "Wafer", {}, "Wafer.npz cannot be read: No"),
        (lambda f: damaged(f, "Wafer.npz", flip=5000), "Wafer", {}, "Wafer.npz cannot be read: "),
        (lambda f: (f / "Wafer.npz").write_text("x"), "Wafer", {}, "Wafer.npz cannot be read: "),
        (lambda f: repacked(f, without=["y_train", "classes"]), "Wafer", {},
         "Wafer.npz has no y_train, classes"),
        (lambda f: repacked(f, "HAR", ["subject_train"]), "HAR", {}, "npz has no subject_train"),
        (lambda f: repacked(f, X_train=SHORT), "Wafer", {},
         r"X_train must have shape \(50, 128, 1\), got \(50, 100, 1\)"),
        (lambda f: (f / "HAR.npz").unlink(), "HAR", {},
         "HAR.npz is not there; HAR is looked for in {folder}, which --data-dir or PROGMEM_DATA"),
        (lambda f: damaged(f, "e.csv.gz", keep=60), "Electricity", {}, "e.csv.gz cannot be read: "),
        (lambda f: damaged(f, "e.csv.gz", flip=20), "Electricity", {}, "e.csv.gz cannot be read: "),
        (lambda f: (f / "e.csv.gz").write_bytes(OTHER), "Electricity", {}, "csv.gz is damaged"),
        (None, "wafers", {}, "unknown data set 'wafers'; did you mean 'Wafer'. known: HAR, Epi"),
        (None, "zzz", {}, "unknown data set 'zzz'; known: .*; their files are .* in {folder}"),
        (None, "Wafer", {"split": "paper_table"},
         "split of Wafer must be one of official, validation, got 'paper_table'"),
        (None, "HAR", {"scaling": "tstcc"}, "scaling of HAR must be one of none, got 'tstcc'"),
        (None, "Epilepsy", {"labels": "two"}, "labels of Epilepsy must be one of paper, five, got"),
        (None, "Electricity", {"split": "validation"}, "Electricity has its own split by date"),
    ],
)  # fmt: skip
def test_files_and_names_that_cannot_be_used_are_named(made_sets, prepare, name, options, message):
    if prepare:
        prepare(made_sets)
    with pytest.raises(InputError, match=message.format(folder=made_sets)):
        load(name, made_sets, **options)


def test_a_table_of_other_columns_is_refused_though_its_checksum_is_right(made_sets, monkeypatch):
    facts = datasets.FILES["Electricity"]._replace(columns=("b", "OT"))
    monkeypatch.setitem(datasets.FILES, "Electricity", facts)
    with pytest.raises(InputError, match=r"e.csv.gz must have 10 hourly rows, columns b, OT"):
        load("Electricity", made_sets)


@pytest.mark.parametrize("change", [{"columns": 3}, {"target": "b"}, {"rows": 9}])
def test_a_table_without_a_checksum_is_known_by_its_size_and_target(made_sets, monkeypatch, change):
    facts = datasets.FILES["Electricity"]._replace(columns=2, sha256=None)
    monkeypatch.setitem(datasets.FILES, "Electricity", facts)
    assert load("Electricity", made_sets).columns == ("a", "OT")
    monkeypatch.setitem(datasets.FILES, "Electricity", facts._replace(**change))
    with pytest.raises(InputError, match=r"e.csv.gz must have .* hourly rows, . columns, . among"):
        load("Electricity", made_sets)


def test_a_set_made_from_its_archive_is_as_good_and_no_third_one_is(made_sets, monkeypatch):
    other = {"start_train": np.arange(TRAIN), "experiment_train": np.zeros(TRAIN, np.int16)}
    repacked(made_sets, "HAR", **other)
    with pytest.raises(InputError, match=r"HAR.npz is damaged or another version"):
        load("HAR", made_sets)
    facts = datasets.FILES["HAR"]
    sha256 = datasets.content_sha256(made_arrays("HAR") | other, ("classes", *facts.extra))
    monkeypatch.setitem(datasets.FILES, "HAR", facts._replace(converted_sha256=sha256))
    assert load("HAR", made_sets).recording_train[:6].tolist() == [*["0-0"] * 5, "1-0"]
    repacked(made_sets, "HAR")
    assert load("HAR", made_sets).recording_train[5] == "1-1"
    repacked(made_sets, "HAR", **other | {"start_test": np.zeros(TEST, int)})
    with pytest.raises(InputError, match=r"HAR.npz is damaged or another version"):
        load("HAR", made_sets)


def test_what_needs_labels_refuses_a_set_without_them(made_sets):
    assert datasets.load_labelled("HAR", made_sets, split="validation").split == "validation"
    with pytest.raises(InputError, match="Electricity has no labels; those that have: HAR, Epi"):
        datasets.load_labelled("Electricity", made_sets)


def test_the_folder_is_that_of_the_variable_unless_one_is_given(
    made_sets, tmp_path_factory, monkeypatch
):
    empty = tmp_path_factory.mktemp("empty")
    with pytest.raises(InputError, match=r"where is Wafer.npz\? .* data_dir .* PROGMEM_DATA"):
        load("Wafer")
    with pytest.raises(InputError, match="looked for in the folder PROGMEM_DATA names"):
        load("nothing")
    for named, given in ((made_sets, None), (empty, made_sets), (empty, str(made_sets))):
        monkeypatch.setenv("PROGMEM_DATA", str(named))
        assert len(load("Wafer", given).X_train) == TRAIN
    with pytest.raises(InputError, match=f"{empty}/Wafer.npz is not there"):
        load("Wafer")
    monkeypatch.setenv("PROGMEM_DATA", "")  # as good as none
    with pytest.raises(InputError, match=r"where is Wafer.npz\?"):
        load("Wafer")


def test_lists_and_checks_say_what_is_there_and_what_is_wrong(made_sets):
    (made_sets / "HAR.npz").unlink()
    lines = list_lines(made_sets)
    assert lines[0] == f"files are looked for in {made_sets}" and len(lines) == 7
    assert [line.split()[:2] for line in lines[1:3]] == [["HAR", "missing"], ["Epilepsy", "there"]]
    assert "50 + 20 series of 128 samples, 1 channels" in lines[2]
    assert "no folder yet: give --data-dir or PROGMEM_DATA" in list_lines(None)[0]
    lines, good = check_lines(made_sets)
    assert good and [line.split()[1] for line in lines] == ["missing", *["ok"] * 5]
    one_value_changed(made_sets)
    lines, good = check_lines(made_sets)
    assert not good and [line.split()[0] for line in lines if "WRONG" in line] == ["Wafer"]
    with pytest.raises(InputError, match="give the folder of the files with --data-dir or in PROG"):
        check_lines(None)


def test_a_folder_without_any_file_is_told_from_one_that_is_called_missing(
    made_sets, tmp_path_factory
):
    empty = tmp_path_factory.mktemp("empty")
    with pytest.raises(InputError, match=f"none of the files is in {empty}"):
        check_lines(empty)
    lines, good = check_lines(shutil.copytree(made_sets, empty / "missing"))
    assert good and all("missing" in line for line in lines)
