"""What every encoder of the registry promises; a new one is covered by a row of SMALL."""

import copy
import json
import re
import shutil

import numpy as np
import pytest
import torch
from finetune_setup import made
from model_setup import weighted_sum

import progmem
import progmem.explore
from progmem.baselines import ENCODERS, build, make_encoder
from progmem.baselines.cnn import CNN
from progmem.cli import main
from progmem.config import read_config, read_finetune_config
from progmem.data.recordings import Recording
from progmem.data.windows import TrainingWindows
from progmem.errors import ConfigError, InputError
from progmem.estimators import run_settings
from progmem.pooling import pool
from progmem.provenance import seen_by
from progmem.series import ChannelStats
from progmem.training.classifier import SequenceClassifier
from progmem.training.distributed import make_fabric
from progmem.training.finetune import finetune
from progmem.training.grad_cache import backward_in_parts
from progmem.training.pretrain import initial_model, make_pretrainer, model_for, pretrain
from progmem.training.trainer import compute_loss, normalises_batches

FRAME = {"dim": 16, "heads": 2, "blocks": 2, "window": 6, "stride": 3, "patch": 4,
         "patch_stride": 2}  # fmt: skip
SMALL = {  # settings by which an encoder is small
    "pmt": FRAME,
    "vanilla": FRAME,
    "windowed": FRAME,
    "windowed_state": FRAME,
    "transformer_xl": FRAME,
    "xlstm": FRAME,
    "ts2vec": {"dim": 8, "hidden": 6, "depth": 3},
    "softclt": {"dim": 8, "hidden": 6, "depth": 3},
    "tstcc": {"dim": 8, "context": 8, "ahead": 2},
    "soft_tstcc": {"dim": 8, "context": 8, "ahead": 2},
    "cpc": {"dim": 8, "context": 8, "ahead": 2},
    "simclr": {"dim": 8},
    "sslecg": {"dim": 8},
}
ONE_IS_ENOUGH = ["pmt", *(pytest.param(n, marks=pytest.mark.slow) for n in ENCODERS if n != "pmt")]
# of the largest value: a batch of another size or with gaps is added up in another order, and each
# of the two results is that far from what float64 gives
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6}
EACH = pytest.mark.parametrize("name", ENCODERS)
# to train, transformer_xl stands for these
ALIKE = ("vanilla", "windowed", "windowed_state", "xlstm")
TRAINED = [pytest.param(n, marks=pytest.mark.slow) if n in ALIKE else n for n in ENCODERS]
EACH_TRAINED = pytest.mark.parametrize("name", TRAINED)
KINDS = ("transformer_xl", "ts2vec", "soft_tstcc")  # one of each kind of network
BASELINES = [n if n in KINDS else pytest.param(n, marks=pytest.mark.slow) for n in ENCODERS]


def test_there_is_a_row_for_every_encoder():
    assert SMALL.keys() == ENCODERS.keys()


@pytest.fixture(params=ENCODERS)
def encoder(request):
    torch.manual_seed(0)
    if request.param == "xlstm":
        pytest.importorskip("xlstm")
    return make_encoder(request.param, channels=2, **SMALL[request.param])


def floats(z):
    return {n: t for n, t in z._asdict().items() if t is not None and t.is_floating_point()}


def rows(z, index):
    return z._replace(**{n: t[index] for n, t in floats(z).items()})


def assert_equal_rows(ours, theirs, tolerance):
    """Equal up to the tolerance, relative to the largest value."""
    for name, ours_part in floats(ours).items():
        theirs_part = getattr(theirs, name)
        apart = (ours_part - theirs_part[:, : ours_part.shape[1]]).abs().max()
        assert apart <= tolerance * theirs_part.abs().max(), name


