"""The trainer: its updates, its optimiser, and what it leaves behind."""

import dataclasses
import gc
import itertools
import math
import weakref
from unittest.mock import MagicMock

import pytest
import torch
from finetune_setup import config, made
from training_setup import made_recordings, run, small_config

import progmem
from progmem.data.windows import TrainingWindows
from progmem.errors import TrainingError
from progmem.ops import cuda_graphs
from progmem.series import ChannelStats
from progmem.training import finetune, pmt, pretrain, trainer
from progmem.training.checkpoint import newest_checkpoint
from progmem.training.distributed import make_fabric
from progmem.training.pmt import Learner
from progmem.training.pretrain import initial_model, model_for
from progmem.training.trainer import freeze_unreached, learning_rate, parameter_groups

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def test_a_loss_that_is_not_finite_stops_the_run_by_name(tmp_path, monkeypatch):
    total = pmt.total_loss

    def poisoned(*arguments, **settings):
        loss, parts = total(*arguments, **settings)
        if len(calls) > 7:
            parts["pcl"] = parts["pcl"] * math.nan
            loss = loss * math.nan
        calls.append(1)
        return loss, parts

    calls = []
    monkeypatch.setattr(pmt, "total_loss", poisoned)
    rows = r"of its 8 rows .* has the largest loss \(the rest: .*, .*, .* and 4 more\)"
    told = f"step 8: pcl is not a finite number; {rows}; the last good checkpoint is kept"
    with pytest.raises(TrainingError, match=told):
        run(tmp_path / "run")
    assert newest_checkpoint(tmp_path / "run/checkpoints", log=print).step == 6


def test_a_gradient_that_is_not_finite_stops_the_run(tmp_path, monkeypatch):
    total = pmt.total_loss

    def poisoned(*arguments, **settings):
        loss, parts = total(*arguments, **settings)
        return loss + (0 * loss).clamp(min=0).sqrt(), parts  # 0, but with a slope of 0 * inf

    monkeypatch.setattr(pmt, "total_loss", poisoned)
    with pytest.raises(TrainingError, match="step 1: gradient is not a finite number"):
        run(tmp_path / "run")


@pytest.mark.parametrize("views", ["views.hide=0.5", "views.preset=gentle"])
@pytest.mark.parametrize("does", ["has the largest loss", "gives others"])
def test_the_recording_that_a_step_failed_by_is_named(tmp_path, monkeypatch, views, does):
    recordings = made_recordings()
    recordings[7] = recordings[7]._replace(name="a\nname", values=recordings[7].values * 1e12)
    total, forward = pmt.total_loss, Learner.forward

    def poisoned(*arguments, **settings):
        loss, parts = total(*arguments, **settings)
        return loss * math.nan, parts

    def overflowing(learner, views, *arguments, **settings):
        both, sequence = forward(learner, views, *arguments, **settings)
        far = torch.where(views[0].x.abs().amax((1, 2)) > 1e6, math.inf, 1.0)[:, None]
        return tuple(view._replace(sequence=view.sequence * far) for view in both), sequence

    if does == "gives others":
        monkeypatch.setattr(Learner, "forward", overflowing)
    else:
        monkeypatch.setattr(pmt, "total_loss", poisoned)
    cfg = small_config(views, "model.normalise=none", "train.batch_size=50")
    told = rf"step 1: .* of its 24 rows a\\nname {does} \(the rest: "
    with pytest.raises(TrainingError, match=told):
        pretrain.pretrain(recordings, tmp_path / "run", cfg, log=None)


def test_a_step_by_which_all_rows_fail_blames_none(tmp_path):
    with pytest.raises(TrainingError, match=r"none of its 8 rows \(.*\) gives finite numbers"):
        run(tmp_path / "run", "train.lr=1e30")


def test_the_row_with_the_worst_label_is_named_where_labels_teach(tmp_path, monkeypatch):
    losses = finetune.FinetuneTask.losses

    def poisoned(task, batch, embedded):
        loss, metrics = losses(task, batch, embedded)
        return loss * math.nan, {**metrics, "loss": loss * math.nan}

    def row_losses(task, batch, embedded):
        found = own(task, batch, embedded)
        each.append(found)
        return found

    own, each = finetune.FinetuneTask.row_losses, []
    monkeypatch.setattr(trainer, "FEW", 5)
    monkeypatch.setattr(finetune.FinetuneTask, "losses", poisoned)
    monkeypatch.setattr(finetune.FinetuneTask, "row_losses", row_losses)
    with pytest.raises(TrainingError, match=r"of its 16 rows .* has the largest loss"):
        finetune.finetune(made(), tmp_path / "run", config(), log=None)
    assert [len(few) for few in each] == [5, 5, 5, 1]


