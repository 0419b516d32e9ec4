"""Tables from the files of results/: what was measured, with the paper's figures beside it."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from progmem.data.forecast_sets import HORIZONS, VARIANTS
from progmem.errors import ArtifactError, InputError
from progmem.legacy import current_settings
from progmem.report import record
from progmem.report.paper import CLASSIFICATION, CUE, FORECASTING, SUPERVISED
from progmem.report.record import RESULTS


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = ["| " + " | ".join(cells) + " |" for cells in (header, *lines)]
    return "\n".join([rows[0], "|" + "---|" * len(header), *rows[1:]])


def mean_and_sd(values: np.ndarray, digits: int) -> str:
    """Mean ± sd as text; a single value has no sd."""
    sd = f" ± {values.std(ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{values.mean():.{digits}f}{sd}"


Result = dict[str, Any]
ByHorizon = dict[str, tuple[float, float]]  # MSE, MAE
UNAVAILABLE = "Electricity321"  # its file could not be obtained


def classification_table(
    results: list[Result], *, pooling: str = "sequence", head: str = "linear"
) -> str:
    """Accuracy / macro-F1 in %, mean ± sd of the accuracy over training seeds and label draws."""
    rows = [row for result in results for row in result["rows"]]
    if not any(head in scores for r in rows for scores in r["scores"].get(pooling, {}).values()):
        poolings = list(dict.fromkeys(name for row in rows for name in row["scores"]))
        scored = (
            scores for row in rows for one in row["scores"].values() for scores in one.values()
        )
        heads = list(dict.fromkeys(name for scores in scored for name in scores))
        raise InputError(
            f"no scores of {head!r} on {pooling!r}; poolings: {', '.join(poolings)}; "
            f"heads: {'; '.join(heads)}"
        )
    official = all(row["split"] == "official" for row in rows)  # as the paper's figures
    encoders = list(dict.fromkeys(row["encoder"] for row in rows))
    parts = _by_set(results, list(CLASSIFICATION["1%"]["PMT"]))
    lines = []
    for share in dict.fromkeys(a for row in rows for a in row["scores"].get(pooling, {})):
        for name, label, set_rows in parts:
            cells = [
                _cell([r for r in set_rows if r["encoder"] == encoder], pooling, share, head)
                for encoder in encoders
            ]
            printed = CLASSIFICATION.get(share, {}).get("PMT", {}).get(name)
            paper = "-" if printed is None else "{:.1f} / {:.1f}".format(*printed)
            lines.append([label, share, *cells, *([paper] if official else [])])
    beside = ["paper's PMT"] if official else []
    return markdown(["set", "labels", *encoders, *beside], lines)


def forecast_table(results: list[Result]) -> str:
    """MSE / MAE of the test part by horizon, and their means; ± sd of the MSE over seeds."""
    encoders = list(dict.fromkeys(row["encoder"] for result in results for row in result["rows"]))
    lines, shown = [], set()
    for name, label, rows in _by_set(results, list(VARIANTS)):
        columns: list[list[ByHorizon]] = [[] for _ in encoders]
        for row in rows:
            tests = {int(h): heads["ridge"]["test"] for h, heads in row["scores"].items()}
            found = {h: (test["mse"], test["mae"]) for h, test in tests.items()}
            columns[encoders.index(row["encoder"])].append(_with_mean(found))
        for horizon in dict.fromkeys(h for column in columns for one in column for h in one):
            cells = [_errors(column, horizon) for column in (*columns, *_published(name))]
            lines.append([label, horizon, *cells])
        shown.add(name)
    if UNAVAILABLE not in shown:
        missing = ["data not available here"] * len(encoders)
        beside = [_errors(column, "mean") for column in _published(UNAVAILABLE)]
        lines.append([UNAVAILABLE, "mean", *missing, *beside])
    return markdown(["set", "H", *encoders, "paper's PMT", "TS2Vec, published"], lines)


def _by_set(results: list[Result], order: list[str]) -> list[tuple[str, str, list[Result]]]:
    """Set, label and rows of each set of each file; files are not merged: settings may differ."""
    parts = []
    for result in results:
        sets = list(dict.fromkeys(row["set"] for row in result["rows"]))
        for name in sets:
            file = result.get("name", name)
            label = file if len(sets) == 1 else f"{name}, {file}"
            parts.append((name, label, [r for r in result["rows"] if r["set"] == name]))
    return sorted(parts, key=lambda part: [*order, part[0]].index(part[0]))


def _published(name: str) -> list[list[ByHorizon]]:
    return [[_with_mean(FORECASTING[name][who])] for who in ("PMT", "TS2Vec")]


def _with_mean(errors: dict[int, tuple[float, float]]) -> ByHorizon:
    """Errors by horizon, and their mean if all of the paper's horizons were measured."""
    found = {str(horizon): both for horizon, both in errors.items()}
    if set(HORIZONS) <= set(errors):
        mse, mae = np.mean([errors[horizon] for horizon in HORIZONS], axis=0).tolist()
        found["mean"] = (mse, mae)
    return found


