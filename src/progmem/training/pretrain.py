"""Training without labels: the loop."""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor

from progmem.config import ModelConfig
from progmem.data.recordings import Recording
from progmem.data.rows import Rows
from progmem.data.source import open_source
from progmem.errors import ConfigError, TrainingError
from progmem.model.inputs import ChannelStats
from progmem.model.pmt import PMT
from progmem.model.saving import weights_sha256
from progmem.settings import RunConfig
from progmem.training import checkpoint, randomness, run_folder
from progmem.training.learner import Learner, parameter_groups
from progmem.training.memory import memory_explained
from progmem.training.monitor import Monitor, health
from progmem.training.setup import initial_model, make_fabric, model_for
from progmem.training.signals import Stop
from progmem.training.step import Step, freeze_unreached
from progmem.training.two_pass import backward_in_parts

COLLAPSED = 1e-3  # feature sd below which a run is warned about


def pretrain(
    source: str | Path | Sequence[Recording],
    out: Path,
    cfg: RunConfig,
    *,
    data_dir: Path | None = None,
    split: str = "official",
    say: Callable[[str], None] | None = print,
) -> PMT:
    """Train a model on unlabelled recordings; ``out`` then holds it in model/.

    ``source`` is recordings, a file or folder of them, or the name of a data set in ``data_dir``,
    of whose ``split`` the training rows are taken.

    The same call on a folder whose run was broken off goes on where its last good checkpoint was;
    on one that has finished it returns the model. With ``say`` None nothing is shown, and no
    metrics are kept.
    """
    if isinstance(source, str | Path):
        recordings, noted = open_source(source, data_dir, split)
    else:
        recordings, noted = source, {}
    rows = Rows(recordings, cfg.data)
    model_cfg = model_for(rows, cfg)
    stats = ChannelStats(rows.channels)
    rows.set_statistics(stats)  # also refuses what is not finite, before anything is written
    fabric = make_fabric(cfg)
    if not fabric.is_global_zero:
        return _train(fabric, rows, model_cfg, stats, out, cfg, say=None)
    if say is not None and rows.channels > int(rows.length.max()):
        say(
            f"recordings of {rows.channels} channels and at most {int(rows.length.max())} samples: "
            "arrays are (series, time, channels), are the last two swapped?"
        )
    with run_folder.owned(out):
        run_folder.settle_source(out, noted)
        run_folder.settle_config(out, {**cfg.to_dict(), "model": model_cfg.to_dict()})
        return _train(fabric, rows, model_cfg, stats, out, cfg, say)


