"""The table of cue retention: how well the end-of-sequence state tells of a cue."""

import json
from typing import Any

import numpy as np

from progmem.report.markdown import markdown, mean_and_sd
from progmem.report.paper import CUE

Result = dict[str, Any]
HEADER = ["model", "weights", "AUC", "top-1", "macro-F1"]
PAPERS_ROWS = ("FordA", "official")


def cue_table(results: list[Result]) -> str:
    """Mean ± sd over training seeds and draws of the cue; then AUC gap by gap and the controls.

    Files whose settings differ in the seed alone are one line.
    """
    alike: dict[str, list[Result]] = {}
    for result in results:
        alike.setdefault(_settings(result), []).append(result)
    first = results[0]["rows"][0]["scores"]
    gaps = [name for name in first if name.startswith("gap ")]
    lines = []
    for same in alike.values():
        for encoder in dict.fromkeys(row["encoder"] for result in same for row in result["rows"]):
            rows = [r for result in same for r in result["rows"] if r["encoder"] == encoder]
            headline = [_cell(rows, "mixed", key) for key in ("auc", "top1", "macro_f1")]
            by_gap = [_plain(rows, [gap]) for gap in gaps]
            left_out = _plain(rows, [f"without {gap}" for gap in gaps])
            nothing = _plain(rows, ["shuffled labels"])
            row = rows[0]
            where = row["set"] if row["split"] == "official" else f"{row['set']} ({row['split']})"
            name = f"{where}: {_describe(same[0])}"
            lines.append([name, encoder, *headline, *by_gap, left_out, nothing])
    rows = [row for result in results for row in result["rows"]]
    if any((row["set"], row["split"]) == PAPERS_ROWS for row in rows):
        for name, figures in CUE.items():
            rest = ["-"] * (len(gaps) + 2)
            lines.append([f"paper's {name}", "trained", *(f"{v:.3f}" for v in figures), *rest])
    header = [*HEADER, *gaps, "gap left out", "shuffled labels"]
    return markdown(header, lines)


def _settings(result: Result) -> str:
    """All settings but the seed, as one text."""
    config = json.loads(json.dumps(result["config"]))
    config["run"].get("train", {}).pop("seed", None)
    sets = [(row["set"], row["split"]) for row in result["rows"]]
    return json.dumps([config, sets], sort_keys=True)


def _describe(result: Result) -> str:
    """What tells the models of this experiment apart."""
    model, run = result["config"]["model"], result["config"]["run"]
    windows = "S = W" if model["stride"] == model["window"] else "S < W"
    weight = f", λ_PCL {run['loss']['pcl']:g}" if "loss" in run else ""
    return f"{model['size']}, {windows}, read-out {model['readout']}{weight}"


def _cell(rows: list[Result], name: str, key: str) -> str:
    return mean_and_sd(np.concatenate([row["scores"][name][key] for row in rows]), 3)


def _plain(rows: list[Result], names: list[str]) -> str:
    return f"{np.mean([row['scores'][name]['auc'] for row in rows for name in names]):.3f}"
