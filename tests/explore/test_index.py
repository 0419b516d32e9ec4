"""The index of recordings: what describes a window, however it arrives, and what is kept."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from model_setup import make_model

from progmem import explore
from progmem.data.dates import Calendar
from progmem.data.recordings import Recording
from progmem.errors import InputError
from progmem.explore import folder as index_folder
from progmem.explore.windows import WindowStream, parts_of, window_length, window_starts
from progmem.features import SOFTNESS
from progmem.pooling import fit_feature_stats
from progmem.series import Moments


def recordings(*lengths, seed=0):
    rng = np.random.default_rng(seed)
    return {f"r{i}": rng.normal(size=(n, 2)).cumsum(0) for i, n in enumerate(lengths)}


@pytest.fixture(scope="module")
def small():
    """A model with feature statistics, in float32."""
    torch.manual_seed(0)
    model = make_model(6, 3, 2).float()
    model.feature_stats.set(fit_feature_stats(model, torch.randn(4, 100, 2)))
    return model


@pytest.mark.parametrize("gaps", [False, True])
def test_what_describes_a_window_is_the_same_for_any_cutting(small, gaps):
    x = torch.randn(2, 207, 2, dtype=torch.float64)
    if gaps:
        x[0, 30:75] = torch.nan
        x[1, :, 1] = torch.nan
    found = []
    for sizes in ([207], [1] * 207, [0, 100, 7, 50, 50]):
        stream = WindowStream(small, small.feature_stats.values, batch_size=2)
        parts = [stream.push(piece) for piece in x.split(sizes, dim=1)] + [stream.finish()]
        found.append([torch.cat(part, dim=1) for part in zip(*parts, strict=True)])
    assert found[0][0].shape[1] == len(window_starts(207, window_length(small.cfg)))
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            assert torch.allclose(a.double(), b.double(), atol=1e-5, equal_nan=True)


def test_what_describes_a_window_is_what_a_plain_loop_over_its_samples_and_tokens_gives(small):
    x, h = torch.randn(1, 100, 2, dtype=torch.float64), window_length(small.cfg)
    stream = WindowStream(small, small.feature_stats.values)
    parts = [stream.push(x), stream.finish()]
    mean, deviation, tokens, detail, points, observed = (
        torch.cat(p, dim=1) for p in zip(*parts, strict=True)
    )
    stats, z = small.feature_stats.values, small.encode(x)
    starts, steps = [*window_starts(100, h)], convolved(x[0], stats.detail)
    assert observed.all() and len(starts) == mean.shape[1] > 5
    for w, (start, end) in enumerate(zip(starts, [*starts[1:], 100], strict=True)):
        inside = x[0, start:end]
        assert torch.allclose(mean[0, w], inside.mean(0))
        assert torch.allclose(deviation[0, w], inside.std(0, correction=0))
        edges = [i * len(inside) // parts_of(h) for i in range(parts_of(h) + 1)]
        means = [inside[a : max(b, a + 1)].mean(0) for a, b in pairwise(edges)]
        assert torch.allclose(points[0, w], torch.stack(means))
        middle = z.token_spans[:, 0] + small.cfg.patch // 2
        here = z.tokens[0, (middle >= start) & (middle < end)].double()
        above = torch.sigmoid((here - stats.median) / (SOFTNESS * stats.scale)).mean(0)
        assert torch.allclose(tokens[0, w].double(), above, atol=1e-5)
        assert torch.allclose(detail[0, w], steps[:, start:end].mean(1), atol=1e-5)


def convolved(x, fitted):
    """The steps of all convolutions at every sample of x (L, C), by torch's own convolution."""
    scaled = ((x - fitted.channel_mean) / fitted.channel_scale).float().T[None]
    steps = []
    for h, d in enumerate(fitted.dilation.tolist()):
        value = F.conv1d(scaled, fitted.weight[h : h + 1], dilation=d, padding=4 * d)[0, 0]
        rise = (value - fitted.threshold[h].float()) / (2 * fitted.width[h].float()) + 0.5
        steps.append(rise.clamp(0, 1))
    return torch.stack(steps)  # (H, L)


