"""The same numbers on a GPU. Skipped where there is none."""

from functools import partial

import numpy as np
import pytest
import torch
from forecast_setup import daily_waves, dated, hours, small_model
from stream_setup import assert_same, change_weights, cut_up, gappy, join

import progmem
from progmem.cli import main
from progmem.data.forecast_sets import as_forecast
from progmem.features import all_scales
from progmem.model.encode import encode_in_chunks
from progmem.pooling import fit_feature_stats
from progmem.probes.forecast import probe_forecast

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}


@pytest.fixture(params=[(6, 3, 2), (8, 3, 1), (5, 5, 2), (6, 3, 0)], ids=str)
def model(request):
    window, stride, slots = request.param
    cfg = progmem.ModelConfig(
        channels=2, size="tiny", window=window, stride=stride, slots=slots, patch=4, patch_stride=2
    )
    return progmem.PMT(cfg)


def on_cpu(encoding):
    return progmem.Encoding(*(None if t is None else t.cpu() for t in encoding))


def test_embed_takes_the_gpu_and_writes_what_the_cpu_gives(model, tmp_path, monkeypatch):
    on_gpu = []

    def noted(model, *given, **more):
        on_gpu.append(model.encoder.cls.is_cuda)
        encode_in_chunks(model, *given, **more)

    monkeypatch.setattr("progmem.embed.encode_in_chunks", noted)
    x = gappy(3, 301).numpy()
    np.save(tmp_path / "x.npy", x)
    model.feature_stats.set(fit_feature_stats(model, x))
    model.save(tmp_path / "model")
    command = ["embed", str(tmp_path / "model"), str(tmp_path / "x.npy")]
    assert main([*command, "-o", str(tmp_path / "out")]) == 0
    assert on_gpu == [True]  # all three at once
    expected = model.encode(x)
    for name in ("tokens", "memory", "sequence", "eos"):
        if (values := getattr(expected, name)) is not None:
            found = np.load(tmp_path / "out" / f"{name}.npy").reshape(values.shape)
            np.testing.assert_allclose(found, values, atol=TOLERANCE[torch.float32])
    every = all_scales(expected, torch.from_numpy(x), model.feature_stats.values)
    np.testing.assert_allclose(np.load(tmp_path / "out/all.npy"), every, atol=1e-3)


def test_an_encoder_trained_on_the_gpu_gives_its_features_on_both():
    from estimator_setup import made, small

    encoder = small(device="cuda").fit(made())
    found = encoder.transform(made())
    assert encoder.model_.feature_stats.median.is_cuda
    encoder.device = "cpu"
    np.testing.assert_allclose(encoder.transform(made()), found, atol=1e-3)


def test_a_probe_fitted_on_the_gpu_predicts_on_the_cpu(tmp_path):
    from probe_setup import waves

    from progmem.probes.own_data import LabelProbe

    model = progmem.PMT(progmem.ModelConfig.for_length(60, 2, dim=32, heads=2, blocks=1))
    (x, y), (new, _) = waves(20, 0), waves(6, 1)
    model.feature_stats.set(fit_feature_stats(model, x))
    probe = LabelProbe(model.cuda()).fit(x, y)
    labels = probe.predict(new).label
    probe.save(tmp_path / "p")
    again = LabelProbe.load(tmp_path / "p", model.cpu())
    np.testing.assert_array_equal(again.predict(new).label, labels)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_the_gpu_gives_what_the_cpu_gives(model, dtype):
    x = gappy(3, 301)
    expected = model.to(dtype).encode(x)
    assert_same(model.cuda().encode(x), expected, atol=TOLERANCE[dtype])
    assert_same(model.encode(x, chunk=50), expected, atol=TOLERANCE[dtype])
    assert model.encode(x.cuda()).tokens.is_cuda


def test_a_stream_on_the_gpu_gives_what_the_batch_gives(model):
    model = model.double().cuda()
    x = gappy(2, 301)
    stream = progmem.Stream(model, batch_size=2)
    parts = [stream.push(piece) for piece in x.split(17, dim=1)] + [stream.finish()]
    parts = [on_cpu(part) for part in parts]
    assert_same(join(parts), model.encode(x), atol=1e-10)


def test_gradients_on_the_gpu_are_those_on_the_cpu(model):
    x = torch.randn(4, 301, 2).double()
    grads = []
    for device in ("cpu", "cuda"):
        model = model.double().to(device)
        model.zero_grad()
        z = model(x.to(device))
        sum(t.square().sum() for t in (z.tokens, z.memory, z.sequence) if t is not None).backward()
        named = model.named_parameters()
        grads.append({n: p.grad.cpu().clone() for n, p in named if p.grad is not None})
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-8, atol=1e-8)


