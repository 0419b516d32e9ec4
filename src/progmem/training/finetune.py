"""Training with labels: cross-entropy on the sequence level, a linear head or the whole network.

Shapes: B rows of the global batch, b own rows, L samples, C channels, Y classes.
"""

import hashlib
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from lightning.fabric import Fabric
from sklearn.metrics import f1_score
from sklearn.utils.extmath import softmax
from torch import Tensor, nn

from progmem import baselines, provenance
from progmem.config import PMT, FinetuneConfig, finetune_config
from progmem.data.labels import (
    LabelledRecordings,
    RowSplit,
    open_labelled,
    origins_of,
    split_rows,
)
from progmem.data.options import BY_RULE, ReadOptions
from progmem.data.recordings import ChannelInfo, columns_of
from progmem.data.windows import TrainingWindows, fetch_from, refuse_infinite
from progmem.errors import ConfigError
from progmem.files import check_result_file
from progmem.losses.total import Group
from progmem.missing import tell_of_missing
from progmem.model import saving
from progmem.model.saving import AnyEncoder
from progmem.pooling import check_observed
from progmem.probes.classify import untrained_copy
from progmem.probes.comparison import Comparison, Outcome
from progmem.probes.own_data import LabelProbe, compare_on_held_out, compare_on_labels
from progmem.progress import Log, is_first_process
from progmem.provenance import (
    TrainedOn,
    check_labels_unseen,
    check_test_series,
    digest_of,
    digests_of,
    history_of,
    labels_learnt,
    pieces_of,
    seen_of,
)
from progmem.report import record
from progmem.series import ChannelStats, Series
from progmem.training import randomness, run_folder
from progmem.training.classifier import SequenceClassifier
from progmem.training.distributed import make_fabric, split_batch
from progmem.training.pretrain import initial_model, model_for, settle_feature_stats
from progmem.training.trainer import build_trainer, parameter_groups, to_device
from progmem.views import draw_view, make_view


class Finetuned(NamedTuple):
    """A trained classifier and its scores."""

    classifier: SequenceClassifier
    result: dict[str, Any]


def finetune(
    source: str | Path | LabelledRecordings,
    out: Path,
    cfg: FinetuneConfig,
    *,
    y: Path | None = None,
    pretrained: Path | None = None,
    data_dir: Path | None = None,
    split: str = "official",
    result: Path | None = None,
    options: ReadOptions = BY_RULE,
    allow_seen_labels: bool = False,
    log: Log | None = print,
) -> Finetuned:
    """Train on labels from scratch or from a run; ``out`` then holds model/, a head and a result.

    ``source`` is labelled series, the name of a data set in ``data_dir`` with its ``split``, or a
    file or folder of own series whose labels are in ``y`` or in the file itself; ``options`` say
    how it is read. Training does not depend on test
    series. They are scored once, at the end; with ``finetune.validation`` the training rows held
    out are scored in their place, and the test rows not at all.

    Own series are also classified by what costs less: frozen encoders, raw values and MiniRocket.

    A network before that has learnt labels which are scored here, or which are said not to be
    used, is refused; with ``allow_seen_labels`` the scores are marked.

    The same call on a folder whose run was interrupted resumes from its last good checkpoint.
    The scores are written to ``out``/result.json, and to ``result`` where that is given.
    """
    if result is not None:
        check_result_file(result, "--result")
    if pretrained is not None:
        calendar = run_folder.reads_calendar(pretrained)  # as the network was trained
        read = replace(cfg.run.data, covariates=calendar)
        cfg = replace(cfg, run=replace(cfg.run, data=read))
    if isinstance(source, LabelledRecordings):
        data = source
    else:
        covariates = cfg.run.data.covariates
        data = open_labelled(
            source, y, data_dir, split, covariates=covariates, options=options,
            log=log if is_first_process() else None,
        )  # fmt: skip
    if pretrained is not None:
        run_folder.check_columns(data.recordings, pretrained)
    chosen = cfg.finetune
    parts = split_rows(
        data,
        label_share=chosen.label_share,
        label_seed=chosen.label_seed,
        validation=chosen.validation,
    )
    known, learnt = (
        TrainingWindows([data.recordings[i] for i in rows], cfg.run.data)
        for rows in (parts.train, parts.labelled)
    )
    stats = ChannelStats(known.channels)
    known.set_statistics(stats)
    refuse_infinite(data.all_recordings())  # what is only scored too: before anything is trained
    encoder = _first_encoder(cfg, known, stats, pretrained)
    digests = digests_of(data.recordings)
    learnt_before = 0
    if pretrained is not None:
        learnt_before = _check_seen(encoder, data, digests, parts, allow=allow_seen_labels)
    if columns_of(data.recordings):
        encoder.info = ChannelInfo.of(data.recordings, options.missing)
    names, values = [r.name for r in data.recordings], [r.values for r in data.recordings]
    Series(values, None, encoder.cfg, names)
    if is_first_process():
        tell_of_missing(values, names, columns_of(data.recordings))
    if len(data.test):
        Series(list(data.test), None, encoder.cfg)
    check_observed([r.values for r in data.all_recordings()])
    fabric = make_fabric(cfg.run)
    began = time.perf_counter()
    if not fabric.is_global_zero:
        return Finetuned(
            _train(fabric, known, learnt, stats, encoder, data, digests, parts, out, cfg, None), {}
        )
    with run_folder.locked(out):
        after = {} if pretrained is None else {"after": run_folder.trained_on(pretrained)}
        run_folder.settle_source(out, {**data.source, **after}, data.recordings)
        config = {**cfg.to_dict(), **baselines.sections(encoder.name, encoder.cfg)}
        run_folder.settle_config(out, config, whole=finetune_config)
        classifier = _train(
            fabric, known, learnt, stats, encoder, data, digests, parts, out, cfg, log
        )
        classifier.save(out)
        row = _score(classifier, data, parts, cfg, pretrained is not None)
        row |= {"labels_seen_before": learnt_before} if learnt_before else {}
        comparison = None if y is None else _compare(classifier, data, parts, pretrained, log)
        results = {
            "config": config,
            "pretraining": None if pretrained is None else _pretraining(pretrained),
            "seeds": [cfg.run.train.seed],
            "label_seeds": [chosen.label_seed],
            **record.environment(fabric.device.type),
            "seconds": time.perf_counter() - began,  # of this call; a resumed run has had others
            "labelled_rows": None if chosen.label_share == "all" else parts.labelled.tolist(),
            "rows": [row],
            **({} if comparison is None else {"comparison": comparison.to_dict()}),
        }
        for path in (out / "result.json", *([] if result is None else [result])):
            record.write(path, results)
    return Finetuned(classifier, results)


