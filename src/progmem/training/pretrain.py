"""Training without labels: two views of each series, embedded and compared (eq. 5), and predicted
where they were hidden.

Shapes: B rows of the global batch, b own rows, L samples, C channels, K tokens, N windows,
W window, D width.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from lightning.fabric import Fabric
from torch import Tensor, nn

from progmem.config import LossConfig, ModelConfig, RunConfig
from progmem.data.options import BY_RULE, ReadOptions
from progmem.data.recordings import ChannelInfo, Recording, Recordings, columns_of, summarise
from progmem.data.source import open_source
from progmem.data.windows import ALONE, SHORTEST, VALUES, TrainingWindows, cut_alone, fetch_from
from progmem.errors import ConfigError, InputError
from progmem.geometry import count_tokens, count_windows, unfold_windows
from progmem.losses.pairs import overlapping
from progmem.losses.predict import squared_errors
from progmem.losses.total import Embedded, Group, StepNegatives, draw_step_negatives, total_loss
from progmem.missing import tell_of_missing
from progmem.model import saving
from progmem.model.pmt import PMT
from progmem.ops.layers import linear, linear_gelu
from progmem.pooling import fit_feature_stats, fitting_step
from progmem.progress import is_first_process
from progmem.provenance import TrainedOn, digest_of, digests_of
from progmem.series import ChannelStats
from progmem.training import randomness, run_folder
from progmem.training.defaults import fill_defaults
from progmem.training.distributed import (
    call_with_cast_weights,
    choose_device,
    make_fabric,
    split_batch,
)
from progmem.training.trainer import Log, Trainer, build_trainer, parameter_groups, to_device
from progmem.views import View, draw_view, make_view

ICL_WIDTH = 128  # of the projections that ICL compares


def model_for(rows: TrainingWindows, cfg: RunConfig) -> ModelConfig:
    """The model's config: as given, the rest from the median length and channels of the rows."""
    if rows.channels > 1 and int(rows.length.max()) == 1:
        raise InputError(
            f"recordings of {rows.channels} channels and one sample each have no course of time: "
            "arrays are (series, time, channels), are the last two swapped?"
        )
    length = int(rows.length.median())
    given = {"mask_vector": cfg.views.hide > 0, "predictor": bool(cfg.loss.predict), **cfg.model}
    if given.setdefault("channels", rows.channels) != rows.channels:
        raise ConfigError(
            f"model.channels is {given['channels']}, the recordings have {rows.channels}"
        )
    channels = given.pop("channels")
    model_cfg = ModelConfig.for_length(length, channels, **given)
    shortest = int(rows.length.argmin())
    if rows.length[shortest] < model_cfg.patch:
        name = rows.recordings[int(rows.source[shortest])].name
        raise InputError(
            f"{name} needs at least {model_cfg.patch} samples, got {int(rows.length[shortest])}; "
            "leave it out or set a smaller model.patch"
        )
    if len(rows) < 2:
        raise InputError(
            "training needs at least 2 rows to tell apart, got 1 of shape "
            f"{tuple(rows.recordings[0].values.shape)}: one recording (time, channels)? "
            f"Several are (series, time, channels); one needs {ALONE * SHORTEST} samples or more, "
            "or a data.longest and data.window below its length"
        )
    if cfg.views.hide and not model_cfg.mask_vector:
        raise ConfigError("model.mask_vector is false, but views.hide needs it: leave it out")
    if cfg.loss.predict and not model_cfg.predictor:
        raise ConfigError("model.predictor is false, but loss.predict needs it: leave it out")
    if model_cfg.slots == 0 and cfg.loss.pcl:
        raise ConfigError("loss.pcl needs memory: set loss.pcl=0 or model.slots to 1 or more")
    return model_cfg


def initial_model(cfg: ModelConfig, stats: ChannelStats, seed: int) -> PMT:
    """The model that a run of this seed starts from: with channel statistics, untrained."""
    torch.manual_seed(seed)
    model = PMT(cfg)
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
) -> PMT:
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
    data = cut_alone(recordings, cfg.data)
    rows = TrainingWindows(recordings, data)
    if is_first_process():
        names, values = [one.name for one in recordings], [one.values for one in recordings]
        tell_of_missing(values, names, columns_of(recordings))
    length = int(rows.length.median())
    begun = run_folder.read_settings(out)
    cfg = fill_defaults(cfg, length, device=choose_device(cfg), begun=begun)
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
            f"{model_cfg.size} model on {fabric.device.type}: tokens of {model_cfg.patch} samples, "
            f"{model_cfg.patch_stride} apart; batches of {cfg.train.batch_size}; training ..."
        )
    with run_folder.locked(out):
        run_folder.settle_source(out, noted, recordings)
        run_folder.settle_config(out, {**cfg.to_dict(), "model": model_cfg.to_dict()})
        return _train(fabric, rows, model_cfg, stats, info, noted, out, cfg, log)


