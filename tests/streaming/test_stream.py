"""A stream gives what the whole series gives, however it is cut."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from model_setup import make_model
from stream_setup import assert_same, cut_up, gappy, join

import progmem
from progmem.detail import CONVOLUTIONS
from progmem.features import all_scales
from progmem.pooling import fit_feature_stats

CUTS = given(
    sizes=st.lists(st.sampled_from([0, 1, 1, 2, 3, 5, 8, 13, 40]), max_size=25),
    length=st.integers(1, 150),
    batch=st.sampled_from([1, 3]),
    geometry=st.sampled_from(
        [(6, 3, 2), (8, 3, 1), (5, 5, 2), (7, 2, 3), (4, 1, 1), (6, 3, 0), (1, 1, 1)]
    ),
    readout=st.sampled_from(["carry", "block"]),
)


@settings(max_examples=25, deadline=None, derandomize=True)
@CUTS
def test_a_stream_gives_what_the_whole_series_gives(sizes, length, batch, geometry, readout):
    assert_stream_gives_the_whole(sizes, length, batch, geometry, readout)


@pytest.mark.slow
@settings(max_examples=100, deadline=None, derandomize=True)
@CUTS
def test_and_however_else_it_is_cut(sizes, length, batch, geometry, readout):
    assert_stream_gives_the_whole(sizes, length, batch, geometry, readout)


def assert_stream_gives_the_whole(sizes, length, batch, geometry, readout):
    torch.manual_seed(length)
    model = make_model(*geometry, readout=readout, blocks=3)
    x = gappy(batch, length + model.cfg.patch)
    stream = progmem.Stream(model, batch_size=batch)
    parts = [stream.push(piece) for piece in cut_up(x, sizes)]
    parts.append(stream.finish())
    assert_same(join(parts), model.encode(x), atol=1e-10)


def with_feature_stats(model):
    model.feature_stats.set(fit_feature_stats(model, gappy(3, 200)))
    return model


@pytest.mark.parametrize("sizes", [[], [1] * 9, [40, 0, 3, 77], [200]], ids=str)
@pytest.mark.parametrize("dtype, atol", [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_the_features_of_a_stream_are_those_of_the_batch_however_it_is_cut(sizes, dtype, atol):
    model = with_feature_stats(make_model(6, 3, 2, blocks=3).to(dtype))
    x = gappy(3, 203)
    x[2] = torch.nan
    stream = progmem.Stream(model, batch_size=3, features=True)
    for piece in cut_up(x, sizes):
        stream.push(piece)
    stream.finish()
    expected = all_scales(model.encode(x), x, model.feature_stats.values)
    assert expected.shape == (3, 4 * 16 + CONVOLUTIONS)
    assert not torch.allclose(
        expected, all_scales(model.encode(x), x, model.feature_stats.values.unwhitened)
    )
    torch.testing.assert_close(stream.features(), expected, rtol=0, atol=atol)


def test_the_features_of_a_stream_are_of_what_is_final_so_far():
    model = with_feature_stats(make_model(6, 3, 2))
    model.feature_stats.set(model.feature_stats.values.unwhitened)
    stream = progmem.Stream(model, batch_size=2, features=True)
    assert not stream.features()[:, 16:].any()
    x = gappy(2, 100)
    parts = [stream.push(piece) for piece in x.split(11, dim=1)]
    so_far = join(parts)
    expected = all_scales(so_far, x, model.feature_stats.values)
    torch.testing.assert_close(stream.features(), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("windows", ["cover", "floor"])
def test_float32_streams_agree_to_1e_5(windows):
    cfg = progmem.ModelConfig(channels=2, size="tiny", windows=windows)
    model = progmem.PMT(cfg)
    x = gappy(2, 700).float()
    stream = progmem.Stream(model, batch_size=2)
    parts = [stream.push(piece) for piece in x.split(23, dim=1)] + [stream.finish()]
    assert_same(join(parts), model.encode(x), atol=1e-5)


@pytest.mark.parametrize("chunk", [1, 7, 64, 1000])
@pytest.mark.parametrize("geometry", [(6, 3, 2), (7, 2, 1), (5, 5, 0)], ids=str)
@pytest.mark.parametrize("windows", ["cover", "floor"])
def test_chunked_encoding_gives_what_the_whole_gives(chunk, geometry, windows):
    model = make_model(*geometry, windows=windows)
    x = gappy(3, 75)
    assert_same(model.encode(x, chunk=chunk), model.encode(x), atol=1e-10)
    series = [x[0, :56], x[1], x[2, :19], x[1, 5:61]]
    assert_same(model.encode(series, chunk=chunk), model.encode(series), atol=1e-10)


@pytest.mark.parametrize("stride, latency", [(4, 4), (8, 0)])
def test_a_token_waits_for_at_most_a_stride_at_any_depth(stride, latency):
    """W = 2S: S tokens at depth 6; S = W: none."""
    cfg = progmem.ModelConfig(
        channels=1, dim=16, heads=2, blocks=6, window=8, stride=stride, patch=2, patch_stride=1
    )
    stream = progmem.Stream(progmem.PMT(cfg))
    waiting = []
    for sample in torch.randn(60, 1, 1, 1):
        stream.push(sample)
        waiting.append(stream.backbone.seen - stream.tokens)
    assert max(waiting) == latency


@pytest.mark.parametrize("odd", [lambda x: x.astype(">f4"), lambda x: x[:, ::-1][:, ::-1]])
def test_a_stream_takes_the_arrays_that_encode_takes(odd):
    model = make_model(6, 3, 2)
    x = np.random.default_rng(0).normal(size=(1, 50, 2)).astype(np.float32)
    tokens = progmem.Stream(model).push(odd(x)).tokens
    assert torch.equal(tokens, progmem.Stream(model).push(torch.from_numpy(x)).tokens)


def test_a_stream_runs_in_eval_mode_and_leaves_the_mode_alone():
    model = make_model(6, 3, 2, dropout=0.5).train()
    model.blocks.eval()
    x = gappy(1, 80)
    before = x.clone()
    parts = [progmem.Stream(model).push(x) for _ in range(2)]
    assert torch.equal(parts[0].tokens, parts[1].tokens)
    assert model.training and not model.blocks[0].training
    torch.testing.assert_close(x, before, rtol=0, atol=0, equal_nan=True)


def test_streams_work_under_autocast_and_inference_mode():
    model = progmem.PMT(progmem.ModelConfig(channels=2, size="tiny"))
    x = torch.randn(1, 200, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        stream = progmem.Stream(model)
        assert stream.push(x).tokens.isfinite().all()
    with torch.inference_mode():
        stream = progmem.Stream(model)
        stream.push(x[:, :50])
    stream.push(x[:, 50:])
    assert stream.finish().sequence.isfinite().all()


def test_a_stream_shorter_than_a_patch_gives_nothing_but_ends():
    stream = progmem.Stream(make_model(6, 3, 2))
    assert stream.push(torch.zeros(1, 2, 2)).tokens.shape == (1, 0, 16)
    end = stream.finish()
    assert end.tokens.shape == (1, 0, 16) and end.memory.shape == (1, 0, 2, 16)


def test_series_too_long_for_one_piece_are_chunked_by_themselves(monkeypatch):
    monkeypatch.setattr("progmem.model.pmt.SAMPLES_AT_ONCE", 100)
    monkeypatch.setattr("progmem.model.pmt.SHORTEST_CHUNK", 30)
    calls = []
    push = progmem.streaming.block_stream.BackboneStream.push

    def counted(self, x, observed, *, ended=False):
        calls.append(x.shape[1])
        return push(self, x, observed, ended=ended)

    monkeypatch.setattr("progmem.streaming.block_stream.BackboneStream.push", counted)
    model = make_model(6, 3, 2)
    x = gappy(2, 120)
    z = model.encode(x)
    assert calls == [50, 50, 20]
    short = model.encode(x[:, :80])  # one at a time instead
    assert len(calls) == 3 and short.tokens.shape[0] == 2
    assert_same(z, model.encode(x, chunk=120), atol=1e-10)
