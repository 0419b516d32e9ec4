"""What a stream keeps: a state that can be saved, a horizon, memory that does not grow."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from model_setup import make_model
from safetensors.torch import load_file, save_file
from stream_setup import assert_same, gappy, join

import progmem
from progmem import artifact
from progmem.ops.neighbourhood_attention import Keys, attend_cls, no_keys
from progmem.pooling import fit_feature_stats


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
        " for n, t in p._asdict().items() if t is not None}, 'out.safetensors')\n"
    )
    env = os.environ | {"PYTHONPATH": str(Path(progmem.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path, env=env)
    out = load_file(tmp_path / "out.safetensors")
    parts += [
        progmem.Encoding(**{n: out.get(f"{i}.{n}") for n in progmem.Encoding._fields})
        for i in (0, 1)
    ]
    assert_same(join(parts), model.encode(x), atol=1e-10)


def test_a_kept_stream_goes_on_as_if_nothing_had_happened(tmp_path):
    for slots, at in ((2, 0), (2, 3), (2, 33), (0, 33), (2, 80)):
        model = make_model(6, 3, slots)
        x = gappy(2, 80)
        stream = progmem.Stream(model, batch_size=2, horizon=30)
        stream.push(x[:, :at])
        stream.save(tmp_path / "kept.safetensors")
        again = progmem.Stream.load(model, tmp_path / "kept.safetensors")
        assert again.samples == at and again.horizon == 30
        for one in ("push", "finish"):
            rest = (x[:, at:],) if one == "push" else ()
            assert_same(getattr(again, one)(*rest), getattr(stream, one)(*rest), atol=0)
    stream.save(tmp_path / "kept.safetensors")  # in place of the first
    assert progmem.Stream.load(model, tmp_path / "kept.safetensors").ended


def test_a_kept_stream_goes_on_with_the_statistics_its_features_were_begun_with(tmp_path):
    model = make_model(6, 3, 2)
    model.feature_stats.set(fit_feature_stats(model, gappy(3, 100)))
    x = gappy(2, 80)
    stream = progmem.Stream(model, batch_size=2, features=True)
    stream.push(x[:, :33])
    stream.save(tmp_path / "kept.safetensors")
    model.feature_stats.set(None)
    again = progmem.Stream.load(model, tmp_path / "kept.safetensors")
    for one in (stream, again):
        one.push(x[:, 33:])
        one.finish()
    assert torch.equal(again.features(), stream.features()) and stream.features().any()
    plain = progmem.Stream.restore(model, progmem.Stream(model).state_dict())
    with pytest.raises(progmem.InputError, match="keeps no features; make it with Stream"):
        plain.features()


def test_a_kept_stream_that_is_damaged_or_strange_is_refused_in_one_line(tmp_path):
    model, path = make_model(6, 3, 2), tmp_path / "kept"
    stream = progmem.Stream(model, horizon=4)
    stream.push(gappy(1, 40))
    stream.save(path)
    good = path.read_bytes()
    header = 8 + int.from_bytes(good[:8], "little")
    for place in [*range(120), *range(120, header, 41), *range(header, len(good), 97)]:
        bad = bytearray(good)
        bad[place] ^= 1
        path.write_bytes(bad)
        with pytest.raises(
            progmem.InputError, match=r"kept (is damaged|cannot be read|has format)"
        ):
            progmem.Stream.load(model, path)
    state = stream.state_dict()
    for content, message in (
        (state | {"samples": torch.tensor(-1)}, "what it counts is not what it holds"),
        ({"x": torch.ones(1)}, "not the state of a progmem Stream"),
    ):
        artifact.write(path, "stream", content, {})
        with pytest.raises(progmem.InputError, match=f"kept: .*{message}"):
            progmem.Stream.load(model, path)
    artifact.write(path, "model", state, {})
    with pytest.raises(progmem.InputError, match="kept cannot be read as a stream: it is a model"):
        progmem.Stream.load(model, path)
    with pytest.raises(progmem.InputError, match="none cannot be read: No such file"):
        progmem.Stream.load(model, tmp_path / "none")
    with pytest.raises(progmem.InputError, match="there is no folder"):
        stream.save(tmp_path / "no/kept")


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


def test_a_long_push_is_not_kept_alive_by_what_is_left_of_it():
    stream = progmem.Stream(make_model(6, 3, 2), horizon=10)
    stream.push(torch.randn(1, 4_000, 2))  # 64 kB, and their tokens 256 kB
    held = [t for b in stream.backbone.blocks for t in vars(b.state).values()]
    held += [stream.backbone.x, *stream.before[0], *vars(stream.cls_rings.rings[0]).values()]
    sizes = [t.untyped_storage().nbytes() for t in held if isinstance(t, torch.Tensor)]
    assert sum(sizes) < 20_000


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
        tokens, made = encoder.refine(layer, tokens, valid, no_keys(tokens, encoder.reach))
        keys.append(no_keys(tokens, 20).shifted_by(made))
    cls = encoder.initial_cls(1)
    for layer, last in zip(encoder.attention_layers, keys, strict=True):
        q, k, v = layer.project(cls)[1].chunk(3, dim=-1)
        seen = Keys(k, v, last.valid.new_ones(1, 1)).concat(last)
        cls = layer.attention_output(cls, attend_cls(q, *seen, heads=encoder.heads))
    torch.testing.assert_close(sequence, encoder.norm(cls).squeeze(1), rtol=0, atol=1e-12)


def _run_block(model, block, tokens, signal):
    from progmem.geometry import count_windows, window_masks

    K = tokens.shape[1]
    masks = window_masks(
        model.cfg,
        torch.ones(1, K, dtype=torch.bool),
        torch.tensor([K]),
        count_windows(model.cfg, K),
        gaps=False,
    )
    return block(tokens, signal, None, masks)[0]


def test_what_a_stream_holds_does_not_grow():
    model = progmem.PMT(progmem.ModelConfig(channels=1, size="tiny"))
    model.feature_stats.set(fit_feature_stats(model, torch.randn(2, 100, 1)))
    stream = progmem.Stream(model, horizon=50, features=True)
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