def test_shapes_and_spans_are_those_of_the_series(encoder):
    x = torch.randn(3, 61, 2)
    x[0, 20:40] = torch.nan
    z, D = encoder.encode(x), encoder.cfg.dim
    assert all(t.isfinite().all() for t in floats(z).values())
    K = len(z.token_spans)
    assert z.tokens.shape == (3, K, D) and z.sequence.shape == (3, D)
    assert z.token_mask.shape == (3, K) and z.token_mask[1:].all()
    assert torch.equal(z.token_spans, encoder.token_spans(61))
    first, end = z.token_spans.T
    assert (first >= 0).all() and (end <= 61).all() and (first < end).all()
    assert (first.diff() >= 0).all() and (end.diff() >= 0).all()
    gone = (first >= 20) & (end <= 40)  # a token of nothing but missing samples
    assert not z.token_mask[0, gone].any() and not z.tokens[0, gone].any()
    assert gone.any() or (end - first).max() > 20
    assert (z.eos is None) == (ENCODERS[encoder.name].network is CNN)
    if z.eos is not None:
        assert z.eos.shape == (3, D)
    if z.memory is not None:
        assert z.memory.shape[:2] == (3, len(z.window_spans))


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_series_does_not_see_its_mates(encoder, dtype):
    encoder, tolerance = encoder.to(dtype), TOLERANCE[dtype]
    x = torch.randn(24, 61, 2, dtype=dtype)
    x[5, 10:30], x[torch.rand(x.shape) < 0.05] = torch.nan, torch.nan
    lengths = [61 if i % 3 else 61 - i for i in range(24)]
    together = encoder.encode(x, lengths=lengths, batch_size=24)
    alone = encoder.encode(x, lengths=lengths, batch_size=1)
    assert_equal_rows(alone, together, tolerance)
    order = torch.randperm(24)
    shuffled = encoder.encode(x[order], lengths=[lengths[i] for i in order])
    assert_equal_rows(rows(shuffled, order.argsort()), together, tolerance)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_right_padding_is_neutral(encoder, dtype):
    encoder, tolerance, least = encoder.to(dtype), TOLERANCE[dtype], encoder.cfg.patch
    lengths = [200, least, 37, least + 1, 61]
    series = [torch.randn(n, 2, dtype=dtype) for n in lengths]
    x = torch.nn.utils.rnn.pad_sequence(series, batch_first=True, padding_value=123.0)
    x[1, 50] = torch.inf  # past the end of its series: never read
    padded = encoder.encode(x, lengths=lengths)
    as_list = encoder.encode(series, batch_size=2)
    for i, s in enumerate(series):
        alone = encoder.encode(s[None])
        assert len(encoder.token_spans(len(s))) == alone.tokens.shape[1]
        for z in (padded, as_list):
            row = rows(z, [i])
            assert_equal_rows(alone, row, tolerance)
            K = alone.tokens.shape[1]
            assert not row.tokens[:, K:].any() and not z.token_mask[i, K:].any()


def test_lengths_are_given_by_name(encoder):
    x, lengths = torch.randn(2, 61, 2), torch.tensor([61, 40])
    with pytest.raises(TypeError, match="positional"):
        encoder.encode(x, lengths)
    with pytest.raises(TypeError, match="positional"):
        encoder(x, None, lengths)


def test_a_gap_or_padding_never_reaches_a_mate(encoder):
    x = torch.randn(3, 61, 2)
    clean = encoder.encode(x)
    x[1] = torch.nan
    x[2, 20:25, 0] = torch.nan
    assert_equal_rows(rows(clean, [0]), rows(encoder.encode(x), [0]), 1e-6)


def test_what_is_missing_has_no_value(encoder):
    """Whatever stands where the mask says missing, the numbers are the same."""
    x, mask = torch.randn(2, 61, 2), torch.rand(2, 61, 2) > 0.3
    found = [encoder.eval()(x.masked_fill(~mask, value), mask) for value in (0.0, 7.0)]
    assert_equal_rows(*found, 0)


def test_a_series_that_is_all_missing_is_finite_and_masked(encoder):
    z = encoder.encode(torch.full((1, 61, 2), torch.nan))
    assert all(t.isfinite().all() for t in floats(z).values())
    assert not z.token_mask.any() and not z.tokens.any()


def test_the_callers_array_is_never_changed(encoder):
    x = torch.randn(2, 61, 2).double()
    x[0, 3:9] = torch.nan
    for given in (x, x.numpy()):
        before = given.clone() if isinstance(given, torch.Tensor) else given.copy()
        encoder.double().encode(given)
        torch.testing.assert_close(given, before, rtol=0, atol=0, equal_nan=True)


def test_encode_leaves_no_trace(encoder):
    """Neither a graph nor another mode, weight or statistic, as a frozen encoder must not."""
    before = copy.deepcopy(encoder)
    z = encoder.train().encode(torch.randn(4, 61, 2))
    assert encoder.training and not any(t.requires_grad for t in floats(z).values())
    assert not differing(encoder, before)


