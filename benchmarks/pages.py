"""The tables of README.md and of the pages in docs/, made from results/.

A page marks where a table belongs, and `python -m benchmarks.results` fills it in:

    <!-- table: reached -->
    ...
    <!-- end of table -->

So no measured number is typed into a page: a test fails where a page and results/ disagree.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.baselines_tables import (
    baselines_and_default_table,
    far_from_printed_table,
    ts2vec_pairs_table,
)
from benchmarks.compute_tables import families_table
from benchmarks.explore import RENDER as PARTS_OF_EXPLORE
from benchmarks.explore import explore_table
from benchmarks.few_labels_tables import (
    Cell,
    few_labels_table,
    headline_cells,
    parts_summary,
    whitening_table,
)
from progmem.data.forecast_sets import HORIZONS
from progmem.report import paper, record
from progmem.report.tables import markdown, mean_and_sd

Result = dict[str, Any]
PLACE = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end of table -->)", re.S)
HEADER = [
    "task", "progmem", "untrained", "raw values", "MiniRocket", "TS2Vec's code", "paper's PMT"
]  # fmt: skip
FORECASTS = {  # the kind of tokens with the least error on the validation part, and its name here
    "ETTh1": ("day tokens", "2-day tokens"),
    "ETTh1-uni": ("default recipe", "default recipe"),
    "Electricity-uni": ("no covariates", "1-sample tokens"),
}


def fill(text: str, render: Callable[[str], str]) -> str:
    """A page with each of its tables as ``render`` makes it by name."""
    return PLACE.sub(lambda found: f"{found[1]}{render(found[2])}\n{found[3]}", text)


def reached_table(folder: Path) -> str:
    """What is reached, one line a task: classification as means over sets."""
    lines = []
    for share, printed in paper.CLASSIFICATION.items():
        theirs = np.mean([accuracy for accuracy, _ in printed["PMT"].values()])
        task = f"{_percent(share)} of the labels, mean of seven sets, accuracy %"
        cells = _few_labels(folder, [(name, share) for name in printed["PMT"]])
        lines.append([task, *cells, f"{theirs:.1f}"])
    found = np.array([_supervised(folder, name) for name in paper.SUPERVISED["pmt"]])
    theirs = np.mean([accuracy for accuracy, _ in paper.SUPERVISED["pmt"].values()])
    cell = mean_and_sd(100 * found.mean(0), 1)
    task = "all labels, mean of four sets, accuracy %"
    lines.append([task, cell, "-", "-", "-", "-", f"{theirs:.1f}"])
    return markdown(HEADER, [*lines, *_cue(folder), *_forecasts(folder)])


def reached_by_set_table(folder: Path) -> str:
    """What is reached, one line a task and set."""
    lines = [
        [f"{_percent(share)} of the labels, {name}, accuracy %",
         *_few_labels(folder, [(name, share)]), f"{printed:.1f}"]
        for share, printed_by_name in paper.CLASSIFICATION.items()
        for name, (printed, _) in printed_by_name["PMT"].items()
    ]  # fmt: skip
    lines += [*_all_labels(folder), *_cue(folder), *_forecasts(folder)]
    return markdown(HEADER, lines)


def end_to_end_table(folder: Path) -> str:
    """Minutes from the files to the last score."""
    lines = []
    for name, what in {
        "HAR-250-cold": "HAR, 250 epochs of `base` and both probes, kernels compiled on the way",
        "sets-100": "all seven sets, 100 epochs of `base` and the probes, three runs at a time",
    }.items():
        found = record.read(folder / f"end_to_end/{name}.json")
        lines.append([what, found["device"], f"{found['seconds'] / 60:.1f}"])
    return markdown(["what", "device", "minutes"], lines)


def speed_table(folder: Path) -> str:
    """What each family of kernels is worth now, in a training step and in `encode`."""
    files = [folder / f"kernel_families/{name}.json" for name in ("step", "encode")]
    return families_table([record.read(file) for file in files if file.is_file()])


def parts_table(folder: Path) -> str:
    """What each part of the default recipe gives."""
    whole = [record.read(folder / f"few_labels/{name}.json") for name in ("default", "base")]
    former = record.read(folder / "end_to_end/sets-100.json")
    return parts_summary(record.read(folder / "recipe_parts/cuda.json"), whole, former)


def own_labels_table(folder: Path) -> str:
    """`PMTClassifier` on a CPU beside the recipe's protocol, on the same network and on a GPU."""
    result = record.read(folder / "own_labels/cpu.json")
    share = _percent_of(result["config"]["share"])
    lines = []
    for row in result["rows"]:
        recipe = mean_and_sd(100 * np.array(row["recipe"]), 1)
        on_gpu, *_ = _few_labels(folder, [(row["set"], share)])
        cells = [f"{100 * row[key]:.1f}" for key in ("accuracy", "recipe_same_labels", "guess")]
        lines.append([row["set"], str(row["labels"]), *cells[:2], recipe, on_gpu, cells[2]])
    header = ["set", "labels", "`PMTClassifier`", "the recipe, same network and labels",
              "the recipe, same network, five draws of labels", "the recipe on a GPU, `small`",
              "largest class"]  # fmt: skip
    return markdown(header, lines)


