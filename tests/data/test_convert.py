"""Official archives become the arrays they hold, whatever they are packed in."""

import gzip
from pathlib import Path

import made_archives as made
import numpy as np
import pytest
from made_sets import made_arrays

from progmem.cli import main
from progmem.data import datasets
from progmem.data.convert import convert
from progmem.data.converters import CONVERTERS
from progmem.data.converters.epilepsy import recording_names
from progmem.data.converters.har import bouts
from progmem.data.datasets import content_sha256, load

RNG = np.random.default_rng(0)


def har_arrays():
    """Two subjects in each part, windows of bouts of 5, 1 and 4; hop 64, and once 127."""
    arrays = {"classes": np.array(["WALKING", "SITTING"])}
    for part, subjects in (("train", (1, 3)), ("test", (2, 4))):
        windows, subject, places = [], [], []
        for who in subjects:
            for bout, count in enumerate((5, 1, 4)):
                signal = RNG.normal(size=(128 + 64 * count, 9)).round(5).astype(np.float32)
                starts = [64 * i for i in range(count)]
                if bout == 2:
                    starts[-1] += 63  # one sample is shared
                windows += [signal[start : start + 128] for start in starts]
                places += [(who, bout, start) for start in starts]
                subject += [who] * count
        arrays |= {f"X_{part}": np.stack(windows), f"subject_{part}": np.array(subject)}
        arrays |= {f"y_{part}": np.arange(20) % 2, f"places_{part}": places}
    return arrays


@pytest.fixture(scope="module")
def har():
    return har_arrays()


def read_npz(path):
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


@pytest.mark.parametrize("form", ["zip", "zip in a zip", "folder"])
def test_har_is_read_from_what_uci_gives_out(tmp_path, har, form):
    texts = made.har_texts(har)
    archive = {
        "zip": lambda: made.zipped(tmp_path / "a.zip", texts),
        "zip in a zip": lambda: made.nested(tmp_path / "b.zip", made.zip_bytes(texts)),
        "folder": lambda: made.unpacked(tmp_path / "c", texts),
    }[form]()
    lines, good = convert(archive, tmp_path / "out")
    assert not good and "HAR: 20 + 20 series of 128 samples, 9 channels, 2 classes" in lines[0]
    assert lines[1].split()[:2] == ["HAR", "WRONG"]  # made ones are not the published ones
    found = read_npz(tmp_path / "out/HAR.npz")
    for name in ("X_train", "X_test", "y_train", "y_test", "subject_train", "classes"):
        np.testing.assert_array_equal(found[name], har[name], err_msg=name)
    assert found["X_test"].dtype == np.float32 and found["y_test"].dtype == np.int64
    both = np.concatenate([found["tstcc_train_idx"], found["tstcc_val_idx"]])
    assert sorted(both) == list(range(20)) and len(found["tstcc_val_idx"]) == 4
    assert set(datasets.FILES["HAR"].extra) < set(found)


@pytest.mark.parametrize("part", ["train", "test"])
def test_windows_that_share_samples_are_put_into_one_bout_at_their_places(har, part):
    bout, start = bouts(har[f"X_{part}"], har[f"subject_{part}"])
    who, number, place = np.array(har[f"places_{part}"]).T
    np.testing.assert_array_equal(start, place)
    same = (who[:, None] == who) & (number[:, None] == number)
    np.testing.assert_array_equal(bout[:, None] == bout, same)
    others, _ = bouts(har[f"X_{part}"], np.arange(20))  # one subject's windows only
    assert len(set(others.tolist())) == 20


def epilepsy_rows(count=50):
    x = RNG.integers(-1885, 2047, size=(count, 178))
    recording = [f"{'SFNOZ'[i % 5]}{i + 1:03d}" for i in range(count)]
    return x, np.arange(count) % 5 + 1, recording, np.arange(count) % 23 + 1