def test_a_head_that_learns_alone_leaves_the_encoder_as_it_is(encoder):
    learner, before = (
        SequenceClassifier(encoder, ("a", "b"), only_head=True),
        copy.deepcopy(encoder),
    )
    x, lengths = torch.randn(4, 61, 2), torch.tensor([61, 61, 40, 30])
    scores, sequence = learner.train()(x, None, lengths)
    scores.sum().backward()
    assert torch.equal(learner(x, None, lengths)[1], sequence)  # nothing is drawn, nothing moved
    assert learner.head.weight.grad.any() and all(p.grad is None for p in encoder.parameters())
    assert not differing(encoder, before)


def test_an_end_of_sequence_state_is_that_of_the_last_sample(encoder):
    """Where there is one: padding does not reach it, and what came before does."""
    x, lengths = torch.randn(2, 61, 2).double(), [61, 40]
    z = encoder.double().encode(x, lengths=lengths)
    if z.eos is None:
        return
    for row, length in enumerate(lengths):
        alone = encoder.encode(x[row : row + 1, :length]).eos[0]
        torch.testing.assert_close(z.eos[row], alone, rtol=0, atol=1e-10)
    x[0, 20:35] += 1
    x[1, 10:20] += 1
    changed = (encoder.encode(x, lengths=lengths).eos - z.eos).abs().amax(1)
    assert (changed > 1e-9).all() or encoder.name == "windowed"  # which has no state to hand on


def test_a_failed_encode_leaves_the_training_mode(encoder):
    with pytest.raises(progmem.InputError):
        encoder.train().encode(torch.full((1, 61, 2), torch.inf))
    assert encoder.training


def test_every_parameter_gets_a_gradient(encoder):
    weighted_sum(encoder.double()(torch.randn(3, 61, 2).double())).backward()
    for name, parameter in encoder.named_parameters():
        assert parameter.grad is not None and parameter.grad.any(), name


def test_a_saved_encoder_is_the_same(encoder, tmp_path):
    encoder.stats.mean.fill_(3.0)
    encoder.save(tmp_path)
    again, x = progmem.load(tmp_path), torch.randn(2, 61, 2)
    assert (again.name, again.cfg) == (encoder.name, encoder.cfg)
    assert torch.equal(again.encode(x).tokens, encoder.encode(x).tokens)
    assert {n: t.dtype for n, t in again.state_dict().items()} == {
        n: t.dtype for n, t in encoder.state_dict().items()
    }


def test_an_untrained_copy_is_another_of_its_kind(encoder):
    other = encoder.untrained()
    assert other.state_dict().keys() == encoder.state_dict().keys()
    x = torch.randn(1, 61, 2)
    assert not torch.equal(other.encode(x).tokens, encoder.encode(x).tokens)


@pytest.mark.parametrize(
    "x, message",
    [
        (torch.randn(2, 61, 3), "model has 2 channels, got 3"),
        (torch.randn(2, 2, 61), "should be .batch, time, channels.: transpose"),
        (torch.full((1, 61, 2), torch.inf), "series 0, sample 0, channel 0 is inf"),
        (torch.randn(2, 0, 2), "series 0 needs at least"),
        (torch.randn(61, 2), "give .x."),
        ([], "give at least one"),
    ],
)
def test_bad_input_gets_the_same_words_from_all(encoder, x, message):
    with pytest.raises(InputError, match=message):
        encoder.encode(x)


# --- training


def spoilt(kind):
    """Series (8, 40, 2) that nothing can be learnt from, as users give them."""
    x = np.random.default_rng(0).normal(size=(8, 40, 2))
    match kind:
        case "inf":
            x[2, 5, 1] = np.inf
        case "huge":
            x[2, 5, 1] = 1e308
        case "missing":
            x[:] = np.nan
        case "constant":
            x[:] = 1.0
        case "words":
            return np.full((8, 40, 2), "a")
    return {"one": x[:1], "none": x[:0], "empty": x[:, :0]}.get(kind, x)


BAD_SERIES = {
    "inf": r"x\.2, sample 5, channel 1 is inf; mark missing values by NaN",
    "huge": "channel 1 ranges from .* to 1e.308, too far to be squared",
    "missing": "no recording has an observed value",
    "constant": "no channel varies in any recording",
    "words": r"x\.npy: x must hold real numbers",
    "one": "training needs at least 2 rows to tell apart",
    "none": "there are no series; give at least one",
    "empty": r"x\.0 has no values",
}