def _errors(runs: list[ByHorizon], horizon: str) -> str:
    found = np.array([run[horizon] for run in runs if horizon in run])  # (seeds, 2)
    if not len(found):
        return "-"
    return f"{mean_and_sd(found[:, 0], 3)} / {found[:, 1].mean():.3f}"


def _cell(rows: list[Result], pooling: str, share: str, head: str) -> str:
    found = [row["scores"].get(pooling, {}).get(share, {}).get(head) for row in rows]
    found = [scores for scores in found if scores is not None]
    if not found:
        return "-"
    accuracy, macro = (
        100 * np.concatenate([scores[key] for scores in found]) for key in ("accuracy", "macro_f1")
    )
    return f"{mean_and_sd(accuracy, 1)} / {macro.mean():.1f}"


CUE_HEADER = ["model", "weights", "AUC", "top-1", "macro-F1"]
PAPERS_ROWS = ("FordA", "official")


def cue_table(results: list[Result]) -> str:
    """Mean ± sd over training seeds and draws of the cue; then AUC gap by gap and the controls.

    Files whose settings differ only in the seed share a line.
    """
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(_cue_settings(result), []).append(result)
    first = results[0]["rows"][0]["scores"]
    gaps = [name for name in first if name.startswith("gap ")]
    lines = []
    for group in groups.values():
        for encoder in dict.fromkeys(row["encoder"] for result in group for row in result["rows"]):
            rows = [r for result in group for r in result["rows"] if r["encoder"] == encoder]
            headline = [_cue_cell(rows, "mixed", key) for key in ("auc", "top1", "macro_f1")]
            by_gap = [_mean_auc(rows, [gap]) for gap in gaps]
            left_out = _mean_auc(rows, [f"without {gap}" for gap in gaps])
            shuffled = _mean_auc(rows, ["shuffled labels"])
            row = rows[0]
            where = row["set"] if row["split"] == "official" else f"{row['set']} ({row['split']})"
            name = f"{where}: {_describe_cue(group[0])}"
            lines.append([name, encoder, *headline, *by_gap, left_out, shuffled])
    rows = [row for result in results for row in result["rows"]]
    if any((row["set"], row["split"]) == PAPERS_ROWS for row in rows):
        for name, figures in CUE.items():
            rest = ["-"] * (len(gaps) + 2)
            lines.append([f"paper's {name}", "trained", *(f"{v:.3f}" for v in figures), *rest])
    header = [*CUE_HEADER, *gaps, "gap left out", "shuffled labels"]
    return markdown(header, lines)


def _cue_settings(result: Result) -> str:
    """All settings but the seed, as one text."""
    config = json.loads(json.dumps(result["config"]))
    config["run"] = current_settings(config["run"])
    config["run"].get("train", {}).pop("seed", None)
    sets = [(row["set"], row["split"]) for row in result["rows"]]
    return json.dumps([config, sets], sort_keys=True)


def _describe_cue(result: Result) -> str:
    """The settings in which the models of this experiment differ."""
    model, run = result["config"]["model"], result["config"]["run"]
    name = run.get("encoder", {}).get("name", "pmt")
    if "window" not in model:
        return name
    windows = "S = W" if model["stride"] == model["window"] else "S < W"
    weight = f", λ_PCL {run['loss']['pcl']:g}" if "loss" in run else ""
    if name != "pmt":
        return f"{name}, {model['size']}, {windows}{weight}"
    return f"{model['size']}, {windows}, read-out {model['readout']}{weight}"


