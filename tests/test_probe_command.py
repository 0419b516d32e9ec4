"""``probe classify`` as a user meets it: on one of the paper's sets, and on own labels."""

import csv
import json

import numpy as np
import pytest
import skops.io
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import FunctionTransformer

import progmem
from progmem.cli import main
from progmem.data.recordings import read_recordings
from progmem.data.sets import LabelledSet
from progmem.errors import InputError
from progmem.probes import classify as classify_module
from progmem.probes import commands
from progmem.probes.classify import probe_set
from progmem.probes.label_files import labels_for
from progmem.probes.labels import draw_labels
from progmem.probes.own_data import LabelProbe
from progmem.probes.pooling import POOLINGS, pool
from progmem.probes.untrained import untrained_twin
from progmem.settings import read_config
from progmem.training.pretrain import pretrain

TINY = ["model.dim=16", "model.heads=2", "model.blocks=1", "train.epochs=2", "train.batch_size=16"]


def waves(count, seed, channels=2):
    """Slow and fast oscillations, (count, 60, channels), and which they are."""
    rng = np.random.default_rng(seed)
    y = np.arange(count) % 2
    time = np.arange(60)[:, None] + rng.uniform(0, 60, size=(count, 1, channels))
    x = np.sin(time * np.where(y, 0.9, 0.3)[:, None, None]) + 0.05 * rng.normal(size=time.shape)
    return x.astype(np.float32), y


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of a small model of two channels."""
    folder = tmp_path_factory.mktemp("model") / "model"
    torch.manual_seed(0)
    progmem.PMT(progmem.ModelConfig.for_length(60, 2, dim=32, heads=2, blocks=1)).save(folder)
    return folder


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A folder with own series and labels, the working directory."""
    monkeypatch.chdir(tmp_path)
    (x, y), (new, _) = waves(30, 0), waves(12, 1)
    np.save("x.npy", x)
    np.save("y.npy", y)
    np.save("new.npy", new)
    return tmp_path