@pytest.mark.parametrize("kind, message", BAD_SERIES.items())
def test_series_that_teach_nothing_get_the_same_line_from_all(
    tmp_path, monkeypatch, capsys, kind, message
):
    """On the command line and by `PMTEncoder`."""
    monkeypatch.chdir(tmp_path)
    x, said = spoilt(kind), {}
    np.save("x.npy", x)
    for name in ENCODERS:
        assert main(["pretrain", "x.npy", "-o", "run", *settings(name)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert re.search(message, line) and not (tmp_path / "run").exists()
        options = {} if name == "pmt" else {"encoder": name}
        with pytest.raises(InputError) as refused:
            progmem.PMTEncoder(**options, steps=1, device="cpu").fit(x.swapaxes(1, 2))
        said[name] = line, str(refused.value)
    assert len(set(said.values())) == 1, said


@EACH
def test_a_series_that_is_too_short_is_named_with_what_to_do(tmp_path, name):
    few = [*recordings(), Recording("short", np.zeros((1, 2)))]
    try:
        pretrain(few, tmp_path / "run", read_config(None, settings(name)), log=None)
    except InputError as error:
        assert re.fullmatch("short (needs|has) .*; leave it out.*", str(error))
    else:
        assert name in ("simclr", "sslecg")  # which take a sample for a series


def recordings(gaps=False):
    rng = np.random.default_rng(0)
    values = [rng.normal(size=(40 - 2 * (i % 3), 2)).cumsum(0) for i in range(12)]
    if gaps:
        values[3][10:20] = np.nan
    return [Recording(str(i), v) for i, v in enumerate(values)]


def settings(name, *more):
    section = "model" if ENCODERS[name].in_frame else "encoder"
    own = [f"{section}.{key}={value}" for key, value in SMALL[name].items()]
    run = ["train.steps=5", "train.batch_size=5", "train.checkpoint_every=2", "train.device=cpu",
           "train.log_every=1"]  # fmt: skip
    return [f"encoder.name={name}", *own, *run, *more]


def trained(name, folder, *more, gaps=False):
    """A model of a run, which leaves the recordings as they are."""
    cfg, given = read_config(None, settings(name, *more)), recordings(gaps)
    model = pretrain(given, folder, cfg, log=lambda _: None)
    for one, same in zip(given, recordings(gaps), strict=True):
        np.testing.assert_array_equal(one.values, same.values)
    return model


def task_of(name, *more):
    if name == "xlstm":
        pytest.importorskip("xlstm")
    cfg = read_config(None, settings(name, "train.precision=64", *more))
    windows, stats = TrainingWindows(recordings(gaps=True), cfg.data), ChannelStats(2)
    windows.set_statistics(stats)
    model = initial_model(model_for(windows, cfg), stats, 0, name=name)
    return make_pretrainer(model, windows, cfg, make_fabric(cfg), total=5).task


def differing(ours, theirs):
    ours, theirs = ours.state_dict(), theirs.state_dict()
    assert ours.keys() == theirs.keys()
    return [name for name, tensor in ours.items() if not torch.equal(tensor, theirs[name])]


@EACH_TRAINED
def test_a_run_gives_the_same_weights_every_time_and_is_kept_whole(tmp_path, name):
    first, again = (trained(name, tmp_path / f, gaps=True) for f in ("first", "again"))
    assert not differing(first, again)
    loaded = progmem.load(tmp_path / "first/model")
    assert not differing(loaded, first)
    assert seen_by(loaded, [r.values for r in recordings(gaps=True)]).rows.all()
    assert loaded.feature_stats.values is not None
    lines = (tmp_path / "first/metrics.jsonl").read_text().splitlines()
    assert all(np.isfinite(json.loads(line)["loss"]) for line in lines) and len(lines) == 5
    untrained = initial_model(first.cfg, first.stats, 0, name=name)
    changed = differing(first, untrained)
    assert all(n in changed for n, _ in first.named_parameters() if not n.endswith("mask_vector"))
    kept = trained(name, tmp_path / "first", gaps=True)  # a finished run gives its model back
    assert not differing(kept, first)


@pytest.mark.parametrize("name", ONE_IS_ENOUGH)
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, name):
    whole = trained(name, tmp_path / "whole", gaps=True)
    shutil.copytree(tmp_path / "whole", tmp_path / "broken")
    shutil.rmtree(tmp_path / "broken/model")
    max((tmp_path / "broken/checkpoints").iterdir()).unlink()
    said = []
    cfg = read_config(None, settings(name))
    again = pretrain(recordings(True), tmp_path / "broken", cfg, log=said.append)
    assert any("going on from step 4" in line for line in said)
    assert not differing(whole, again)


@EACH
def test_the_loss_reaches_every_parameter_that_is_trained(name):
    task = task_of(name)
    loss, _, _ = compute_loss(task, task.learner, task.make_batch(0))
    loss.backward()
    trained = {n: p for n, p in task.learner.named_parameters() if p.requires_grad}
    for parameter_name, parameter in trained.items():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), parameter_name
        assert parameter.grad.any(), parameter_name
    grouped = [p for group in task.parameter_groups() for p in group["params"]]
    assert len(grouped) == len(trained)