def test_the_learning_rate_warms_up_and_ends_low():
    cfg = small_config("train.lr=1e-3", "train.lr_end=1e-5", "train.warmup=0.1")
    rates = [learning_rate(step, 100, cfg.train) for step in range(100)]
    assert rates[0] == pytest.approx(1e-4) and max(rates) == rates[9] == pytest.approx(1e-3)
    assert rates[-1] == pytest.approx(1e-5)
    assert all(a > b for a, b in itertools.pairwise(rates[10:]))


def test_matrices_decay_and_vectors_do_not():
    model = progmem.PMT(progmem.ModelConfig(channels=2, size="tiny"))
    learner = Learner(model, small_config().loss)
    groups = parameter_groups(learner, 0.05)
    assert [group["weight_decay"] for group in groups] == [0.05, 0.0]
    decay, keep = (group["params"] for group in groups)
    names = {id(p): n for n, p in learner.named_parameters()}
    assert len(decay) > 20 and all(names[id(p)].endswith("weight") for p in decay)
    kept = {names[id(p)].rsplit(".", 1)[-1] for p in keep}
    assert {"reset", "bias", "cls", "segments", "segment", "gamma", "skip_gate", "taps"} <= kept


def test_parameters_that_no_objective_reaches_are_frozen_and_have_no_gradient():
    both = torch.nn.ModuleDict({"used": torch.nn.Linear(3, 2), "idle": torch.nn.Linear(3, 2)})
    freeze_unreached(both, lambda: both["used"](torch.ones(4, 3)).sum())
    assert {name: p.requires_grad for name, p in both.named_parameters()} == {
        "used.weight": True, "used.bias": True, "idle.weight": False, "idle.bias": False
    }  # fmt: skip
    assert all(p.grad is None for p in both.parameters())


def test_looking_for_such_parameters_leaves_a_batch_norm_as_it_was():
    norm = torch.nn.BatchNorm1d(3)
    freeze_unreached(norm, lambda: norm(torch.randn(4, 3)).square().sum())
    for name, buffer in norm.named_buffers():
        assert torch.equal(buffer, torch.nn.BatchNorm1d(3).get_buffer(name)), name