def test_an_index_has_a_vector_and_a_span_for_every_window(small, tmp_path):
    made = recordings(207, 90, 90)
    idx = explore.index(small, made, tmp_path / "index")
    h = window_length(small.cfg)
    assert idx.names == ["r0", "r1", "r2"] and idx.window == h
    for name, x in made.items():
        spans = idx.windows(name)
        assert len(spans) == len(idx.vectors(name)) == len(idx.observed(name)) == len(x) // h
        assert spans[0, 0] == 0 and spans[-1, 1] == len(x)
        assert (spans[1:, 0] == spans[:-1, 1]).all()
        for (start, end), (mean, deviation) in zip(
            spans, idx.channel_values[idx.rows(name)], strict=True
        ):
            assert np.allclose(mean, x[start:end].mean(0), atol=1e-5)
            assert np.allclose(deviation, x[start:end].std(0), atol=1e-5)
    assert len(idx) == idx.starts[-1] == len(idx.recording_of)
    alone = explore.index(small, {"r1": made["r1"], "again": made["r1"]}, tmp_path / "other")
    assert np.array_equal(alone.vectors("r1"), alone.vectors("again"))


def test_an_index_is_used_again_until_the_model_or_a_recording_changes(small, tmp_path):
    made, folder, said = recordings(120, 90), tmp_path / "index", []

    def key(model, data):
        return explore.index(model, data, folder, log=said.append).sha256

    first = key(small, made)
    when = (folder / "vectors.npy").stat().st_ino
    assert key(small, made) == first and not any("anew" in line for line in said)
    assert (folder / "vectors.npy").stat().st_ino == when
    made["r1"][5, 1] += 1
    second = key(small, made)
    assert second != first and said[-2].endswith("is of other recordings; it is made anew")
    model = make_model(6, 3, 2).float()
    assert key(model, made) != second and "is of another model; it is made anew" in said[-2]


def test_a_long_index_is_fitted_to_pieces_and_nearly_the_same(small, tmp_path, monkeypatch):
    made = recordings(3000, 2000, 40)
    whole = explore.index(small, made, tmp_path / "whole")
    monkeypatch.setattr(index_folder, "FITTED", 400)
    monkeypatch.setattr(index_folder, "CHUNK", 500)
    pieces = explore.index(small, made, tmp_path / "pieces")
    a, b = (np.asarray(idx.vectors("r0")) for idx in (whole, pieces))
    apart = [np.linalg.norm(v[:-100] - v[100:], axis=1) for v in (a, b)]
    assert np.corrcoef(*apart)[0, 1] > 0.9


def test_a_model_that_normalises_each_series_sees_it_so_in_an_index(tmp_path):
    torch.manual_seed(0)
    model = make_model(6, 3, 2, normalise="series").float()
    x = recordings(150)["r0"]
    idx = explore.index(model, {"a": x, "b": x * 100 + 7}, tmp_path / "index")
    shares = [WindowStream(model, fit_feature_stats(model, [x]), moments=moments_of(y)).push(
        torch.from_numpy(y)[None]).tokens for y in (x, x * 100 + 7)]  # fmt: skip
    assert torch.allclose(*shares, atol=1e-4) and len(shares[0][0]) > 5
    assert np.isfinite(idx.all_vectors).all()


def moments_of(x):
    return Moments(*(torch.from_numpy(f(x, axis=0)) for f in (np.mean, np.std)))


def test_an_index_knows_the_dates_units_and_rate_of_its_recordings(small, tmp_path):
    x = recordings(90)["r0"]
    hours = Calendar(pd.Timestamp("2024-03-30 22:00", tz="Europe/Oslo"), pd.Timedelta(hours=1))
    months = Calendar(pd.Timestamp("2024-01-15"), pd.DateOffset(months=1))
    made = [
        Recording("hours", x, columns=("kW", "m"), units=("kW", ""), rate=2.0, calendar=hours),
        Recording("months", x, rate=2.0, calendar=months),
        Recording("days", x, rate=2.0, calendar=Calendar(pd.Timestamp("2024-01-01"), "B")),
        Recording("fraction", x, rate=2.0, calendar=Calendar(pd.Timestamp("2024-01-01"), 1 / 3)),
        Recording("plain", x, rate=2.0),
    ]
    explore.index(small, made, tmp_path / "index")
    idx = explore.open_index(tmp_path / "index")
    assert (idx.channels.columns, idx.channels.units, idx.channels.rate) == (
        ("kW", "m"), ("kW", ""), 2.0
    )  # fmt: skip
    for recording in made[:-1]:
        dates = recording.calendar.at(np.array([0, 30, 89]))
        assert list(idx.dates(recording.name, [0, 30, 89])) == list(np.asarray(dates))
    assert idx.dates("plain", [0, 4]).tolist() == [0.0, 2.0]


