"""Does the explorer find what is there? Each function beside what raw values give.

    python -m benchmarks.explore boundaries search labels oddities series --work DIR --data-dir DATA

Splices and recordings of the built-in sample and of HAR; all that is asked is of people who are
held out, and what other methods need chosen is chosen on people the model was trained on. The
model is `tiny`, trained without labels on a CPU (minutes for each set), and kept in DIR with the
indices. Writes results/explore/<part>-<set>.json.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import (
    explore_boundaries,
    explore_labels,
    explore_oddities,
    explore_search,
    explore_series,
)
from benchmarks.explore_archives import (
    LONGEST,
    PIECES,
    RATE,
    SHORTEST,
    Archive,
    Known,
    har_archive,
    sample_archive,
    splices,
)
from progmem import explore
from progmem.model.pmt import PMT
from progmem.report import record
from progmem.report.tables import markdown, mean_and_sd

Result = dict[str, Any]
SPLICES = {"sample": 8, "HAR": 3}  # of each person who is held out
TUNED = 28  # splices of people who are trained on
QUERIES = {"sample": 6, "HAR": 3}  # of each class of a person


def index_of(model: PMT, known: list[Known], folder: Path) -> explore.Index:
    return explore.index(model, [one.recording for one in known], folder, log=None)


def boundaries(archive: Archive, model: PMT, work: Path) -> list[dict[str, Any]]:
    tuned, asked = (
        explore_boundaries.given_of(known, index_of(model, known, work / f"{archive.name}-{name}"))
        for name, known in {
            "tuned": splices(archive.training, SPLICES[archive.name], 1)[:TUNED],
            "asked": splices(archive.held_out, SPLICES[archive.name], 0),
        }.items()
    )
    return explore_boundaries.compare(tuned, asked, RATE)


def search(archive: Archive, model: PMT, work: Path) -> list[dict[str, Any]]:
    idx = index_of(model, archive.held_out, work / f"{archive.name}-held-out")
    return explore_search.compare(
        archive.training, archive.held_out, idx, RATE, QUERIES[archive.name]
    )


def labels(archive: Archive, model: PMT, work: Path) -> list[dict[str, Any]]:
    return explore_labels.compare(model, archive.held_out, work / f"{archive.name}-labels")


PARTS: dict[str, Callable[[Archive, PMT, Path], list[dict[str, Any]]]] = {
    "boundaries": boundaries,
    "search": search,
    "labels": labels,
    "oddities": explore_oddities.compare,
}
ASKED: dict[str, tuple[str, ...]] = {
    "oddities": ("sample",),
    "series": tuple(explore_series.SERIES),
}
CONFIG: dict[str, dict[str, Any]] = {
    "boundaries": {
        "splices_of_each_person": SPLICES, "pieces": PIECES, "seconds": [SHORTEST, LONGEST],
        "near_seconds": explore_boundaries.NEAR,
    },
    "search": {
        "queries": QUERIES, "seconds": explore_search.LENGTH, "nearest": explore_search.NEAREST,
        "kernels": explore_search.KERNELS,
    },
    "labels": {"share": explore_labels.SHARE, "most": explore_labels.MOST},
    "oddities": {
        "seconds": explore_oddities.SECONDS, "faded": explore_oddities.FADED,
        "noise": explore_oddities.NOISE, "hidden": explore_oddities.HIDDEN,
    },
    "series": {"settings": explore_series.SETTINGS},
}  # fmt: skip


def explore_table(results: list[Result]) -> str:
    """One table a part, of the rows of all its files."""
    tables = []
    for part, table in RENDER.items():
        rows = [row for result in results if result["part"] == part for row in result["rows"]]
        if rows:
            tables.append(table(rows))
    return "\n\n".join(tables)


def boundaries_table(rows: list[Result]) -> str:
    """F1 of boundaries by method, with their number known or not."""
    cells: dict[str, dict[tuple[str, bool], str]] = {}
    for row in rows:
        scores = cells.setdefault(row["method"], {})
        scores[row["set"], row["number_known"]] = with_error(row["f1"])
    columns = [(name, known) for name in SPLICES for known in (True, False)]
    header = ["method", *(f"{name}, number {'known' if known else 'not known'}"
                          for name, known in columns)]  # fmt: skip
    lines = [[m, *(found.get(column, "-") for column in columns)] for m, found in cells.items()]
    return markdown(header, lines)


def with_error(values: list[float]) -> str:
    """The mean, and its standard error."""
    return f"{np.mean(values):.3f} ± {np.std(values, ddof=1) / len(values) ** 0.5:.3f}"


def search_table(rows: list[Result]) -> str:
    """Share of the five nearest that are alike."""
    cells: dict[str, dict[str, str]] = {}
    for row in rows:
        cells.setdefault(row["method"], {})[row["set"]] = with_error(row["precision"])
    return markdown(["method", *QUERIES], [[m, *found.values()] for m, found in cells.items()])


def labels_table(rows: list[Result]) -> str:
    """Labels that are needed, and accuracy with some."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for row in rows:
        groups.setdefault((row["set"], row["method"]), []).append(row)
    lines = []
    for key, found in groups.items():
        needed = np.array([row["needed"] or explore_labels.MOST for row in found], dtype=float)
        missed = sum(row["needed"] is None for row in found)
        cell = mean_and_sd(needed, 1) + (
            f", {missed} of {len(found)} not by then" if missed else ""
        )
        full = mean_and_sd(100 * np.array([row["full"] for row in found]), 1)
        lines.append([*key, cell, full])
    return markdown(["set", "stretches", "labels needed", "accuracy with all labels, %"], lines)