def test_epilepsy_is_split_as_tstcc_does_and_knows_its_recordings(tmp_path):
    x, y, recording, chunk = epilepsy_rows()
    text = made.epilepsy_csv(x, y, recording, chunk)
    (tmp_path / "data.csv").write_text(text)
    made.zipped(tmp_path / "uci.zip", {"Epileptic Seizure Recognition.csv": text})
    convert(tmp_path / "data.csv", tmp_path / "out")
    found = read_npz(tmp_path / "out/Epilepsy.npz")
    convert(tmp_path / "uci.zip", tmp_path / "again", name="Epilepsy")
    assert content_sha256(found) == content_sha256(read_npz(tmp_path / "again/Epilepsy.npz"))
    rows = {part: found[f"row_{part}"] for part in ("train", "test")}
    assert sorted([*rows["train"], *rows["test"]]) == list(range(50))
    assert (len(rows["train"]), int(found["n_train_without_val"])) == (40, 32)
    for part, row in rows.items():
        np.testing.assert_array_equal(found[f"X_{part}"][:, :, 0], x[row])
        np.testing.assert_array_equal(found[f"y_{part}"], y[row] - 1)
        np.testing.assert_array_equal(found[f"y_{part}_binary"] == 0, y[row] == 1)
        np.testing.assert_array_equal(found[f"recording_{part}"], np.array(recording)[row])
        np.testing.assert_array_equal(found[f"chunk_{part}"], chunk[row])
    np.testing.assert_array_equal(found["column_min"], x.min(0))
    assert set(datasets.FILES["Epilepsy"].extra) < set(found)


def test_recordings_have_the_names_of_the_published_rows():
    names = recording_names()
    published = {"O080": "V1.791", "S093": "V1.924", "Z002": "V1.1", "Z061": "V1.60"}
    published |= {"F002": "V1.114", "N094": "V1.932", "O003": "V1.210", "S036": "V1.354"}
    assert {recording: names[recording] for recording in published} == published
    assert len(set(names.values())) == len(names) == 500


def test_a_set_of_the_ucr_archive_is_the_same_in_each_plain_form(tmp_path):
    arrays, hashes = made_arrays("Wafer"), set()
    forms = {
        ".tsv": made.tsv,
        ".txt": lambda labels, x: made.rows_text(np.column_stack([labels, x]).tolist(), "  %.8e"),
    }
    for form, write in forms.items():
        texts = {"Any/Wafer/README.md": "read me"}
        for part in ("train", "test"):
            labels, x = arrays["classes"][arrays[f"y_{part}"]], arrays[f"X_{part}"][:, :, 0]
            texts[f"Any/Wafer/Wafer_{part.upper()}{form}"] = write(labels, x)
        convert(made.zipped(tmp_path / f"{form}.zip", texts), tmp_path / form)
        found = read_npz(tmp_path / form / "Wafer.npz")
        assert found["classes"].tolist() == [-1, 1] and found["classes"].dtype == np.int64
        hashes.add((content_sha256(found), content_sha256(arrays)))
    assert len(hashes) == 1 and len(set(hashes.pop())) == 1  # each form, and what was written


def test_a_set_that_is_there_twice_is_taken_whole_from_the_folder_nearest_the_top(tmp_path):
    texts = {"A/A_TRAIN.tsv": "\ufeff1\t5\n2\t5\n", "A/A_TEST.tsv": "1\t5\n"}
    texts |= {f"0 mended/{k}": v.replace("5", "6") for k, v in texts.items()}
    texts |= {"A_TEST.tsv": "1\t7\n"}  # nearer, but not whole
    convert(made.zipped(tmp_path / "a.zip", texts), tmp_path)
    found = read_npz(tmp_path / "A.npz")
    assert found["X_train"].ravel().tolist() == [5, 5] and found["X_test"].ravel().tolist() == [5]
    assert found["classes"].tolist() == [1, 2]  # not the mark that a text may begin with


