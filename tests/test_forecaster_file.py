"""A kept forecaster: it predicts as before, and notices what is not its own."""

import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from forecast_setup import daily_waves, hours, small_model
from safetensors.torch import save_file

import progmem
from progmem import artifact
from progmem.errors import InputError

P = 30
T = 300


def test_a_kept_forecaster_predicts_newer_series_as_before(tmp_path):
    model, values = small_model(9), daily_waves(T, 2)
    values[-1, 0] = np.nan  # what stands for it is kept too
    forecaster = progmem.PMTForecaster(model, context=P).fit(values[:250], hours(250))
    expected = forecaster.predict(4, values, hours(T))
    assert not np.allclose(expected["0"], forecaster.predict(4)["0"])
    forecaster.save(tmp_path / "kept.safetensors")
    again = progmem.PMTForecaster.load(tmp_path / "kept.safetensors", model)
    pd.testing.assert_frame_equal(again.predict(4, values, hours(T)), expected)
    whole = slice(-P - 1, None)  # all it looks at
    found = again.predict(4, values[whole], hours(T)[whole])
    pd.testing.assert_frame_equal(found, expected)
    for ask, message in (
        (lambda: again.predict(4), "give the series to predict from"),
        (lambda: again.estimate(4), "a kept forecaster has no series"),
        (lambda: again.predict(5, values, hours(T)), "horizon 5 was not fitted; fitted: 4"),
        (lambda: again.predict(4, values[:, :1], hours(T)), "has columns value; .* fitted on 0, 1"),
        (lambda: again.predict(4, values[:P], hours(P)),
         f"has {P} samples; the forecaster looks at the last {P + 1}: give them all"),
        (lambda: again.predict(4, values, hours(2 * T)[::2]),
         "has steps of 0 days 02:00:00; the forecaster was fitted on steps of 0 days 01:00:00"),
        (lambda: progmem.PMTForecaster.load(tmp_path / "kept.safetensors", small_model(8)),
         "was fitted on the features of another model"),
        (lambda: progmem.PMTForecaster.load(tmp_path / "none", model), "there is no forecaster in"),
        (lambda: progmem.PMTForecaster(model).save(tmp_path / "x"), "there is nothing to keep yet"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message):
            ask()
    content = (tmp_path / "kept.safetensors").read_bytes()
    (tmp_path / "short").write_bytes(content[:100])
    with pytest.raises(
        InputError, match=r"short .* it is damaged, and ends before its header does"
    ):
        progmem.PMTForecaster.load(tmp_path / "short", model)
    for place in np.linspace(0, len(content) - 1, 25).astype(int):
        flipped = bytearray(content)
        flipped[place] ^= 1
        (tmp_path / "flipped").write_bytes(flipped)
        with pytest.raises(InputError, match=r"flipped (is damaged|cannot be read|is not a fore)"):
            progmem.PMTForecaster.load(tmp_path / "flipped", model)
    save_file({"note": torch.tensor(list(b"{}"), dtype=torch.uint8)}, tmp_path / "other")
    with pytest.raises(InputError, match="other cannot be read as a forecaster"):
        progmem.PMTForecaster.load(tmp_path / "other", model)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    path = tmp_path_factory.mktemp("forecaster") / "kept"
    forecaster = progmem.PMTForecaster(small_model(9), context=P).fit(daily_waves(T, 2), hours(T))
    for horizon in (2, 4):
        forecaster.predict(horizon)
    forecaster.save(path)
    return path


def forge(path, note=None, **tensors):
    """Another content under a checksum that fits: whole, but not what was saved."""
    found = artifact.read(path, "forecaster")
    tensors = found.tensors | tensors
    artifact.write(path, "forecaster", tensors, found.note | (note or {}))


def part(path, name, **horizons):
    forge(path, {name: artifact.read(path, "forecaster").note[name] | horizons})


def cut(path, name, *shape):
    forge(path, **{name: torch.ones(shape, dtype=torch.float64)})


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda p: artifact.write(p, "label probe", {}, {}), "it is a label probe"),
        (lambda p: forge(p, {"encoder": 1}), "was fitted on the features of another model"),
        (lambda p: forge(p, {"columns": ["a"]}), "mean has shape|its note has"),
        (lambda p: forge(p, {"columns": "ab"}), "columns in its note is 'ab'"),
        (lambda p: forge(p, {"step": None}), "step in its note is 'None'"),
        (lambda p: forge(p, {"context": 0}), "can read: context must be"),
        (lambda p: forge(p, {"context": P - 1}), "2.weight has shape"),
        (lambda p: forge(p, {"validation": "a"}), "can read: validation must be"),
        (lambda p: forge(p, {"quantiles": [0.5]}), "2.spread has shape"),
        (lambda p: forge(p, {"quantiles": [2]}), "can read: quantiles must lie"),
        (lambda p: forge(p, {"alphas": []}), "alphas in its note is"),
        (lambda p: forge(p, {"alphas": {}}), "its horizons are"),
        (
            lambda p: forge(p, {name: {"x": []} for name in ("alphas", "gaps")}),
            "horizons are x",
        ),
        (lambda p: part(p, "alphas", **{"2": ["1", "2"]}), "its note has .* for horizon 2"),
        (lambda p: part(p, "alphas", **{"2": [1.0]}), "its note has .* for horizon 2"),
        (lambda p: part(p, "gaps", **{"4": ["newest", "oldest"]}), "its note has .* for horizon 4"),
        (lambda p: cut(p, "2.weight", 2, 3, 2), "2.weight has shape"),
        (lambda p: cut(p, "2.weight", 2), "2.weight has shape"),
        (lambda p: cut(p, "2.bias", 2, 3), "2.bias has shape"),
        (lambda p: cut(p, "mean", 3), "mean has shape"),
        (lambda p: cut(p, "6.bias", 3), "missing or unknown tensors 6.bias"),
    ],
)
def test_a_strange_forecaster_is_refused_in_one_line(kept, tmp_path, damage, message):
    path = tmp_path / "kept"
    shutil.copy(kept, path)
    damage(path)
    with pytest.raises(InputError, match=message) as caught:
        progmem.PMTForecaster.load(path, small_model(9))
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)


def test_a_forecaster_kept_with_the_former_word_for_its_context_is_read(kept, tmp_path):
    found = artifact.read(kept, "forecaster")
    former = {"padding" if name == "context" else name: v for name, v in found.note.items()}
    assert former["padding"] == P
    artifact.write(tmp_path / "kept", "forecaster", found.tensors, former)
    ours, again = (progmem.PMTForecaster.load(p, small_model(9)) for p in (kept, tmp_path / "kept"))
    assert again.context == P
    newest = daily_waves(T, 2), hours(T)
    pd.testing.assert_frame_equal(again.predict(4, *newest), ours.predict(4, *newest))


def test_numbers_of_numpy_are_kept_as_others_are(tmp_path):
    model, values = small_model(8), daily_waves(T)
    share, levels = np.float32(0.25), np.array([0.25, 0.75], dtype=np.float32)
    forecaster = progmem.PMTForecaster(
        model, context=np.int64(P), validation=share, quantiles=levels
    ).fit(values, hours(T))
    expected = forecaster.predict(np.int64(4))
    forecaster.save(tmp_path / "kept")
    again = progmem.PMTForecaster.load(tmp_path / "kept", model).predict(4, values, hours(T))
    pd.testing.assert_frame_equal(again, expected, rtol=1e-3)
