"""``progmem classify``: a user's own series and labels, and the probe behind it."""

import csv
import pickle
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from estimator_setup import TINY
from probe_setup import waves

import progmem
from progmem import artifact
from progmem.check import check
from progmem.cli import main
from progmem.config import read_config
from progmem.data.labels import drop_missing_labels, labels_for, read_labels
from progmem.data.reader import read
from progmem.detail import CONVOLUTIONS
from progmem.errors import InputError
from progmem.pooling import fit_feature_stats, pool
from progmem.probes import comparison, own_labels
from progmem.probes.logistic import fit_logistic
from progmem.probes.own_data import LabelProbe, Prediction
from progmem.whitening import AXES, no_whitening


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A folder with own series and labels, the working directory; MiniRocket takes too long."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(comparison.BASELINES, "MiniRocket")
    (x, y), (new, _) = waves(30, 0), waves(12, 1)
    np.save("x.npy", x)
    np.save("y.npy", y)
    np.save("new.npy", new)
    return tmp_path


def exit_code(arguments):
    try:
        return main(arguments)
    except SystemExit as ended:
        return ended.code


def read_csv(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_own_labels_become_predictions_and_the_probe_is_kept(model, files, capsys):
    use = ["--model", str(model), "-o"]
    fit = ["classify", "x.npy", "--labels", "y.npy", *use[:2]]
    assert main([*fit, "--predict", "new.npy", "-o", "p.csv"]) == 0
    printed = capsys.readouterr().out
    assert "30 labelled series, 2 classes" in printed and "12 predictions" in printed
    assert "  trained  " in printed and "pays" in printed.splitlines()[-2]
    last = f"--probe p.safetensors --model {model} -o later.csv"
    assert printed.splitlines()[-1].endswith(last)
    rows = read_csv(files / "p.csv")
    assert [row["series"] for row in rows] == [f"new.{i}" for i in range(12)]
    assert all((row["start"], row["end"], row["start_time"]) == ("0", "60", "") for row in rows)
    assert [int(row["label"]) for row in rows] == (np.arange(12) % 2).tolist()
    assert all(0.5 <= float(row["probability"]) < 1 for row in rows)
    both = [float(row[f"probability of {name}"]) for row in rows for name in (0, 1)]
    np.testing.assert_allclose(np.reshape(both, (-1, 2)).sum(1), 1, atol=2e-4)
    assert main(["classify", "new.npy", "--probe", "p.safetensors", *use, "again.csv"]) == 0
    assert read_csv(files / "again.csv") == rows
    assert main([*fit, "-o", "own.csv"]) == 0  # of the labelled series themselves
    assert [row["series"] for row in read_csv(files / "own.csv")] == [f"x.{i}" for i in range(30)]
    assert (files / "own.safetensors").read_bytes() == (files / "p.safetensors").read_bytes()


def test_without_a_file_to_write_the_accuracy_is_estimated_and_nothing_is_written(
    model, files, capsys
):
    before = set(files.iterdir())
    assert main(["classify", "x.npy", "--labels", "y.npy", "--model", str(model)]) == 0
    assert "30 labelled series, 2 classes\n" in capsys.readouterr().out
    assert set(files.iterdir()) == before


def test_labels_that_a_file_itself_holds_need_no_other_file(model, files, capsys):
    x, y = waves(30, 0)
    np.savez("held.npz", X_train=x[:20], y_train=y[:20], X_test=x[20:])  # not all have a label
    assert check(files / "held.npz")["labels"] == 2
    long = pd.concat([
        pd.DataFrame(one, columns=["a", "b"]).assign(case=i, kind=label)
        for i, (one, label) in enumerate(zip(x, y, strict=True))
    ])  # fmt: skip
    long.to_csv("long.csv", index=False)
    capsys.readouterr()
    use = ["--model", str(model), "-o", "p.csv"]
    for command in (["held.npz"], ["long.csv", "--label", "kind", "--quiet"]):
        assert main(["classify", *command, *use]) == 0
        assert [int(row["label"]) for row in read_csv(files / "p.csv")] == y.tolist()
    assert "20 labelled series" in capsys.readouterr().out


def test_labels_become_predictions_without_a_model(files, capsys, monkeypatch):
    """One command: the model is trained beside the predictions, and taken up the next time."""
    settings = [*TINY, "train.steps=2", "train.batch_size=16"]
    monkeypatch.setattr(own_labels, "read_config", lambda *_: read_config(None, settings))
    command = ["classify", "x.npy", "--labels", "y.npy", "-o", "p.csv"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "no --model is given: training one on x.npy without labels, into p-run" in printed
    assert "raw values" in printed and len(read_csv(files / "p.csv")) == 30
    first = (files / "p.csv").read_text()
    assert main([*command, "--quiet"]) == 0 and capsys.readouterr().out == ""
    assert (files / "p.csv").read_text() == first
    assert main(["classify", "x.npy", "--probe", "p.safetensors", "-o", "q.csv", "--quiet"]) == 0
    assert (files / "q.csv").read_text() == first
    shutil.rmtree("p-run")
    assert main(["classify", "x.npy", "--probe", "p.safetensors", "-o", "q.csv"]) == 2
    assert "--probe needs --model: there is no model in p-run/model" in capsys.readouterr().err
    assert main(["classify", "x.npy", "--labels", "y.npy"]) == 2
    assert "give -o: the .csv file for the predictions, beside" in capsys.readouterr().err
    np.save("short.npy", np.arange(7))
    assert main([*command[:3], "short.npy", *command[4:]]) == 2
    assert not (files / "p-run").exists()  # labels that do not fit are refused before training


@pytest.mark.parametrize("slow, fast", [("slow", "fast"), ("007", "NA"), ("1", "2.5")])
def test_labels_stay_as_they_are_written_and_some_may_be_missing(model, files, slow, fast):
    texts = ["", fast, *np.where(np.arange(28) % 2, fast, slow)]
    (files / "y.csv").write_text("\n".join(["label", *texts]))
    arguments = ["x.npy", "--labels", "y.csv", "--predict", "new.npy", "-o", "p.csv"]
    assert main(["classify", *arguments, "--model", str(model)]) == 0
    assert [row["label"] for row in read_csv(files / "p.csv")] == [slow, fast] * 6


def test_predictions_of_pieces_say_which_and_when_and_are_labels_again(model, files):
    (files / "long").mkdir()
    x, y = waves(24, 0)
    dates = pd.date_range("2024-03-30", periods=12 * 60, freq="h")
    for name, part in (("a", x[:12]), ("b", x[12:])):
        table = pd.DataFrame(np.concatenate(part), columns=["u", "v"], index=dates)
        table.to_csv(files / f"long/{name}.csv", index_label="date")
    starts, rows = 60 * np.arange(12), []
    for i in range(24):
        start = int(starts[i % 12])
        span = (start, start + 60) if i < 12 else (dates[start], "")
        end = span[1] or (dates[start + 60] if i < 23 else "")
        rows.append(f"{'ab'[i // 12]},{span[0]},{end},{'' if i % 5 == 0 else 'sf'[y[i]]}")
    (files / "y.csv").write_text("\n".join(["series,start,end,label", *rows]))
    use = ["long", "--model", str(model), "--quiet", "--labels"]
    assert main(["classify", *use, "y.csv", "-o", "p.csv"]) == 0
    found = pd.read_csv("p.csv")
    assert found.columns.tolist() == [
        "series", "start", "end", "label", "probability", "probability of f", "probability of s",
        "start_time", "end_time",
    ]  # fmt: skip
    assert found.series.tolist() == ["a"] * 12 + ["b"] * 12
    assert found.start.tolist() == [*starts, *starts]
    assert found.end.tolist() == [*(starts + 60), *(starts + 60)]
    assert found.label.tolist() == ["sf"[one] for one in y]
    at = [str(dates[start]) for start in starts]
    assert found.start_time.tolist() == at * 2
    assert found.end_time[:11].tolist() == at[1:]
    assert main(["classify", *use, "p.csv", "-o", "again.csv"]) == 0
    assert pd.read_csv("again.csv").start_time.tolist() == at * 2


def test_labels_in_order_are_the_same_from_every_kind_of_file(files):
    recordings, names = read(files / "x.npy"), np.where(np.arange(30) % 2, "a", "b")
    np.save("names.npy", names)
    np.savez("names.npz", names)
    (files / "names.csv").write_text("\n".join(["label", *names]))
    for path in (files / f"names.{kind}" for kind in ("npy", "npz", "csv")):
        found = labels_for(recordings, files / "x.npy", path, read_labels(path))
        assert found.tolist() == names.tolist()


def test_labels_of_a_folder_are_put_to_their_files_by_name(tmp_path):
    folder, y = tmp_path / "many", tmp_path / "y.csv"
    folder.mkdir()
    for i in range(12):  # in the order of texts: r0, r1, r10, r11, r2, ...
        np.save(folder / f"r{i}.npy", np.zeros((60, 2)))
    rows = [f"r{i},{'odd' if i % 2 else 'even'}" for i in range(11)]  # r11 has no label
    y.write_text("\n".join(["series,label", *rows]))
    recordings = read(folder)
    found = labels_for(recordings, folder, y, read_labels(y))
    assert [r.name for r in recordings[:3]] == ["r0", "r1", "r10"]
    for recording, label in zip(recordings, found, strict=True):
        number = int(recording.name[1:])
        assert label == ("" if number == 11 else "odd" if number % 2 else "even")


def test_whole_numbers_with_holes_stay_whole(model):
    x, y = waves(12, 0)
    y = np.where(np.arange(12) < 3, np.nan, y + 1.0)
    probe = LabelProbe(progmem.load(model), pooling="sequence").fit(x, y)
    assert probe.head.classes.tolist() == [1, 2] and probe.head.classes.dtype == np.int64
    features = pool(probe.encoder, x, ["sequence"])["sequence"]
    np.testing.assert_allclose(probe.mean, features.mean(0, dtype=np.float64))
    assert len(features) == 12 and len(probe.y) == 9  # unlabelled ones scale too


@pytest.mark.parametrize(
    "y, labels",
    [
        (["a", float("nan"), "b"], ["a", "b"]),
        (["a", "", "b"], ["a", "b"]),
        (pd.Series(["a", None, "b"], dtype="string"), ["a", "b"]),
        (pd.array([2, pd.NA, 1], dtype="Int64"), [2, 1]),
        ([2, None, 1], [2, 1]),
        (np.array([0.5, None, 1], dtype=object), [0.5, 1.0]),
        (np.ma.array([2, 7, 1], mask=[False, True, False]), [2, 1]),
        (np.ma.array(["a", "x", "b"], mask=[False, True, False]), ["a", "b"]),
    ],
)
def test_a_label_that_is_missing_is_no_class(y, labels):
    known, found = drop_missing_labels(y)
    assert known.tolist() == [True, False, True] and found.tolist() == labels


def test_a_prediction_is_the_likeliest_class_and_its_probability(model):
    likely = np.array([[0.1, 0.7, 0.2], [0.5, 0.1, 0.4]])
    by_hand = Prediction.of_probabilities(np.array(["a", "b", "c"]), likely)
    assert by_hand.label.tolist() == ["b", "a"] and by_hand.probability.tolist() == [0.7, 0.5]
    x, y = waves(30, 0)
    x[::3] *= 4.0
    probe = LabelProbe(progmem.load(model)).fit(x, np.where(np.arange(30) % 3, y, 2))
    found = probe.predict(x)
    assert (found.probability > 1 / 3).all() and len(set(found.probability.round(6))) > 20
    features = pool(probe.encoder, x, ["all"], stats=probe.feature_stats)["all"].astype(np.float64)
    scaled = (features - features.mean(0)) / features.std(0)
    expected = fit_logistic(scaled, probe.y).predict_proba(scaled)
    np.testing.assert_allclose(found.probability, expected.max(1), rtol=1e-6)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("x.npy", "x.npy has no labels; give them with --labels, or by --label where a column"),
        ("x.npy --labels y.npy --probe p", "--probe: not allowed with argument --labels"),
        ("--labels y.npy", "the following arguments are required: DATA"),
        ("x.npy --labels y.npy --x x.npy", "unrecognized arguments: --x x.npy"),
        ("x.npy --probe p.safetensors", "--probe needs -o: the .csv file for the predictions"),
        ("x.npy --probe p --predict new.npy -o p.csv", "with --probe, DATA is predicted"),
        ("x.npy --probe p -o p.csv --pooling all", "--pooling goes with --labels; a fitted probe"),
        ("x.npy --labels y.npy --predict new.npy", "--predict needs -o: the .csv file for the pre"),
        ("x.npy --labels y.npy -o p.txt", "-o must name the .csv file to write, got p.txt"),
        ("x.npy --labels y.npy -o p", "-o must name the .csv file to write, got p"),
        ("x.npy --labels y.npy -o no/p.csv", "there is no folder no to write p.csv into"),
        ("x.npy --labels y.npy -o d.csv", "d.csv is a folder; name the file to write"),
        ("x.npy --labels bad.csv -o bad.csv", "bad.csv is what is read, and would be written ove"),
        ("csv.csv --probe p -o csv.csv", "csv.csv is what is read, and would be written over"),
        ("many --labels none.csv -o many/a.csv", "many/a.csv lies in many, whose files are read"),
        ("x.npy --labels y.npy --predict many -o many/p.csv", "many/p.csv lies in many, whose"),
        ("x.npy --labels y.npy --predict gone.npy -o p.csv", "there is no gone.npy"),
        ("x.npy --labels y.npy --predict wide.npy -o p.csv", "model has 2 channels, got 3"),
        ("x.npy --labels y.npy --predict lost.npy -o p.csv", "series 1 has no observed value"),
        ("many --labels y.npy", "which label belongs to which file of many?"),
        ("many --labels strange.csv", "names 'c', which is not in many: a, b"),
        ("many --labels twice.csv", "names 'a' more than once"),
        ("x.npy --labels none.csv", "at least two classes in y, got none"),
        ("x.npy --labels inf.npy", "a label is infinite"),
        ("x.npy --probe gone.safetensors -o p.csv", "there is no probe in gone.safetensors"),
        ("x.npy --labels gone.npy", "there is no file gone.npy; --labels names a .csv, .npy or .n"),
        ("x.npy --labels 5%", "there is no file 5%; --labels names a .csv, .npy or .npz file"),
        ("gone.npy --labels y.npy", "there is no gone.npy"),
        ("x.npy --labels short.npy", "short.npy has 7 labels, x.npy holds 30"),
        ("flat.npy --labels y.npy", "(30, 60): more channels than samples"),
        ("x.npy --labels same.npy", "at least two classes in y, got 0"),
        ("x.npy --labels x.npy", "one label per series, got shape (30, 60, 2)"),
        ("x.npy --labels measured.npy", "each of the 30 labels occurs once, such as 0.5"),
        ("x.npy --labels halves.npy", "classes are whole numbers or texts, got the label 0.5"),
        ("x.npy --labels y.npy -o kept.csv", "kept.safetensors would be written over: "),
        ("x.npy --labels single.npy", "one label per series, got shape ()"),
        ("x.npy --labels bad.csv", "no column 'label'; it has a, b"),
        ("x.npy --labels commas.csv", "commas.csv cannot be read: rows have more cells"),
        ("x.npy --labels y.txt", "y.txt must end in .csv, .npy or .npz"),
        ("x.npy --labels two.npz", "two.npz must hold one array, the labels; it has a, b"),
        ("x.npy --labels torn.npz", "torn.npz cannot be read: "),
        ("wide.npy --labels y.npy", "model has 2 channels, got 3"),
        ("x.npy --labels y.npy --pooling best", "pooling must be one of"),
        (
            "new.npy --probe old.skops -o p.csv",
            "old.skops is a probe of version 0.1.0, kept by skops; fit it again",
        ),
        ("new.npy --probe x.npy -o p.csv", "x.npy cannot be read as a label probe"),
    ],
)
def test_bad_input_gives_one_line(model, files, arguments, message, capsys):
    np.save("short.npy", np.arange(7))
    np.save("same.npy", np.zeros(30))
    np.savez("two.npz", a=np.zeros(30), b=np.zeros(30))
    (files / "torn.npz").write_bytes((files / "two.npz").read_bytes()[:-40])
    np.save("flat.npy", np.zeros((30, 60)))
    np.save("wide.npy", np.zeros((30, 60, 3)))
    np.save("inf.npy", np.full(30, np.inf))
    np.save("single.npy", np.float64(1))
    np.save("measured.npy", np.arange(30) + 0.5)
    np.save("halves.npy", np.arange(30) % 2 + 0.5)
    shutil.copy(model / "model.safetensors", files / "kept.safetensors")
    np.save("lost.npy", np.stack([np.zeros((60, 2)), np.full((60, 2), np.nan)]))
    for folder in ("many", "d.csv"):
        (files / folder).mkdir()
    for name in ("a", "b"):
        np.save(files / f"many/{name}.npy", np.zeros((60, 2)))
    (files / "strange.csv").write_text("series,label\na,1\nc,2\n")
    (files / "twice.csv").write_text("series,label\na,1\na,2\n")
    (files / "none.csv").write_text("label\n" + "\n" * 30)
    (files / "bad.csv").write_text("a,b\n1,2\n")
    (files / "commas.csv").write_text("label\n" + "1,\n" * 30)
    (files / "y.txt").write_text("1\n")
    (files / "csv.csv").write_text("a,b\n1,2\n")
    (files / "old.skops").write_bytes(b"PK")
    before = set(files.iterdir())
    assert exit_code(["classify", *arguments.split(), "--model", str(model)]) == 2
    printed = capsys.readouterr().err
    assert message in printed and printed.count("\n") == 1, printed
    assert set(files.iterdir()) == before


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("", "the following arguments are required: SET"),
        ("HAR --labels y.npy", "unrecognized arguments: --labels y.npy"),
        ("HAR -o p.csv", "-o must name the .json file to write, got p.csv"),
        ("HARR --data-dir .", "did you mean 'HAR'?"),
        ("x.npy --data-dir .", "unknown data set 'x.npy'"),
        ("ETTh1 --data-dir .", "ETTh1 has no labels; those that have: HAR"),
        ("HAR --data-dir .", "HAR.npz is not there"),
        ("HAR --label-share much", "a percentage such as 5% or a number per class, got 'much'"),
        ("HAR --label-share nan%", "a percentage such as 5% or a number per class, got 'nan%'"),
    ],
)
def test_bad_use_of_the_protocol_gives_one_line(model, files, arguments, message, capsys):
    assert exit_code(["probe", "classify", str(model), *arguments.split()]) == 2
    printed = capsys.readouterr().err
    assert message in printed and printed.count("\n") == 1, printed