def _train(
    fabric: Fabric,
    rows: TrainingWindows,
    model_cfg: ModelConfig,
    stats: ChannelStats,
    info: ChannelInfo,
    source: Mapping[str, str],
    out: Path,
    cfg: RunConfig,
    log: Log | None,
) -> PMT:
    train, log_line = cfg.train, log or (lambda _: None)
    assert train.batch_size is not None  # defaults are filled in
    if len(rows) < train.batch_size:
        log_line(
            f"{len(rows)} rows are fewer than train.batch_size {train.batch_size}: one batch a step"
        )
    total = randomness.total_steps(len(rows), train)
    model = initial_model(model_cfg, stats, train.seed)
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


def settle_feature_stats(model: PMT, rows: TrainingWindows, folder: Path) -> None:
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
    model: PMT,
    rows: TrainingWindows,
    cfg: RunConfig,
    fabric: Fabric,
    *,
    total: int,
    capture: bool = True,
) -> Trainer:
    """The trainer of a run of ``total`` steps without labels."""
    task = PretrainTask(Learner(model, cfg.loss), rows, cfg, total=total, device=fabric.device)
    return build_trainer(task, fabric, cfg.train, total=total, capture=capture)


class Learner(nn.Module):
    """The model with its projection heads: embeds two views of a batch for the losses."""

    def __init__(self, model: PMT, cfg: LossConfig) -> None:
        super().__init__()
        self.model, self.cfg = model, cfg
        self.heads = make_heads(model.cfg.dim, cfg)

    def forward(
        self, views: tuple[View, View], lengths: Tensor, *, gaps: bool, by_time: bool
    ) -> tuple[tuple[Embedded, Embedded], Tensor]:
        """Both views embedded, and the first view's sequence vectors (B, D) for diagnostics."""
        both = View._make(torch.cat(pair) for pair in zip(*views, strict=True))
        cfg = self.model.cfg
        mask, hidden = both.observed if gaps else None, both.hidden if cfg.mask_vector else None
        z = call_with_cast_weights(
            self.model, both.x, mask, lengths=lengths.repeat(2), hidden=hidden
        )
        assert z.window_mask is not None
        precise = torch.promote_types(z.sequence.dtype, torch.float32)  # losses in float32
        sequence = tokens = memory = token_time = window_time = errors = error_counts = None
        if self.cfg.icl:
            sequence = self.heads["icl"](z.sequence).to(precise)
        if self.cfg.hgcl:
            tokens = self.heads["hgcl"](z.tokens).to(precise)
        if self.cfg.pcl and z.memory is not None:
            memory = z.memory.to(precise)
        if self.cfg.predict:
            errors, error_counts = squared_errors(
                self.model.decode(z.tokens).to(precise), both.clean,
                hidden=both.hidden, valid=z.token_mask, stride=cfg.patch_stride,
            )  # fmt: skip
        if by_time:
            token_time, window_time = self._times(both.time, z.token_mask, z.window_mask.shape[1])
        embedded = Embedded(
            sequence, memory, tokens, z.token_mask, z.window_mask, token_time, window_time,
            errors, error_counts,
        )  # fmt: skip
        halves = zip(*((t, t) if t is None else t.chunk(2) for t in embedded), strict=True)
        first, second = (Embedded._make(half) for half in halves)
        return (first, second), z.sequence.detach()[: len(lengths)].float()

    def _times(self, time: Tensor, valid: Tensor, windows: int) -> tuple[Tensor, Tensor]:
        """Input time of each token's middle, (B, K), and of each window's tokens, (B, N)."""
        cfg = self.model.cfg
        token = time.unfold(1, cfg.patch, cfg.patch_stride).mean(2)  # (B, K)
        total, count = (
            unfold_windows(t, cfg, windows).sum(2) for t in (token * valid, valid.to(token.dtype))
        )
        return token, total / count.clamp(min=1)


def make_heads(dim: int, cfg: LossConfig) -> nn.ModuleDict:
    """Projection heads of the objectives that have one and are switched on.

    Only the losses see their output; probes use what comes before.
    """
    heads = nn.ModuleDict()
    if cfg.icl:
        heads["icl"] = ProjectionHead(dim, 2 * dim, ICL_WIDTH)
    if cfg.hgcl:
        heads["hgcl"] = ProjectionHead(dim, dim, dim)
    return heads


class ProjectionHead(nn.Sequential):
    """Two linear maps with a gelu between them."""

    def __init__(self, dim: int, hidden: int, out: int) -> None:
        super().__init__(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, out))

    def forward(self, x: Tensor) -> Tensor:
        first, last = cast(nn.Linear, self[0]), cast(nn.Linear, self[2])
        return linear(linear_gelu(x, first.weight, first.bias), last.weight, last.bias)


