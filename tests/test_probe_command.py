"""``probe classify`` as a user meets it: on one of the paper's sets, and on own labels."""

import csv
import json

import numpy as np
import pytest
import skops.io
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import FunctionTransformer

import progmem
from progmem.cli import main
from progmem.data.sets import LabelledSet
from progmem.errors import InputError
from progmem.probes.classify import probe_set
from progmem.probes.labels import draw_labels
from progmem.probes.own_data import LabelProbe
from progmem.probes.pooling import POOLINGS, pool
from progmem.settings import read_config
from progmem.training.pretrain import pretrain

TINY = ["model.dim=16", "model.heads=2", "model.blocks=1", "train.epochs=2", "train.batch_size=16"]


def waves(count, seed, channels=2):
    """Slow and fast oscillations, (count, 60, channels), and which they are."""
    rng = np.random.default_rng(seed)
    y = np.arange(count) % 2
    time = np.arange(60)[:, None] + rng.uniform(0, 60, size=(count, 1, channels))
    x = np.sin(time * np.where(y, 0.9, 0.3)[:, None, None]) + 0.2 * rng.normal(size=time.shape)
    return x.astype(np.float32), y


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of a small model of two channels."""
    folder = tmp_path_factory.mktemp("model") / "model"
    progmem.PMT(progmem.ModelConfig.for_length(60, 2, dim=16, heads=2, blocks=1)).save(folder)
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


def test_labels_may_be_texts_from_a_csv_and_some_may_be_missing(model, files):
    texts = ["", "fast", *np.where(np.arange(28) % 2, "fast", "slow")]
    (files / "y.csv").write_text("row,label\n" + "".join(f"{i},{t}\n" for i, t in enumerate(texts)))
    arguments = ["--x", "x.npy", "--y", "y.csv", "--predict", "new.npy", "-o", "p.csv"]
    assert main(["probe", "classify", str(model), *arguments]) == 0
    assert [row["label"] for row in read_csv(files / "p.csv")] == ["slow", "fast"] * 6


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("--x x.npy", "--x and --y go together"),
        ("", "give a data set's name, --x and --y, or --probe; one of the three"),
        ("--probe p.skops", "--probe needs --predict"),
        ("--x x.npy --y y.npy", "-o must name the file to write"),
        ("--x x.npy --y y.npy --predict new.npy -o p", "predictions.csv, or"),
        ("--x x.npy --y gone.npy -o p.skops", "there is no file gone.npy"),
        ("--x gone.npy --y y.npy -o p.skops", "there is no gone.npy"),
        ("--x x.npy --y short.npy -o p.skops", "short.npy has 7 labels, x.npy holds 30"),
        ("--x flat.npy --y y.npy -o p.skops", "(30, 60) is one recording"),
        ("--x x.npy --y same.npy -o p.skops", "at least two classes in y, all labels are"),
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
    ],
)
def test_bad_input_gives_one_line(model, files, arguments, message, capsys):
    np.save("short.npy", np.arange(7))
    np.save("same.npy", np.zeros(30))
    np.save("flat.npy", np.zeros((30, 60)))
    np.save("wide.npy", np.zeros((30, 60, 3)))
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
        assert together["all"].shape == (3, 4 * 16)


def made_set(test_value=0.0):
    (x, y), (test, test_y) = waves(40, 0), waves(20, 1)
    x, test = x.transpose(0, 2, 1), test.transpose(0, 2, 1) + np.float32(test_value)
    return LabelledSet("made", "official", x, y, test, test_y, ("slow", "fast"))


def test_test_rows_change_nothing_but_their_own_predictions(tmp_path):
    """Markers of a million in every test row: model, draws and machines stay what they were."""
    models, machines, draws = [], [], []
    for number, value in enumerate((0.0, 1e6)):
        data = made_set(value)
        cfg = read_config(None, TINY)
        run = tmp_path / str(number)
        model = pretrain(data.training_recordings(), run, cfg, say=None)
        models.append(model.state_dict())
        result = probe_set(model, data, labels=[0.1], heads=["linear", "rbf"])
        draws.append(result["labelled_rows"])
        scores = result["scores"]["sequence"]["10%"]
        machines.append([scores[head]["c"] for head in scores])
        if not value:
            clean = scores["linear"]["accuracy"]
    assert all(np.array_equal(models[0][name], models[1][name]) for name in models[0])
    assert draws[0] == draws[1] and machines[0] == machines[1]
    assert scores["linear"]["accuracy"] != clean  # the markers were really there


def test_every_encoder_is_probed_on_the_same_draws_which_are_kept(model):
    data = made_set()
    first = probe_set(progmem.load(model), data, labels=[1, 0.25], poolings=["sequence"])
    other = progmem.PMT(progmem.ModelConfig.for_length(60, 2, dim=32, heads=2, blocks=1))
    second = probe_set(other, data, labels=[1, 0.25], poolings=["sequence"])
    assert first["labelled_rows"] == second["labelled_rows"]
    kept = first["labelled_rows"]["25%"][3]
    assert kept == draw_labels(data.y_train, 0.25, 3).tolist()
    assert json.loads(json.dumps(first)) == first


def test_a_set_by_name_is_pretrained_on_and_probed(made_sets, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    where = ["--data-dir", str(made_sets)]
    assert main(["pretrain", "Wafer", "-o", "run", *where, *TINY]) == 0
    probe = ["probe", "classify", "run/model", "Wafer", *where, "--labels", "1", "50%"]
    assert main(probe) == 0
    printed = capsys.readouterr().out
    assert "| Wafer | 1 a class |" in printed and "written: results/classify/Wafer.json" in printed
    result = json.loads((tmp_path / "results/classify/Wafer.json").read_text())
    assert {"config", "seeds", "commit", "dirty", "versions", "device", "seconds"} <= set(result)
    assert [row["encoder"] for row in result["rows"]] == ["trained", "untrained"]
    assert main(["results", "classify"]) == 0
    assert "| Wafer | 50% |" in capsys.readouterr().out
    assert main([*probe, "--split", "validation"]) == 2
    assert "pretrained on the official split of Wafer" in capsys.readouterr().err