def test_a_probe_refuses_another_model(model, tmp_path):
    x, y = waves(20, 0)
    encoder = progmem.load(model)
    LabelProbe(encoder).fit(x, y).save(tmp_path / "p")
    torch.manual_seed(1)
    other = progmem.PMT(encoder.cfg)
    with pytest.raises(InputError, match="fitted on the features of another model"):
        LabelProbe.load(tmp_path / "p", other)


@pytest.mark.parametrize(
    "names",
    [["slow", "fast"], ["007", "NA", 'ä"'], [1, -2, 3, 4], [2.0, 5.0]],
    ids=str,
)
def test_a_kept_probe_predicts_to_the_bit_and_classes_are_as_they_were_given(
    model, tmp_path, names
):
    x, _ = waves(32, 0)
    x *= 1 + np.arange(32)[:, None, None] % len(names)
    y = np.asarray(names)[np.arange(32) % len(names)]
    encoder = progmem.load(model)
    probe = LabelProbe(encoder, pooling="all", columns=("a", "b")).fit(x, y)
    probe.save(tmp_path / "p")
    again = LabelProbe.load(tmp_path / "p", encoder)
    assert (again.pooling, again.columns) == ("all", ("a", "b"))
    for found, before in zip(again.predict(x), probe.predict(x), strict=True):
        np.testing.assert_array_equal(found, before)
        assert found.dtype == before.dtype
    assert set(again.head.classes) == set(names)