class PretrainBatch(NamedTuple):
    """The inputs of a step, before they are embedded."""

    size: int  # B
    group: Group
    views: tuple[View, View]  # of the own rows
    lengths: Tensor  # (b,)
    negatives: StepNegatives
    pcl_temperature: Tensor

    def rows(self, part: slice) -> "PretrainBatch":
        """Some of the own rows, with the negatives of the whole batch."""
        weak, strong = (View._make(t[part] for t in view) for view in self.views)
        return self._replace(views=(weak, strong), lengths=self.lengths[part])


class PretrainTask:
    """The losses of two views of a batch; all random numbers are functions of seed and step."""

    compares_rows = True

    def __init__(
        self,
        learner: Learner,
        rows: TrainingWindows,
        cfg: RunConfig,
        *,
        total: int,
        device: torch.device,
    ) -> None:
        self.learner = to_device(learner, device, cfg.train)
        self.rows, self.cfg, self.total, self.device = rows, cfg, total, device
        assert cfg.train.batch_size is not None  # defaults are filled in
        self.batch_size = min(cfg.train.batch_size, len(rows))
        self.row_spans = [t.to(device) for t in (rows.recording, rows.start, rows.length)]
        model, like = learner.model, learner.model.tokenizer.conv.weight
        self.fetch = fetch_from(rows, model.cfg, model.stats, like)

    def make_batch(self, step: int, *, batch_size: int | None = None) -> PretrainBatch:
        """Rows, views and negatives of a step."""
        cfg, rows, seed = self.cfg, self.rows, self.cfg.train.seed
        chosen = randomness.batch_rows(len(rows), batch_size or self.batch_size, seed, step)  # (B,)
        B = len(chosen)
        group = split_batch(B)
        model = self.learner.model
        batch = self.fetch(chosen[group.rows])
        length = int(rows.length[chosen].max())  # of the global batch: draws fit every process
        pad = length - batch.x.shape[1]
        x, observed = (F.pad(t, (0, 0, 0, pad)) for t in batch[:2])
        views = []
        for name in ("weak", "strong"):
            source = randomness.generator(seed, step, name, self.device)
            draws = draw_view(
                B, length, rows.channels, cfg.views, strong=name == "strong", generator=source
            )
            draws = draws.rows(group.rows)
            views.append(make_view(x, observed, batch.lengths, draws.to(x.dtype)))
        K = count_tokens(model.cfg, length)
        index = chosen.to(self.device)
        overlap = overlapping(*(t[index] for t in self.row_spans))
        negatives = draw_step_negatives(
            overlap, K, count_windows(model.cfg, K), model.cfg.slots,
            count=cfg.loss.negatives,
            generator=randomness.generator(seed, step, "negatives", self.device),
        )  # fmt: skip
        progress = step / max(1, self.total - 1)
        start, end = cfg.loss.pcl_temperature_start, cfg.loss.pcl_temperature_end
        temperature = torch.full(
            (), start + (end - start) * progress, dtype=torch.float64, device=self.device
        )
        return PretrainBatch(B, group, (views[0], views[1]), batch.lengths, negatives, temperature)

    def embed(
        self, learner: nn.Module, batch: PretrainBatch
    ) -> tuple[tuple[Embedded, Embedded], Tensor]:
        """Both views of the own rows, and the first view's sequence vectors."""
        return learner(
            batch.views, batch.lengths, gaps=self.rows.gaps,
            by_time=self.cfg.views.align == "time",
        )  # fmt: skip

    def losses(
        self, batch: PretrainBatch, embedded: tuple[Embedded, Embedded]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of the own rows to be differentiated; it and its parts over all processes."""
        loss, parts = total_loss(
            embedded, batch.negatives, batch.group, cfg=self.cfg.loss, model=self.learner.model.cfg,
            pcl_temperature=batch.pcl_temperature,
        )  # fmt: skip
        values = torch.stack([loss.detach(), *(p.detach() for p in parts.values())])
        return loss, dict(zip(["loss", *parts], batch.group.total(values), strict=True))

    def row_losses(self, batch: PretrainBatch, embedded: tuple[Embedded, Embedded]) -> Tensor:
        """The prediction errors of each own row; without them, how far its samples lie out."""
        losses = torch.stack([view.x.abs().amax((1, 2)) for view in batch.views]).amax(0)  # (b,)
        if embedded[0].errors is not None:
            errors, counts = (
                torch.stack([getattr(view, name) for view in embedded]).sum(0)
                for name in ("errors", "error_counts")
            )
            losses = errors / counts.clamp(min=1)
        for view in embedded:
            for values in (view.sequence, view.memory, view.tokens):
                if values is not None:
                    losses = losses + 0 * values.flatten(1).sum(
                        1
                    )  # which is NaN where one is not finite
        return losses

    def parameter_groups(self) -> list[dict[str, Any]]:
        return parameter_groups(self.learner, self.cfg.train.weight_decay)


if __name__ == "__main__":
    import sys

    from progmem.cli import main

    sys.exit(main(["pretrain", *sys.argv[1:]]))