def read_csv(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_own_labels_become_predictions_and_the_probe_is_kept(model, files, capsys):
    own = ["probe", "classify", str(model)]
    assert main([*own, "--x", "x.npy", "--y", "y.npy", "--predict", "new.npy", "-o", "p.csv"]) == 0
    printed = capsys.readouterr().out
    assert "30 labelled series, 2 classes; accuracy" in printed and "12 predictions" in printed
    rows = read_csv(files / "p.csv")
    assert [row["series"] for row in rows] == [f"new.{i}" for i in range(12)]
    assert [int(row["label"]) for row in rows] == (np.arange(12) % 2).tolist()
    assert all(float(row["margin"]) >= 0 for row in rows)
    again = [*own, "--probe", "p.skops", "--predict", "new.npy", "-o", "again.csv"]
    assert main(again) == 0
    assert read_csv(files / "again.csv") == rows


@pytest.mark.parametrize("slow, fast", [("slow", "fast"), ("007", "NA"), ("1", "2.5")])
def test_labels_stay_as_they_are_written_and_some_may_be_missing(model, files, slow, fast):
    texts = ["", fast, *np.where(np.arange(28) % 2, fast, slow)]
    (files / "y.csv").write_text("\n".join(["label", *texts]))
    arguments = ["--x", "x.npy", "--y", "y.csv", "--predict", "new.npy", "-o", "p.csv"]
    assert main(["probe", "classify", str(model), *arguments]) == 0
    assert [row["label"] for row in read_csv(files / "p.csv")] == [slow, fast] * 6


def test_labels_of_a_folder_are_put_to_their_files_by_name(tmp_path):
    folder, y = tmp_path / "many", tmp_path / "y.csv"
    folder.mkdir()
    for i in range(12):  # in the order of texts: r0, r1, r10, r11, r2, ...
        np.save(folder / f"r{i}.npy", np.zeros((60, 2)))
    rows = [f"r{i},{'odd' if i % 2 else 'even'}" for i in range(11)]  # r11 has no label
    y.write_text("\n".join(["series,label", *rows]))
    recordings = read_recordings(folder)
    found = labels_for(recordings, folder, y)
    assert [r.name for r in recordings[:3]] == ["r0", "r1", "r10"]
    for recording, label in zip(recordings, found, strict=True):
        number = int(recording.name[1:])
        assert label == ("" if number == 11 else "odd" if number % 2 else "even")


def test_whole_numbers_with_holes_stay_whole(model):
    x, y = waves(12, 0)
    y = np.where(np.arange(12) < 3, np.nan, y + 1.0)
    probe = LabelProbe(progmem.load(model)).fit(x, y)
    assert probe.machine.classes_.tolist() == [1, 2] and probe.machine.classes_.dtype == np.int64
    assert probe.scaler.n_samples_seen_ == 12 and len(probe.y) == 9  # unlabelled ones scale too


def test_the_estimate_does_not_flatter(model):
    """Labels that mean nothing are predicted by chance, however C is chosen."""
    encoder, found = progmem.load(model), []
    for seed in range(12):
        x = np.random.default_rng(seed).normal(size=(20, 60, 2))
        found.append(LabelProbe(encoder).fit(x, np.arange(20) % 2).estimate().mean())
    assert 0.38 < np.mean(found) < 0.53
    assert LabelProbe(encoder).fit(*waves(20, 0)).estimate().mean() > 0.8


def test_the_margin_is_the_lead_over_the_next_class(model):
    x, y = waves(30, 0)
    x[::3] *= 4.0
    probe = LabelProbe(progmem.load(model)).fit(x, np.where(np.arange(30) % 3, y, 2))
    found = probe.predict(x)
    assert (found.margin > 0).all() and len(set(found.margin.round(6))) > 20


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("--x x.npy", "--x and --y go together"),
        ("", "give a data set's name, --x and --y, or --probe; one of the three"),
        ("--probe p.skops", "--probe needs --predict"),
        ("--x x.npy --y y.npy", "-o must name the .skops file to write, got None"),
        ("--x x.npy --y y.npy -o p.txt", "-o must name the .skops file to write, got p.txt"),
        ("--x x.npy --y y.npy --predict new.npy -o p", "-o must name the .csv file to write"),
        ("--x x.npy --y y.npy --predict new.npy -o no/p.csv", "there is no folder no to write"),
        ("--x x.npy --y y.npy --predict new.npy -o d.csv", "d.csv is a folder; name the file"),
        ("--x x.npy --y y.npy --predict gone.npy -o p.csv", "there is no gone.npy"),
        ("--x x.npy --y y.npy --predict wide.npy -o p.csv", "model has 2 channels, got 3"),
        ("--x x.npy --y y.npy --predict lost.npy -o p.csv", "series 1 has no observed value"),
        ("--x x.npy --y y.npy -o p.skops --split official", "--split goes with a data set's name"),
        ("HAR --x x.npy", "--x is for own series, not for HAR"),
        ("HAR -o p.csv", "-o must name the .json file to write, got p.csv"),
        ("--x many --y y.npy -o p.skops", "which label belongs to which file of many?"),
        ("--x many --y strange.csv -o p.skops", "names 'c', which is not in many: a, b"),
        ("--x many --y twice.csv -o p.skops", "names 'a' more than once"),
        ("--x x.npy --y none.csv -o p.skops", "at least two classes in y, got none"),
        ("--x x.npy --y inf.npy -o p.skops", "a label is infinite"),
        ("--probe gone.skops --predict new.npy -o p.csv", "there is no probe in gone.skops"),
        ("--probe x.npy --predict new.npy -o p.csv --pooling all", "a kept probe has its own"),
        ("--x x.npy --y gone.npy -o p.skops", "there is no file gone.npy"),
        ("--x gone.npy --y y.npy -o p.skops", "there is no gone.npy"),
        ("--x x.npy --y short.npy -o p.skops", "short.npy has 7 labels, x.npy holds 30"),
        ("--x flat.npy --y y.npy -o p.skops", "(30, 60) is one recording"),
        ("--x x.npy --y same.npy -o p.skops", "at least two classes in y, got 0"),
        ("--x x.npy --y x.npy -o p.skops", "one label a series, got shape (30, 60, 2)"),
        ("--x x.npy --y bad.csv -o p.skops", "no column 'label'; it has a, b"),
        ("--x x.npy --y y.txt -o p.skops", "y.txt must end in .npy or .csv"),
        ("--x wide.npy --y y.npy -o p.skops", "model has 2 channels, got 3"),
        ("--x x.npy --y y.npy -o p.skops --pooling best", "pooling must be one of"),
        ("--probe x.npy --predict new.npy -o p.csv", "x.npy cannot be read as a probe"),
        ("HARR --data-dir .", "did you mean 'HAR'?"),
        ("ETTh1 --data-dir .", "ETTh1 has no labels; those that have: HAR"),
        ("HAR --data-dir .", "HAR.npz is not there"),
        ("HAR --labels much", "a share such as 5% or a number a class, got 'much'"),
        ("HAR --labels nan%", "a share such as 5% or a number a class, got 'nan%'"),
    ],
)
def test_bad_input_gives_one_line(model, files, arguments, message, capsys):
    np.save("short.npy", np.arange(7))
    np.save("same.npy", np.zeros(30))
    np.save("flat.npy", np.zeros((30, 60)))
    np.save("wide.npy", np.zeros((30, 60, 3)))
    np.save("inf.npy", np.full(30, np.inf))
    np.save("lost.npy", np.stack([np.zeros((60, 2)), np.full((60, 2), np.nan)]))
    for folder in ("many", "d.csv"):
        (files / folder).mkdir()
    for name in ("a", "b"):
        np.save(files / f"many/{name}.npy", np.zeros((60, 2)))
    (files / "strange.csv").write_text("series,label\na,1\nc,2\n")
    (files / "twice.csv").write_text("series,label\na,1\na,2\n")
    (files / "none.csv").write_text("label\n" + "\n" * 30)
    (files / "bad.csv").write_text("a,b\n1,2\n")
    (files / "y.txt").write_text("1\n")
    before = set(files.iterdir())
    assert main(["probe", "classify", str(model), *arguments.split()]) == 2
    printed = capsys.readouterr().err
    assert message in printed and printed.count("\n") == 1, printed
    assert set(files.iterdir()) == before