def test_a_probe_keeps_the_feature_statistics_it_was_fitted_with(model, tmp_path):
    """Of its training series, since the model has none; a probe without them is not read."""
    (x, y), path, encoder = waves(20, 0), tmp_path / "p", progmem.load(model)
    probe = LabelProbe(encoder).fit(x, y)
    assert probe.pooling == "all" and len(probe.mean) == 4 * 32 + CONVOLUTIONS
    kept, fitted = probe.feature_stats.tensors(), fit_feature_stats(encoder, x).tensors()
    assert all(torch.equal(kept[name], tensor) for name, tensor in fitted.items())
    probe.save(path)
    again = LabelProbe.load(path, encoder)
    np.testing.assert_array_equal(
        again.predict(x[:3]).probability, probe.predict(x[:3]).probability
    )
    good = artifact.read(path, "label probe")
    width, detail = (torch.ones(n, dtype=torch.float64) for n in (32, CONVOLUTIONS))
    narrow = {f"whitening_{n}": t for n, t in no_whitening(12 + CONVOLUTIONS)._asdict().items()}
    for changes, message in (
        ({"median": None}, "the pooling all was another when it was fitted; fit it again"),
        ({"scale": 0 * width}, "not finite, or a scale not above 0"),
        ({"median": torch.nan * width}, "not finite, or a scale not above 0"),
        ({"median": width[:3]}, r"scale has shape \(32,\)"),
        ({"median": width.float()}, "median has shape .*float32"),
        ({"detail_width": -detail}, "not finite, or a scale not above 0"),
        ({"detail_threshold": None}, "unknown tensors detail_threshold"),
        ({"detail_threshold": detail[:5]}, r"detail_threshold has shape \(5,\)"),
        ({"median": width[:3], "scale": 2 * width[:3]}, "whitening_centre has shape"),
        ({"median": width[:3], "scale": 2 * width[:3], **narrow}, "of 3 features, the encoder gi"),
        ({"whitening_measure": None}, "unknown tensors whitening_measure"),
        ({"whitening_remove": torch.full((AXES, 4 * 32 + CONVOLUTIONS), torch.nan)}, "not finite"),
    ):
        changed = good.tensors | {f"features.{name}": t for name, t in changes.items()}
        tensors = {n: t for n, t in changed.items() if t is not None}
        artifact.write(path, "label probe", tensors, good.note)
        with pytest.raises(InputError, match=message):
            LabelProbe.load(path, encoder).predict(x)


