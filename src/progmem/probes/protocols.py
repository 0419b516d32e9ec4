"""The paper's protocols on its data sets: a saved model beside the same model untrained.

Each function scores both encoders, writes the result to a json file and returns it.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from progmem.config import Amount
from progmem.data.datasets import load_labelled
from progmem.data.forecast_sets import HORIZONS, forecast_set
from progmem.files import check_result_file
from progmem.model.saving import gpu_or_cpu, load, settings_of
from progmem.probes import cue
from progmem.probes.classify import (
    LABEL_SHARES,
    SEEDS,
    check_unseen,
    probe_set,
    untrained_copy,
)
from progmem.probes.forecast import PADDING, forecast_origins, probe_forecast
from progmem.progress import Log
from progmem.report import record
from progmem.report.record import RESULTS
from progmem.report.tables import classification_table, cue_table, forecast_table
from progmem.training.run_folder import history_in, read_settings, read_source, run_of


def evaluate_classification(
    model_folder: Path,
    name: str,
    out: Path | None = None,
    *,
    data_dir: Path | None = None,
    split: str = "official",
    label_shares: Sequence[Amount] = LABEL_SHARES,
    allow_seen_labels: bool = False,
    log: Log = print,
) -> dict[str, Any]:
    """Accuracy and F1 from a few labels of the set ``name``.

    A model that has learnt labels of the set is refused, or marked if these are allowed; one that
    has seen test series is refused.
    The result goes to ``out``, by default results/classify/SET.json.
    """
    out = RESULTS / "classify" / f"{name}.json" if out is None else out
    check_result_file(out)
    data = load_labelled(name, data_dir, split=split)
    pair = ModelPair(model_folder)
    rows = []
    for kind, encoder in pair.encoders:
        log(f"{name}, {kind}: {len(data.y_train) + len(data.y_test)} series")
        rows.append(
            {"encoder": kind}
            | probe_set(
                encoder, data, label_shares=label_shares, log=log,
                allow_seen_labels=allow_seen_labels,
            )
        )  # fmt: skip
        if rows[-1].get("labels_seen"):
            rows[-1]["encoder"] += ", LABELS SEEN"
    labelled, again = (row.pop("labelled_rows") for row in rows)
    assert labelled == again
    result = pair.write_result(out, rows, label_seeds=list(SEEDS), labelled_rows=labelled)
    what = "accuracy / macro-F1 in %, linear SVM on the sequence level, mean ± sd over label draws"
    table = classification_table([result])
    log(f"\n{what}\n\n{table}\n\nwritten: {out}; all tables: progmem results")
    return result


def evaluate_cue(
    model_folder: Path,
    name: str,
    out: Path | None = None,
    *,
    data_dir: Path | None = None,
    split: str = "official",
    final: int | None = None,
    log: Log = print,
) -> dict[str, Any]:
    """Retention of cues that are inserted into the test rows of the set ``name``.

    They lie before the sample ``final``, by default before the encoder's last window. No label of
    the set is read. The result goes to ``out``, by default results/cue/SET-RUN.json.
    """
    if out is None:
        out = RESULTS / "cue" / f"{name}-{model_folder.resolve().parent.name}.json"
    check_result_file(out)
    data = load_labelled(name, data_dir, split=split)
    pair = ModelPair(model_folder)
    check_unseen(pair.model, data, allow_seen_labels=True)  # no label is read here
    series = data.X_test.transpose(0, 2, 1)  # (R, L, C)
    rows = []
    for kind, encoder in pair.encoders:
        log(f"{name}, {kind}: {len(series)} series")
        found = cue.probe_cue(encoder, series, recordings=data.recording_test, final=final, log=log)
        rows.append({"encoder": kind, "set": name, "split": split} | found)
    result = pair.write_result(out, rows, cue_seeds=list(cue.SEEDS))
    log(f"\n{cue_table([result])}\n\nwritten: {out}; all tables: progmem results")
    return result


def evaluate_forecast(
    model_folder: Path,
    name: str,
    out: Path | None = None,
    *,
    data_dir: Path | None = None,
    horizons: Sequence[int] = HORIZONS,
    log: Log = print,
) -> dict[str, Any]:
    """Errors of TS2Vec's forecasting protocol on the set ``name``.

    The result goes to ``out``, by default results/forecast/SET.json.
    """
    out = RESULTS / "forecast" / f"{name}.json" if out is None else out
    check_result_file(out)
    data = forecast_set(name, data_dir)
    for part in data.bounds:
        forecast_origins(
            data, part, max(horizons), padding=PADDING
        )  # refused before anything is encoded
    pair = ModelPair(model_folder)
    data = data.with_channels(pair.model.cfg.channels)
    rows = []
    for kind, encoder in pair.encoders:
        started = time.perf_counter()
        log(f"{name}, {kind}: {len(data.x)} series of {data.x.shape[1]} samples")
        row = {"encoder": kind} | probe_forecast(encoder, data, horizons=horizons, log=log)
        row["seconds"] = time.perf_counter() - started
        log(f"{name}, {kind}: {row['encoded']} windows encoded, {row['seconds']:.0f} s")
        rows.append(row)
    result = pair.write_result(out, rows)
    what = "MSE / MAE on the test part, values scaled by the training part, ridge on the last token"
    log(f"\n{what}\n\n{forecast_table([result])}\n\nwritten: {out}; all tables: progmem results")
    return result


class ModelPair:
    """A saved model and its untrained counterpart, drawn with the seed of the model's run."""

    def __init__(self, folder: Path) -> None:
        self._started = time.perf_counter()
        self._device = gpu_or_cpu()
        run = run_of(folder)
        settings = read_settings(run)
        self._seeds = [settings["train"]["seed"]] if settings else None  # None: not a run's model
        self.model = load(folder, device=self._device)
        self.model.history = history_in(run, self.model)
        source = read_source(run)
        self._config = {"model": settings_of(self.model), "source": source, "run": settings}
        untrained = untrained_copy(self.model, self._seeds[0] if self._seeds else 0)
        self.encoders = (("trained", self.model), ("untrained", untrained))

    def write_result(self, out: Path, rows: list[dict[str, Any]], **facts: Any) -> dict[str, Any]:
        """The result of both encoders' ``rows``, with ``facts`` of the probe, kept in ``out``."""
        result = {
            "config": self._config,
            "seeds": self._seeds,
            **record.environment(self._device),
            "seconds": time.perf_counter() - self._started,
            **facts,
            "rows": rows,
        }
        record.write(out, result)
        return result
