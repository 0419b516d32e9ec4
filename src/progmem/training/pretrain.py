"""Training without labels."""

import copy
from collections.abc import Callable, Sequence
from pathlib import Path

from lightning.fabric import Fabric

from progmem.config import ModelConfig
from progmem.data.recordings import Recording, described
from progmem.data.rows import Rows
from progmem.data.source import open_source
from progmem.model.pmt import PMT
from progmem.model.saving import weights_sha256
from progmem.series import ChannelStats
from progmem.settings import RunConfig
from progmem.training import randomness, run_folder
from progmem.training.engine import fastest, freeze_unreached, resume, run_updates
from progmem.training.learner import Learner, parameter_groups
from progmem.training.memory import memory_explained
from progmem.training.setup import initial_model, make_fabric, model_for
from progmem.training.step import Step
from progmem.training.update import Update, make_optimizer


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
        recordings, noted = open_source(source, data_dir, split, covariates=cfg.data.covariates)
    else:
        recordings, noted = source, {}
    rows = Rows(recordings, cfg.data)
    model_cfg = model_for(rows, cfg)
    stats = ChannelStats(rows.channels)
    rows.set_statistics(stats)  # also refuses what is not finite, before anything is written
    fabric = make_fabric(cfg)
    if not fabric.is_global_zero:
        return _train(fabric, rows, model_cfg, stats, out, cfg, say=None)
    if say is not None:
        say(described(recordings))
    if say is not None and rows.channels > int(rows.length.max()):
        say(
            f"recordings of {rows.channels} channels and at most {int(rows.length.max())} samples: "
            "arrays are (series, time, channels), are the last two swapped?"
        )
    if say is not None and rows.all_overlap:
        say(
            f"all {len(rows)} training rows share samples, so none can be told from another and "
            "nothing is learnt; give longer or more recordings, or a shorter data.window"
        )
    with run_folder.owned(out):
        run_folder.settle_source(out, noted, recordings)
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
    train, tell = cfg.train, say or (lambda _: None)
    if len(rows) < train.batch_size:
        tell(
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
        few = copy.copy(step)  # which parameters are reached does not depend on the rows
        few.batch_size = min(batch_size, 2 * fabric.world_size)
        freeze_unreached(learner, lambda: few(0)[0])
    groups = parameter_groups(learner, train.weight_decay)
    optimizer = make_optimizer(groups, train.lr, fabric.device)
    facts = {"rows": len(rows), "samples": int(rows.length.sum()), "channels": rows.channels,
             "means and scales": weights_sha256(stats)}  # fmt: skip
    done = resume(out, learner, optimizer, facts, tell)
    wrapped, optimizer = fabric.setup(learner, optimizer)
    step.forward = wrapped
    main = fabric.is_global_zero
    if done >= total:
        if main:
            learner.model.save(out / "model")  # the run may have ended between its last two files
        tell(f"{out} has finished its {total} steps; its model is in {out / 'model'}")
        return learner.model.eval()
    update = Update(step, wrapped, optimizer, fabric, train)
    run_updates(
        fabric, learner, optimizer, fastest(update, fabric, train),
        out=out, cfg=cfg, facts=facts, done=done, total=total, say=say,
    )  # fmt: skip
    model = learner.model.eval()
    if main:
        model.save(out / "model")
    return model


if __name__ == "__main__":
    import sys

    from progmem.cli import main

    sys.exit(main(["pretrain", *sys.argv[1:]]))
