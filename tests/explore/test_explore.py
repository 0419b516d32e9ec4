"""What the functions of the explorer have in common: their examples, and what they refuse."""

import doctest
import inspect

import numpy as np
import pytest
from explore_setup import made_index

from progmem import explore
from progmem.errors import InputError

OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
FUNCTIONS = [name for name in explore.__all__ if inspect.isfunction(getattr(explore, name))]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_example_of_a_function_is_true(name):
    text = inspect.getdoc(getattr(explore, name))
    examples = doctest.DocTestParser().get_doctest(text, {}, name, name, 0)
    wrong = []
    assert f"explore.{name}(" in text
    doctest.DocTestRunner(optionflags=OPTIONS).run(examples, out=wrong.append)
    assert not wrong, "".join(wrong)


def nothing_observed(tmp_path):
    idx = made_index(tmp_path, [200])
    idx.all_vectors[:], idx.channel_values[:] = 0, np.nan
    return idx


BAD = {
    "no regimes in a gap": (
        lambda empty, idx: explore.segment(empty, "r0"),
        "nothing is observed in r0; it has no",
    ),
    "too many segments": (
        lambda empty, idx: explore.segment(idx, "r0", count=99),
        "r0 has 50 observed windows, too few for 99 segments of at least 5",
    ),
    "no segments": (lambda empty, idx: explore.segment(idx, "r0", count=0), "count must be a who"),
    "penalty": (
        lambda empty, idx: explore.segment(idx, "r0", penalty=0),
        "penalty must be a number above 0, got 0",
    ),
    "no states": (lambda empty, idx: explore.states(idx, 0), "k must be a whole number from 1 up"),
    "too many states": (
        lambda empty, idx: explore.states(idx, 999),
        "the index has 173 observed windows, too few",
    ),
    "no states in a gap": (lambda empty, idx: explore.states(empty), "the index has 0 observed"),
    "no map of a gap": (lambda empty, idx: explore.map(empty), "nothing is observed; there is no"),
    "nothing to suggest": (
        lambda empty, idx: explore.suggest(empty),
        "nothing is observed; there is no stretch to",
    ),
    "all is labelled": (
        lambda empty, idx: explore.suggest(
            idx,
            [(name, 0, length, "a") for name, length in zip(idx.names, idx.lengths, strict=True)],
        ),
        "every stretch that is observed has a label; nothing is left to suggest",
    ),
    "no labels": (
        lambda empty, idx: explore.classify(idx, []),
        "no observed stretch has a label; name one",
    ),
    "labels in a gap": (
        lambda empty, idx: explore.classify(empty, [("r0", 0, 50, "a"), ("r0", 50, 90, "b")]),
        "no observed stretch has a label; name one first",
    ),
    "one class": (
        lambda empty, idx: explore.classify(idx, [("r0", 0, 50, "a"), ("r1", 0, 20, "a")]),
        "predictions need stretches of at least two classes, got only 'a'",
    ),
    "no label but a text": (
        lambda empty, idx: explore.classify(idx, ["rest"]),
        r"a label is \(recording, start, end, label\), got 'rest'",
    ),
    "dates for samples": (
        lambda empty, idx: explore.classify(idx, [("r0", "monday", "friday", "a")]),
        r"a label is \(recording, start, end, label\), got \('r0', 'monday'",
    ),
    "a label past the end": (
        lambda empty, idx: explore.classify(idx, [("r0", 0, 9999, "a")]),
        "r0 has samples 0 to 505, got the stretch from 0 to 9999",
    ),
    "a label elsewhere": (
        lambda empty, idx: explore.suggest(idx, [("<script>", 0, 9, "a")]),
        "the index has no recording '<script>'; its recordings are r0, r1, r2",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_answered_is_named(case, tmp_path):
    ask, message = BAD[case]
    idx = made_index(tmp_path, [505, 70, 1200])
    with pytest.raises(InputError, match=message):
        ask(nothing_observed(tmp_path), idx)


def test_surprise_of_nothing_is_unknown(tmp_path):
    assert np.isnan(explore.surprise(nothing_observed(tmp_path), "r0")).all()
    short = made_index(tmp_path, [30])
    assert np.isnan(explore.surprise(short, "r0")).all()


def test_one_recording_is_enough_for_every_question(tmp_path):
    idx = made_index(tmp_path, [1000])
    labels = [("r0", 0, 100, "a"), ("r0", 500, 600, "b")]
    assert all(not (m.start < 100) for m in explore.search(idx, "r0", 0, 100, k=3))
    assert explore.segment(idx, "r0")[-1].end == 1000
    assert np.isfinite(explore.surprise(idx, "r0")[explore.STRETCH * 2 :]).all()
    assert set(explore.states(idx, 2).labels["r0"]) == {0, 1}
    assert explore.suggest(idx, labels)[:2] not in {label[:2] for label in labels}
    assert set(explore.classify(idx, labels).labels("r0")) == {"a", "b"}
    assert explore.map(idx).shape == (100, 2)
