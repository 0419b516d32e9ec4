"""Training without labels: from recordings to the folder of a run, whatever the encoder is.

What is learnt of a batch is a method's task: `progmem.training.pmt`, or one of
`progmem.baselines.ENCODERS`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric

from progmem import baselines
from progmem.baselines.matched import MemorylessConfig
from progmem.config import PMT as PMT_NAME
from progmem.config import ModelConfig, RunConfig
from progmem.data.options import BY_RULE, ReadOptions
from progmem.data.recordings import ChannelInfo, Recording, Recordings, columns_of, summarise
from progmem.data.source import open_source
from progmem.data.windows import ALONE, SHORTEST, VALUES, TrainingWindows, cut_alone
from progmem.errors import ConfigError, InputError
from progmem.missing import tell_of_missing
from progmem.model import saving
from progmem.pooling import fit_feature_stats, fitting_step
from progmem.progress import Log, is_first_process, silent
from progmem.provenance import TrainedOn, digest_of, digests_of
from progmem.series import ChannelStats
from progmem.training import randomness, run_folder
from progmem.training.defaults import fill_defaults
from progmem.training.distributed import choose_device, make_fabric
from progmem.training.trainer import Trainer, build_trainer


def model_for(rows: TrainingWindows, cfg: RunConfig) -> Any:
    """The encoder's config: as given, the rest from the median length and channels of the rows."""
    if rows.channels > 1 and int(rows.length.max()) == 1:
        raise InputError(
            f"recordings of {rows.channels} channels and one sample each have no course of time: "
            "arrays are (series, time, channels), are the last two swapped?"
        )
    name = cfg.encoder["name"]
    own = {key: value for key, value in cfg.encoder.items() if key != "name"}
    given, section = dict(own), "encoder"
    if baselines.method_of(name).in_frame:
        hides = {"mask_vector": cfg.views.hide > 0, "predictor": bool(cfg.loss.predict)}
        given, section = {**hides, **cfg.model, **own}, "model"
    if given.setdefault("channels", rows.channels) != rows.channels:
        raise ConfigError(
            f"{section}.channels is {given['channels']}, the recordings have {rows.channels}"
        )
    found = baselines.for_length(name, int(rows.length.median()), given)
    shortest = int(rows.length.argmin())
    if rows.length[shortest] < found.patch:
        series = rows.recordings[int(rows.source[shortest])].name
        smaller = f" or set a smaller {section}.patch" if hasattr(type(found), "patch") else ""
        raise InputError(
            f"{series} needs at least {found.patch} samples, got {int(rows.length[shortest])}; "
            f"leave it out{smaller}"
        )
    if len(rows) < 2:
        raise InputError(
            "training needs at least 2 rows to tell apart, got 1 of shape "
            f"{tuple(rows.recordings[0].values.shape)}: one recording (time, channels)? "
            f"Several are (series, time, channels); one needs {ALONE * SHORTEST} samples or more, "
            "or a data.longest and data.window below its length"
        )
    if isinstance(found, ModelConfig):
        _check_objectives(found, cfg)
    return found


def _check_objectives(model_cfg: ModelConfig, cfg: RunConfig) -> None:
    """Refuse objectives that the model lacks the parts for."""
    if cfg.views.hide and not model_cfg.mask_vector:
        raise ConfigError("model.mask_vector is false, but views.hide needs it: leave it out")
    if cfg.loss.predict and not model_cfg.predictor:
        raise ConfigError("model.predictor is false, but loss.predict needs it: leave it out")
    if model_cfg.slots == 0 and cfg.loss.pcl:
        if isinstance(model_cfg, MemorylessConfig):
            name = cfg.encoder["name"]
            raise ConfigError(f"loss.pcl needs memory, and {name} has none: set loss.pcl=0")
        raise ConfigError("loss.pcl needs memory: set loss.pcl=0 or model.slots to 1 or more")


def initial_model(cfg: Any, stats: ChannelStats, seed: int, *, name: str = PMT_NAME) -> Any:
    """The encoder that a run of this seed starts from: with channel statistics, untrained."""
    torch.manual_seed(seed)
    model = baselines.build(name, cfg)
    if cfg.normalise == "channel":
        model.stats.load_state_dict(stats.state_dict())
    return model


