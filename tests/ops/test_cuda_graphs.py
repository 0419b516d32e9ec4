"""Batches of one shape that are captured and replayed give what plain ones give.

A tape stands in for the CUDA graph, as in test_graphed_push.
"""

import gc
import weakref

import pytest
import torch
from model_setup import make_model
from stream_setup import assert_same, gappy
from tape import Tape

import progmem
from progmem.model.pmt import SAMPLES_AT_ONCE, samples_at_once
from progmem.ops import cuda_graphs


class Graph:
    def __init__(self, tape, done):
        self.tape, self.done = tape, done

    def replay(self):
        self.done.append("replay")
        self.tape.play()


@pytest.fixture
def done(monkeypatch):
    """What was done in place of plain forwards, once `encode` believes to be on a GPU."""
    done = []

    def warm_up(call, times, *, device):
        done.append("warm-up")
        for _ in range(times):
            result = call()
        return result

    def capture(call, *, device):
        done.append("capture")
        with Tape() as tape:
            result = call()
        done.append(weakref.ref(result.tokens))
        return Graph(tape, done), result

    monkeypatch.setattr(cuda_graphs, "warm_up", warm_up)
    monkeypatch.setattr(cuda_graphs, "capture", capture)
    monkeypatch.setattr(cuda_graphs, "on_gpu", lambda _: True)
    return done


def words(done):
    return [entry for entry in done if isinstance(entry, str)]


@pytest.mark.parametrize("geometry", [(6, 3, 2), (8, 3, 1), (6, 3, 0)], ids=str)
def test_batches_of_one_shape_are_captured_once_and_replayed(done, geometry, monkeypatch):
    model, x = make_model(*geometry), torch.randn(9, 60, 2)
    z = model.encode(x, batch_size=2)  # the ninth alone is another shape
    assert words(done) == ["warm-up", "capture", "replay", "replay", "replay"]
    monkeypatch.undo()
    assert_same(z, model.encode(x, batch_size=2), atol=1e-12)


def test_a_shape_that_comes_twice_runs_plainly(done):
    make_model(6, 3, 2).encode(torch.randn(5, 60, 2), batch_size=2)
    assert done == []


def test_a_hook_is_called_for_every_batch(done):
    model, seen = make_model(6, 3, 2), []
    model.blocks[1].register_forward_hook(lambda *_: seen.append(1))
    model.encode(torch.randn(8, 60, 2), batch_size=2)
    assert not done and len(seen) == 4


def test_without_a_gpu_every_batch_runs_plainly(done, monkeypatch):
    monkeypatch.setattr(cuda_graphs, "on_gpu", lambda x: x.is_cuda)
    make_model(6, 3, 2).encode(torch.randn(8, 60, 2), batch_size=2)
    assert done == []


def test_gaps_and_lengths_have_graphs_of_their_own(done, monkeypatch):
    """Pairs: complete, with gaps, of unequal lengths; three or more of each, mixed."""
    model, series = make_model(6, 3, 2), []
    for i in range(12):
        x = gappy(2, 60) if i % 3 == 1 else torch.randn(2, 60, 2)
        series += [x[0], x[1][: 41 + i] if i % 3 == 2 else x[1]]
    monkeypatch.setattr(cuda_graphs, "MAX_GRAPHS", 3)
    z = model.encode(series, batch_size=2)
    assert words(done).count("capture") == 3 and words(done).count("replay") > 6
    monkeypatch.setattr(
        cuda_graphs, "MAX_GRAPHS", 1
    )  # one drives the other out, and nothing changes
    few = model.encode(series, batch_size=2)
    monkeypatch.undo()
    plain = model.encode(series, batch_size=2)
    assert_same(z, plain, atol=1e-12)
    assert_same(few, plain, atol=1e-12)


def test_autocast_is_captured_and_keeps_no_weights_for_the_graph(done, monkeypatch):
    model, x = make_model(6, 3, 2).float(), torch.randn(8, 60, 2)
    caches = []
    forward = model.forward

    def looked(*args, **kwargs):
        caches.append(torch.is_autocast_cache_enabled())
        return forward(*args, **kwargs)

    monkeypatch.setattr(model, "forward", looked)
    with torch.autocast("cpu", torch.bfloat16):
        z = model.encode(x, batch_size=2)
        assert torch.is_autocast_cache_enabled() and caches == [False, False]
        monkeypatch.undo()
        plain = model.encode(x, batch_size=2)
    assert words(done).count("replay") == 3
    assert_same(z, plain, atol=1e-6)
    assert not torch.equal(plain.tokens, model.encode(x, batch_size=2).tokens)


def test_nothing_of_a_graph_outlives_the_call(done):
    make_model(6, 3, 2).encode(torch.randn(8, 60, 2), batch_size=2)  # what torch keeps of a first
    done.clear()
    gc.disable()
    try:
        make_model(6, 3, 2).encode(torch.randn(8, 60, 2), batch_size=2)
        kept = [entry() for entry in done if not isinstance(entry, str)]
    finally:
        gc.enable()
    assert kept == [None]


def test_many_short_series_are_one_batch_on_a_gpu_unless_a_number_is_given(monkeypatch):
    model, sizes = make_model(6, 3, 2), []
    forward = model.forward
    monkeypatch.setattr(
        model, "forward", lambda x, *a, **k: sizes.append(len(x)) or forward(x, *a, **k)
    )
    x = torch.randn(150, 30, 2)
    plain = model.encode(x)
    monkeypatch.setattr(cuda_graphs, "on_gpu", lambda _: True)
    monkeypatch.setattr(cuda_graphs, "graphed_forward", lambda model, _: model)
    assert_same(model.encode(x), plain, atol=1e-6)
    model.encode(x, batch_size=100)
    assert sizes == [64, 64, 22, 150, 100, 50]


def test_a_gpu_takes_longer_series_whole(monkeypatch):
    cfg, like = progmem.ModelConfig(channels=1, patch=16, patch_stride=8), torch.zeros(1)
    assert samples_at_once(like, cfg) == SAMPLES_AT_ONCE
    monkeypatch.setattr(cuda_graphs, "on_gpu", lambda _: True)
    assert samples_at_once(like, cfg) >= 8 * 100_000
    wide = progmem.ModelConfig(channels=1, patch=16, patch_stride=8, dim=640, heads=8)
    assert samples_at_once(like, wide) == samples_at_once(like, cfg) // 2
