"""A batch in parts: the gradients of the whole, less memory, and a line when memory runs out."""

import pytest
import torch
from training_setup import made_recordings, run, small_config, weights

from progmem.data.rows import Rows
from progmem.errors import TrainingError
from progmem.model.pmt import PMT
from progmem.training.learner import Learner
from progmem.training.memory import memory_explained
from progmem.training.setup import model_for
from progmem.training.step import Step
from progmem.training.two_pass import backward_in_parts


def made_step(*settings, batch=13):
    cfg = small_config(*settings)
    rows = Rows(made_recordings(), cfg.data)
    torch.manual_seed(0)
    learner = Learner(PMT(model_for(rows, cfg)), cfg.loss).double()
    rows.set_statistics(learner.model.stats)
    return Step(learner, rows, cfg, batch, 10, torch.device("cpu"))


@pytest.mark.parametrize("parts", [2, 5, 13, 40])
@pytest.mark.parametrize("settings", [(), ("loss.pcl=0",), ("loss.icl=0", "loss.hgcl=0")])
def test_parts_add_up_to_the_gradients_of_the_whole(parts, settings):
    step = made_step(*settings)
    learner = step.learner
    loss, told, sequence, count = step(1)
    loss.backward()
    whole = {n: p.grad.clone() for n, p in learner.named_parameters() if p.grad is not None}
    learner.zero_grad()
    told_again, again, count_again = backward_in_parts(step, 1, parts, torch.Tensor.backward)
    assert count == count_again
    torch.testing.assert_close(again, sequence, rtol=1e-10, atol=1e-12)
    for name, value in told.items():
        torch.testing.assert_close(told_again[name], value, rtol=1e-10, atol=1e-12)
    for name, parameter in learner.named_parameters():
        if name in whole:
            largest = whole[name].abs().max().clamp(min=1e-3)
            assert (parameter.grad - whole[name]).abs().max() <= 1e-10 * largest, name


def test_with_dropout_both_passes_drop_the_same():
    step = made_step("model.dropout=0.3")
    step.learner.train()
    embed, seen = step.embed, []
    step.embed = lambda *given: seen.append(embed(*given)) or seen[-1]
    backward_in_parts(step, 0, 3, torch.Tensor.backward)
    first, second = ([views for views, _ in some] for some in (seen[:3], seen[3:]))
    assert len(second) == 3 and not first[0][0].sequence.requires_grad
    torch.testing.assert_close(second, first, rtol=1e-10, atol=1e-12)
    parts = [embed(step.make(0), slice(None))[0][0].sequence for _ in range(2)]
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

    step = made_step(batch=24)
    whole = most_saved(lambda: step(0)[0].backward())
    parts = most_saved(lambda: backward_in_parts(step, 0, 6, torch.Tensor.backward))
    assert parts < 0.4 * whole


def test_a_run_in_parts_ends_with_the_same_weights(tmp_path):
    settings = ("train.precision=64", "train.epochs=1")
    for name, parts in (("whole", 1), ("parts", 3)):
        run(tmp_path / name, *settings, f"train.parts={parts}")
    ours, theirs = weights(tmp_path / "parts"), weights(tmp_path / "whole")
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=1e-7)  # Adam divides


def test_running_out_of_memory_says_what_to_lower():
    needed = (
        r"out of memory: \d+\.\d GiB more were needed; lower train.batch_size, or set train.parts"
    )
    with pytest.raises(TrainingError, match=needed), memory_explained(torch.device("cpu")):
        torch.empty(2**50)
    with pytest.raises(RuntimeError, match="another"), memory_explained(torch.device("cpu")):
        raise RuntimeError("another")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_running_out_of_gpu_memory_says_how_much_there_is():
    device = torch.device("cuda", 0)
    with pytest.raises(TrainingError, match=r"GiB of .* GiB are free"), memory_explained(device):
        torch.empty(2**45, device=device)
