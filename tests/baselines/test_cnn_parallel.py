"""Two processes that share a batch normalise and learn as one process with all of it does."""

import os

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from training_setup import made_recordings

from progmem.baselines import ENCODERS, make_encoder
from progmem.baselines.cnn import CNN
from progmem.config import read_config
from progmem.data.windows import TrainingWindows
from progmem.training.trainer import compute_loss

NAMES = [name for name, method in ENCODERS.items() if method.network is CNN]


def found(name):
    """Summed gradients and new statistics of one step, without dropout, whose draws differ."""
    own = ["encoder.dropout=0", "encoder.dim=8"]
    own += ["encoder.head_dropout=0"] if name == "sslecg" else []
    own += ["encoder.ahead=2", "encoder.context=8"] if name in ("tstcc", "cpc") else []
    own += ["train.precision=64", "train.batch_size=13", "data.longest=100", "data.window=60"]
    cfg = read_config(None, [f"encoder.name={name}", *own])
    rows = TrainingWindows(made_recordings(), cfg.data)
    torch.manual_seed(0)
    settings = {key: value for key, value in cfg.encoder.items() if key != "name"}
    encoder = make_encoder(name, channels=2, **settings)
    task = ENCODERS[name].task(encoder, rows, cfg, total=10, device=torch.device("cpu"))
    for module in task.learner.modules():
        if type(module).__name__ == "ContextLayer":
            module._dropout = lambda x: x
    loss, metrics, _ = compute_loss(task, task.learner, task.make_batch(1))
    loss.backward()
    gradients = {n: p.grad for n, p in task.learner.named_parameters() if p.grad is not None}
    for gradient in gradients.values():
        if dist.is_initialized():
            dist.all_reduce(gradient)
    return {**gradients, **dict(encoder.network.named_buffers()), **metrics}


def process(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=2)
    results = {name: found(name) for name in NAMES}
    if rank == 0:
        torch.save(results, f"{folder}/found.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path):
    """Gradients, running statistics and metrics; rows of unequal lengths, one with a gap."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.multiprocessing.spawn(process, (str(tmp_path),), nprocs=2)
    theirs = torch.load(tmp_path / "found.pt")
    for name in NAMES:
        ours = found(name)
        assert ours.keys() == theirs[name].keys()
        for key, tensor in ours.items():
            apart = (tensor - theirs[name][key]).abs().max()
            assert apart <= 1e-9 * tensor.abs().max().clamp(min=1e-3), (name, key)
