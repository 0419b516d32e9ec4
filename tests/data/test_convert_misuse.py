"""Archives that cannot be converted: one line that says what is wrong with which file."""

from zipfile import ZIP_STORED

import made_archives as made
import numpy as np
import pytest
from test_convert import CLIENTS, epilepsy_rows, ett_csv, har_arrays

from progmem.cli import main
from progmem.data.convert import convert
from progmem.errors import InputError

HAR = har_arrays()
TOP = "UCI HAR Dataset/"
EPILEPSY = made.epilepsy_csv(*epilepsy_rows(6))
TSV = {"A_TRAIN.tsv": "1\t2\t3\n", "A_TEST.tsv": "1\t2\t3\n"}
LOADS = made.quarter_hours(np.ones((40, 4)), CLIENTS)
MANY_LOADS = made.quarter_hours(np.ones((8010, 4)), CLIENTS)


def har_without(*names):
    return {k: v for k, v in made.har_texts(HAR).items() if not k.endswith(names)}


def har_with(name, change):
    texts = made.har_texts(HAR)
    return texts | {TOP + name: change(texts[TOP + name])}


def without_line(text, number):
    lines = text.splitlines(keepends=True)
    return "".join(lines[:number] + lines[number + 1 :])


@pytest.mark.parametrize(
    "texts, message",
    [
        ({"notes.txt": "hello"}, "a.zip is not recognised; what can be converted: UCI HAR Dataset"),
        ({}, "a.zip is not recognised"),
        (har_without("body_gyro_y_test.txt"),
         "a.zip has no test/Inertial Signals/body_gyro_y_test.txt$"),
        (har_without("_acc_x_train.txt", "_acc_y_train.txt", "subject_train.txt"),
         "a.zip has no train/subject_train.txt, .*acc_x_train.txt, .* and 2 more"),
        (har_without("activity_labels.txt"), "a.zip has no activity_labels.txt"),
        (har_with("train/y_train.txt", lambda t: t + "1\n"),
         "train/y_train.txt must have 20 rows, .* of 1 values, got 21 of 1"),
        (har_with("test/y_test.txt", lambda t: t.replace("2", "7")),
         "test/y_test.txt must hold the numbers of activities, 1 .. 2"),
        (har_with("test/Inertial Signals/body_acc_x_test.txt", lambda t: t[:-17] + "\n"),
         "body_acc_x_test.txt in .*a.zip is ragged: line 20 has 127 values, the first 128"),
        (har_with("test/Inertial Signals/body_acc_x_test.txt", lambda t: "1 2\n" * 20),
         "body_acc_x_test.txt must have 20 rows, .* of 128 values, got 20 of 2"),
        (har_with("test/Inertial Signals/body_acc_x_test.txt", lambda t: without_line(t, 3)),
         "body_acc_x_test.txt must have 20 rows, as the first of its files, of 128 .*, got 19"),
        (har_with("activity_labels.txt", lambda t: "2 A\n3 B\n"), "from 1, got 2, 3"),
        ({"d.csv": EPILEPSY.replace('"X7"', '"x7"')}, "d.csv must have .* it has no X7"),
        ({"d.csv": without_line(EPILEPSY, 1) + "1,2\n"}, "d.csv is ragged: line 7 has 2 values"),
        ({"d.csv": EPILEPSY.replace("V1", "W1")}, "named by its piece and recording, such as X21"),
        ({"d.csv": EPILEPSY[:-2] + "9\n"}, "d.csv must have classes 1 .. 5"),
        ({"d.csv": EPILEPSY.splitlines()[0]}, "d.csv must have 5 rows or more to be split, got 0"),
        ({"d.csv": EPILEPSY.replace('"X7","X8"', '"X8","X7"')}, "other columns, or another order"),
        ({"d.csv": EPILEPSY[:-2] + "a\n"}, "d.csv in .* must hold numbers: could not convert"),
        (TSV | {"A_TRAIN.tsv": "1\t2\t3\n1\t2\n"},
         "A_TRAIN.tsv in .* is ragged: line 2 has 2 values, the first 3"),
        (TSV | {"A_TRAIN.tsv": "1\t2\tx\n"}, "A_TRAIN.tsv in .* must hold numbers: could not conv"),
        (TSV | {"A_TRAIN.tsv": "1\t2\t\t3\n1\t\t2\t3\n"},
         "A_TRAIN.tsv in .* has an empty cell in line 1; missing is NaN"),
        ({f"{folder}/{k}": v for folder in "ab" for k, v in TSV.items()},
         "a.zip has a/A_TRAIN.tsv and b/A_TRAIN.tsv: which is meant. Give its folder"),
        ({"a/A_TRAIN.tsv": "1\t2\n", "b/A_TRAIN.tsv": "1\t2\n", "c/A_TEST.tsv": "1\t2\n"},
         "a.zip has a/A_TRAIN.tsv and b/A_TRAIN.tsv: which is meant. Give its folder"),
        (TSV | {"A_TEST.tsv": ""}, "A_TEST.tsv in .* is empty"),
        (TSV | {"A_TEST.tsv": "1\n"}, "A_TEST.tsv must have a label and values in each row"),
        ({"A_TRAIN.tsv": "1\t2\n", "A_TEST.txt": "1 2\n"},
         "must have both A_TRAIN and A_TEST in one format, has A_TEST.txt, A_TRAIN.tsv"),
        (TSV | {f"B_{p}.tsv": "1\t2\n" for p in ("TRAIN", "TEST")},
         "a.zip has several sets, choose one by --name: A, B"),
        ({"E.csv": ett_csv().replace("date,", "when,")}, "E.csv must have .*; it has no date"),
        ({"E.csv": ett_csv().replace(",OT", "").replace(".5\n", "\n")}, "E.csv .* it has no OT"),
        ({"E.csv": ett_csv().replace("LULL,OT", "OT,LULL")}, "; it has date, .*, OT, LULL"),
        ({"E.csv": without_line(ett_csv(), 9)},
         "E.csv: dates must be regular: from 2016-07-01 07:00:00 to 2016-07-01 09:00:00"),
        ({"E.csv": ett_csv().replace("2016-07-01 05:00:00", "")}, "the date of row 5 is missing"),
        ({"E.csv": ett_csv().replace("2016-07-01 05:00:00", "noon")}, "E.csv: dates must be dates"),
        ({"E.csv": ett_csv().replace(",9.5", ",")}, "a number in every row of column OT"),
        ({"E.csv": ett_csv().replace(",9.5", ",9.5,1")}, "E.csv cannot be read: .* line 11"),
        ({"L.txt": LOADS}, "must reach past 2012-01-01 and hour 8920; its 10 hours end at 2011-01"),
        ({"L.txt": without_line(LOADS, 9)}, "L.txt: dates must be regular: from 2011-01-01 02:00"),
        ({"L.txt": "".join(LOADS.splitlines(keepends=True)[::2])},
         "L.txt: there must be a row every 15min, the step is 0 days 00:30:00"),
        ({"L.txt": LOADS.replace('01:00:00";1,0', '01:00:00";')}, "number in every row of MT_001"),
        ({"L.txt": without_line(MANY_LOADS, 8001)},  # rows are read 8,000 at a time
         "L.txt: dates must be regular: from 2011-03-25 08:00:00 to 2011-03-25 08:30:00"),
        ({"L.txt": LOADS.replace("2011-01-01 01:00:00", "")}, "the date of row 3 is missing"),
        ({"L.txt": LOADS.splitlines()[0] + "\r\n"}, "L.txt: there are no rows below"),
        ({"L.txt": LOADS + "1;2;3;4;5;6;7\r\n"}, "L.txt: .*tokenizing"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_an_archive_is_said(tmp_path, texts, message):
    with pytest.raises(InputError, match=message):
        convert(made.zipped(tmp_path / "a.zip", texts), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_parts_of_other_channels_or_without_labels_are_refused(tmp_path):
    pytest.importorskip("aeon")
    one, two = (made.ts(["a", "b"], [np.ones((c, 4))] * 2) for c in (1, 2))
    with pytest.raises(
        InputError, match="A must have the same channels in both parts, got 1 and 2"
    ):
        convert(made.zipped(tmp_path / "a.zip", {"A_TRAIN.ts": one, "A_TEST.ts": two}), tmp_path)
    texts = {"A_TRAIN.ts": one.replace("1", "x"), "A_TEST.ts": one}
    with pytest.raises(InputError, match=r"b.zip: A_TRAIN.ts cannot be read: could not conv"):
        convert(made.zipped(tmp_path / "b.zip", texts), tmp_path)


def encrypted(content):
    """The same zip with the mark of a password on every file."""
    content = bytearray(content)
    for mark, place in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        at = -1
        while (at := content.find(mark, at + 1)) >= 0:
            content[at + place] |= 1
    return bytes(content)


@pytest.mark.parametrize(
    "file, content, options, message",
    [
        ("a.zip", b"hello", {}, "a.zip is not a zip file, or only a part of one"),
        ("a.zip", made.zip_bytes(TSV)[:100], {}, "a.zip is not a zip file, or only a part of one"),
        ("a.zip", encrypted(made.zip_bytes(TSV)), {},
         "a.zip cannot be read: .*password required.*; the folder it unpacks to will do too"),
        ("a.zip", made.zip_bytes(TSV, ZIP_STORED).replace(b"1\t2", b"1\t4"), {},
         "cannot be read: Bad CRC"),
        ("a.csv", b"a,b\n1,2\n", {}, "a.csv is not recognised; what can be converted: UCI HAR"),
        ("a.csv", b"", {}, "a.csv is not recognised"),
        ("a.zip", made.zip_bytes(TSV), {"name": "a"}, "has no set 'a'; it has A"),
        ("a.zip", made.zip_bytes(har_without()), {"name": "HARR"},
         "has no set 'HARR'; did you mean 'HAR'. it has HAR"),
        (None, b"", {}, "there is no file or folder .*nothing.zip"),
    ],
)  # fmt: skip
def test_files_that_are_no_archives_are_named(tmp_path, file, content, options, message):
    path = tmp_path / (file or "nothing.zip")
    if file:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        convert(path, tmp_path / "out", **options)


def test_bad_use_of_the_command_is_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("PROGMEM_DATA", raising=False)
    made.zipped(tmp_path / "a.zip", TSV)
    assert main(["data", "convert", str(tmp_path / "a.zip")]) == 2
    assert capsys.readouterr().err == (
        "progmem: give the folder to write to with -o or in PROGMEM_DATA\n"
    )
    (tmp_path / "file").touch()
    assert main(["data", "convert", str(tmp_path / "a.zip"), "-o", str(tmp_path / "file")]) == 2
    assert "file is a file; give the folder to write to\n" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stopped:
        main(["data", "convrt"])
    assert stopped.value.code == 2 and "invalid choice: 'convrt'" in capsys.readouterr().err