def pretrain(
    source: str | Path | Sequence[Recording],
    out: Path,
    cfg: RunConfig,
    *,
    data_dir: Path | None = None,
    split: str = "official",
    options: ReadOptions = BY_RULE,
    log: Log | None = print,
) -> Any:
    """Train a model on unlabelled recordings; ``out`` then holds it in model/.

    ``source`` is recordings, a file or folder of them, or the name of a data set in ``data_dir``,
    of whose ``split`` the training rows are taken. ``options`` say how files are read.

    The same call on a folder whose run was interrupted resumes from its last good checkpoint; on
    one that has finished it returns the model. With ``log`` None nothing is printed, and
    no metrics are written.
    """
    said = log if is_first_process() else None
    if isinstance(source, str | Path):
        recordings, noted = open_source(
            source, data_dir, split, covariates=cfg.data.covariates, options=options, log=said
        )
    else:
        recordings, noted = source, {}
    if said is not None:
        lines = (
            recordings.lines() if isinstance(recordings, Recordings) else [summarise(recordings)]
        )
        said("\n".join(lines))
    name = cfg.encoder["name"]
    data = cut_alone(recordings, cfg.data)
    rows = TrainingWindows(recordings, data)
    if is_first_process():
        names, values = [one.name for one in recordings], [one.values for one in recordings]
        tell_of_missing(values, names, columns_of(recordings))
    length = int(rows.length.median())
    begun = run_folder.read_settings(out)
    cfg = fill_defaults(
        cfg, length, device=choose_device(cfg), begun=begun,
        values=int(rows.length.sum()) * rows.channels,
    )  # fmt: skip
    model_cfg = model_for(rows, cfg)
    stats = ChannelStats(rows.channels)
    rows.set_statistics(
        stats, log=said
    )  # also refuses what is not finite, before anything is written
    info = ChannelInfo.of(recordings, options.missing)
    if info.rate is None:
        info = info._replace(rate=cfg.data.sampling_rate)
    fabric = make_fabric(cfg)
    if not fabric.is_global_zero:
        return _train(fabric, rows, model_cfg, stats, info, noted, out, cfg, log=None)
    if log is not None and rows.channels > int(rows.length.max()):
        log(
            f"recordings of {rows.channels} channels and at most {int(rows.length.max())} samples: "
            "arrays are (series, time, channels), are the last two swapped?"
        )
    if log is not None and data != cfg.data:
        log(
            f"one recording alone is cut into {len(rows)} rows of {length} samples; if it is "
            "several, (series, time, channels), say so by layout"
        )
    if log is not None and rows.all_overlap:
        log(
            f"all {len(rows)} training rows share samples, so none can be told from another and "
            "nothing is learnt; give longer or more recordings, or a shorter data.window"
        )
    if log is not None:
        log(
            f"{_described(name, model_cfg)} on {fabric.device.type}; batches of "
            f"{cfg.train.batch_size}; training ..."
        )
    with run_folder.locked(out):
        run_folder.settle_source(out, noted, recordings)
        config = {**cfg.to_dict(), **baselines.sections(name, model_cfg)}
        run_folder.settle_config(out, config)
        return _train(fabric, rows, model_cfg, stats, info, noted, out, cfg, log)


def _described(name: str, cfg: Any) -> str:
    if isinstance(cfg, ModelConfig):
        size = f"{cfg.size} model" if name == PMT_NAME else f"{cfg.size} {name}"
        return f"{size}: tokens of {cfg.patch} samples, {cfg.patch_stride} apart,"
    return f"{name} of width {cfg.dim}"


def _train(
    fabric: Fabric,
    rows: TrainingWindows,
    model_cfg: Any,
    stats: ChannelStats,
    info: ChannelInfo,
    source: Mapping[str, str],
    out: Path,
    cfg: RunConfig,
    log: Log | None,
) -> Any:
    train, log_line = cfg.train, log or silent
    assert train.batch_size is not None  # defaults are filled in
    if len(rows) < train.batch_size:
        log_line(
            f"{len(rows)} rows are fewer than train.batch_size {train.batch_size}: one batch a step"
        )
    total = randomness.total_steps(len(rows), train)
    model = initial_model(model_cfg, stats, train.seed, name=cfg.encoder["name"])
    if sum(len(r.values) for r in rows.recordings) * rows.channels > 16 * VALUES:
        log_line("noting which samples are learnt from, by which they are known again ...")
    digests = digests_of(rows.recordings)
    model.info, model.history = info, (TrainedOn.of(digests, source),)
    trainer = make_pretrainer(model, rows, cfg, fabric, total=total)
    fingerprint = {
        "rows": len(rows), "samples": int(rows.length.sum()), "channels": rows.channels,
        "means and scales": saving.weights_sha256(stats), "content": digest_of(digests),
    }  # fmt: skip
    if not trainer.run(out, fingerprint=fingerprint, log=log):
        log_line(f"{out} has finished its {total} steps; its model is in {out / 'model'}")
    settle_feature_stats(model.eval(), rows, out / "model")
    if fabric.is_global_zero:
        model.save(out / "model")  # a finished run may have ended before this file
    return model


def settle_feature_stats(model: Any, rows: TrainingWindows, folder: Path) -> None:
    """Give a trained model the feature statistics of its rows, or those saved with it before.

    A finished run that is opened again keeps the file in ``folder`` as it is: fitted on another
    machine, its numbers could differ in the last digits.
    """
    stats = saving.saved_feature_stats(model, folder)
    if stats is None:
        some = torch.arange(0, len(rows), fitting_step(len(rows)))
        stats = fit_feature_stats(model, rows.cut(some))
    model.feature_stats.set(stats)


def make_pretrainer(
    model: Any,
    rows: TrainingWindows,
    cfg: RunConfig,
    fabric: Fabric,
    *,
    total: int,
    capture: bool = True,
) -> Trainer:
    """The trainer of a run of ``total`` steps without labels."""
    make_task = baselines.method_of(cfg.encoder["name"]).task
    task = make_task(model, rows, cfg, total=total, device=fabric.device)
    return build_trainer(task, fabric, cfg.train, total=total, capture=capture)


if __name__ == "__main__":
    import sys

    from progmem.cli import main

    sys.exit(main(["pretrain", *sys.argv[1:]]))
