"""A model knows what it was trained on, wherever it lies, and scores that say nothing are refused.

The series are noise and their labels are drawn, so that a score far above chance is a leak.
"""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from finetune_setup import SHAPE

import progmem
from progmem import artifact
from progmem.cli import main
from progmem.config import read_config, read_finetune_config
from progmem.data.labels import LabelledRecordings, cut
from progmem.data.recordings import Recording
from progmem.data.sets import LabelledSet
from progmem.errors import ArtifactError, ConfigError, InputError, ModelFolderError
from progmem.probes import comparison
from progmem.probes.classify import probe_set
from progmem.probes.own_data import LabelProbe, compare_on_held_out, compare_on_labels
from progmem.provenance import TrainedOn, digests, labels_learnt, seen_by, seen_of
from progmem.training.finetune import finetune
from progmem.training.pretrain import pretrain

CPU = ["train.device=cpu"]
FEW = [*SHAPE, *CPU, "train.epochs=1"]
MANY = [*CPU, "train.batch_size=16", "train.epochs=40", "train.lr=5e-3", "finetune.views=none"]


def noise(count, seed=0):
    return np.random.default_rng(seed).normal(size=(count, 40, 2)).astype(np.float32)


def coins(count, seed=0):
    return np.random.default_rng(seed).permutation(np.arange(count) % 2)


def labelled(x, y, **source):
    recordings = [Recording(str(i), values) for i, values in enumerate(x)]
    return LabelledRecordings(recordings, y, ("heads", "tails"), source=source)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """The folder of a network that has learnt 24 coins by heart, as its training score shows."""
    folder = tmp_path_factory.mktemp("tuned")
    x, y = noise(24), coins(24)
    pretrain(labelled(x, y).recordings, folder / "run", read_config(None, FEW), log=None)
    cfg = read_finetune_config(None, MANY)
    found = finetune(labelled(x, y), folder / "tuned", cfg, pretrained=folder / "run", log=None)
    assert (found.classifier.scores(list(x)).argmax(1) == y).mean() > 0.9
    return folder / "tuned"


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(comparison.BASELINES, "MiniRocket")  # which takes too long
    np.save("x.npy", noise(24))
    np.save("y.npy", coins(24))
    np.save("new.npy", noise(24, seed=1))
    return tmp_path


def test_a_model_keeps_what_it_was_trained_on_through_moves_copies_and_links(tuned, tmp_path):
    shutil.copytree(tuned / "model", tmp_path / "copied")
    (tmp_path / "linked").symlink_to(tuned / "model")
    for folder in (tuned / "model", tmp_path / "copied", tmp_path / "linked"):
        first, second = progmem.load(folder).history
        assert len(first.rows) == len(second.labelled) == 24 and not len(first.labelled)
        assert not first.with_labels and second.with_labels
        with pytest.raises(InputError, match="labels of 24 of the 24 labelled series: a score"):
            model = progmem.load(folder)
            compare_on_labels(LabelProbe(model).fit(noise(24), coins(24)), list(noise(24)))


def test_a_series_is_known_by_what_it_holds(tuned):
    model = progmem.load(tuned / "model")
    x = noise(30)
    known = seen_by(model, list(x.astype(np.float64)[::-1]))
    assert known.labels.tolist() == known.rows.tolist() == [False] * 6 + [True] * 24
    assert not seen_by(model, list(x[:, ::-1])).rows.any()  # turned round it is another
    assert not seen_by(progmem.PMT(model.cfg), list(x)).rows.any()


def test_labels_of_a_piece_are_learnt_for_whatever_shares_samples_with_it(tmp_path):
    whole = labelled(noise(8), coins(8)).recordings
    pieces = LabelledRecordings([cut(r, 5, 25) for r in whole], coins(8), ("heads", "tails"), {})
    cfg = read_finetune_config(None, [*FEW, *MANY[:2], "train.epochs=1", "finetune.views=none"])
    finetune(pieces, tmp_path / "tuned", cfg, log=None)
    history = progmem.load(tmp_path / "tuned/model").history

    def known(series):
        (seen,) = zip(*seen_of(history, [series]), strict=True)
        return tuple(map(bool, seen))

    both, rows_only, nothing = (True, True), (True, False), (False, False)
    assert known(whole[3]) == known(cut(whole[3], 5, 25)) == both
    assert known(cut(whole[3], 24, 40)) == known(cut(cut(whole[3], 2, 30), 0, 4)) == both
    assert known(cut(whole[3], 25, 40)) == known(cut(whole[3], 0, 5)) == rows_only
    assert known(Recording("a file of its own", whole[3].values[5:25])) == both
    assert known(Recording("another", noise(1, seed=5)[0])) == nothing
    with pytest.raises(InputError, match="the labels of 2 of the 2 series that are held out"):
        again = read_finetune_config(None, [*MANY, "train.epochs=1", "finetune.validation=0.25"])
        data = LabelledRecordings(whole, coins(8), ("heads", "tails"), {})
        finetune(data, tmp_path / "more", again, pretrained=tmp_path / "tuned", log=None)