def test_a_probe_refuses_another_model_and_strange_content(model, tmp_path):
    x, y = waves(20, 0)
    encoder = progmem.load(model)
    LabelProbe(encoder).fit(x, y).save(tmp_path / "p.skops")
    torch.manual_seed(1)
    other = progmem.PMT(encoder.cfg)
    with pytest.raises(InputError, match="fitted on the features of another model"):
        LabelProbe.load(tmp_path / "p.skops", other)
    skops.io.dump({"format": "x", "machine": FunctionTransformer(print)}, tmp_path / "evil.skops")
    with pytest.raises(InputError, match=r"holds .*print.*, which no probe needs"):
        LabelProbe.load(tmp_path / "evil.skops", encoder)
    skops.io.dump(LogisticRegression(), tmp_path / "other.skops")
    with pytest.raises(InputError, match="is not a probe this version can read"):
        LabelProbe.load(tmp_path / "other.skops", encoder)


def test_a_class_of_one_label_can_be_predicted(model):
    x, _ = waves(9, 0)
    probe = LabelProbe(progmem.load(model)).fit(x, ["a"] * 4 + ["b"] * 4 + ["c"])
    assert probe.estimate() is None
    assert probe.machine.classes_.tolist() == ["a", "b", "c"]
    found = probe.predict(x)
    assert set(found.label) <= {"a", "b", "c"} and (found.margin >= 0).all()


def test_pooling_looks_only_at_what_is_there(model):
    encoder = progmem.load(model)
    rng = np.random.default_rng(0)
    series = [rng.normal(size=(n, 2)) for n in (60, 35, 60)]
    series[2][10:40] = np.nan
    together = pool(encoder, series, tuple(POOLINGS))
    for i, one in enumerate(series):
        z = encoder.encode([one])
        alone = {
            "sequence": z.sequence[0],
            "mean_tokens": z.tokens[0][z.token_mask[0]].mean(0),
            "max_tokens": z.tokens[0][z.token_mask[0]].amax(0),
            "mean_memory": z.memory[0][z.window_mask[0]].mean((0, 1)),
        }
        for name, value in alone.items():
            np.testing.assert_allclose(together[name][i], value, atol=1e-5)
        assert together["all"].shape == (3, 4 * 32)


def made_set(test_value=0.0):
    (x, y), (test, test_y) = waves(40, 0), waves(20, 1)
    x, test = x.transpose(0, 2, 1), test.transpose(0, 2, 1) + np.float32(test_value)
    return LabelledSet("made", "official", x, y, test, test_y, ("slow", "fast"))


