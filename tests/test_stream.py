"""A stream gives what the whole series gives, however it is cut, in memory that does not grow."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from test_reference import make_model

import progmem

LEVELS = ("tokens", "memory", "token_mask", "window_mask")


def cut_up(x, sizes):
    pieces, start = [], 0
    for size in sizes:
        pieces.append(x[:, start : start + size])
        start += size
    return [*pieces, x[:, start:]]


def join(parts):
    """One Encoding of all that a stream gave out."""
    levels = [name for name in LEVELS if getattr(parts[-1], name) is not None]
    joined = {name: torch.cat([getattr(p, name) for p in parts], dim=1) for name in levels}
    spans = {n: torch.cat([getattr(p, n) for p in parts]) for n in ("token_spans", "window_spans")}
    return parts[-1]._replace(**joined, **spans)


def assert_same(streamed, whole, atol):
    for name, ours in streamed._asdict().items():
        theirs = getattr(whole, name)
        if ours is None or theirs is None:
            assert ours is theirs, name
            continue
        assert ours.shape == theirs.shape, name
        if ours.is_floating_point():
            torch.testing.assert_close(ours, theirs, rtol=0, atol=atol)
        else:
            assert torch.equal(ours, theirs), name


def gappy(batch, length, generator=None):
    x = torch.randn(batch, length, 2, generator=generator).double()
    x[0, length // 4 : length // 2] = torch.nan
    x[-1, -(length // 5) :, 0] = torch.nan
    return x


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    sizes=st.lists(st.sampled_from([0, 1, 1, 2, 3, 5, 8, 13, 40]), max_size=25),
    length=st.integers(1, 150),
    batch=st.sampled_from([1, 3]),
    geometry=st.sampled_from(
        [(6, 3, 2), (8, 3, 1), (5, 5, 2), (7, 2, 3), (4, 1, 1), (6, 3, 0), (1, 1, 1)]
    ),
    readout=st.sampled_from(["carry", "block"]),
)
def test_a_stream_gives_what_the_whole_series_gives(sizes, length, batch, geometry, readout):
    torch.manual_seed(length)
    model = make_model(*geometry, readout=readout, blocks=3)
    x = gappy(batch, length + model.cfg.patch)
    stream = progmem.Stream(model, batch_size=batch)
    parts = [stream.push(piece) for piece in cut_up(x, sizes)]
    parts.append(stream.finish())
    assert_same(join(parts), model.encode(x), atol=1e-10)


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
    x = gappy(3, 200)
    assert_same(model.encode(x, chunk=chunk), model.encode(x), atol=1e-10)
    series = [x[0, :150], x[1], x[2, :30], x[1, 5:155]]
    assert_same(model.encode(series, chunk=chunk), model.encode(series), atol=1e-10)


@pytest.mark.parametrize("stride, latency", [(4, 4), (8, 0)])
def test_a_token_waits_for_at_most_a_stride_at_any_depth(stride, latency):
    """W = 2S: S tokens at depth 6; S = W: none."""
    cfg = progmem.ModelConfig(
        channels=1, dim=16, heads=2, blocks=6, window=8, stride=stride, patch=2, patch_stride=1
    )
    stream = progmem.Stream(progmem.PMT(cfg))
    waiting = []
    for sample in torch.randn(120, 1, 1, 1):
        stream.push(sample)
        waiting.append(stream.backbone.seen - stream.tokens)
    assert max(waiting) == latency


@pytest.mark.parametrize("odd", [lambda x: x.astype(">f4"), lambda x: x[:, ::-1][:, ::-1]])
def test_a_stream_takes_the_arrays_that_encode_takes(odd):
    model = make_model(6, 3, 2)
    x = np.random.default_rng(0).normal(size=(1, 50, 2)).astype(np.float32)
    tokens = progmem.Stream(model).push(odd(x)).tokens
    assert torch.equal(tokens, progmem.Stream(model).push(torch.from_numpy(x)).tokens)


def test_a_stream_goes_on_in_another_process(tmp_path):
    model = make_model(6, 3, 2)
    model.save(tmp_path / "model")
    x = gappy(3, 120)
    stream = progmem.Stream(model, batch_size=3, horizon=100)
    parts = [stream.push(x[:, :50])]
    save_file(stream.state_dict(), tmp_path / "state.safetensors")
    save_file({"x": x[:, 50:].contiguous()}, tmp_path / "rest.safetensors")
    program = (
        "import sys, progmem, torch\n"
        "from safetensors.torch import load_file, save_file\n"
        "model = progmem.load('model')\n"
        "stream = progmem.Stream.restore(model, load_file('state.safetensors'))\n"
        "parts = [stream.push(load_file('rest.safetensors')['x']), stream.finish()]\n"
        "save_file({f'{i}.{n}': t.contiguous() for i, p in enumerate(parts)"
        " for n, t in p._asdict().items()}, 'out.safetensors')\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path)
    out = load_file(tmp_path / "out.safetensors")
    parts += [
        progmem.Encoding(**{n: out[f"{i}.{n}"] for n in progmem.Encoding._fields}) for i in (0, 1)
    ]
    assert_same(join(parts), model.encode(x), atol=1e-10)


def test_taking_a_state_does_not_disturb_the_stream_it_was_taken_from():
    model = make_model(6, 3, 2)
    x = gappy(1, 80)
    stream = progmem.Stream(model)
    stream.push(x[:, :33])
    state = stream.state_dict()
    first = stream.push(x[:, 33:])
    again = progmem.Stream.restore(model, state).push(x[:, 33:])
    assert_same(again, first, atol=0)


def test_token_20_million_is_like_token_20():
    """Positions are relative: only the spans tell how long a stream has run."""
    model = progmem.PMT(progmem.ModelConfig(channels=2, size="tiny"))
    x = torch.randn(1, 400, 2)
    early = progmem.Stream(model)
    early.push(torch.full((1, 20 * 2, 2), torch.nan))
    late = progmem.Stream(model)
    late.push(torch.full((1, 20 * 2, 2), torch.nan))
    state = late.state_dict()
    jump = 20_000_000  # tokens, a multiple of the stride
    for name in state:
        if name in ("tokens", "seen") or name.endswith(".emitted"):
            state[name] += jump
        elif name == "windows" or name.endswith(".window"):
            state[name] += jump // model.cfg.stride
        elif name == "samples":
            state[name] += jump * model.cfg.patch_stride
    late = progmem.Stream.restore(model, state)
    a, b = ([s.push(x), s.finish()] for s in (early, late))
    a, b = join(a), join(b)
    for name in ("tokens", "memory", "sequence", "eos"):
        torch.testing.assert_close(getattr(a, name), getattr(b, name), rtol=0, atol=1e-4)
    assert torch.equal(b.token_spans - a.token_spans, torch.full_like(a.token_spans, 2 * jump))


def test_a_push_longer_than_the_horizon_leaves_what_small_pushes_leave():
    model = make_model(6, 3, 2)
    x = gappy(1, 203)
    once, often = progmem.Stream(model, horizon=20), progmem.Stream(model, horizon=20)
    whole = once.push(x)
    for piece in x.split(9, dim=1):
        last = often.push(piece)
    torch.testing.assert_close(whole.sequence, last.sequence, rtol=0, atol=1e-12)


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


def test_a_stream_keeps_its_end_and_its_sequence_when_it_is_restored():
    model = make_model(6, 3, 2)
    stream = progmem.Stream(model)
    first = stream.push(gappy(1, 60))
    again = progmem.Stream.restore(model, stream.state_dict()).push(torch.zeros(1, 0, 2))
    assert torch.equal(again.sequence, first.sequence) and torch.equal(again.eos, first.eos)
    again.sequence.zero_()  # the caller's own
    assert stream.push(torch.zeros(1, 0, 2)).sequence.any()
    stream.finish()
    ended = progmem.Stream.restore(model, stream.state_dict())
    with pytest.raises(progmem.InputError, match="the stream has ended"):
        ended.push(torch.zeros(1, 5, 2))


def test_a_stream_shorter_than_a_patch_gives_nothing_but_ends():
    stream = progmem.Stream(make_model(6, 3, 2))
    assert stream.push(torch.zeros(1, 2, 2)).tokens.shape == (1, 0, 16)
    end = stream.finish()
    assert end.tokens.shape == (1, 0, 16) and end.memory.shape == (1, 0, 2, 16)


def test_a_long_push_is_not_kept_alive_by_what_is_left_of_it():
    stream = progmem.Stream(make_model(6, 3, 2), horizon=10)
    stream.push(torch.randn(1, 20_000, 2))
    held = [t for b in stream.backbone.blocks for t in vars(b.state).values()]
    held += [stream.backbone.x, *stream.before[0], *vars(stream.recent.rings[0]).values()]
    sizes = [t.untyped_storage().nbytes() for t in held if isinstance(t, torch.Tensor)]
    assert sum(sizes) < 100_000


def test_the_sequence_of_a_stream_is_cls_over_the_horizon():
    """Beyond the horizon old tokens leave CLS's view."""
    model = make_model(5, 5, 0)
    x = torch.randn(1, 203, 2).double()
    stream = progmem.Stream(model, horizon=20)
    sequence = [stream.push(piece).sequence for piece in x.split(7, dim=1)][-1]
    # CLS by hand over the last 20 tokens of each layer
    tokens, _ = model.tokenizer(x)
    keys, encoder = [], model.encoder
    for block in model.pma_blocks:
        tokens = _run_block(model, block, tokens, model.tokenizer(x)[0])
    for layer in encoder.attention_layers:
        valid = torch.ones(tokens.shape[:2], dtype=torch.bool)
        tokens, made = encoder.refine(layer, tokens, valid, encoder.no_keys(tokens, encoder.reach))
        keys.append(encoder.no_keys(tokens, 20).moved_on(made))
    cls = encoder.start(1)
    for layer, last in zip(encoder.attention_layers, keys, strict=True):
        cls = encoder.summarise(layer, cls, last)
    torch.testing.assert_close(sequence, encoder.norm(cls).squeeze(1), rtol=0, atol=1e-12)


