"""Pushes that are captured and replayed give what plain ones give.

A CUDA graph is stood in for by a tape: every operation with the very tensors it read and wrote,
done again on the same memory. As with a graph, no Python runs in a replay.
"""

import pytest
import torch
from model_setup import make_model
from stream_setup import assert_same, change_weights, cut_up, gappy, join
from tape import Tape

import progmem
from progmem.features import all_scales
from progmem.pooling import fit_feature_stats
from progmem.streaming.graphed_push import MAX_GRAPHS, GraphedPush


class TapeCapture:
    """A ``capture`` that counts."""

    def __init__(self):
        self.tapes = self.replays = 0

    def __call__(self, run):
        for _ in range(2):
            run()  # warm-up
        self.tapes += 1
        with Tape() as tape:
            levels = run()

        def replay():
            self.replays += 1
            tape.play()
            return levels

        return replay


def with_capture(stream):
    stream.graphed_push = GraphedPush(stream.model, TapeCapture())
    return stream


def stride_of(model):
    return model.cfg.stride * model.cfg.patch_stride


@pytest.mark.parametrize(
    "geometry, windows",
    [((6, 3, 2), "cover"), ((8, 3, 1), "cover"), ((8, 3, 1), "floor"), ((5, 5, 2), "cover"),
     ((6, 3, 0), "cover"), ((4, 1, 1), "cover")],
)  # fmt: skip
def test_replayed_pushes_give_what_the_batch_gives(geometry, windows):
    """Gaps come in while it replays; other sizes in between, deep ones too; then the end."""
    model = make_model(*geometry, windows=windows)
    stride = stride_of(model)
    sizes = [stride] * 14 + [5, 0, 1] + [stride] * 8 + [2 * stride] * 4 + [stride] * 2 + [97, 3]
    x = gappy(2, sum(sizes) + 10 * stride + 4)
    x[1, 12 * stride : 13 * stride + 2] = torch.nan
    model.feature_stats.set(fit_feature_stats(model, x))
    stream = with_capture(progmem.Stream(model, batch_size=2, horizon=500, features=True))
    parts = [stream.push(piece) for piece in cut_up(x, [*sizes, *[stride] * 9])]
    parts.append(stream.finish())
    assert stream.graphed_push.capture.replays > 15
    assert stream.samples == x.shape[1]
    whole = model.encode(x)
    assert_same(join(parts), whole, atol=1e-10)
    expected = all_scales(whole, x, model.feature_stats.values)
    torch.testing.assert_close(stream.features(), expected, rtol=0, atol=1e-10)


def test_replayed_pushes_see_the_horizon_move_on():
    model = make_model(6, 3, 2)
    x = gappy(1, 30 * stride_of(model))
    plain, replayed = (
        progmem.Stream(model, horizon=20),
        with_capture(progmem.Stream(model, horizon=20)),
    )
    for piece in x.split(stride_of(model), dim=1):
        assert_same(replayed.push(piece), plain.push(piece), atol=1e-12)
    assert replayed.graphed_push.capture.replays > 20


def test_a_replaying_stream_can_be_saved_and_restored():
    model = make_model(6, 3, 2)
    x = gappy(1, 40 * stride_of(model))
    stream, parts, replays = progmem.Stream(model), [], 0
    for i, piece in enumerate(x.split(stride_of(model), dim=1)):
        if i % 13 == 0:
            stream = with_capture(progmem.Stream.restore(model, stream.state_dict()))
        parts.append(stream.push(piece))
        replays += stream.graphed_push.capture.replays > 0
    parts.append(stream.finish())
    assert replays > 20
    assert_same(join(parts), model.encode(x), atol=1e-10)


def test_a_saved_state_is_not_touched_by_later_replays():
    model = make_model(6, 3, 2)
    stream = with_capture(progmem.Stream(model))
    pieces = gappy(1, 20 * stride_of(model)).split(stride_of(model), dim=1)
    for piece in pieces[:-1]:
        stream.push(piece)
    state = stream.state_dict()
    first = stream.push(pieces[-1])
    assert_same(progmem.Stream.restore(model, state).push(pieces[-1]), first, atol=1e-12)


@pytest.mark.parametrize("moves", [False, True])
def test_replays_see_weights_that_change_or_move(moves):
    model = make_model(6, 3, 2)
    plain, replayed = progmem.Stream(model), with_capture(progmem.Stream(model))
    pieces = gappy(1, 40 * stride_of(model)).split(stride_of(model), dim=1)
    for i, piece in enumerate(pieces):
        if i == 20:
            change_weights(model, moves=moves)
        assert_same(replayed.push(piece), plain.push(piece), atol=1e-12)
    assert replayed.graphed_push.capture.tapes == (2 if moves else 1)


def test_a_refused_chunk_leaves_a_replaying_stream_as_it_was():
    model = make_model(6, 3, 2)
    stride = stride_of(model)
    x = gappy(1, 20 * stride)
    stream, parts = with_capture(progmem.Stream(model)), []
    for piece in x.split(stride, dim=1):
        bad = piece.clone()
        bad[0, 2, 1] = torch.inf
        with pytest.raises(progmem.InputError, match=f"sample {stream.samples + 2}, channel 1 is"):
            stream.push(bad)
        parts.append(stream.push(piece))
    assert stream.graphed_push.capture.replays > 5
    assert_same(join([*parts, stream.finish()]), model.encode(x), atol=1e-10)


def test_values_that_are_not_finite_are_refused_in_a_replay():
    model = make_model(6, 3, 2)
    stream = with_capture(progmem.Stream(model))
    pieces = torch.randn(1, 20 * stride_of(model), 2).split(stride_of(model), dim=1)
    for piece in pieces[:-1]:
        stream.push(piece)
    assert stream.graphed_push.capture.replays > 5
    with torch.no_grad():
        model.encoder.norm.weight.fill_(torch.inf)
    with pytest.raises(progmem.InputError, match="gave values that are not finite"):
        stream.push(pieces[-1])


def test_pushes_under_autocast_are_plain_ones():
    model = make_model(6, 3, 2).float()
    stream = with_capture(progmem.Stream(model))
    x = torch.randn(1, stride_of(model), 2)
    for _ in range(20):
        stream.push(x)
    replays = stream.graphed_push.capture.replays
    with torch.autocast("cpu", dtype=torch.bfloat16):
        stream.push(x)
    assert stream.graphed_push.capture.replays == replays > 0
    stream.push(x)


def test_a_stream_keeps_few_graphs_however_many_sizes_come():
    model = make_model(6, 3, 2)
    sizes = [n * stride_of(model) for n in (4, 1, 2, 3, 5, 4, 1) for _ in range(3)]
    x = gappy(1, sum(sizes))
    stream = with_capture(progmem.Stream(model))
    parts = [stream.push(piece) for piece in cut_up(x, sizes)]
    assert len(stream.graphed_push.captured) == MAX_GRAPHS < stream.graphed_push.capture.tapes
    assert_same(join([*parts, stream.finish()]), model.encode(x), atol=1e-10)


def test_a_stream_on_the_cpu_records_nothing():
    assert progmem.Stream(make_model(6, 3, 2)).graphed_push is None
