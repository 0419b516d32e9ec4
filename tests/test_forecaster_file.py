"""A kept forecaster: it predicts as before, and notices what is not its own."""

import numpy as np
import pandas as pd
import pytest
import torch
from forecast_setup import daily_waves, hours, small_model
from safetensors.torch import save_file

import progmem
from progmem.errors import InputError

P = 30
T = 300


def test_a_kept_forecaster_predicts_newer_series_as_before(tmp_path):
    model, values = small_model(9), daily_waves(T, 2)
    values[-1, 0] = np.nan  # what stands for it is kept too
    forecaster = progmem.Forecaster(model, padding=P).fit(values[:250], hours(250))
    expected = forecaster.predict(4, values, hours(T))
    assert not np.allclose(expected["0"], forecaster.predict(4)["0"])
    forecaster.save(tmp_path / "kept.safetensors")
    again = progmem.Forecaster.load(tmp_path / "kept.safetensors", model)
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
        (lambda: progmem.Forecaster.load(tmp_path / "kept.safetensors", small_model(8)),
         "was fitted on the features of another model"),
        (lambda: progmem.Forecaster.load(tmp_path / "none", model), "there is no forecaster in"),
        (lambda: progmem.Forecaster(model).save(tmp_path / "x"), "there is nothing to keep yet"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message):
            ask()
    content = (tmp_path / "kept.safetensors").read_bytes()
    (tmp_path / "short").write_bytes(content[:100])
    with pytest.raises(InputError, match="short cannot be read as a forecaster"):
        progmem.Forecaster.load(tmp_path / "short", model)
    for place in np.linspace(0, len(content) - 1, 25).astype(int):
        flipped = bytearray(content)
        flipped[place] ^= 1
        (tmp_path / "flipped").write_bytes(flipped)
        with pytest.raises(InputError, match=r"flipped (is damaged|cannot be read|is not a fore)"):
            progmem.Forecaster.load(tmp_path / "flipped", model)
    save_file({"note": torch.tensor(list(b"{}"), dtype=torch.uint8)}, tmp_path / "other")
    with pytest.raises(InputError, match="not a forecaster this version"):
        progmem.Forecaster.load(tmp_path / "other", model)


def test_numbers_of_numpy_are_kept_as_others_are(tmp_path):
    model, values = small_model(8), daily_waves(T)
    share, levels = np.float32(0.25), np.array([0.25, 0.75], dtype=np.float32)
    forecaster = progmem.Forecaster(
        model, padding=np.int64(P), validation=share, quantiles=levels
    ).fit(values, hours(T))
    expected = forecaster.predict(np.int64(4))
    forecaster.save(tmp_path / "kept")
    again = progmem.Forecaster.load(tmp_path / "kept", model).predict(4, values, hours(T))
    pd.testing.assert_frame_equal(again, expected, rtol=1e-3)
