"""Series and channels without a value are told of by name, once, and disturb no other."""

import warnings

import numpy as np
import pytest
import torch
from estimator_setup import made, small

import progmem
from progmem.data.recordings import ChannelInfo, Recording
from progmem.missing import Watch, tell_of_missing


def told(call, *arguments, **named):
    """What a call warns of."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call(*arguments, **named)
    return [str(one.message) for one in found]


def broken(lead=(5, 40, 2)):
    """Series 1 has nothing, series 3 and 4 lack the second channel; others have gaps."""
    x = np.random.default_rng(0).normal(size=lead)
    x[1], x[3:, :, 1], x[0, :20], x[2, :39, 0] = np.nan, np.nan, np.nan, np.nan
    return x


def model(columns=()):
    made = progmem.PMT(progmem.ModelConfig(channels=2, size="tiny"))
    made.info = ChannelInfo(tuple(columns))
    return made


END = ": what is made of it says nothing"


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor, list, lambda x: np.asarray(x, "f4")])
def test_encode_names_series_and_channels_without_a_value(kind):
    expected = [f"no value is observed of series 1; of channel 1 in series 3, series 4{END}"]
    assert told(model().encode, kind(broken())) == expected
    assert told(model("xy").encode, kind(broken())) == [expected[0].replace("channel 1", "y")]
    assert not told(model().encode, kind(np.nan_to_num(broken())))


def test_what_lies_past_a_series_end_is_no_value():
    x = np.zeros((2, 40, 2))
    x[1, :20, 0] = np.nan
    assert not told(model().encode, x)
    found = told(model().encode, x, lengths=[40, 20])
    assert found == [f"no value is observed of channel 0 in series 1{END}"]


def test_recordings_are_called_by_their_names():
    recordings = [Recording(name, x) for name, x in zip("abcde", broken(), strict=True)]
    expected = [f"no value is observed of b; of channel 1 in d, e{END}"]
    assert told(model().encode, recordings) == expected


def test_of_many_the_first_are_named():
    x = np.zeros((40, 3, 8))
    x[:10] = np.nan
    for i in range(10, 40):
        x[i, :, : i % 8] = np.nan
    (found,) = told(tell_of_missing, x, [f"s{i}" for i in range(40)])
    assert found.startswith("no value is observed of s0, s1, s2, s3, s4 and 5 more; of channel ")
    assert len(found) < 600 and "; of other channels in 7 more: what is made" in found
    everything = np.full((3, 5, 7), np.nan)
    assert told(tell_of_missing, everything, "abc") == [f"no value is observed of a, b, c{END}"]


def test_long_series_are_looked_at_in_pieces_until_a_value_is_found(monkeypatch):
    monkeypatch.setattr("progmem.missing.PIECE", 16)
    x = np.full((2, 100, 1), np.nan)
    x[0, 63] = 0
    assert told(tell_of_missing, x, "ab") == [f"no value is observed of b{END}"]


def test_time_covariates_are_not_observed():
    from progmem.data.dates import COVARIATES

    x = np.zeros((2, 30, len(COVARIATES) + 1))
    x[1, :, -1] = np.nan
    columns = (*COVARIATES, "load")
    assert told(tell_of_missing, x, "ab", columns) == [f"no value is observed of b{END}"]


def test_estimators_name_cases_once():
    X = made()
    X[3], X[5:7, 1] = np.nan, np.nan
    expected = f"no value is observed of case 3; of channel 1 in case 5, case 6{END}"
    encoder = small()
    assert told(encoder.fit, X) == [expected]
    assert told(encoder.transform, X, level="tokens") == [expected]
    assert all(bool(p.isfinite().all()) for p in encoder.model_.parameters())
    X[3] = 0  # a classifier refuses a series without a value
    y = np.arange(len(X)) % 2
    settings = dict(epochs=1, batch_size=16, device="cpu", settings=encoder.settings)
    classifier = progmem.PMTClassifier(**settings)
    expected = f"no value is observed of channel 1 in case 5, case 6{END}"
    assert told(classifier.fit, X, y) == [expected]
    assert told(classifier.predict, X) == [expected]
    assert [text for text in told(classifier.score, X, y) if "learnt" not in text] == [expected]


def test_cases_without_a_value_leave_the_encoding_of_others_as_it_was():
    X = made()
    encoder = small().fit(X)
    expected = encoder.transform(X, level="tokens")
    X[3], X[5, 1] = np.nan, np.nan
    tokens = encoder.transform(X, level="tokens")
    others = np.delete(np.arange(len(X)), [3, 5])
    # a batch with gaps adds in another order: either result is that far from the one in float64
    bound = 1e-6 * np.abs(expected[others]).max()
    np.testing.assert_allclose(tokens[others], expected[others], rtol=0, atol=bound)
    assert np.isnan(tokens[3]).all() and np.isfinite(tokens[5]).all()


@pytest.mark.parametrize("size", [1, 7, 40])
def test_a_stream_tells_when_a_window_has_gone_by(size):
    x = torch.from_numpy(broken((5, 200, 2)))
    x[0, :20], x[2] = 0.0, 0.0
    ours = model("xy")
    stream = progmem.Stream(ours, batch_size=5)
    window = ours.cfg.patch + (ours.cfg.window - 1) * ours.cfg.patch_stride
    found = [told(stream.push, chunk) for chunk in x.split(size, dim=1)]
    first = -(-window // size) - 1  # the chunk with which it is complete
    (text,) = found[first]
    seen = size * (first + 1)
    expected = "no value is observed of series 1; of y in series 3, series 4"
    assert text == f"{expected} in {seen} samples{END}"
    assert not any(found[:first]) and not any(found[first + 1 :]) and not told(stream.finish)


def test_a_stream_that_ends_early_tells_at_its_end():
    stream = progmem.Stream(model())
    assert not told(stream.push, torch.full((1, 10, 2), torch.nan))
    assert told(stream.finish) == [f"no value is observed of series 0 in 10 samples{END}"]
    assert not told(progmem.Stream(model()).finish)  # there was nothing to look at


def test_a_value_late_in_the_first_window_is_one():
    watch = Watch(["a"], (), samples=20)
    x = torch.full((1, 30, 1), torch.nan)
    x[0, 19] = 1
    assert not any(told(watch.add, chunk, ended=False) for chunk in x.split(10, dim=1))