def _cue_cell(rows: list[Result], name: str, key: str) -> str:
    return mean_and_sd(np.concatenate([row["scores"][name][key] for row in rows]), 3)


def _mean_auc(rows: list[Result], names: list[str]) -> str:
    return f"{np.mean([row['scores'][name]['auc'] for row in rows for name in names]):.3f}"


FINETUNE_HEADER = [
    "set", "labels", "encoder", "start", "trained", "scored", "runs", "accuracy / macro-F1"
]  # fmt: skip


def finetune_table(results: list[Result]) -> str:
    """Accuracy / macro-F1 in %, mean ± sd of the accuracy over seeds and draws of labels.

    Files whose settings differ only in seeds share a line. The paper's figures stand beside rows
    they can be compared with: trained from scratch on all labels, official test rows. Where there
    is none, as for own data, there is no column for them.
    """
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(_finetune_settings(result), []).append(result["rows"][0])
    lines = []
    for rows in groups.values():
        row = rows[0]
        name = row["set"] if row["split"] == "official" else f"{row['set']} ({row['split']})"
        facts = [row[key] for key in ("labels", "encoder", "start", "trained", "scored")]
        lines.append([name, *facts, str(len(rows)), _finetune_scores(rows), _papers_accuracy(row)])
    if all(line[-1] == "-" for line in lines):
        return markdown(FINETUNE_HEADER, [line[:-1] for line in lines])
    return markdown([*FINETUNE_HEADER, "paper's"], lines)


def _finetune_settings(result: Result) -> str:
    """All settings but the seeds, as one text."""
    settings = current_settings(result["config"])
    kept = json.loads(json.dumps([settings, result["pretraining"], result["rows"][0]]))
    config, pretraining, row = kept
    config["train"].pop("seed"), config["finetune"].pop("label_seed")
    if pretraining and pretraining["settings"]:  # none: not a run's model
        pretraining["settings"] = current_settings(pretraining["settings"])
        pretraining["settings"]["train"].pop("seed")
    row.pop("scores", None)
    return json.dumps(kept, sort_keys=True)


def _finetune_scores(rows: list[Result]) -> str:
    found = [row["scores"] for row in rows if "scores" in row]
    if not found:
        return "-"
    accuracy, macro = (
        100 * np.array([scores[key] for scores in found]) for key in ("accuracy", "macro_f1")
    )
    return f"{mean_and_sd(accuracy, 1)} / {macro.mean():.1f}"


def _papers_accuracy(row: Result) -> str:
    wanted = {"labels": "all", "start": "scratch", "trained": "network", "scored": "test",
              "split": "official"}  # fmt: skip
    printed = SUPERVISED.get(row["encoder"], {}).get(row["set"])
    if printed is None or any(row[key] != value for key, value in wanted.items()):
        return "-"
    return "{:.1f} / {:.1f}".format(*printed)


TABLES: dict[str, Callable[..., str]] = {  # of the results that the commands write
    "classify": classification_table,
    "forecast": forecast_table,
    "cue": cue_table,
    "finetune": finetune_table,
}


def render(
    experiment: str,
    folder: Path = RESULTS,
    *,
    tables: Mapping[str, Callable[..., str]] = TABLES,
    **options: str,
) -> str:
    """The table of one experiment's files."""
    if experiment not in tables:
        raise InputError(f"there is no table for {experiment!r}; known: {', '.join(tables)}")
    paths = sorted((folder / experiment).glob("*.json"))
    if not paths:
        raise InputError(f"{folder / experiment} holds no results; give --results or run it first")
    try:
        results = [record.read(path) | {"name": path.stem} for path in paths]
        if tables[experiment] is classification_table:
            return classification_table(results, **options)
        return tables[experiment](results)
    except ArtifactError as error:
        raise InputError(str(error)) from error
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"a file in {folder / experiment} is not a result: {error!r}") from error


def render_all(
    folder: Path = RESULTS,
    *,
    tables: Mapping[str, Callable[..., str]] = TABLES,
    **options: str,
) -> str:
    """Every table that has results, with its name above it."""
    available = [name for name in tables if list((folder / name).glob("*.json"))]
    if not available:
        raise InputError(f"{folder} holds no results; give --results DIR")
    return "\n\n".join(
        f"## {name}\n\n{render(name, folder, tables=tables, **options)}" for name in available
    )
