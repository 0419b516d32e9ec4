"""Run by test_parallel.py: gradients and short trainings over two processes.

Under torchrun each process loads torch for itself. `divide` makes two of a process that has it.
"""

import os
import socket
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from training_setup import SETTINGS, made_recordings, small_config

from progmem.config import read_finetune_config
from progmem.data.labels import LabelledRecordings
from progmem.data.windows import TrainingWindows
from progmem.errors import TrainingError
from progmem.model.pmt import PMT
from progmem.training.finetune import finetune
from progmem.training.pmt import Learner, PretrainTask
from progmem.training.pretrain import model_for, pretrain
from progmem.training.trainer import compute_loss

# icl, pcl, hgcl, predict: the other subsets are sums of these
SUBSETS = [(1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (1, 1, 1, 1)]
HIDE = "views.hide=0.5"
RECORDINGS = 22  # 26 rows, since one is long
BATCH = 13  # rows, which processes cannot share evenly
STEPS = (0, 1)  # of one epoch


def gradients():
    """Summed gradients of every parameter for each subset of the objectives, by name."""
    found = {}
    for subset in SUBSETS:
        names = ("icl", "pcl", "hgcl", "predict")
        weights = [f"loss.{name}={weight}" for name, weight in zip(names, subset, strict=True)]
        cfg = small_config(*weights, HIDE, "train.precision=64", f"train.batch_size={BATCH}")
        rows = TrainingWindows(made_recordings(RECORDINGS), cfg.data)
        torch.manual_seed(0)
        learner = Learner(PMT(model_for(rows, cfg)), cfg.loss)
        rows.set_statistics(learner.model.stats)
        task = PretrainTask(learner, rows, cfg, total=10, device=torch.device("cpu"))
        for number in STEPS:
            learner.zero_grad()
            loss, *_ = compute_loss(task, learner, task.make_batch(number))
            loss.backward()
            for name, parameter in learner.named_parameters():
                if parameter.grad is not None:
                    found[f"{''.join(map(str, subset))}.{number}.{name}"] = parameter.grad.clone()
    return found


def train_on_labels(folder):
    """A short training with labels, views and parts."""
    recordings = made_recordings(RECORDINGS)
    data = LabelledRecordings(recordings, np.arange(len(recordings)) % 2, ("even", "odd"))
    settings = [text for text in SETTINGS if not text.startswith(("loss", "train.epochs"))]
    more = ["train.precision=64", "train.batch_size=13", "train.epochs=1", "train.parts=3"]
    cfg = read_finetune_config(None, [*settings, *more, "finetune.views=strong"])
    return finetune(data, folder, cfg, log=None).classifier


def begun_by_one():
    """The settings of a run that one process begins, two go on with, and one ends."""
    more = ["train.precision=64", "train.batch_size=13", "train.epochs=2"]
    return small_config(HIDE, *more, "train.checkpoint_every=1")


def run_short_of_memory(out):
    """A run of which the second process has too little memory for all its rows of a step."""
    embed = PretrainTask.embed

    def limited(task, learner, batch):
        if len(batch.lengths) > 3 and torch.distributed.get_rank() == 1:
            raise torch.OutOfMemoryError("as on a GPU")
        return embed(task, learner, batch)

    PretrainTask.embed = limited
    try:
        pretrain(made_recordings(RECORDINGS), out, begun_by_one(), log=None)
    except TrainingError as error:
        sys.exit(str(error))


def main(out):
    cfg = small_config(HIDE, "train.precision=64", "train.batch_size=13", "train.epochs=1")
    pretrain(
        made_recordings(RECORDINGS), out / "run", cfg, log=lambda _: None
    )  # starts the processes
    parts = small_config(
        HIDE, "train.precision=64", "train.batch_size=13", "train.epochs=1", "train.parts=3"
    )
    pretrain(made_recordings(RECORDINGS), out / "parts", parts, log=lambda _: None)
    pretrain(made_recordings(RECORDINGS), out / "begun by one", begun_by_one(), log=lambda _: None)
    train_on_labels(out / "finetuned")
    found = gradients()
    for tensor in found.values():
        torch.distributed.all_reduce(tensor)
    if torch.distributed.get_rank() == 0:
        save_file(found, out / "gradients.safetensors")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def divide(out):
    """Fork into two processes with the environment that torchrun gives; the first sees both end."""
    warnings.simplefilter("default")  # those of torch.distributed are no errors, as in a script
    torch.set_num_threads(1)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    world = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "0", "GROUP_RANK": "0"}
    os.environ |= world | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ["TORCHELASTIC_RUN_ID"] = "none"
    second = os.fork()
    os.environ["RANK"] = os.environ["LOCAL_RANK"] = "0" if second else "1"
    main(out)
    if second:
        _, status = os.waitpid(second, 0)
        sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    run_short_of_memory(folder) if sys.argv[2:] == ["short"] else main(folder)