@pytest.fixture
def no_collector():
    """Nothing is freed but by its last reference."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def watched_trainings(monkeypatch):
    """Weak references to what every training from now on is made of, by name."""
    seen, build = [], trainer.build_trainer

    def watched(task, *given, **more):
        made = build(task, *given, **more)
        parameter = next(p for p in task.learner.parameters() if p.requires_grad)
        parts = {
            "trainer": made, "update": made.update, "optimizer": made.optimizer.optimizer,
            "task": task, "learner": task.learner, "weights": parameter,
        }  # fmt: skip
        seen.append({name: weakref.ref(part) for name, part in parts.items()})
        return made

    monkeypatch.setattr(pretrain, "build_trainer", watched)
    monkeypatch.setattr(finetune, "build_trainer", watched)
    return seen


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("parts", [1, 2])
def test_a_finished_training_is_gone_before_the_next_one_begins(
    tmp_path, monkeypatch, no_collector, device, parts
):
    """A CUDA graph cannot be captured while tensors of another training are being collected."""
    seen, tensors = watched_trainings(monkeypatch), []
    more = [f"train.device={device}", f"train.parts={parts}", "train.epochs=1"]
    for number in range(2):
        run(tmp_path / f"run {number}", *more)
        finetune.finetune(made(), tmp_path / f"labels {number}", config(*more), log=None)
        kept = [name for training in seen for name, part in training.items() if part() is not None]
        assert kept == [] and len(seen) == 2 * (number + 1)
        tensors.append(sum(issubclass(type(x), torch.Tensor) for x in gc.get_objects()))
    assert tensors[0] == tensors[1]


class Graph:
    """Stands in for a CUDA graph: a replay calls again and writes into the same tensors."""

    def __init__(self, call, outputs, replays):
        self.call, self.outputs, self.replays = call, outputs, replays

    def replay(self):
        self.replays.append(1)
        for kept, new in zip(self.outputs, self.call(), strict=True):
            if isinstance(kept, torch.Tensor):
                kept.copy_(new)


@pytest.fixture
def replays(monkeypatch):
    """The replays of updates that are captured, and here without a GPU."""
    replays, optimizers, stream = [], [], MagicMock()

    def make_optimizer(groups, lr, device):
        optimizers.append(torch.optim.AdamW(groups, lr=lr, fused=True))  # as on a GPU
        return optimizers[-1]

    def capture(call):
        restore = cuda_graphs._snapshot(optimizers[-1])
        outputs = call()
        restore()  # a capture runs nothing
        return Graph(call, outputs, replays), outputs

    monkeypatch.setattr(trainer, "make_optimizer", make_optimizer)
    monkeypatch.setattr(cuda_graphs, "capture", capture)
    monkeypatch.setattr(cuda_graphs, "warm_up", lambda call: [call() for _ in range(3)])
    monkeypatch.setattr(cuda_graphs, "_to_host", torch.clone)
    for name in ("Stream", "current_stream", "stream"):
        monkeypatch.setattr(torch.cuda, name, stream)
    return replays


def small_trainer(*, replayed):
    cfg = small_config("train.precision=64", "train.batch_size=10")
    *short, long = made_recordings()
    rows = TrainingWindows([*short, long._replace(values=long.values[:60])], cfg.data)
    stats = ChannelStats(rows.channels)
    rows.set_statistics(stats)
    model = initial_model(model_for(rows, cfg), stats, 0)
    made = pretrain.make_pretrainer(model, rows, cfg, make_fabric(cfg), total=9)
    if replayed:
        made = dataclasses.replace(made, update=trainer.ReplayedUpdate(made.update))
    return made


def test_a_replayed_update_gives_what_a_plain_one_gives(replays):
    """Of the two batches of an epoch one has the long row, and the other fewer samples: it takes
    the plain path, or the other way round."""
    plain, replayed = (small_trainer(replayed=replayed) for replayed in (False, True))
    for number in range(1, 9):
        assert plain.step(number).read() == replayed.step(number).read()
    samples = [plain.task.make_batch(number).views[0].x.shape[1] for number in range(1, 9)]
    assert 1 < len(replays) == samples.count(samples[0]) < len(samples)
    weights = replayed.task.learner.state_dict()
    for name, tensor in plain.task.learner.state_dict().items():
        assert torch.equal(weights[name], tensor), name


def test_a_replayed_update_that_is_not_finite_leaves_the_weights_and_is_named(replays, monkeypatch):
    made, total = small_trainer(replayed=True), pmt.total_loss
    for number in range(2):
        made.step(number)
    before = {name: t.clone() for name, t in made.task.learner.state_dict().items()}

    def poisoned(*arguments, **settings):
        loss, parts = total(*arguments, **settings)
        return loss * math.nan, parts

    monkeypatch.setattr(pmt, "total_loss", poisoned)
    replays.clear()
    metrics = made.step(0)  # the one that was captured: its shape is the right one
    assert len(replays) == 1
    for name, tensor in made.task.learner.state_dict().items():
        assert torch.equal(before[name], tensor), name
    with pytest.raises(TrainingError, match="step 1: loss is not a finite number"):
        metrics.read()


@pytest.mark.parametrize("when", ["first", "later", "captured"])
def test_a_replayed_update_without_memory_changes_nothing_and_goes_on_in_parts(
    replays, monkeypatch, tmp_path, when
):
    """Memory ends in the warm-up, whose updates are undone, in the capture, or before a replay."""
    theirs, ours = (small_trainer(replayed=replayed) for replayed in (False, True))
    divided, said = {}, []
    captured = cuda_graphs.capture

    def fail(*_):
        raise torch.OutOfMemoryError("no more")

    def warm_up(call):
        call()
        if when == "first":
            fail()

    def capture(call):
        return fail() if when == "captured" else captured(call)

    monkeypatch.setattr(cuda_graphs, "warm_up", warm_up)
    monkeypatch.setattr(cuda_graphs, "capture", capture)
    if when == "later":
        ours.step_in_parts(2, tmp_path, divided, said.append)
        theirs.step(2)
        assert ours.update.graphed is not None
        monkeypatch.setattr(ours.update.graphed, "batch", fail)
    metrics = ours.step_in_parts(4, tmp_path, divided, said.append)
    assert metrics.read() == theirs.step(4, parts=2).read()
    assert said == [
        "out of memory; from step 5 on a batch is held in 2 parts, with the same gradients"
    ]
    assert ours.update.graphed is None and divided == {4: 2}
    weights = ours.task.learner.state_dict()
    for name, tensor in theirs.task.learner.state_dict().items():
        assert torch.equal(weights[name], tensor), name


def test_moments_that_are_half_made_when_memory_ends_are_made_anew(replays):
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.AdamW([weight])

    def update(_):
        weight.data.fill_(5)
        optimizer.state[weight]["step"] = torch.ones(())
        raise torch.OutOfMemoryError("no more")

    graphed = cuda_graphs.GraphedUpdate(lambda _: (), update, optimizer)
    with pytest.raises(torch.OutOfMemoryError):
        graphed(())
    assert weight.tolist() == [1, 1] and not optimizer.state


@pytest.mark.parametrize("small_step, during", [(0, 2), (2**24, 1)], ids=["large", "small"])
def test_a_small_step_has_one_thread_and_the_others_come_back(
    tmp_path, monkeypatch, small_step, during
):
    total, seen = pmt.total_loss, []

    def watched(*arguments, **settings):
        seen.append(torch.get_num_threads())
        return total(*arguments, **settings)

    monkeypatch.setattr(pmt, "total_loss", watched)
    monkeypatch.setattr(trainer, "SMALL_STEP", small_step)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        run(tmp_path / "run", "train.epochs=1")
        assert seen[-2:] == [during, during] and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
