"""PMTClassifier: classes from a few labels, with scikit-learn's manners, and its saved folder."""

import re
import shutil
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from estimator_setup import TINY, assert_same_weights, small
from finetune_setup import config
from finetune_setup import made as made_labelled
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import check_estimator

from progmem import ConfigError, InputError, ModelFolderError, artifact
from progmem import classifier as classifier_module
from progmem.classifier import PMTClassifier, are_many, label_settings
from progmem.probes.own_data import LabelProbe
from progmem.training.classifier import SequenceClassifier
from progmem.training.finetune import finetune

EVERY = (*TINY, "finetune.head_lr=0.05")


def quick(**params):
    """A classifier that fits in a moment, its network trained on the labels."""
    given = {"steps": 1, "label_epochs": 20, "batch_size": 16, "device": "cpu", "settings": EVERY,
             "finetune": True}  # fmt: skip
    return PMTClassifier(**given | params)


def few(**params):
    """The same by default: a logistic regression on the frozen network's features."""
    return quick(**{"finetune": "auto"} | params)


def slopes(cases=48, channels=2):
    """Series of which every other one goes up, and which."""
    y = np.arange(cases) % 2
    X = np.random.default_rng(0).normal(size=(cases, channels, 40))
    return X + 0.1 * np.outer(y, np.arange(40))[:, None], y


@pytest.fixture(scope="module")
def fitted():
    X, y = slopes()
    return quick().fit(X[:24], y[:24])


# Where scikit-learn's checks and series part. Everything else in these checks holds.
OTHER_LENGTH = "a table with another number of columns holds series of another length: welcome"
NOT_FOR_SERIES = {
    "check_n_features_in_after_fitting": OTHER_LENGTH,
    "check_classifiers_train": OTHER_LENGTH,  # its last part; what comes before it holds
    "check_methods_subset_invariance": "features in float32 differ by their batch in a last digit",
}


@pytest.mark.slow
def test_all_of_scikit_learns_checks_hold():
    for classifier in (few(), quick()):
        check_estimator(classifier, expected_failed_checks=NOT_FOR_SERIES, on_skip=None)


def test_few_labels_are_learnt_by_a_head_on_the_features_of_the_frozen_network(tmp_path):
    X, y = slopes()
    texts = np.where(y, "up", "flat").astype(object)
    labels = texts.copy()
    labels[8:] = None
    classifier = few().fit(X[:24], labels[:24])
    assert not classifier.finetuned_ and not hasattr(classifier, "network_")
    assert classifier.score(X[24:], texts[24:]) > 0.9
    model = small(epochs=None, steps=1).fit(X[:24]).model_
    assert_same_weights(model, classifier.probe_.encoder)
    probe = LabelProbe(model).fit(list(X[:24].transpose(0, 2, 1)), labels[:24])
    expected = probe.predict(list(X.transpose(0, 2, 1))).likely
    np.testing.assert_allclose(classifier.predict_proba(X), expected, atol=1e-6)
    classifier.save(tmp_path / "kept")
    again = PMTClassifier.load(tmp_path / "kept")
    np.testing.assert_array_equal(again.predict_proba(X), classifier.predict_proba(X))
    again.save(tmp_path / "kept")
    quick(label_epochs=1).fit(X[:24], y[:24]).save(tmp_path / "kept")  # over it
    assert PMTClassifier.load(tmp_path / "kept").finetuned_
    again.save(tmp_path / "kept")
    assert PMTClassifier.load(tmp_path / "kept").predict(X).tolist() == again.predict(X).tolist()
    (tmp_path / "kept/probe.safetensors").write_bytes(b"")
    with pytest.raises(ModelFolderError, match=r"probe.safetensors"):
        PMTClassifier.load(tmp_path / "kept")


def test_the_pooling_is_that_of_the_features():
    X, y = slopes(24)
    for pooling, width in (("sequence", 8), ("mean_memory", 8)):
        assert len(few(pooling=pooling).fit(X, y).probe_.mean) == width


@pytest.mark.parametrize("better", [True, False])
def test_many_labels_train_the_network_where_that_is_better_on_some_held_out(
    better, monkeypatch, capsys
):
    monkeypatch.setattr(classifier_module, "MANY_LABELS", 40)
    X, y = slopes()
    if better:  # the head is given nothing but noise
        monkeypatch.setattr(
            LabelProbe, "_features",
            lambda self, x: np.random.default_rng(0).normal(size=(len(x), 4)),
        )  # fmt: skip
    found = few(verbose=True).fit(X, y)
    assert found.finetuned_ == better
    assert "10 labels held out: " in capsys.readouterr().out
    assert not few().fit(X[:30], y[:30]).finetuned_  # too few to try


