"""The table of trainings with labels."""

import json
from typing import Any

import numpy as np

from progmem.report.markdown import markdown, mean_and_sd
from progmem.report.paper import SUPERVISED

Result = dict[str, Any]
HEADER = ["set", "labels", "encoder", "start", "trained", "scored", "runs", "accuracy / macro-F1"]


def finetune_table(results: list[Result]) -> str:
    """Accuracy / macro-F1 in %, mean ± sd of the accuracy over seeds and draws of labels.

    Files whose settings differ in seeds alone are one line. The paper's figures stand beside those
    they are comparable with: trained from scratch on all labels, official test rows.
    """
    alike: dict[str, list[Result]] = {}
    for result in results:
        alike.setdefault(_settings(result), []).append(result["rows"][0])
    lines = []
    for rows in alike.values():
        row = rows[0]
        name = row["set"] if row["split"] == "official" else f"{row['set']} ({row['split']})"
        facts = [row[key] for key in ("labels", "encoder", "start", "trained", "scored")]
        lines.append([name, *facts, str(len(rows)), _scores(rows), _paper(row)])
    return markdown([*HEADER, "paper's"], lines)


def _settings(result: Result) -> str:
    """All settings but the seeds, as one text."""
    kept = json.loads(json.dumps([result["config"], result["pretraining"], result["rows"][0]]))
    config, pretraining, row = kept
    config["train"].pop("seed"), config["finetune"].pop("label_seed")
    if pretraining and pretraining["settings"]:  # none: not a run's model
        pretraining["settings"]["train"].pop("seed")
    row.pop("scores", None)
    return json.dumps(kept, sort_keys=True)


def _scores(rows: list[Result]) -> str:
    found = [row["scores"] for row in rows if "scores" in row]
    if not found:
        return "-"
    accuracy, macro = (
        100 * np.array([scores[key] for scores in found]) for key in ("accuracy", "macro_f1")
    )
    return f"{mean_and_sd(accuracy, 1)} / {macro.mean():.1f}"


def _paper(row: Result) -> str:
    wanted = {"labels": "all", "start": "scratch", "trained": "network", "scored": "test",
              "split": "official"}  # fmt: skip
    printed = SUPERVISED.get(row["encoder"], {}).get(row["set"])
    if printed is None or any(row[key] != value for key, value in wanted.items()):
        return "-"
    return "{:.1f} / {:.1f}".format(*printed)
