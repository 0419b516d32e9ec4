"""Misuse of a stream gives a sentence that helps."""

import numpy as np
import pytest
import torch
from model_setup import make_model

import progmem
from progmem.pooling import fit_feature_stats


@pytest.mark.parametrize(
    "misuse, message",
    [
        (lambda m: progmem.Stream(m, 0), "batch_size must be a whole number from 1 up, got 0"),
        (lambda m: progmem.Stream(m, horizon=0), "horizon must be a whole number from 1 up"),
        (lambda m: progmem.Stream(m, 2).push(torch.zeros(1, 5, 2)), "with batch 2, got shape"),
        (lambda m: progmem.Stream(m).push(torch.zeros(5, 2)), r"must be \(batch, time, channels\)"),
        (lambda m: progmem.Stream(m).push(torch.zeros(1, 5, 3)), "model has 2 channels, got 3"),
        (lambda m: progmem.Stream(m).push(torch.zeros(1, 2, 9)), "transpose?"),
        (lambda m: _push_after_finish(m), "the stream has ended; start a new Stream"),
        (lambda m: _inf_in_second_chunk(m), "series 0, sample 12, channel 1 is inf"),
        (lambda m: progmem.Stream.restore(m, {}), "not the state of a progmem Stream"),
        (lambda m: _restore_elsewhere(m), "belongs to a model of another config"),
        (lambda m: _restore_damaged(m), "damaged: missing or unknown entries block.0.held"),
        (lambda m: _restore_cut(m, "x", 2), "damaged: x has shape"),
        (lambda m: _restore_cut(m, "block.0.memory", 1), "damaged: block.0.memory has shape"),
        (lambda m: _restore_cut(m, "layer.0.recent.valid", 1), "horizon 4096 and batch size 1 are"),
        (lambda m: _restore_with(m, horizon=10**15), "horizon 1000000000000000 and batch size"),
        (lambda m: _restore_with(m, horizon=-1), "horizon -1 and batch size 1 are not"),
        (lambda m: _restore_with(m, horizon=[4096]), "x, horizon or a ring has another shape"),
        (lambda m: _restore_with(m, horizon=2.5), "x, horizon or a ring has another shape"),
        (lambda m: _restore_with(m, x=1.0), "x, horizon or a ring has another shape"),
        (lambda m: _restore_without(m, "layer.0.recent.valid"), "entries layer.0.recent.valid"),
        (lambda m: _restore_with(m, samples=1), "what it counts is not what it holds"),
        (lambda m: _restore_with(m, seen=-3), "what it counts is not what it holds"),
        (lambda m: _restore_with(m, windows=99), "what it counts is not what it holds"),
        (lambda m: _restore_with(m, ended=2), "what it counts is not what it holds"),
        (lambda m: _restore_with(m, next=4096), "what it counts is not what it holds"),
        (lambda m: _restore_with(m, **{"block.0.done": 50}), "what it counts is not what it"),
        (lambda m: _restore_with(m, **{"block.1.window": 0}), "what it counts is not what it"),
        (lambda m: _restore_with(m, **{"block.0.emitted": 1}), "what it counts is not what it"),
        (lambda m: _restore_cut(m, "block.0.held", 1), "what it counts is not what it holds"),
        (lambda m: _restore_cut(m, "block.1.filled", 0), "what it counts is not what it holds"),
        (lambda m: _restore_longer(m, "block.1.below"), "what it counts is not what it holds"),
        (lambda m: _restore_longer(m, "block.1.copies"), "what it counts is not what it holds"),
        (lambda m: _restore_cut(m, "observed", 1), "what it counts is not what it holds"),
        (lambda m: progmem.Stream.restore(m, None), "not the state of a progmem Stream"),
        (lambda m: _restore_with_other_weights(m), "of another config, dtype or weights"),
        (
            lambda m: progmem.Stream(m, features=True),
            "no feature statistics, which the features of",
        ),
        (lambda m: progmem.Stream(m).features(), r"make it with Stream\(model, features=True\)"),
        (lambda m: _restore_summary(m, summary_count=99), "what it counts is not what it holds"),
        (lambda m: _restore_summary(m, summary_samples=51), "what it counts is not what it holds"),
        (lambda m: _restore_summary(m, summary_scale=0.0), "damaged: its feature statistics"),
        (lambda m: _restore_summary(m, **WIDE), "damaged: its feature statistics"),
        (lambda m: _restore_summary(m, summary_more=0.0), "unknown entries summary.more"),
        (lambda m: progmem.Stream(m).push("a"), "a chunk must be an array.*got str"),
        (lambda m: progmem.Stream(m).push([[[1, 2], [3]]]), "a chunk must be an array, got list"),
        (lambda m: progmem.Stream(m).push(np.array([[["a", "b"]]])), "must be real numbers"),
        (lambda m: progmem.Stream(m).push(torch.ones(1, 9, 2).to_sparse()), "is a sparse tensor"),
    ],
)
def test_misuse_of_a_stream_is_explained(misuse, message):
    with pytest.raises(progmem.InputError, match=message):
        misuse(make_model(6, 3, 2))


WIDE = {"summary_detail_dilation": 10**9}  # its samples would fill the memory


def _restore_summary(model, **changes):
    model.feature_stats.set(fit_feature_stats(model, torch.randn(2, 50, 2)))
    stream = progmem.Stream(model, features=True)
    stream.push(torch.randn(1, 50, 2))
    state = stream.state_dict()
    for name, value in changes.items():
        name = name.replace("_", ".", 1)
        like = state.get(name, torch.zeros(1))
        state[name] = torch.full_like(like, value)
    progmem.Stream.restore(model, state)


def _push_after_finish(model):
    stream = progmem.Stream(model)
    stream.finish()
    stream.push(torch.zeros(1, 5, 2))


def _inf_in_second_chunk(model):
    stream = progmem.Stream(model)
    stream.push(torch.zeros(1, 10, 2))
    x = torch.zeros(1, 5, 2)
    x[0, 2, 1] = torch.inf
    stream.push(x)


def _restore_elsewhere(model):
    progmem.Stream.restore(make_model(8, 3, 2), progmem.Stream(model).state_dict())


def _state(model):
    stream = progmem.Stream(model)
    stream.push(torch.ones(1, 60, 2))
    return stream.state_dict()


def _restore_cut(model, name, axis):
    state = _state(model)
    state[name] = state[name].narrow(axis, 0, 1)
    progmem.Stream.restore(model, state)


def _restore_longer(model, name):
    state = _state(model)
    B, held, *rest = state[name].shape
    state[name] = state[name].new_zeros(B, held + 1, *rest)
    progmem.Stream.restore(model, state)


def _restore_with(model, **changed):
    changed = {name: torch.tensor(value) for name, value in changed.items()}
    progmem.Stream.restore(model, _state(model) | changed)


def _restore_without(model, name):
    state = _state(model)
    del state[name]
    progmem.Stream.restore(model, state)


def _restore_with_other_weights(model):
    state = progmem.Stream(model).state_dict()
    with torch.no_grad():
        model.blocks[0].layer.out.weight[0, 0] += 1e-3
    progmem.Stream.restore(model, state)


def _restore_damaged(model):
    state = progmem.Stream(model).state_dict()
    del state["block.0.held"]
    progmem.Stream.restore(model, state)
