"""Bad input gives a sentence that helps; odd but good input is taken."""

import numpy as np
import pytest
import torch

import progmem

MODEL = progmem.PMT(progmem.ModelConfig(channels=9, size="tiny"))  # patch 8


def with_value(value, where=(1, 17, 2)):
    x = np.zeros((3, 40, 9))
    x[where] = value
    return x


@pytest.mark.parametrize(
    "x, lengths, message",
    [
        (np.zeros((2, 40, 3)), None, "^model has 9 channels, got 3$"),
        (np.zeros((2, 9, 40)), None, r"model has 9 channels, got 40; .*transpose\?"),
        (torch.zeros(2, 9, 40), None, r"should be \(batch, time, channels\): transpose\?"),
        ([np.zeros((9, 40))], None, r"should be \(time, channels\): transpose\?"),
        (np.zeros((1, 5, 9)), None, "needs at least 8 samples, got 5"),
        ([np.zeros((40, 9)), np.zeros((5, 9))], None, "series 1 needs at least 8 samples, got 5"),
        (np.zeros((2, 40, 9)), [40, 7], "series 1 needs at least 8 samples, got 7"),
        (np.zeros((40, 9)), None, r"got shape \(40, 9\); for one series .* give \[x\]"),
        (np.zeros(40), None, r"x must be \(batch, time, channels\), got shape \(40,\)"),
        (3.0, None, "x must be an array or a list of arrays, got float"),
        ("x.npy", None, "x must be an array or a list of arrays, got str"),
        ([[1, 2], [3]], None, r"series 0 must be \(time, channels\), got shape \(2,\)"),
        ([[[1, 2], [3]]], None, "series 0 must be an array, got list"),
        ([np.zeros((40, 9)), np.zeros((40, 3))], None, "series 1: model has 9 channels, got 3"),
        (np.zeros((40, 2, 9)), None, r"got 2 .*x \(40, 2, 9\) is \(batch, time, channels\)"),
        (np.zeros((2, 40, 9)), [[1], [2, 3]], "lengths must be 2 whole numbers"),
        ([np.zeros(40)], None, r"series 0 must be \(time, channels\), got shape \(40,\)"),
        (np.zeros((0, 40, 9)), None, "holds no series"),
        ([], None, "holds no series"),
        (np.zeros((2, 40, 9), dtype=complex), None, "must be real numbers, got dtype complex128"),
        (
            np.ma.zeros((2, 40, 9), dtype=complex),
            None,
            "must be real numbers, got dtype complex128",
        ),
        (np.ma.array([[{}]], dtype=object), None, "x must be an array, got MaskedArray: "),
        (torch.nested.as_nested_tensor([torch.zeros(40, 9)], layout=torch.jagged), None, "nested"),
        (np.full((2, 40, 9), "a"), None, "must be real numbers, got dtype <U1"),
        (torch.zeros(2, 40, 9, dtype=torch.cfloat), None, "got dtype torch.complex64"),
        (with_value(np.inf), None, "series 1, sample 17, channel 2 is inf; mark missing values"),
        (with_value(-np.inf, (2, 0, 8)), None, "series 2, sample 0, channel 8 is -inf"),
        (with_value(1e300), None, r"series 1, sample 17, channel 2 is 1e\+300, beyond 1e\+15"),
        (np.zeros((2, 40, 9)), [40], r"lengths must be 2 whole numbers.*got shape \(1,\)"),
        (np.zeros((2, 40, 9)), [40.0, 8.0], "lengths must be 2 whole numbers.*float64"),
        (np.zeros((2, 40, 9)), [41, 8], r"lengths must be from 0 to 40 .*got \[41, 8\]"),
        ([np.zeros((40, 9))], [40], "lengths goes with an array"),
    ],
)
def test_bad_series_are_refused_by_name(x, lengths, message):
    with pytest.raises(progmem.InputError, match=message):
        MODEL.encode(x, lengths=lengths)


def test_inf_is_named_by_its_own_series_in_any_batch_and_chunk():
    for settings in ({"batch_size": 1}, {"chunk": 5}):
        with pytest.raises(progmem.InputError, match="series 1, sample 17, channel 2 is inf"):
            MODEL.encode(with_value(np.inf), **settings)


@pytest.mark.parametrize("settings", [{}, {"chunk": 5}])
@pytest.mark.parametrize("value", [np.inf, -np.inf, 1e200])
def test_what_spoils_a_series_own_statistics_is_refused_not_taken_for_missing(value, settings):
    cfg = progmem.ModelConfig(channels=9, size="tiny", normalise="series")
    with pytest.raises(progmem.InputError, match="series 1, sample 17, channel 2 is"):
        progmem.PMT(cfg).encode(with_value(value), **settings)


