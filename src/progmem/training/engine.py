"""What every training has in common: the loop over updates, its resume, its end."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn

from progmem import kernels
from progmem.errors import ConfigError
from progmem.settings import RunConfig, TrainConfig
from progmem.training import checkpoint, randomness, run_folder
from progmem.training.diary import Diary
from progmem.training.memory import memory_explained
from progmem.training.monitor import Monitor
from progmem.training.recorded import RecordedUpdate
from progmem.training.schedule import learning_rate
from progmem.training.signals import Stop
from progmem.training.update import Advance, Update, set_rate

Say = Callable[[str], None]


def fastest(update: Update, fabric: Fabric, train: TrainConfig) -> Advance:
    """The update as it is, or recorded where that can be done."""
    records = fabric.device.type == "cuda" and fabric.world_size == 1 and train.parts == 1
    return RecordedUpdate(update) if records else update


def run_updates(
    fabric: Fabric,
    learner: nn.Module,
    optimizer: Any,
    advance: Advance,
    *,
    out: Path,
    cfg: RunConfig,
    facts: dict[str, Any],
    done: int,
    total: int,
    say: Say | None,
) -> None:
    """Updates ``done`` to ``total`` of a run, with its metrics and checkpoints in ``out``.

    With ``say`` None nothing is shown, and no metrics are kept.
    """
    train, main = cfg.train, fabric.is_global_zero
    if main:
        run_folder.cut_metrics(out, done)
    monitor = None
    if say is not None:
        monitor = Monitor(out, first=done, total=total, every=train.log_every)
    say = say or (lambda _: None)
    diary = Diary(monitor, cfg, total, say)
    try:
        with Stop() as stop:
            for number in range(done, total):
                set_rate(optimizer, learning_rate(number, total, train))
                dropout = f"dropout {fabric.global_rank}"
                torch.manual_seed(randomness.mixed_seed(train.seed, number, dropout))
                with memory_explained(fabric.device):
                    outcome = advance(number)
                diary.write(outcome)
                finished = number + 1
                ending = finished == total or anyone(fabric, stop.signal is not None)
                if ending or finished % train.checkpoint_every == 0:
                    diary.close()  # nothing is kept of a step whose values were not looked at
                    if main:
                        checkpoint.save_checkpoint(
                            out / "checkpoints", finished, learner, optimizer, facts
                        )
                if ending and finished < total:
                    if stop.signal is None:
                        raise SystemExit(1)  # another process was told to stop
                    say(f"stopped after step {finished}; the same command goes on from there")
                    raise SystemExit(stop.exit_code)
    finally:
        if monitor is not None:
            monitor.close()


def resume(
    out: Path, learner: nn.Module, optimizer: torch.optim.Optimizer, facts: dict[str, Any],
    say: Say,
) -> int:  # fmt: skip
    """Take up the newest good checkpoint, if there is one: the steps already done."""
    found = checkpoint.newest_checkpoint(out / "checkpoints", say=say)
    if found is None:
        return 0
    differ = [name for name, value in facts.items() if found.facts.get(name) != value]
    if differ:
        raise ConfigError(
            f"{out} was begun with other data: {', '.join(differ)} differ; "
            "give another folder with -o"
        )
    checkpoint.restore(found, learner, optimizer)
    say(f"going on from step {found.step} of {out}")
    return found.step


def anyone(fabric: Fabric, flag: bool) -> bool:
    """Whether ``flag`` is set in any process."""
    if fabric.world_size == 1:
        return flag
    told = torch.tensor(float(flag), device=fabric.device)
    torch.distributed.all_reduce(told)
    return bool(told > 0)


def freeze_unreached(learner: nn.Module, loss: Callable[[], Tensor]) -> None:
    """Stop asking for gradients of parameters that ``loss`` does not depend on."""
    with kernels.plain_torch():  # for one step no kernel is worth making
        torch.autograd.backward(loss())
    for parameter in learner.parameters():
        if parameter.grad is None:
            parameter.requires_grad_(False)
        parameter.grad = None