def oddities_table(rows: list[Result]) -> str:
    """Mean area of each kind by method and share of hits, and the means over kinds by length."""
    methods = list(dict.fromkeys(row["method"] for row in rows))
    longest = max(row["seconds"] for row in rows)
    kinds = list(dict.fromkeys(row["kind"] for row in rows))

    def cells(chosen: list[Result]) -> list[str]:
        found = []
        for method in methods:
            own = [row for row in chosen if row["method"] == method]
            area, hits = (np.mean([np.mean(row[key]) for row in own]) for key in ("auc", "hit"))
            found.append(f"{area:.3f} / {hits:.2f}")
        return found

    lines = [
        [kind, *cells([row for row in rows if (row["seconds"], row["kind"]) == (longest, kind)])]
        for kind in kinds
    ]
    for seconds in sorted({row["seconds"] for row in rows}, reverse=True):
        own = [row for row in rows if row["seconds"] == seconds]
        lines.append([f"mean of all, {seconds:g} s", *cells(own)])
    return markdown([f"oddity of {longest:g} s", *methods], lines)


def series_table(rows: list[Result]) -> str:
    """Boundaries and anomalies of the series of aeon."""
    lines = []
    for row in rows:
        if "auc" in row:
            told = f"AUC {row['auc']:.3f}, highest {'at' if row['hit'] else 'not at'} an anomaly"
        else:
            told = f"{row['distance_percent']:.2f} % from the true boundaries"
        lines.append([row["series"], row["method"], told])
    return markdown(["series", "method", "result"], lines)


RENDER: dict[str, Callable[[list[Result]], str]] = {
    "boundaries": boundaries_table,
    "labels": labels_table,
    "oddities": oddities_table,
    "search": search_table,
    "series": series_table,
}


def measure(part: str, name: str, work: Path, data_dir: Path | None) -> list[Result]:
    """The rows of one part of one set."""
    if part == "series":
        return explore_series.compare(name, work)
    archive = sample_archive() if name == "sample" else har_archive(data_dir)
    found = PARTS[part](archive, archive.trained_model(work), work)
    return [{"set": name, **row} for row in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="+", choices=RENDER)
    parser.add_argument("--sets", nargs="+", help="by default all of a part")
    parser.add_argument("--work", type=Path, required=True, help="folder of models and indices")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path, default=record.RESULTS)
    chosen = parser.parse_args()
    for part in chosen.parts:
        for name in chosen.sets or ASKED.get(part, tuple(SPLICES)):
            rows = measure(part, name, chosen.work, chosen.data_dir)
            result = {"part": part, "config": CONFIG[part], "seeds": [0], **record.environment(),
                      "rows": rows}  # fmt: skip
            path = record.save("explore", f"{part}-{name}", result, folder=chosen.out)
            print(f"written: {path}\n\n{RENDER[part](rows)}")


if __name__ == "__main__":
    main()