def test_labels_are_many_if_each_class_has_several():
    assert are_many(np.arange(200) % 20) and not are_many(np.arange(199) % 2)
    assert not are_many(np.array([0] * 300 + [1] * 9))


@pytest.mark.slow
def test_it_tells_unseen_series_apart_from_a_few_labels():
    X, y = slopes()
    texts = np.where(y, "up", "flat").astype(object)
    for unknown in (None, np.nan, ""):
        labels = texts.copy()
        labels[8:] = unknown
        classifier = quick().fit(X[:24], labels[:24])
        assert classifier.classes_.tolist() == ["flat", "up"]
        assert classifier.score(X[24:], texts[24:]) > 0.9
    assert cross_val_score(quick(), X, y, cv=2).min() > 0.9


def test_probabilities_are_of_the_classes_and_do_not_depend_on_the_batch(fitted):
    X, _ = slopes()
    X[3, :, 5:20] = np.nan
    likely = fitted.predict_proba(X)
    assert likely.shape == (48, 2) and (likely >= 0).all()
    np.testing.assert_allclose(likely.sum(1), 1.0, rtol=1e-12)
    np.testing.assert_array_equal(fitted.predict(X), fitted.classes_[likely.argmax(1)])
    np.testing.assert_allclose(fitted.predict_proba(X[7:9]), likely[7:9], atol=1e-5)
    shorter = [x[:, : 40 - i % 3] for i, x in enumerate(X)]
    assert fitted.predict_proba(shorter).shape == (48, 2)


def test_series_without_a_label_are_pretrained_on_and_nothing_else():
    X, y = slopes(24)
    few = np.where(np.arange(24) < 8, y, np.nan)
    other = X.copy()
    other[8:] *= 3.0
    short = partial(quick, label_epochs=2)
    ours, changed = short().fit(X, few), short().fit(other, few)
    assert not np.allclose(ours.predict_proba(X), changed.predict_proba(X))
    frozen = short(settings=(*EVERY, "finetune.only_head=true")).fit(X, few)
    assert_same_weights(small(epochs=None, steps=1).fit(X).model_, frozen.network_.encoder)
    lied = np.where(np.arange(24) < 8, y, 1 - y)  # labels that are known do make a difference
    assert not np.allclose(short().fit(X, lied).predict_proba(X), ours.predict_proba(X))


def test_the_seed_is_that_of_both_trainings(fitted):
    X, y = slopes()
    head_only = (*EVERY, "finetune.only_head=true", "finetune.views=strong")
    short = partial(quick, label_epochs=2, settings=head_only)
    one, other = (short(seed=seed).fit(X[:24], y[:24]) for seed in (0, 1))
    assert not np.allclose(one.predict_proba(X), other.predict_proba(X))
    frozen = other.network_.encoder
    assert_same_weights(small(epochs=None, steps=1, seed=1).fit(X[:24]).model_, frozen)
    assert label_settings(other).run.train.seed == 1  # another encoder would hide what it changes


def test_a_fit_depends_on_parameters_and_data_alone_and_leaves_random_numbers_alone(fitted, capsys):
    X, y = slopes()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    again = quick().fit(X[:24], y[:24])
    assert torch.equal(torch.rand(3), expected)
    np.testing.assert_array_equal(again.predict_proba(X), fitted.predict_proba(X))
    assert capsys.readouterr() == ("", "")
    assert clone(fitted).get_params() == fitted.get_params()
    assert not hasattr(clone(fitted), "finetuned_")