def _run_block(model, block, tokens, signal):
    from progmem.model.geometry import count_windows
    from progmem.model.pma import lay_out

    K = tokens.shape[1]
    layout = lay_out(
        model.cfg,
        torch.ones(1, K, dtype=torch.bool),
        torch.tensor([K]),
        count_windows(model.cfg, K),
        gaps=False,
    )
    return block(tokens, signal, None, layout)[0]


def test_what_a_stream_holds_does_not_grow():
    stream = progmem.Stream(progmem.PMT(progmem.ModelConfig(channels=1, size="tiny")), horizon=50)
    sizes = []
    for _ in range(20):
        stream.push(torch.randn(1, 160, 1))  # ten strides of tokens
        sizes.append(sum(t.numel() for t in stream.state_dict().values()))
    assert len(set(sizes[1:])) == 1


@pytest.mark.slow
def test_two_million_samples_in_bounded_memory():
    cfg = progmem.ModelConfig(
        channels=1, dim=16, heads=2, blocks=2, window=32, stride=16, patch=16, patch_stride=8
    )
    stream = progmem.Stream(progmem.PMT(cfg), horizon=256)
    resident, held = [], []
    for i in range(500):
        stream.push(torch.randn(1, 4096, 1))
        if i >= 100 and i % 20 == 0:
            resident.append(_resident_bytes())
            held.append(sum(t.numel() for t in stream.state_dict().values()))
    assert stream.samples == 500 * 4096 > 2_000_000
    assert len(set(held)) == 1
    x = torch.arange(len(resident), dtype=torch.float64)
    y = torch.tensor(resident, dtype=torch.float64) / 2**20
    slope = ((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum()
    assert slope * len(resident) < 1  # MB over the whole run


def _resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_series_too_long_for_one_piece_are_chunked_by_themselves(monkeypatch):
    monkeypatch.setattr("progmem.model.pmt.SAMPLES_AT_ONCE", 100)
    monkeypatch.setattr("progmem.model.pmt.SHORTEST_CHUNK", 30)
    calls = []
    push = progmem.model.backbone_stream.BackboneStream.push

    def counted(self, x, observed, *, ended=False):
        calls.append(x.shape[1])
        return push(self, x, observed, ended=ended)

    monkeypatch.setattr("progmem.model.backbone_stream.BackboneStream.push", counted)
    model = make_model(6, 3, 2)
    x = gappy(2, 120)
    z = model.encode(x)
    assert calls == [50, 50, 20]
    short = model.encode(x[:, :80])  # one at a time instead
    assert len(calls) == 3 and short.tokens.shape[0] == 2
    assert_same(z, model.encode(x, chunk=120), atol=1e-10)