def test_test_rows_change_nothing_but_their_own_predictions(tmp_path, monkeypatch):
    """Markers of a million in every test row: model, draws, scaling and machines stay the same."""
    seen, fit = [], classify_module.fit_svm

    def kept(x, y, head):
        machine = fit(x, y, head)
        seen.append((x, machine.C, machine.dual_coef_, machine.support_))
        return machine

    monkeypatch.setattr(classify_module, "fit_svm", kept)
    runs = []
    for number, value in enumerate((0.0, 1e6)):
        data = made_set(value)
        model = pretrain(
            data.training_recordings(), tmp_path / str(number), read_config(None, TINY), say=None
        )
        result = probe_set(model, data, labels=[0.1], heads=["linear", "rbf"])
        scores = result["scores"]["sequence"]["10%"]["linear"]["accuracy"]
        runs.append((model.state_dict(), result["labelled_rows"], seen.copy(), scores))
        seen.clear()
    clean, marked = runs
    assert all(torch.equal(clean[0][name], marked[0][name]) for name in clean[0])
    assert clean[1] == marked[1] and len(clean[2]) == len(marked[2]) > 0
    for ours, theirs in zip(clean[2], marked[2], strict=True):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(a, b)
    assert clean[3] != marked[3]  # the markers were really there


def test_the_untrained_twin_has_learnt_the_statistics_and_nothing_else(tmp_path):
    data = made_set()
    cfg = read_config(None, TINY)
    model = pretrain(data.training_recordings(), tmp_path / "run", cfg, say=None)
    twin, trained = untrained_twin(model, seed=3).state_dict(), model.state_dict()
    assert torch.equal(twin["stats.mean"], trained["stats.mean"]) and twin["stats.mean"].any()
    torch.manual_seed(3)
    for name, tensor in progmem.PMT(model.cfg).named_parameters():
        assert torch.equal(twin[name], tensor)
    assert not torch.equal(twin["tokenizer.conv.weight"], trained["tokenizer.conv.weight"])


def test_every_encoder_is_probed_on_the_same_draws_which_are_kept(model):
    data = made_set()
    first = probe_set(progmem.load(model), data, labels=[1, 0.25], poolings=["sequence"])
    other = progmem.PMT(progmem.ModelConfig.for_length(60, 2, dim=16, heads=2, blocks=1))
    second = probe_set(other, data, labels=[1, 0.25], poolings=["sequence"])
    assert first["labelled_rows"] == second["labelled_rows"]
    kept = first["labelled_rows"]["25%"][3]
    assert kept == draw_labels(data.y_train, 0.25, 3).tolist()
    assert json.loads(json.dumps(first)) == first


def test_a_set_by_name_is_pretrained_on_and_probed(made_sets, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    where, probed = ["--data-dir", str(made_sets)], []
    monkeypatch.setattr(
        commands, "probe_set", lambda e, d, **o: probed.append(e) or probe_set(e, d, **o)
    )
    assert main(["pretrain", "Wafer", "-o", "run", *where, *TINY]) == 0
    probe = ["probe", "classify", "run/model", "Wafer", *where, "--labels", "1", "50%"]
    assert main(probe) == 0
    printed = capsys.readouterr().out
    assert "| Wafer | 1 a class |" in printed and "written: results/classify/Wafer.json" in printed
    result = json.loads((tmp_path / "results/classify/Wafer.json").read_text())
    assert {"config", "seeds", "commit", "dirty", "versions", "device", "seconds"} <= set(result)
    assert result["seeds"] == [0] and result["config"]["run"]["train"]["epochs"] == 2
    assert result["config"]["source"] == {"name": "Wafer", "split": "official"}
    assert [row["encoder"] for row in result["rows"]] == ["trained", "untrained"]
    assert probed[0] is not probed[1]
    weight = "tokenizer.conv.weight"
    assert not torch.equal(probed[0].state_dict()[weight], probed[1].state_dict()[weight])
    assert main(["results", "classify"]) == 0
    assert "| Wafer | 50% |" in capsys.readouterr().out
    assert main([*probe, "--split", "validation"]) == 2
    assert "pretrained on the official split of Wafer" in capsys.readouterr().err
    again = ["pretrain", "Wafer", "-o", "run", "--split", "validation", *where, *TINY]
    assert main(again) == 2
    assert (
        "was begun on Wafer (official split), not on Wafer (validation" in capsys.readouterr().err
    )
    assert main([*probe, "--split", "validation"]) == 2  # what was refused has changed nothing