def test_pieces_of_a_recording_whose_label_was_learnt_are_not_scored(tuned, files, capsys):
    spans = "".join(f"x.{i},0,20,a\nx.{i},20,40,b\n" for i in range(12))
    (files / "spans.csv").write_text(f"series,start,end,label\n{spans}")
    command = f"classify x.npy --labels spans.csv --model {tuned}/model -o p.csv"
    assert main(command.split()) == 2
    assert "with the labels of 24 of the 24 labelled series" in capsys.readouterr().err
    assert main(f"{command} --allow-seen-labels".split()) == 0
    assert "LABELS SEEN" in capsys.readouterr().out


LEAKS = {  # every command that scores labels of own series
    "classify": "classify x.npy --labels y.npy --model {} -o p.csv",
    "finetune, held out": "finetune x.npy --labels y.npy --from {run} -o more "
    "finetune.validation=0.25",
    "finetune, few labels": "finetune x.npy --labels y.npy --from {run} -o more --label-share 25%",
}


@pytest.mark.parametrize("command", LEAKS.values(), ids=LEAKS)
def test_a_command_refuses_to_score_labels_that_were_seen(command, tuned, files, capsys):
    shutil.copytree(tuned, "moved")
    command = command.format("moved/model", run="moved").split()
    assert main(command) == 2
    told = capsys.readouterr().err
    assert "the model was trained with the labels of " in told and "--allow-seen-labels" in told
    assert not (files / "more/model").exists() and not (files / "p.csv").exists()


def test_scores_on_labels_that_were_seen_are_marked_where_a_user_insists(tuned, files, capsys):
    allow = [f"--model={tuned}/model", "--allow-seen-labels", "-o", "p.csv"]
    assert main(["classify", "x.npy", "--labels", "y.npy", *allow]) == 0
    out = capsys.readouterr().out
    assert "  trained, LABELS SEEN " in out and "\nLABELS SEEN: the network was trained with" in out
    assert " pays here" not in out and "\n  untrained  " in out
    more = ["finetune", "x.npy", "--labels", "y.npy", "--from", str(tuned), "-o", "more"]
    held = ["finetune.validation=0.25", "train.epochs=1", *CPU]
    assert main([*more, *held, "--allow-seen-labels"]) == 0
    assert "finetuned, LABELS SEEN " in capsys.readouterr().out
    result = json.loads((files / "more/result.json").read_text())
    assert result["rows"][0]["labels_seen_before"] == 6
    assert result["comparison"]["labels_seen"] == result["comparison"]["scored"] == 6


def test_labels_that_are_all_used_again_are_marked_after_the_training(tuned, files, capsys):
    """Nothing that was seen is scored by the new network; the one before is compared."""
    more = ["finetune", "x.npy", "--labels", "y.npy", "--from", str(tuned), "-o", "more"]
    assert main([*more, "train.epochs=1", *CPU]) == 0
    assert "trained, LABELS SEEN " in capsys.readouterr().out


def test_new_series_are_scored_and_series_seen_without_labels_are_noted(tuned, files, capsys):
    on_new = ["classify", "new.npy", "--labels", "y.npy", "-o", "p.csv"]
    assert main([*on_new, "--model", str(tuned / "model")]) == 0
    assert "seen" not in capsys.readouterr().out
    run = tuned.parent / "run/model"
    assert main(["classify", "x.npy", "--labels", "y.npy", "-o", "p.csv", f"--model={run}"]) == 0
    out = capsys.readouterr().out
    assert "the trained network has seen 24 of these 24 series, unlabelled" in out
    assert "LABELS SEEN" not in out


def test_a_head_alone_learns_labels_and_its_network_does_not(tuned, tmp_path):
    run, x, y = tuned.parent / "run", noise(24), coins(24)
    cfg = read_finetune_config(None, [*CPU, "finetune.only_head=true", "train.epochs=1"])
    finetune(labelled(x, y), tmp_path / "head", cfg, pretrained=run, log=None)
    assert not seen_by(progmem.load(tmp_path / "head/model"), list(x)).labels.any()
    classifier = progmem.PMTClassifier.load(tmp_path / "head")
    with pytest.warns(UserWarning, match="labels of 24 of these 24 series were learnt"):
        classifier.score(x.transpose(0, 2, 1), y.astype(str))
    classifier.score(noise(24, seed=1).transpose(0, 2, 1), y.astype(str))