@pytest.mark.parametrize("setting", ["batch_size", "chunk"])
@pytest.mark.parametrize("value", [0, -1, 2.5, True])
def test_batch_size_and_chunk_must_count(setting, value):
    with pytest.raises(progmem.InputError, match=f"{setting} must be a whole number from 1 up"):
        MODEL.encode(np.zeros((1, 40, 9)), **{setting: value})


@pytest.mark.parametrize(
    "kind", ["int16", "uint8", "bool", "float16", "float32", "float64", ">f4", "torch.int64"]
)
def test_any_real_dtype_is_taken(kind):
    x = np.random.default_rng(0).integers(0, 2, (2, 40, 9))
    given = torch.tensor(x) if kind == "torch.int64" else x.astype(kind)
    torch.testing.assert_close(MODEL.encode(given).tokens, MODEL.encode(x.astype(float)).tokens)


def test_a_tensor_with_a_graph_is_taken_without_it():
    assert not MODEL.encode(torch.zeros(1, 40, 9, requires_grad=True)).tokens.requires_grad


def test_a_memory_mapped_array_is_read_in_pieces(tmp_path):
    x = np.random.default_rng(0).normal(size=(2, 400, 9)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    whole = MODEL.encode(x).tokens
    torch.testing.assert_close(MODEL.encode(mapped, chunk=50).tokens, whole, rtol=0, atol=1e-5)


def test_normalisation_keeps_small_variations_on_a_large_offset():
    """1e9 + noise is noise, in a float32 or bf16 model: statistics and division are float64."""
    x = torch.randn(2, 40, 9).double()
    for dtype in (torch.float32, torch.bfloat16):
        model = progmem.PMT(progmem.ModelConfig(channels=9, size="tiny"))
        plain = model.to(dtype).encode(x).tokens
        model.stats.mean.fill_(1e9)
        torch.testing.assert_close(model.to(dtype).encode(x + 1e9).tokens, plain, atol=1e-4, rtol=0)
        assert model.stats.mean.dtype == torch.float64


def test_scale_and_mean_are_applied_by_channel():
    model = progmem.PMT(progmem.ModelConfig(channels=9, size="tiny"))
    x = torch.randn(2, 40, 9).double()
    plain = model.encode(x).tokens
    scale, mean = torch.rand(9).double() + 1, torch.randn(9).double()
    model.stats.scale.copy_(scale)
    model.stats.mean.copy_(mean)
    torch.testing.assert_close(model.encode(x * scale + mean).tokens, plain, atol=1e-5, rtol=0)


def test_a_model_may_normalise_each_series_by_itself():
    model = progmem.PMT(progmem.ModelConfig(channels=2, size="tiny", normalise="series")).double()
    x = torch.randn(3, 60, 2).double() * 5 + 100
    x[0, 10:20] = torch.nan
    x[1, :, 1] = 1.1  # constant: only the mean goes, which is off by a rounding
    plain = progmem.PMT(progmem.ModelConfig(channels=2, size="tiny")).double()
    plain.load_state_dict(model.state_dict())
    own = [(s - s.nanmean(0)) / (s - s.nanmean(0)).square().nanmean(0).sqrt() for s in x]
    own[1][:, 1] = 0.0
    series = [x[0], x[1], x[2, :33]]
    own[2] = (series[2] - series[2].mean(0)) / series[2].std(0, correction=0)
    for settings in ({}, {"chunk": 11}):
        tokens = model.encode(series, **settings).tokens
        torch.testing.assert_close(tokens, plain.encode(own).tokens, rtol=0, atol=1e-10)
    with pytest.raises(progmem.InputError, match="a stream cannot be normalised by statistics"):
        progmem.Stream(model)


def test_masked_arrays_are_missing_values():
    x = np.random.default_rng(0).normal(size=(2, 80, 9))
    gappy = x.copy()
    gappy[0, 20:50] = np.nan
    masked = np.ma.masked_array(np.where(np.isnan(gappy), 999, gappy), mask=np.isnan(gappy))
    expected = MODEL.encode(gappy)
    assert not expected.token_mask.all()
    for z in (MODEL.encode(masked), MODEL.encode([masked[0], masked[1]])):
        assert torch.equal(z.tokens, expected.tokens)
    stream = progmem.Stream(MODEL, batch_size=2)
    first, last = stream.push(masked), stream.finish()
    tokens = torch.cat([first.tokens, last.tokens], dim=1)
    torch.testing.assert_close(tokens, expected.tokens, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "x, message",
    [
        (torch.zeros(40, 9), r"x must be \(batch, time, channels\), got shape \(40, 9\)"),
        (torch.zeros(1, 9, 40), r"model has 9 channels, got 40; .*transpose\?"),
        (torch.zeros(1, 5, 9), "x needs at least 8 samples, got 5"),
    ],
)
def test_forward_checks_shapes(x, message):
    with pytest.raises(progmem.InputError, match=message):
        MODEL(x)