def explore_tables(part: str) -> Callable[[Path], str]:
    """The table of one part of the comparison of the explorer's functions."""
    return lambda folder: explore_table(
        [record.read(file) for file in sorted((folder / "explore").glob(f"{part}*.json"))]
    )


def few_labels_default_table(folder: Path) -> str:
    """The default recipe of a GPU beside what a user would take instead."""
    return few_labels_table(_default_and_others(folder))


def few_labels_whitening_table(folder: Path) -> str:
    """What whitening within series gives trained and untrained encoders of a GPU."""
    return whitening_table(record.read(folder / "few_labels/whitened.json"))


PAGE_TABLES: dict[str, Callable[[Path], str]] = {
    "whitening": few_labels_whitening_table,
    "few_labels_default": few_labels_default_table,
    "reached": reached_table,
    "reached_by_set": reached_by_set_table,
    "end_to_end_times": end_to_end_table,
    "speed": speed_table,
    "parts": parts_table,
    "own_labels_and_recipe": own_labels_table,
    **{f"explore_{part}": explore_tables(part) for part in PARTS_OF_EXPLORE},
    "baselines_and_default": baselines_and_default_table,
    "far_from_printed": far_from_printed_table,
    "ts2vec_pairs": ts2vec_pairs_table,
}


def _few_labels(folder: Path, cells: list[Cell]) -> list[str]:
    """Accuracy of the default features and head over ``cells``, in the order of the header."""
    found = headline_cells(_default_and_others(folder), cells)
    return [found.get(name, "-") for name in HEADER[1:-1]]


def _default_and_others(folder: Path) -> list[Result]:
    names = ("default", "raw", "minirocket", "ts2vec")
    files = [file for name in names if (file := folder / f"few_labels/{name}.json").is_file()]
    return [record.read(file) | {"name": file.stem} for file in files]


def _percent_of(share: float) -> str:
    return f"{100 * share:g}%"


def _percent(share: str) -> str:
    return share.replace("%", " %")


def _all_labels(folder: Path) -> list[list[str]]:
    lines = []
    for name, (printed, _) in paper.SUPERVISED["pmt"].items():
        cell = mean_and_sd(100 * np.array(_supervised(folder, name)), 1)
        task = f"all labels, {name}, accuracy %"
        lines.append([task, cell, "-", "-", "-", "-", f"{printed:.1f}"])
    return lines


def _supervised(folder: Path, name: str) -> list[float]:
    """Accuracy on the test rows, one a training seed."""
    files = sorted((folder / "finetune").glob(f"{name}-pmt-*.json"))
    return [record.read(file)["rows"][0]["scores"]["accuracy"] for file in files]


CUES = {"pcl-block": "read-out `block` with PCL", "default": "default recipe"}


def _cue(folder: Path) -> list[list[str]]:
    """Whether the end-of-sequence state tells of a cue: as the paper has it, and by default."""
    lines = []
    for variant, words in CUES.items():
        rows = [
            row for file in sorted((folder / "cue").glob(f"FordA-{variant}-[0-9].json"))
            for row in record.read(file)["rows"]
        ]  # fmt: skip
        cells = [
            mean_and_sd(np.concatenate([row["scores"]["mixed"]["top1"] for row in rows
                                        if row["encoder"] == encoder]), 3)
            for encoder in ("trained", "untrained")
        ]  # fmt: skip
        printed = f"{paper.CUE['PMT'][1]:.3f}" if variant == "pcl-block" else "-"
        lines.append(
            [f"a cue kept to the end, FordA, {words}, top-1", *cells, "-", "-", "-", printed]
        )
    return lines


def _forecasts(folder: Path) -> list[list[str]]:
    theirs = record.read(folder / "forecast_harness/ts2vec.json")["rows"]
    lines = []
    for name, (kind, tokens) in FORECASTS.items():
        ours = record.read(folder / f"forecast/{name}.json")["rows"]
        cells = [
            _mse([row for row in ours if row["encoder"] == encoder])
            for encoder in (f"trained, {kind}", f"untrained, {kind}", "values")
        ]
        other = _mse([row for row in theirs if row["set"] == name])
        printed = np.mean([paper.FORECASTING[name]["PMT"][horizon][0] for horizon in HORIZONS])
        task = f"forecasts, {name}, {tokens}, MSE"
        lines.append([task, *cells, "-", other, f"{printed:.3f}"])
    return lines


def _mse(rows: list[Result]) -> str:
    """Mean over horizons of each seed's error on the test part, then mean ± sd over seeds."""
    found = [
        np.mean([row["scores"][str(horizon)]["ridge"]["test"]["mse"] for horizon in HORIZONS])
        for row in rows
    ]
    return mean_and_sd(np.array(found), 3)