def _first_encoder(
    cfg: FinetuneConfig,
    rows: TrainingWindows,
    stats: ChannelStats,
    pretrained: Path | None,
) -> AnyEncoder:
    """The network before the first step."""
    given = cfg.run.encoder
    if pretrained is None:
        seed, name = cfg.run.train.seed, given["name"]
        model: AnyEncoder = initial_model(model_for(rows, cfg.run), stats, seed, name=name)
        return model
    if not (pretrained / "model").is_dir():
        run = pretrained.parent
        hint = f"; did you mean {run}?" if (run / "model").is_dir() else ""
        raise ConfigError(f"--from must name the folder of a finished run, got {pretrained}{hint}")
    model = saving.load(pretrained / "model")
    model.history = run_folder.history_in(pretrained, model)
    has = {"encoder.name": model.name, **_flat(baselines.sections(model.name, model.cfg))}
    asked = {"encoder": {k: v for k, v in given.items() if given["name"] != PMT}}
    for name, value in _flat({**asked, "model": cfg.run.model}).items():
        if has.get(name) != value:
            raise ConfigError(
                f"{name} is {has.get(name)} in {pretrained} and cannot become {value}; "
                "leave it out, or train from scratch without --from"
            )
    return model


def _flat(nested: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {f"{s}.{k}": v for s, section in nested.items() for k, v in section.items()}


def _check_seen(
    encoder: Any, data: LabelledRecordings, digests: np.ndarray, parts: RowSplit, *, allow: bool
) -> int:
    """How many labels that are scored, or not used, the network knows from before."""
    history, name = history_of(encoder), data.source.get("name", "")
    if "split" in data.source:
        test = provenance.digests(data.test)
        check_test_series(history, digests, test, name=name, split=data.source["split"])
    used = np.isin(np.arange(len(digests)), parts.labelled)
    known = labels_learnt(history, name, digests) | seen_of(history, data.recordings).labels
    known = known[~used]
    return check_labels_unseen(
        known, "series that are held out here, or whose labels are not used", allow=allow
    )


def _pretraining(run: Path) -> dict[str, Any]:
    """The settings of a run, and what it was trained on: one set's is not another's."""
    return {"settings": run_folder.read_settings(run), "source": run_folder.read_source(run)}


def _train(
    fabric: Fabric,
    known: TrainingWindows,
    rows: TrainingWindows,
    stats: ChannelStats,
    encoder: AnyEncoder,
    data: LabelledRecordings,
    digests: np.ndarray,
    parts: RowSplit,
    out: Path,
    cfg: FinetuneConfig,
    log: Log | None,
) -> SequenceClassifier:
    train, y = cfg.run.train, data.y[parts.labelled]
    labelling = repr((parts.labelled.tolist(), y.tolist(), data.classes)).encode()
    fingerprint = {
        "rows": len(rows), "samples": int(rows.length.sum()), "channels": rows.channels,
        "means and scales": saving.weights_sha256(stats),
        "first weights": saving.weights_sha256(encoder),
        "labels": hashlib.sha256(labelling).hexdigest(),
        "content": digest_of(digests[parts.labelled]),
    }  # fmt: skip
    learner = SequenceClassifier(encoder, data.classes, only_head=cfg.finetune.only_head)
    labels = torch.from_numpy(y.astype(np.int64))[rows.source]
    task = FinetuneTask(learner, rows, labels, cfg, device=fabric.device)
    total = randomness.total_steps(len(rows), train)
    trainer = build_trainer(task, fabric, train, total=total)
    if not trainer.run(out, fingerprint=fingerprint, log=log) and log is not None:
        log(f"{out} has finished its {total} steps")
    learner.eval().learnt = digests[parts.labelled]
    if not cfg.finetune.only_head:
        seen, learnt = (
            [data.recordings[i] for i in rows] for rows in (parts.train, parts.labelled)
        )
        now = TrainedOn.of(
            np.append(digests[parts.train], pieces_of(seen)[:, 0]), data.source,
            labelled=digests[parts.labelled], pieces=pieces_of(learnt),
        )  # fmt: skip
        encoder.history = (*history_of(encoder), now)
    frozen = cfg.finetune.only_head  # with its statistics, if it has any
    if not (frozen and encoder.feature_stats.values):
        settle_feature_stats(encoder, known, out / "model")  # of all rows: that needs no label
    return learner


class LabelledBatch(NamedTuple):
    """The own rows of a step."""

    size: int  # B
    group: Group
    x: Tensor  # (b, L, C)
    observed: Tensor | None  # (b, L, C)
    lengths: Tensor  # (b,)
    y: Tensor  # (b,)

    def rows(self, part: slice) -> "LabelledBatch":
        """Some of the own rows; ``size`` stays that of the whole batch."""
        observed = None if self.observed is None else self.observed[part]
        return self._replace(
            x=self.x[part], observed=observed, lengths=self.lengths[part], y=self.y[part]
        )


class FinetuneTask:
    """Cross-entropy of a classifier on a batch; random numbers are functions of seed and step.

    ``y`` is the class of each row.
    """

    compares_rows = False
    fixed_shapes = True

    def __init__(
        self,
        learner: SequenceClassifier,
        rows: TrainingWindows,
        y: Tensor,
        cfg: FinetuneConfig,
        *,
        device: torch.device,
    ) -> None:
        self.learner = to_device(learner, device, cfg.run.train)
        self.rows, self.cfg, self.device, self.y = rows, cfg, device, y.to(device)
        assert cfg.run.train.batch_size is not None  # `finetune_config` has a default
        self.batch_size = randomness.whole_batch(len(rows), cfg.run.train.batch_size)
        encoder = learner.encoder
        like = next(encoder.parameters())
        self.fetch = fetch_from(rows, encoder.cfg, encoder.stats, like)

    def make_batch(self, step: int, *, batch_size: int | None = None) -> LabelledBatch:
        """Rows, their views and their labels."""
        rows, seed = self.rows, self.cfg.run.train.seed
        chosen = randomness.batch_rows(len(rows), batch_size or self.batch_size, seed, step)  # (B,)
        B = len(chosen)
        group = split_batch(B)
        own = chosen[group.rows]
        batch = self.fetch(own)
        x, observed = batch.x, batch.observed
        kind = self.cfg.finetune.views
        if kind != "none":
            length = int(rows.length[chosen].max())  # of the global batch: draws fit every process
            x, observed = (F.pad(t, (0, 0, 0, length - t.shape[1])) for t in (x, observed))
            source = randomness.generator(seed, step, f"finetune {kind}", self.device)
            draws = draw_view(
                B, length, rows.channels, self.cfg.run.views, strong=kind == "strong",
                generator=source,
            )  # fmt: skip
            view = make_view(x, observed, batch.lengths, draws.rows(group.rows).to(x.dtype))
            x, observed = view.x, view.observed
        mask = observed if rows.gaps else None
        return LabelledBatch(B, group, x, mask, batch.lengths, self.y[own.to(self.device)])

    def embed(self, learner: nn.Module, batch: LabelledBatch) -> tuple[Tensor, Tensor]:
        """Scores (b, Y) of the own rows, and their sequence vectors."""
        return learner(batch.x, batch.observed, batch.lengths)

    def losses(self, batch: LabelledBatch, embedded: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Share of the mean cross-entropy that the own rows have; loss and accuracy of all."""
        loss = F.cross_entropy(embedded, batch.y, reduction="sum") / batch.size
        right = (embedded.detach().argmax(1) == batch.y).sum() / batch.size
        values = batch.group.total(torch.stack([loss.detach(), right.to(loss.dtype)]))
        return loss, dict(zip(["loss", "accuracy"], values, strict=True))

    def row_losses(self, batch: LabelledBatch, embedded: Tensor) -> Tensor:
        """The cross-entropy of each own row."""
        return F.cross_entropy(embedded, batch.y, reduction="none")

    def parameter_groups(self) -> list[dict[str, Any]]:
        """The network's parameters, then the head's with a rate of their own."""
        train, head_lr = self.cfg.run.train, self.cfg.finetune.head_lr
        groups = parameter_groups(self.learner.encoder, train.weight_decay) + [
            {**group, "factor": head_lr / train.lr}
            for group in parameter_groups(self.learner.head, train.weight_decay)
        ]
        return [group for group in groups if group["params"]]

    def updated(self) -> None:
        """Nothing follows an update."""


def _score(
    classifier: SequenceClassifier,
    data: LabelledRecordings,
    parts: RowSplit,
    cfg: FinetuneConfig,
    pretrained: bool,
) -> dict[str, Any]:
    """Accuracy and F1 on the rows that nothing was learnt from, if there are any."""
    options = cfg.finetune
    scored, series, y = "test", list(data.test), data.test_y
    if options.validation:
        scored = "validation"
        series = [data.recordings[i].values for i in parts.held_out]
        y = data.y[parts.held_out]
    row: dict[str, Any] = {
        "set": data.source.get("name", "own series"), "split": data.source.get("split", "official"),
        "encoder": classifier.encoder.name, "start": "pretrained" if pretrained else "scratch",
        "trained": "head" if options.only_head else "network", "labels": options.label_share,
        "learnt": len(parts.labelled), "scored": scored if series else "nothing",
    }  # fmt: skip
    if series:
        predicted = classifier.scores(series).argmax(1)
        macro, weighted = (
            float(f1_score(y, predicted, average=kind)) for kind in ("macro", "weighted")
        )
        row["scores"] = {
            "accuracy": float((predicted == y).mean()), "macro_f1": macro, "weighted_f1": weighted
        }  # fmt: skip
    return row


def _compare(
    classifier: SequenceClassifier,
    data: LabelledRecordings,
    parts: RowSplit,
    pretrained: Path | None,
    log: Log | None,
) -> Comparison | None:
    """The classifier beside frozen encoders, raw values and MiniRocket, on what is held out.

    Where nothing is, the frozen pretrained encoder and the others are compared on the labelled
    series by folds: training the network again for each would take too long.
    """
    tuned = classifier.encoder
    series, y = (
        [data.recordings[i].values for i in parts.labelled],
        data.y[parts.labelled],
    )
    device = next(tuned.parameters()).device
    frozen = None if pretrained is None else saving.load(pretrained / "model", device=device)
    if not len(parts.held_out):
        if frozen is None:
            return None  # nothing of this training is scored
        origins = origins_of([data.recordings[i] for i in parts.labelled])
        return compare_on_labels(
            LabelProbe(frozen, log=log).fit(series, y), series, recordings=origins,
            allow_seen_labels=True,
        )  # fmt: skip
    encoders = {"untrained": untrained_copy(tuned)}
    if frozen is not None:
        encoders = {"trained": frozen, **encoders}
    held_out = [data.recordings[i].values for i in parts.held_out]
    found = compare_on_held_out(
        encoders, series, y, held_out, data.y[parts.held_out], allow_seen_labels=True, log=log
    )  # what was not to be seen was refused before
    likely = softmax(classifier.scores(held_out))
    tuned_outcome = Outcome.of_probabilities(likely, data.y[parts.held_out])
    return found._replace(outcomes={"finetuned": tuned_outcome, **found.outcomes})


if __name__ == "__main__":
    import sys

    from progmem.cli import main

    sys.exit(main(["finetune", *sys.argv[1:]]))