@pytest.fixture(scope="module")
def kept(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("probe") / "p.safetensors"
    x, _ = waves(30, 0)
    LabelProbe(progmem.load(model), pooling="sequence").fit(x, np.arange(30) % 3).save(path)
    return path


def forge(path, note=None, **tensors):
    """Another content under a checksum that fits: whole, but not what was saved."""
    found = artifact.read(path, "label probe")
    tensors = found.tensors | tensors
    artifact.write(path, "label probe", tensors, found.note | (note or {}))


def cut(path, name, *shape):
    forge(path, **{name: torch.ones(shape, dtype=torch.float64)})


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda p: p.write_bytes(p.read_bytes()[:-1]), "is damaged"),
        (lambda p: p.write_bytes(pickle.dumps(print)), "cannot be read as a label probe"),
        (lambda p: artifact.write(p, "forecaster", {}, {}), "it is a forecaster"),
        (lambda p: forge(p, {"encoder": None}), "on the features of another model"),
        (lambda p: forge(p, {"pooling": "best"}), "is not a probe this version can read"),
        (lambda p: forge(p, {"pooling": 1}), "pooling in its note is '1'"),
        (lambda p: forge(p, {"columns": "ab"}), "columns in its note is 'ab'"),
        (lambda p: forge(p, {"classes": [0, 1]}), "weights has shape"),
        (lambda p: forge(p, {"classes": [0, 1, 1]}), r"its classes are \[0, 1, 1\]"),
        (lambda p: forge(p, {"classes": [0, 1, []]}), "classes in its note is"),
        (lambda p: forge(p, {"classes": [0, 1, 10**30]}), "its classes are"),
        (lambda p: forge(p, {"classes": [0, 1, "a"]}), "its classes are"),
        (lambda p: forge(p, {"classes": [0, 1, True]}), "its classes are"),
        (lambda p: forge(p, {"classes": ["a"]}), "its classes are"),
        (lambda p: forge(p, {"kernel": "rbf"}), "the head of an earlier version; fit it again"),
        (lambda p: forge(p, {"penalty": 100.0}), "the head of an earlier version; fit it again"),
        (lambda p: forge(p, {"smoothing": "1"}), "smoothing in its note is '1'"),
        (lambda p: forge(p, {"smoothing": float("nan")}), "it has smoothing nan"),
        (lambda p: forge(p, {"smoothing": 1.5}), "it has smoothing 1.5"),
        (lambda p: cut(p, "mean", 3), r"scale has shape \(32,\)"),
        (lambda p: cut(p, "scale", 3), r"scale has shape \(3,\)"),
        (lambda p: cut(p, "weights", 32), r"weights has shape \(32,\)"),
        (lambda p: cut(p, "weights", 40_000, 3), r"weights has shape \(40000, 3\)"),
        (lambda p: cut(p, "intercept", 2), r"intercept has shape \(2,\)"),
        (lambda p: cut(p, "support", 2), "missing or unknown tensors support"),
        (lambda p: forge(p, intercept=torch.zeros(3)), "torch.float32"),
        (lambda p: forge(p, intercept=torch.full((3,), torch.nan).double()), "not finite"),
        (lambda p: forge(p, scale=torch.zeros(32).double()), "a scale not above 0"),
    ],
)
def test_a_damaged_or_strange_probe_is_refused_in_one_line(model, kept, tmp_path, damage, message):
    path = tmp_path / "p.safetensors"
    shutil.copy(kept, path)
    damage(path)
    with pytest.raises(InputError, match=message) as caught:
        LabelProbe.load(path, progmem.load(model))
    text = str(caught.value)
    assert text.startswith(str(path)) and "\n" not in text


def test_a_probe_of_another_width_is_refused_when_it_is_used(model, kept, tmp_path):
    narrow = {name: tensor[:5].contiguous()
              for name, tensor in artifact.read(kept, "label probe").tensors.items()
              if name in ("mean", "scale", "weights")}  # fmt: skip
    shutil.copy(kept, tmp_path / "p")
    forge(tmp_path / "p", **narrow)
    probe = LabelProbe.load(tmp_path / "p", progmem.load(model))
    with pytest.raises(InputError, match="fitted on 5 features, the encoder gives 32"):
        probe.predict(waves(2, 0)[0])


def test_a_class_of_one_label_can_be_predicted(model):
    x, _ = waves(9, 0)
    probe = LabelProbe(progmem.load(model)).fit(x, ["a"] * 4 + ["b"] * 4 + ["c"])
    assert probe.head.classes.tolist() == ["a", "b", "c"]
    found = probe.predict(x)
    assert set(found.label) <= {"a", "b", "c"} and (found.probability > 1 / 3).all()
