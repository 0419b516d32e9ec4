"""A batch in parts: the gradients of the whole, less memory."""

import pytest
import torch
from training_setup import made_recordings, run, small_config, weights

from progmem.data.windows import TrainingWindows
from progmem.model.pmt import PMT
from progmem.training.grad_cache import backward_in_parts
from progmem.training.pmt import Learner, PretrainTask
from progmem.training.pretrain import model_for
from progmem.training.trainer import compute_loss


def made_task(*settings, batch=13):
    cfg = small_config(*settings, "train.precision=64", f"train.batch_size={batch}")
    rows = TrainingWindows(made_recordings(), cfg.data)
    torch.manual_seed(0)
    learner = Learner(PMT(model_for(rows, cfg)), cfg.loss)
    rows.set_statistics(learner.model.stats)
    return PretrainTask(learner, rows, cfg, total=10, device=torch.device("cpu"))


def in_parts(task, step, parts):
    return backward_in_parts(
        task, task.learner, task.make_batch(step),
        parts=parts, seed=0, step=step, backward=torch.Tensor.backward,
    )  # fmt: skip


@pytest.mark.parametrize(
    "parts, settings",
    [
        (2, ()),
        (5, ()),
        (13, ()),
        (40, ()),
        (2, ("loss.pcl=0",)),
        (5, ("loss.icl=0", "loss.hgcl=0")),
        (5, ("views.hide=0.5",)),
    ],
)
def test_parts_add_up_to_the_gradients_of_the_whole(parts, settings):
    task = made_task(*settings)
    learner = task.learner
    loss, metrics, sequence = compute_loss(task, learner, task.make_batch(1))
    loss.backward()
    whole = {n: p.grad.clone() for n, p in learner.named_parameters() if p.grad is not None}
    learner.zero_grad()
    metrics_again, again = in_parts(task, 1, parts)
    assert metrics_again.keys() == metrics.keys()
    torch.testing.assert_close(again, sequence, rtol=1e-10, atol=1e-12)
    for name, value in metrics.items():
        torch.testing.assert_close(metrics_again[name], value, rtol=1e-10, atol=1e-12)
    for name, parameter in learner.named_parameters():
        if name in whole:
            largest = whole[name].abs().max().clamp(min=1e-3)
            assert (parameter.grad - whole[name]).abs().max() <= 1e-10 * largest, name


def test_with_dropout_both_passes_drop_the_same(monkeypatch):
    monkeypatch.setattr("progmem.model.layers.CHUNK", 16)  # rows of a batch that is only looked at
    task = made_task("model.dropout=0.3")
    task.learner.train()
    embed, seen = task.embed, []
    task.embed = lambda *given: seen.append(embed(*given)) or seen[-1]
    in_parts(task, 0, 3)
    first, second = ([views for views, _ in some] for some in (seen[:3], seen[3:]))
    assert len(second) == 3 and not first[0][0].sequence.requires_grad
    torch.testing.assert_close(second, first, rtol=1e-10, atol=1e-12)
    batch = task.make_batch(0)
    parts = [embed(task.learner, batch)[0][0].sequence for _ in range(2)]
    assert not torch.equal(*parts)  # drops are really drawn anew


def test_less_is_held_when_a_batch_is_taken_in_parts():
    def most_saved(go):
        """The most elements that graphs held for backward at any moment."""
        held, most = 0, 0

        class Kept:
            def __init__(self, tensor):
                nonlocal held, most
                self.tensor, self.size = tensor, tensor.numel()
                held += self.size
                most = max(most, held)

            def __del__(self):
                nonlocal held
                held -= self.size

        with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.tensor):
            go()
        return most

    task = made_task(batch=24)
    whole = most_saved(lambda: compute_loss(task, task.learner, task.make_batch(0))[0].backward())
    parts = most_saved(lambda: in_parts(task, 0, 6))
    assert parts < 0.4 * whole


def test_a_run_in_parts_ends_with_the_same_weights(tmp_path):
    settings = ("train.precision=64", "train.epochs=1")
    for name, parts in (("whole", 1), ("parts", 3)):
        run(tmp_path / name, *settings, f"train.parts={parts}")
    ours, theirs = weights(tmp_path / "parts"), weights(tmp_path / "whole")
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=1e-7)  # Adam divides