@EACH
def test_a_batch_in_parts_has_the_gradients_of_the_whole(name):
    """Without dropout, whose draws differ. Batch normalisation would change: it is refused."""
    if normalises_batches(make_encoder(name, channels=2, **SMALL[name])):
        with pytest.raises(
            ConfigError, match=r"train.parts must be 1, got 2: this encoder's batch"
        ):
            task_of(name, "train.parts=2")
        return
    key = "model" if ENCODERS[name].in_frame else "encoder"
    gradients = []
    for parts in (1, 2):
        torch.manual_seed(0)
        task = task_of(name, f"{key}.dropout=0")
        batch = task.make_batch(1)
        if parts == 1:
            compute_loss(task, task.learner, batch)[0].backward()
        else:
            backward_in_parts(task, task.learner, batch, parts=2, seed=0, step=1,
                              backward=torch.autograd.backward)  # fmt: skip
        gradients.append([p.grad for p in task.learner.parameters() if p.requires_grad])
    for whole, parts in zip(*gradients, strict=True):
        assert (whole - parts).abs().max() <= 1e-10 * whole.abs().max() + 1e-14


@EACH
def test_a_row_has_a_loss_of_its_own(name):
    task = task_of(name)
    batch = task.make_batch(0)
    losses = task.row_losses(batch, task.embed(task.learner, batch)[0])
    assert losses.shape == (len(batch.lengths),) and losses.isfinite().all()


@EACH_TRAINED
def test_it_learns_from_labels(tmp_path, name):
    changed = ("train.steps=2", "train.batch_size=8")
    cfg = read_finetune_config(None, [*settings(name), *changed])
    found = finetune(made(count=16), tmp_path / "run", cfg, log=None)
    assert found.result["rows"][0]["encoder"] == name
    again = progmem.PMTClassifier.load(tmp_path / "run")
    X = np.stack(made(count=16).test).transpose(0, 2, 1)
    assert (again.predict(X) == found.classifier.predict(made(count=16).test)).all()