def test_sets_of_several_channels_and_unequal_lengths_keep_both(tmp_path):
    pytest.importorskip("aeon")
    x = [RNG.normal(size=(3, length)).astype(np.float32) for length in (7, 5, 9, 9)]
    labels = ["walk", "stand", "walk", "run"]
    texts = {"Motion_TRAIN.ts": made.ts(labels, x), "Motion_TEST.ts": made.ts(labels[2:], x[2:])}
    texts |= {"MotionDimension1_TRAIN.arff": "@relation", "MotionDimension1_TEST.arff": "@relation"}
    lines, good = convert(made.zipped(tmp_path / "m.zip", texts), tmp_path)
    assert good and "4 + 2 series of 9 samples, 3 channels, 3 classes" in lines[0]
    assert "not one of the paper's sets" in lines[1]
    found = read_npz(tmp_path / "Motion.npz")
    assert found["classes"].tolist() == ["run", "stand", "walk"]
    assert found["y_train"].tolist() == [2, 1, 2, 0] and found["y_test"].tolist() == [2, 0]
    assert found["length_train"].tolist() == [7, 5, 9, 9] and found["X_test"].shape == (2, 9, 3)
    for row, series in zip(found["X_train"], x, strict=True):
        np.testing.assert_allclose(row[: series.shape[1]], series.T, rtol=1e-6)
        assert np.isnan(row[series.shape[1] :]).all()