def test_bf16_autocast_on_the_gpu_keeps_the_memory_in_float32(model):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        z = model.cuda()(torch.randn(4, 301, 2, device="cuda"))
    assert z.memory is None or z.memory.dtype == torch.float32
    assert z.tokens.isfinite().all()


def test_a_forecast_on_the_gpu_is_that_of_the_cpu():
    forecasts = []
    for device in ("cpu", "cuda"):
        forecaster = progmem.PMTForecaster(small_model(9).double().to(device), context=30)
        forecaster.fit(daily_waves(300, 2), hours(300))
        forecasts.append(forecaster.predict(24))
        data = as_forecast(dated(), "made", "joint")
        scores = probe_forecast(small_model(9).double().to(device), data, horizons=[3], padding=10)
        forecasts.append(scores["scores"]["3"]["ridge"]["test"]["mse"])
    np.testing.assert_allclose(forecasts[2], forecasts[0], rtol=1e-4)
    assert forecasts[3] == pytest.approx(forecasts[1], rel=1e-4)


def test_labels_are_learnt_on_the_gpu_and_a_resumed_run_goes_on(tmp_path):
    from finetune_setup import config, made, without_last_checkpoint

    from progmem.training.finetune import finetune

    cfg = config("train.device=cuda", "train.epochs=12", "train.lr=2e-3", "finetune.views=weak")
    _, result = finetune(made(), tmp_path / "run", cfg, log=None)
    assert result["rows"][0]["scores"]["accuracy"] == 1.0
    without_last_checkpoint(tmp_path / "run")
    said = []
    _, again = finetune(made(), tmp_path / "run", cfg, log=said.append)
    assert any("going on from step" in line for line in said)
    assert again["rows"][0]["scores"]["accuracy"] == 1.0


def test_cues_are_told_on_the_gpu_as_on_the_cpu():
    from probe_setup import noise, small

    from progmem.probes.cue import eos_features

    encoder = progmem.PMT(small())
    expected = eos_features(encoder, noise())
    torch.testing.assert_close(
        torch.from_numpy(eos_features(encoder.cuda(), noise())), torch.from_numpy(expected),
        rtol=1e-4, atol=1e-4,
    )  # fmt: skip


@pytest.mark.parametrize("autocast, atol", [(False, 1e-5), (True, 0.02)])
@pytest.mark.parametrize("kind", ["complete", "gaps", "lengths"])
@pytest.mark.parametrize("window", [6, 40])  # short, long
def test_batches_replayed_by_encode_give_what_plain_ones_give(
    window, kind, autocast, atol, monkeypatch
):
    from progmem.ops import cuda_graphs

    cfg = progmem.ModelConfig(
        channels=2, size="tiny", window=window, stride=window // 2, slots=2, patch=4, patch_stride=2
    )
    model, x, lengths = progmem.PMT(cfg).cuda(), torch.randn(11, 500, 2), None
    if kind == "gaps":
        x[:, 100:150] = torch.nan
    if kind == "lengths":
        lengths = [500 - 7 * (i % 2) * i for i in range(11)]
    devices, capture = [], cuda_graphs.capture

    def counted(call, *, device):
        devices.append(device)
        return capture(call, device=device)

    monkeypatch.setattr(cuda_graphs, "capture", counted)
    with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
        found = model.encode(x, lengths=lengths, batch_size=2)
        assert len(devices) == 1
        here = model.encode(x.cuda(), lengths=lengths, batch_size=2)
        monkeypatch.setattr(cuda_graphs, "MIN_BATCHES", 100)
        plain = model.encode(x, lengths=lengths, batch_size=2)
    assert len(devices) == 2
    assert_same(found, plain, atol=atol)
    assert_same(on_cpu(here), plain, atol=atol)


def test_no_memory_is_held_after_batches_were_replayed(model):
    model, x = model.cuda(), torch.randn(64, 301, 2, device="cuda")
    held = []
    for _ in range(3):
        model.encode(x, batch_size=2)
        torch.cuda.synchronize()
        held.append(torch.cuda.memory_allocated())
    assert held[1] == held[2]


