"""Training without labels: the loop."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric

from progmem.config import ModelConfig
from progmem.data.recordings import Recording
from progmem.data.rows import Rows
from progmem.data.source import open_source
from progmem.errors import ConfigError
from progmem.model.inputs import ChannelStats
from progmem.model.pmt import PMT
from progmem.model.saving import weights_sha256
from progmem.settings import RunConfig
from progmem.training import checkpoint, randomness, run_folder
from progmem.training.diary import Diary
from progmem.training.learner import Learner, parameter_groups
from progmem.training.memory import memory_explained
from progmem.training.monitor import Monitor
from progmem.training.recorded import RecordedUpdate
from progmem.training.schedule import learning_rate
from progmem.training.setup import initial_model, make_fabric, model_for
from progmem.training.signals import Stop
from progmem.training.step import Step, freeze_unreached
from progmem.training.update import Advance, Update, make_optimizer, set_rate


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
    groups = parameter_groups(learner, train.weight_decay)
    optimizer = make_optimizer(groups, train.lr, fabric.device)
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

    update = Update(step, wrapped, optimizer, fabric, train)
    records = fabric.device.type == "cuda" and fabric.world_size == 1 and train.parts == 1
    advance: Advance = RecordedUpdate(update) if records else update
    if main:
        run_folder.cut_metrics(out, done)
    monitor = Monitor(out, first=done, total=total, every=train.log_every) if watched else None
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
                ending = finished == total or _anyone(fabric, stop.signal is not None)
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
    model = learner.model.eval()
    if main:
        model.save(out / "model")
    return model


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