def bad_inputs():
    x = recordings(90)["r0"]
    nothing = np.full((90, 2), np.nan)
    return {
        "another number of channels": ({"a": x[:, :1]}, "model has 2 channels, got 1"),
        "too short": ({"a": x[:2]}, "a needs at least 3 samples, got 2"),
        "nothing observed": ({"a": nothing}, "no recording has an observed value; there is noth"),
        "infinite": ({"a": np.where(x > 0, np.inf, x)}, "is inf; mark missing values by NaN"),
    }


@pytest.mark.parametrize("case", bad_inputs())
def test_what_cannot_be_indexed_is_named_and_leaves_no_folder(small, tmp_path, case):
    made, message = bad_inputs()[case]
    with pytest.raises(InputError, match=message):
        explore.index(small, made, tmp_path / "index")
    assert not [*tmp_path.iterdir()]


def test_other_files_are_not_written_over(small, tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(InputError, match="holds other files; give an index a folder of its own"):
        explore.index(small, recordings(90), tmp_path)
    with pytest.raises(InputError, match="is a file; give an index a folder of its own"):
        explore.index(small, recordings(90), tmp_path / "thesis.tex")


def test_a_damaged_index_is_named_and_made_anew(small, tmp_path):
    folder, made = tmp_path / "index", recordings(90)
    whole = explore.index(small, made, folder)
    for name in ("index.safetensors", "vectors.npy", "channels.npy", "points.npy"):
        path = folder / name
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(InputError, match=f"{name} is damaged: .*; make the index anew"):
            explore.open_index(folder)
        again = explore.index(small, made, folder)
        assert np.array_equal(again.all_vectors, whole.all_vectors)
    with pytest.raises(InputError, match=r"there is no index .*nowhere; `progmem index` makes one"):
        explore.open_index(tmp_path / "nowhere")


def test_a_gap_has_a_vector_of_zeros_and_is_not_observed(small, tmp_path):
    x = recordings(300)["r0"]
    x[100:200] = np.nan
    x[:, 1] = np.nan  # a channel that is never there
    idx = explore.index(small, {"a": x}, tmp_path / "index")
    spans, observed = idx.windows("a"), idx.observed("a")
    inside = (spans[:, 0] >= 100) & (spans[:, 1] <= 200)
    assert (observed == ~inside).all() and inside.sum() > 5
    assert (idx.vectors("a")[inside] == 0).all() and np.isfinite(idx.vectors("a")).all()
    assert (np.abs(idx.vectors("a")[observed]).max(1) > 0).all()


def test_what_is_wrong_with_a_recording_is_told_once_and_by_its_name(small, tmp_path, monkeypatch):
    found = recordings(120, 120, 400)
    found["r1"][:, 1] = np.nan
    with pytest.warns(UserWarning, match="no value is observed of channel 1 in r1: ") as told:
        explore.index(small, found, tmp_path / "idx")
    assert len(told) == 1
    found = recordings(120, 120, 400)
    found["r2"][390, 1] = np.inf
    with pytest.raises(InputError, match="r2, sample 390, channel 1 is inf; mark missing"):
        explore.index(small, found, tmp_path / "idx")
    monkeypatch.setattr(index_folder, "FITTED", 8)
    monkeypatch.setattr(index_folder, "PIECE", 4)
    with pytest.raises(InputError, match=r"r2, from sample \d+ on, sample \d+, channel 1 is inf"):
        explore.index(small, found, tmp_path / "idx")