def test_replayed_pushes_on_the_gpu_give_what_the_batch_gives(model):
    """Other sizes in between, a state saved and restored, gaps in the replays; then the end."""
    model = model.double().cuda()
    stride = model.cfg.stride * model.cfg.patch_stride
    sizes = [stride] * 20 + [5, 0, 1] + [stride] * 15 + [2 * stride] * 5 + [stride] * 3 + [97]
    x = gappy(2, sum(sizes) + 20 * stride)
    model.feature_stats.set(fit_feature_stats(model, x))
    stream, parts = progmem.Stream(model, batch_size=2, horizon=500, features=True), []
    for piece in cut_up(x, [*sizes, *[stride] * 19]):
        parts.append(on_cpu(stream.push(piece)))
    assert len(stream.graphed_push.captured) > 1
    assert stream.graphed_push.current.holds(stream)
    stream = progmem.Stream.restore(model, stream.state_dict())
    parts.append(on_cpu(stream.finish()))
    whole = on_cpu(model.encode(x))
    assert_same(join(parts), whole, atol=1e-10)
    expected = all_scales(whole, x, model.feature_stats.values)
    torch.testing.assert_close(stream.features().cpu(), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("moves", [False, True])
def test_replays_on_the_gpu_see_weights_that_change_or_move(model, moves):
    model = model.double().cuda()
    stride = model.cfg.stride * model.cfg.patch_stride
    plain, replayed = progmem.Stream(model), progmem.Stream(model)
    plain.graphed_push = None
    for i, piece in enumerate(gappy(1, 30 * stride).split(stride, dim=1)):
        if i == 20:
            change_weights(model, moves=moves)
        assert_same(replayed.push(piece), plain.push(piece), atol=1e-10)
    assert len(replayed.graphed_push.captured) == 1 + moves


def test_replays_on_the_gpu_work_in_float32_and_bf16(model):
    for dtype, atol in ((torch.float32, 1e-4), (torch.bfloat16, 0.1)):
        model = model.cuda().to(dtype)
        stride = model.cfg.stride * model.cfg.patch_stride
        plain, replayed = progmem.Stream(model), progmem.Stream(model)
        plain.graphed_push, plain.step = None, partial(plain.step, masked=True)
        for piece in gappy(1, 25 * stride).cuda().split(stride, dim=1):
            assert_same(replayed.push(piece), plain.push(piece), atol=atol)
        assert replayed.graphed_push.current is not None


def test_a_refused_chunk_leaves_a_replaying_stream_on_the_gpu_as_it_was(model):
    model = model.double().cuda()
    stride = model.cfg.stride * model.cfg.patch_stride
    x = gappy(1, 20 * stride)
    stream, parts = progmem.Stream(model), []
    for piece in x.split(stride, dim=1):
        bad = piece.clone()
        bad[0, 0, 1] = torch.inf
        with pytest.raises(progmem.InputError, match="channel 1 is inf"):
            stream.push(bad)
        parts.append(on_cpu(stream.push(piece)))
    assert stream.graphed_push.current is not None
    parts.append(on_cpu(stream.finish()))
    assert_same(join(parts), on_cpu(model.encode(x)), atol=1e-10)


@pytest.mark.parametrize("precision", ["bf16", "32"])
def test_the_first_200_losses_are_those_of_plain_torch(precision):
    from benchmarks import training_step
    from progmem.config import read_config

    settings = [*training_step.SETTINGS, "model.size=tiny", "train.batch_size=32"]
    cfg = read_config(None, [*settings, "train.device=cuda", f"train.precision={precision}"])
    curves = []
    for begin in (training_step.begin, training_step.plain):
        training = begin(training_step.made_rows(256, cfg), cfg, 200)
        for _ in range(200):
            training.step()
        curves.append(torch.tensor([metrics.read()["loss"] for metrics in training.metrics]))
    torch.testing.assert_close(curves[0], curves[1], rtol=1e-3, atol=0)


def test_a_run_goes_on_in_parts_where_the_gpu_has_too_little_memory(tmp_path):
    """The update is first captured whole; then its memory is given back."""
    from progmem.config import read_config
    from progmem.data.recordings import Recording
    from progmem.training.pretrain import pretrain

    rng = np.random.default_rng(0)
    recordings = [Recording(str(i), rng.normal(size=(512, 3))) for i in range(512)]

    def most_memory(name, *settings):
        """The most that a run reserves, in bytes, and what it says."""
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        said = []
        shared = ["train.device=cuda", "train.batch_size=256", "train.epochs=2", "train.lr=1e-4"]
        cfg = read_config(None, ["model.size=small", *shared, *settings])
        model = pretrain(recordings, tmp_path / name, cfg, log=said.append)
        return torch.cuda.max_memory_reserved(), said, model.cpu().state_dict()

    whole, _, expected = most_memory("whole")
    parts, _, _ = most_memory("parts", "train.parts=8")
    assert parts < 0.5 * whole
    _, total = torch.cuda.mem_get_info()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((parts + whole) / 2 / total)
    try:
        _, said, found = most_memory("short")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert sum("with the same gradients" in line for line in said) == 1
    assert (tmp_path / "short/parts.json").is_file()
    for name, tensor in found.items():
        if "whitening" not in name:  # its axes may point anywhere where two are of one size
            torch.testing.assert_close(tensor, expected[name], rtol=0.05, atol=0.01)