@pytest.mark.parametrize("name, other", [("ArrowHead", ".tsv"), ("BasicMotions", ".arff")])
def test_the_files_of_one_set_agree_in_all_their_forms(tmp_path, name, other):
    aeon = pytest.importorskip("aeon.datasets")
    folder, found = Path(aeon.__file__).parent / "data" / name, []
    for form in (".ts", other):
        text = (folder / f"{name}_TRAIN{form}").read_text()
        texts = {f"{name}_{part}{form}": text for part in ("TRAIN", "TEST")}
        convert(made.zipped(tmp_path / f"{form}.zip", texts), tmp_path / form)
        found.append(read_npz(tmp_path / form / f"{name}.npz"))
    np.testing.assert_allclose(found[0]["X_train"], found[1]["X_train"], rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(found[0]["y_train"], found[1]["y_train"])
    texts = [[str(label).lower() for label in one["classes"]] for one in found]
    assert texts[0] == texts[1]  # aeon gives those of .ts in small letters


def ett_csv(rows=30):
    dates = np.datetime64("2016-07-01T00") + np.arange(rows)
    lines = [f"{str(d).replace('T', ' ')}:00:00,1.0,2,3,4,5,6,{i}.5" for i, d in enumerate(dates)]
    return "\n".join(["date,HUFL,HULL,MUFL,MULL,LUFL,LULL,OT", *lines]) + "\n"


def test_an_ett_file_is_kept_byte_for_byte_and_named_as_it_was(tmp_path):
    (tmp_path / "ETTm9.csv").write_text(ett_csv())
    lines, good = convert(tmp_path / "ETTm9.csv", tmp_path)
    assert good and lines[0].startswith("ETTm9: 30 rows of 7 columns")
    packed = (tmp_path / "ETTm9.csv.gz").read_bytes()
    assert gzip.decompress(packed) == ett_csv().encode()
    assert packed[4:8] == bytes(4)  # no date: made again, it is the same file


HOURS = 8920 + 300
CLIENTS = ["MT_001", "MT_002", "MT_003", "MT_004"]


@pytest.fixture(scope="module")
def loads():
    values = RNG.uniform(1, 50, size=(HOURS, 4, len(CLIENTS)))  # hours, quarter-hours, clients
    values[:8920, :, 1] = 0  # begins with the last hour that counts
    values[:8921, :, 2] = 0  # an hour later
    return values


def test_loads_are_summed_by_hours_and_clients_that_came_late_left_out(
    tmp_path, loads, monkeypatch
):
    text = made.quarter_hours(loads.reshape(-1, len(CLIENTS)), CLIENTS)
    made.zipped(tmp_path / "ld.zip", {"LD2011_2014.txt": text, "__MACOSX/._LD2011_2014.txt": "x"})
    first = 365 * 24  # 2012 begins
    facts = datasets.FILES["Electricity321"]._replace(rows=HOURS - first, columns=3)
    monkeypatch.setitem(datasets.FILES, "Electricity321", facts)
    lines, good = convert(tmp_path / "ld.zip", tmp_path)
    assert good and lines[1].endswith("3 columns, MT_001 among them, no checksum is known")
    found = load("Electricity321", tmp_path)
    assert found.columns == ("MT_001", "MT_002", "MT_004") and found.target == "MT_001"
    np.testing.assert_allclose(found.values, loads[first:, :, [0, 1, 3]].sum(1), rtol=1e-14)
    assert found.dates[0] == np.datetime64("2012-01-01T00")
    assert set(np.diff(found.dates)) == {np.timedelta64(1, "h")}


def test_every_archive_is_taken_for_one_kind_only(tmp_path, har):
    from progmem.data.converters.archive import open_archive

    archives = {
        "har": made.har_zip(tmp_path / "h.zip", har),
        "epilepsy": made.zipped(
            tmp_path / "e.zip", {"a.csv": made.epilepsy_csv(*epilepsy_rows(5))}
        ),
        "ucr": made.zipped(tmp_path / "u.zip", {"A_TRAIN.tsv": "1\t2\n", "A_TEST.tsv": "1\t2\n"}),
        "ett": made.zipped(tmp_path / "t.zip", {"ETTh1.csv": ett_csv()}),
        "electricity": made.zipped(
            tmp_path / "l.zip", {"LD.txt": made.quarter_hours(np.ones((8, 4)), CLIENTS)}
        ),
    }
    assert set(archives) == set(CONVERTERS)
    for kind, path in archives.items():
        with open_archive(path) as archive:
            found = [other for other, one in CONVERTERS.items() if one.find(archive)]
        assert found == [kind]


def test_the_command_writes_where_it_is_told_and_never_over_a_file(tmp_path, capsys, monkeypatch):
    texts = {
        f"{name}_{part}.tsv": "1\t2\t3\n2\t4\t5\n"
        for name in ("Aa", "Bb")
        for part in ("TRAIN", "TEST")
    }
    archive = str(made.zipped(tmp_path / "two.zip", texts))
    monkeypatch.setenv("PROGMEM_DATA", str(tmp_path / "data"))
    assert main(["data", "convert", archive, "--name", "Bb"]) == 0
    assert "Bb: 2 + 2 series of 2 samples, 1 channels, 2 classes" in capsys.readouterr().out
    before = (tmp_path / "data/Bb.npz").read_bytes()
    assert main(["data", "convert", archive, "--name", "Bb"]) == 2
    assert "Bb.npz is there already; --overwrite replaces it" in capsys.readouterr().err
    assert main(["data", "convert", archive, "--name", "Aa", "-o", str(tmp_path / "o")]) == 0
    assert sorted(file.name for file in (tmp_path / "o").iterdir()) == ["Aa.npz"]
    made.zipped(tmp_path / "two.zip", {k: v.replace("5", "6") for k, v in texts.items()})
    assert main(["data", "convert", archive, "--name", "Bb", "--overwrite"]) == 0
    assert (tmp_path / "data/Bb.npz").read_bytes() != before
    made.zipped(tmp_path / "w.zip", {f"Wafer_{p}.tsv": "1\t2\t3\n" for p in ("TRAIN", "TEST")})
    capsys.readouterr()
    assert main(["data", "convert", str(tmp_path / "w.zip")]) == 2
    told = capsys.readouterr()
    assert "WRONG" in told.out and "X_train must have shape (1000, 152, 1)" in told.out
    assert told.err == "progmem: converted, but the file differs from the reference, see above\n"