def _train(
    fabric: Fabric,
    rows: Rows,
    model_cfg: ModelConfig,
    stats: ChannelStats,
    out: Path,
    cfg: RunConfig,
    say: Callable[[str], None] | None,
) -> PMT:
    train, watched = cfg.train, say is not None
    say = say or (lambda _: None)
    if len(rows) < train.batch_size:
        say(
            f"{len(rows)} rows are fewer than train.batch_size {train.batch_size}: one batch a step"
        )
    batch_size = min(train.batch_size, len(rows))
    per_epoch = randomness.steps_per_epoch(len(rows), batch_size)
    total = train.epochs * per_epoch

    learner = Learner(initial_model(model_cfg, stats, train.seed), cfg.loss)
    if train.precision == "64":
        learner.double()
    learner.to(fabric.device)
    step = Step(learner, rows, cfg, batch_size, total, fabric.device)
    with memory_explained(fabric.device):
        freeze_unreached(step)
    optimizer = torch.optim.AdamW(
        parameter_groups(learner, train.weight_decay), lr=train.lr, betas=(0.9, 0.999)
    )
    facts = {"rows": len(rows), "samples": int(rows.length.sum()), "channels": rows.channels,
             "means and scales": weights_sha256(stats)}  # fmt: skip
    done = _resume(out, learner, optimizer, facts, say)
    wrapped, optimizer = fabric.setup(learner, optimizer)
    step.forward = wrapped
    main = fabric.is_global_zero
    if done >= total:
        if main:
            learner.model.save(out / "model")  # the run may have ended between its last two files
        say(f"{out} has finished its {total} steps; its model is in {out / 'model'}")
        return learner.model.eval()

    def backward(loss: Tensor) -> None:
        fabric.backward(loss * fabric.world_size)  # data parallelism will average

    def unsynchronised() -> AbstractContextManager[None]:
        return fabric.no_backward_sync(wrapped, enabled=fabric.world_size > 1)

    if main:
        run_folder.cut_metrics(out, done)
    monitor = Monitor(out, first=done, total=total, every=train.log_every) if watched else None
    warned = False
    try:
        with Stop() as stop:
            for number in range(done, total):
                lr = learning_rate(number, total, cfg)
                for group in optimizer.param_groups:
                    group["lr"] = lr
                dropout = f"dropout {fabric.global_rank}"
                torch.manual_seed(randomness.mixed_seed(train.seed, number, dropout))
                with memory_explained(fabric.device):
                    if train.parts == 1:
                        loss, parts, sequence, count = step(number)
                        backward(loss)
                    else:
                        parts, sequence, count = backward_in_parts(
                            step, number, train.parts, backward, unsynchronised=unsynchronised
                        )
                values = check_finite(parts, number)
                norm = fabric.clip_gradients(
                    wrapped, optimizer, max_norm=train.clip, error_if_nonfinite=False
                )
                check_finite({"gradient": torch.as_tensor(norm)}, number)
                optimizer.step()
                optimizer.zero_grad()
                finished = number + 1
                if monitor is not None:
                    values |= {"lr": lr}
                    if finished % train.log_every == 0:
                        values |= health(sequence)
                        if values["feature_sd"] < COLLAPSED and not warned:
                            warned = True
                            say(
                                f"step {finished}: the sequence vectors have collapsed (feature sd "
                                f"{values['feature_sd']:.1e}); try other views or a lower lr"
                            )
                    monitor.step(finished, values, count)
                ending = finished == total or _anyone(fabric, stop.signal is not None)
                if main and (ending or finished % train.checkpoint_every == 0):
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
    model = learner.model.eval()
    if main:
        model.save(out / "model")
    return model


def learning_rate(step: int, total: int, cfg: RunConfig) -> float:
    """Linear warm-up to the peak, then a cosine down to the end."""
    train = cfg.train
    warmup = round(train.warmup * total)
    if step < warmup:
        return train.lr * (step + 1) / warmup
    progress = (step - warmup) / max(1, total - 1 - warmup)
    return train.lr_end + (train.lr - train.lr_end) * (1 + math.cos(math.pi * progress)) / 2


def check_finite(parts: dict[str, Tensor], number: int) -> dict[str, float]:
    """The values of a step; one that is not a number ends the run by name."""
    values = dict(zip(parts, torch.stack(list(parts.values())).tolist(), strict=True))
    bad = [name for name, value in values.items() if not math.isfinite(value)]
    if bad:
        names = ", ".join(name for name in bad if name != "loss") or "loss"
        raise TrainingError(
            f"step {number + 1}: {names} is not a finite number; the last good checkpoint is kept. "
            "Look for extreme values in the data, or lower train.lr"
        )
    return values


def _resume(
    out: Path, learner: Learner, optimizer: torch.optim.Optimizer, facts: dict[str, Any],
    say: Callable[[str], None],
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


def _anyone(fabric: Fabric, flag: bool) -> bool:
    if fabric.world_size == 1:
        return flag
    told = torch.tensor(float(flag), device=fabric.device)
    torch.distributed.all_reduce(told)
    return bool(told > 0)


if __name__ == "__main__":
    import sys

    from progmem.cli import main

    sys.exit(main(["pretrain", *sys.argv[1:]]))