def test_a_classifier_warns_of_a_score_on_what_it_was_fitted_on(tmp_path):
    X, y = noise(20).transpose(0, 2, 1), coins(20).astype(float)
    y[12:] = np.nan
    classifier = progmem.PMTClassifier(size="tiny", steps=1).fit(X, y)
    truth = coins(20)
    classifier.score(X[12:], truth[12:])  # seen without labels: no warning
    classifier.save(tmp_path / "kept")
    for one in (classifier, progmem.PMTClassifier.load(tmp_path / "kept")):
        with pytest.warns(UserWarning, match="labels of 4 of these 12 series were learnt"):
            one.score(X[8:], truth[8:])


def made_set(test, split="official"):
    X, y = noise(24).transpose(0, 2, 1), coins(24)
    return LabelledSet("made", split, X, y, test.transpose(0, 2, 1), coins(len(test)), ("a", "b"))


def test_a_set_is_not_scored_by_a_model_that_has_seen_its_test_series(tuned):
    """Under whatever name; a series that is in both parts of the set may have been seen."""
    model = progmem.load(tuned.parent / "run/model")
    both = np.concatenate([noise(8, seed=2), noise(24)[:4]])
    few = {"label_shares": [2], "poolings": ["sequence"], "heads": ["linear, fixed C"]}
    probe_set(model, made_set(both), **few)
    data = replace(made_set(both), X_train=noise(24, seed=3).transpose(0, 2, 1))
    message = "has seen 4 of the 12 series that the official split of made tests on; train on made"
    with pytest.raises(InputError, match=message):
        probe_set(model, data, **few)
    tuned_model = progmem.load(tuned / "model")
    with pytest.raises(InputError, match="with the labels of 28 of the 36 series of made"):
        probe_set(tuned_model, made_set(both), **few)
    found = probe_set(tuned_model, made_set(both), **few, allow_seen_labels=True)
    assert found["labels_seen"] == 28


def test_a_training_is_refused_that_scores_test_series_seen_before(tuned, tmp_path):
    data = labelled(noise(24, seed=3), coins(24), name="made", split="official")
    data = data._replace(test=list(noise(24)), test_y=coins(24))
    cfg = read_finetune_config(None, FEW)
    with pytest.raises(InputError, match="has seen 24 of the 24 series"):
        finetune(data, tmp_path / "out", cfg, pretrained=tuned.parent / "run", log=None)


@pytest.mark.parametrize("change", [lambda x: x[:, ::-1], lambda x: x[[1, 0, *range(2, 24)]]])
def test_a_run_does_not_go_on_with_other_data_of_the_same_shape_and_moments(change, tmp_path):
    x, cfg = noise(24), read_config(None, FEW)
    pretrain(labelled(x, coins(24)).recordings, tmp_path / "run", cfg, log=None)
    with pytest.raises(ConfigError, match="begun with other data: content differ"):
        pretrain(labelled(change(x), coins(24)).recordings, tmp_path / "run", cfg, log=None)


@pytest.mark.parametrize(
    "note, message",
    [
        (3, "trained_on in its note is '3'"),
        ([3], "a training in its note is '3'"),
        ([{}], "name in its note is 'None'"),
        ([TrainedOn("x").to_note() | {"rows": "?"}], "rows in its note holds no digests"),
        ([TrainedOn("x").to_note() | {"rows": "QUJD"}], "rows in its note holds no digests"),
        ([TrainedOn("x").to_note() | {"with_labels": 1}], "with_labels in its note is '1'"),
    ],
)
def test_a_history_that_does_not_fit_is_refused(note, message, tmp_path):
    model = progmem.PMT(progmem.ModelConfig(channels=1, size="tiny"))
    model.save(tmp_path)
    kept = artifact.read(tmp_path / "model.safetensors", "model")
    broken = kept.note | {"trained_on": note}
    artifact.write(tmp_path / "model.safetensors", "model", kept.tensors, broken)
    with pytest.raises(ModelFolderError, match=message) as caught:
        progmem.load(tmp_path)
    assert isinstance(caught.value.__cause__, ArtifactError)


def test_labels_that_0_1_0_trained_on_are_those_of_the_whole_set():
    history = (TrainedOn("Wafer", "official", with_labels=True),)
    some = digests(noise(3))
    assert labels_learnt(history, "Wafer", some).all()
    assert not labels_learnt(history, "HAR", some).any()


def test_held_out_labels_that_were_seen_are_refused(tuned):
    model, x, y = progmem.load(tuned / "model"), noise(30), coins(30)
    with pytest.raises(InputError, match="labels of 4 of the 10 series held out"):
        compare_on_held_out({"trained": model}, list(x[:20]), y[:20], list(x[20:]), y[20:])