@pytest.mark.parametrize("name", BASELINES[1:])  # all but PMT itself
def test_it_is_trained_and_used_as_pmt_is(tmp_path, monkeypatch, capsys, name):
    """One command trains it, others embed and classify with it, and PMTEncoder holds it."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.save("x.npy", rng.normal(size=(14, 40, 2)))
    np.save("y.npy", np.arange(14) % 2)
    assert main(["pretrain", "x.npy", "-o", "run", *settings(name)]) == 0
    assert main(["embed", "run/model", "x.npy", "-o", "embedded"]) == 0
    model = progmem.load("run/model")
    tokens, D = len(model.token_spans(40)), model.cfg.dim
    assert np.load("embedded/tokens.npy").shape == (14 * tokens, D)
    assert not (tmp_path / "embedded/memory.npy").exists()
    x = np.load("x.npy")
    together = pool(model, x, ["sequence", "all"])
    np.testing.assert_allclose(np.load("embedded/sequence.npy"), together["sequence"], atol=1e-5)
    np.testing.assert_allclose(np.load("embedded/all.npy"), together["all"], atol=1e-4)
    given = [
        "classify",
        "x.npy",
        "--labels",
        "y.npy",
        "--model",
        "run/model",
        "-o",
        "p.csv",
        "--quiet",
    ]
    assert main(given) == 0 and (tmp_path / "p.csv").exists()
    capsys.readouterr()
    options = tuple(text for text in settings(name) if text.startswith(("encoder.", "model.")))
    kept = [text for text in options if not text.startswith("encoder.name")]
    found = progmem.PMTEncoder(encoder=name, steps=2, device="cpu", settings=kept)
    Z = found.fit_transform(x.transpose(0, 2, 1))
    assert Z.shape == (14, found._n_features_out) and np.isfinite(Z).all()
    found.save("kept")
    again = progmem.PMTEncoder.load("kept")
    np.testing.assert_array_equal(again.transform(x.transpose(0, 2, 1)), Z)
    assert again.transform(x.transpose(0, 2, 1), level="tokens").shape == (14, D, tokens)
    with pytest.raises(InputError, match=f"a stream needs a PMT, and this is {name}"):
        progmem.Stream(again.model_)
    with pytest.raises(InputError, match=f"an index needs a PMT, and this is {name}"):
        progmem.explore.index("run/model", {"a": x[0]}, "index")


@pytest.mark.parametrize(
    "given, message",
    [
        (["encoder.name=ts3vec"], "encoder.name must be one of pmt, vanilla, .*got 'ts3vec'"),
        (["encoder.name=ts2vec", "encoder.dims=8"], "unknown setting 'encoder.dims'; did you mean "
                                                    "'encoder.dim'"),
        (["encoder.name=ts2vec", "encoder.depth=99"], "encoder.depth must be a whole number"),
        (["encoder.name=ts2vec", "model.dim=8"], "the encoder ts2vec has no settings model.*"),
        (["encoder.name=ts2vec", "loss.icl=0"], "the encoder ts2vec has no settings loss.*"),
        (["encoder.name=ts2vec", "encoder.channels=3"], "encoder.channels is 3, the recordings"),
        (["encoder.name=vanilla", "loss.pcl=1"], "loss.pcl needs memory, and vanilla has none"),
        (["encoder.name=xlstm", "model.slots=1"], "model.slots must be 0, as this encoder has no"),
        (["loss.pcl=1", "model.slots=0"], "set loss.pcl=0 or model.slots to 1 or more"),
        (["encoder.dim=8"], "of the encoder pmt, 'encoder.dim' is called 'model.dim'"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_are_refused_in_one_line(tmp_path, given, message):
    with pytest.raises(ConfigError, match=message):
        cfg = read_config(None, given)
        pretrain(recordings(), tmp_path / "run", cfg, log=None)


@pytest.mark.parametrize(
    "parameters, message",
    [
        ({"encoder": "ts3vec"}, "encoder.name must be one of"),
        ({"encoder": "ts3vec", "size": "tiny"}, "encoder.name must be one of .* got 'ts3vec'"),
        ({"encoder": "ts2vec", "size": "tiny"}, "size is a parameter of the encoder pmt"),
        ({"encoder": "ts2vec", "views": "gentle"}, "views is a parameter of the encoder pmt"),
        ({"encoder": "ts2vec", "level": "memory"}, "level memory needs a model with memory"),
    ],
)
def test_parameters_that_do_not_fit_are_refused_in_one_line(parameters, message):
    with pytest.raises(ConfigError, match=message):
        progmem.PMTEncoder(**parameters).fit(np.random.default_rng(0).normal(size=(8, 2, 40)))


def test_an_encoder_in_the_frame_of_pmt_has_its_sizes_and_views():
    encoder = progmem.PMTEncoder(encoder="windowed", size="small", views="gentle", seed=3)
    found = run_settings(encoder)
    assert found.encoder["name"] == "windowed" and found.model["size"] == "small"
    assert found.views.crop == 0.1 and found.train.seed == 3


def test_an_encoder_of_a_run_can_only_be_finetuned_as_what_it_is(tmp_path):
    trained("ts2vec", tmp_path / "run")
    for given, message in (
        (["encoder.name=vanilla"], "encoder.name is ts2vec in .* and cannot become vanilla"),
        (["encoder.name=ts2vec", "encoder.dim=9"], "encoder.dim is 8 in .* cannot become 9"),
    ):
        cfg = read_finetune_config(None, [*given, "train.steps=1", "train.device=cpu"])
        with pytest.raises(ConfigError, match=message):
            finetune(made(count=16), tmp_path / "tuned", cfg, pretrained=tmp_path / "run", log=None)
    cfg = read_finetune_config(None, ["train.steps=1", "train.device=cpu"])
    found = finetune(made(count=16), tmp_path / "tuned", cfg, pretrained=tmp_path / "run", log=None)
    assert found.classifier.encoder.name == "ts2vec"


def test_published_settings_hold_where_others_are_not_given():
    train = read_config(None, ["encoder.name=ts2vec"]).train
    assert (train.lr, train.lr_end, train.batch_size, train.warmup) == (1e-3, 1e-3, 8, 0)
    train = read_config(None, ["encoder.name=ts2vec", "train.lr=1e-4", "train.epochs=3"]).train
    assert (train.lr, train.lr_end, train.epochs, train.steps) == (1e-4, 1e-4, 3, None)
    assert build("ts2vec", ENCODERS["ts2vec"].config(channels=1)).cfg.dim == 320