@pytest.mark.parametrize(
    "params, message",
    [
        ({"label_epochs": 0}, "label_epochs must be a whole number from 1 up, got 0"),
        ({"label_epochs": "3"}, "label_epochs must be a whole number from 1 up, got '3'"),
        ({"epochs": 2}, "train.epochs is 2 and train.steps is 1; give one of them"),
        ({"settings": ("finetune.head=1",)}, "did you mean 'finetune.head_lr'?"),
        ({"settings": ("train.steps=3",)}, "'train.steps=3' in settings is the parameter steps"),
        ({"finetune": "yes"}, "finetune must be True, False or 'auto', got 'yes'"),
        ({"pooling": "best"}, "pooling must be one of sequence, mean_tokens, max_tokens"),
        ({"size": "huge"}, "model.size must be one of small, tiny, base, custom, got 'huge'"),
    ],
)
def test_bad_parameters_are_taken_in_and_refused_by_fit(params, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        quick(**params).fit(*slopes(12))


X12, Y12 = slopes(12)


@pytest.mark.parametrize(
    "X, y, message",
    [
        (X12, np.zeros(12), "classification needs at least two classes in y, got 0"),
        (X12, [None] * 12, "classification needs at least two classes in y, got none"),
        (X12, Y12[:11], "y has 11 labels, X holds 12 series"),
        (X12, None, "requires y to be passed, but the target y is None"),
        (np.full((2, 2, 40), np.nan), [0, 1], "series 0 has no observed value"),
        (X12[:1], Y12[:1], "training needs at least 2 cases to tell apart, got n_samples=1"),
    ],
)
def test_what_cannot_be_learnt_from_is_refused(X, y, message):
    with pytest.raises(InputError, match=message):
        quick().fit(X, y)


def test_series_that_do_not_fit_are_refused_by_predict(fitted):
    X, _ = slopes(channels=3)
    with pytest.raises(InputError, match="fitted on 2 channels, got 3"):
        fitted.predict(X)
    with pytest.raises(InputError, match="swap its last two axes"):
        fitted.predict(slopes()[0].transpose(0, 2, 1))
    for call in (quick().predict, quick().predict_proba, quick().save):
        with pytest.raises(NotFittedError):
            call("anything")


def test_a_saved_classifier_gives_the_same_probabilities(fitted, tmp_path):
    X, y = slopes()
    wide = pd.DataFrame(X[:, 0]).rename(columns="t{}".format)
    texts = quick(seed=np.int64(3)).fit(wide, np.where(y, "up", "flat"))
    for classifier, series in ((texts, wide), (fitted, X)):
        classifier.save(tmp_path / "kept")  # the second over the first
        again = PMTClassifier.load(tmp_path / "kept")
        np.testing.assert_array_equal(again.predict_proba(series), classifier.predict_proba(series))
        np.testing.assert_array_equal(again.predict(series), classifier.predict(series))
        assert again.classes_.dtype == classifier.classes_.dtype
        assert again.get_params() == classifier.get_params()
        assert again.n_features_in_ == classifier.n_features_in_
        assert hasattr(again, "feature_names_in_") == (series is wide)
    (tmp_path / "kept/other").write_text("")
    with pytest.raises(ModelFolderError, match="holds other files; save a classifier into"):
        fitted.save(tmp_path / "kept")


def test_the_folder_of_a_finetuned_run_is_a_classifier(tmp_path):
    data = made_labelled()
    finetune(data, tmp_path / "tuned", config(), log=None)
    classifier, network = (
        kind.load(tmp_path / "tuned") for kind in (PMTClassifier, SequenceClassifier)
    )
    X = np.stack(data.test).transpose(0, 2, 1)
    assert classifier.classes_.tolist() == ["slow", "fast"]
    np.testing.assert_array_equal(classifier.predict(X), network.predict(list(data.test)))


def change(folder, **changes):
    path = folder / "classifier.safetensors"
    artifact.write(path, "classifier", {}, artifact.read(path, "classifier").note | changes)


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda f: shutil.rmtree(f / "model"), "there is no model folder"),
        (lambda f: (f / "head.safetensors").unlink(), "head.safetensors cannot be read"),
        (lambda f: change(f, head="1"), "head.safetensors and classifier.safetensors are not of"),
        (lambda f: change(f, classes=[0, 2]), r"its classes are \[0, 2\]"),
        (lambda f: change(f, classes=[0, 1.5]), "classes in its note is"),
        (lambda f: change(f, params={"sise": 1}), "unexpected keyword argument 'sise'"),
        (lambda f: change(f, n_features_in="2"), "n_features_in in its note is '2'"),
        (
            lambda f: artifact.write(f / "classifier.safetensors", "encoder", {}, {}),
            "as a classifier: it is an encoder",
        ),
    ],
)
def test_a_folder_that_is_not_whole_is_refused_in_one_line(fitted, tmp_path, damage, message):
    fitted.save(tmp_path / "kept")
    damage(tmp_path / "kept")
    with pytest.raises(ModelFolderError, match=message) as caught:
        PMTClassifier.load(tmp_path / "kept")
    assert "\n" not in str(caught.value)
