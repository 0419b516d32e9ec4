"""Tables of encoders on the same label draws: of `benchmarks.few_labels` and its relatives."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from progmem.errors import InputError
from progmem.report.paper import CLASSIFICATION
from progmem.report.tables import markdown, mean_and_sd

Result = dict[str, Any]
Cell = tuple[str, str]  # a set and an amount of labels
BySeed = dict[int, dict[Cell, float]]  # accuracy in %, mean over label draws, by training seed
Accuracies = list[dict[Cell, float]]  # in %, mean over label draws; one dict a training seed

NAMES = {"untrained": "untrained", "trained": "progmem", "raw": "raw values",
         "minirocket": "MiniRocket", "ts2vec": "TS2Vec's code"}  # fmt: skip
SHARES = ("1%", "5%")
CELLS = [(name, share) for share in SHARES for name in CLASSIFICATION["1%"]["PMT"]]
MEANS = {
    "1 %, mean": [cell for cell in CELLS if cell[1] == "1%"],
    "5 %, mean": [cell for cell in CELLS if cell[1] == "5%"],
    f"all {len(CELLS)}, mean": CELLS,
    "without Wafer, mean": [cell for cell in CELLS if cell[0] != "Wafer"],
}
POOLING, HEAD = "all", "logistic"  # the library's defaults


def few_labels_table(results: list[Result]) -> str:
    """Accuracy in %, mean ± sd over training seeds of the mean over label draws.

    First every set with the default features and head, then means with every one of them.
    """
    _check_draws(results)
    columns = _columns(results)
    by_column = [_accuracies(rows, *_headline(rows)) for rows in columns.values()]
    paper = {(name, share): CLASSIFICATION[share]["PMT"][name][0] for name, share in CELLS}
    official = all(row["split"] == "official" for rows in columns.values() for row in rows)
    beside = [[paper]] if official else []
    measured = [
        cell for cell in CELLS if any(cell in one for column in by_column for one in column)
    ]
    lines = [
        [f"{name}, {share.replace('%', ' %')}", *_texts([*by_column, *beside], [(name, share)])]
        for name, share in measured
    ]
    lines += [[name, *_texts([*by_column, *beside], cells)] for name, cells in MEANS.items()]
    header = ["set, labels", *columns, *(["paper's PMT"] if official else [])]
    return f"{markdown(header, lines)}\n\n{_by_features_and_head(columns)}"


def headline_cells(results: list[Result], cells: list[Cell]) -> dict[str, str]:
    """The mean over ``cells`` of each encoder with its default features, by its name."""
    _check_draws(results)
    return {
        column: _text(_accuracies(rows, *_headline(rows)), cells)
        for column, rows in _columns(results).items()
    }


def _by_features_and_head(columns: dict[str, list[Result]], what: str = "encoder") -> str:
    """The means of each encoder or recipe with each kind of features and each head."""
    lines = []
    for column, rows in columns.items():
        for pooling, head in _kinds(rows):
            found = _accuracies(rows, pooling, head)
            means = [_text(found, cells) for cells in MEANS.values()]
            lines.append([column, pooling, head, *means])
    return markdown([what, "features", "head", *MEANS], lines)


def recipe_parts_table(results: list[Result]) -> str:
    """Means over the seven sets of each variant of the recipe, by features and head."""
    columns: dict[str, list[Result]] = {}
    for result in results:
        for row in result["rows"]:
            columns.setdefault(row["variant"], []).append(row)
    return _by_features_and_head(columns, "recipe")


AMOUNTS = {"100%": "all labels", "1 a class": "1 label a class"}  # of small sets


def small_sets_table(results: list[Result]) -> str:
    """Accuracy in % after training on so many rows, and untrained, and how far the two differ.

    Accuracies are mean ± sd over training seeds of the mean over label draws. The difference is
    taken seed by seed, of the same rows and draws: mean ± its standard error over seeds.
    """
    pair = ("trained", "untrained")
    heads = [f"{name}, {what}" for name in AMOUNTS.values() for what in (*pair, "difference")]
    lines = []
    for result in results:
        sets = list(dict.fromkeys(row["set"] for row in result["rows"]))
        for count in dict.fromkeys(row["row_count"] for row in result["rows"]):
            of_count = [row for row in result["rows"] if row["row_count"] == count]
            both = [_by_seed([r for r in of_count if r["encoder"] == e]) for e in pair]
            parts = {**{name: [name] for name in sets}, f"mean of {len(sets)}": sets}
            lines += [
                [result["device"], str(count), name,
                 *(text for amount in AMOUNTS for text in _compare(both, wanted, amount))]
                for name, wanted in parts.items()
            ]  # fmt: skip
    return markdown(["device", "rows", "set", *heads], lines)


def _compare(both: Sequence[BySeed], sets: Sequence[str], amount: str) -> list[str]:
    """The mean over ``sets`` of two encoders, and their difference, over the seeds of both."""
    cells = [(name, amount) for name in sets]
    seeds = [s for s in both[0] if all(one.get(s, {}).keys() >= set(cells) for one in both)]
    if not seeds:
        return ["-", "-", "-"]
    first, second = (np.array([np.mean([one[s][c] for c in cells]) for s in seeds]) for one in both)
    texts = [mean_and_sd(found, 1) for found in (first, second)]
    gap = first - second
    error = f" ± {gap.std(ddof=1) / np.sqrt(len(gap)):.1f}" if len(gap) > 1 else ""
    return [*texts, f"{gap.mean():+.1f}{error}"]


def whitening_table(result: Result) -> str:
    """Accuracy of all features without and with whitening, for the sets with both encoders."""
    columns = _columns([result])
    sets = [n for n, _ in CELLS if all(any(r["set"] == n for r in c) for c in columns.values())]
    sets = list(dict.fromkeys(sets))
    means = {f"{len(sets)} sets, {s.replace('%', ' %')}": [(n, s) for n in sets] for s in SHARES}
    parts = {name: [(name, share) for share in SHARES] for name in sets}
    lines = []
    for column, rows in columns.items():
        for pooling, what in (("unwhitened", "without"), (POOLING, "with")):
            found = _accuracies(rows, pooling, HEAD)
            cells = [" / ".join(_text(found, [cell]) for cell in some) for some in parts.values()]
            lines.append([column, what, *cells, *(_text(found, c) for c in means.values())])
    return markdown(["encoder", "whitening", *parts, *means], lines)


KINDS = {"sequence, linear": ("sequence", "linear"), "all, logistic": (POOLING, HEAD)}


def parts_summary(parts: Result, whole: Sequence[Result], former: Result) -> str:
    """Means over the seven sets by the paper's features and head, and by the library's.

    ``parts`` has the variants after a few steps; ``whole`` whole runs of the default by size, each
    with its untrained self; ``former`` that of `benchmarks.end_to_end`, by the former default.
    """
    variants: dict[tuple[str, str, str], list[Result]] = {}
    for result in whole:
        cfg = next(iter(result["config"]["trained"].values()))
        size, steps = cfg["model"]["size"], f"{cfg['train']['steps']:,}"
        for row in result["rows"]:
            trained = row["encoder"] == "trained"
            recipe = ("default", size, steps) if trained else ("untrained", size, "0")
            variants.setdefault(recipe, []).append(row)
    by_former = [row for row in former["rows"] if row["encoder"] == "pmt"]
    variants["former default", "base", f"{former['epochs']} epochs"] = by_former
    for row in parts["rows"]:
        variants.setdefault((row["variant"], "small", f"{parts['steps']:,}"), []).append(row)
    means = list(MEANS)[:3]
    header = [f"{kind}: {mean}" for kind in KINDS for mean in means]
    lines = [
        [*names, *(_text(_accuracies(rows, *kind), MEANS[mean])
                   for kind in KINDS.values() for mean in means)]
        for names, rows in variants.items()
    ]  # fmt: skip
    return markdown(["recipe", "size", "steps", *header], lines)


def cpu_time_table(results: list[Result]) -> str:
    """Accuracy as in `few_labels_table`; time as a ratio to TS2Vec's, which ran in turns with it.

    Time is that of training and embedding, mean over training seeds.
    """
    lines = []
    for result in results:
        columns = _columns([result])
        theirs = _seconds(columns[NAMES["ts2vec"]])
        for column, rows in columns.items():
            name = rows[0]["set"]
            for pooling, head in _kinds(rows):
                found = _accuracies(rows, pooling, head)
                cells = [_text(found, [(name, share)]) for share in SHARES]
                ratio = f"{_seconds(rows) / theirs:.2f}x"
                lines.append([name, column, pooling, head, *cells, ratio])
    header = ["set", "encoder", "features", "head", "1 %", "5 %", "time"]
    return markdown(header, lines)


def _check_draws(results: list[Result]) -> None:
    """Refuse files whose encoders were given other labels of a set."""
    first: dict[str, Any] = {}
    for result in results:
        for name, drawn in result["labelled_rows"].items():
            if first.setdefault(name, drawn) != drawn:
                raise InputError(
                    f"{result['name']} has other labelled rows of {name} than the file before it; "
                    "encoders are compared on the same ones"
                )


def _columns(results: list[Result]) -> dict[str, list[Result]]:
    """The rows of each encoder; with the file's name where several files have that encoder."""
    parts = [
        (encoder, result.get("name", ""), [r for r in result["rows"] if r["encoder"] == encoder])
        for encoder in NAMES
        for result in results
    ]
    parts = [part for part in parts if part[2]]
    kinds = [encoder for encoder, _, _ in parts]
    return {
        NAMES[encoder] + (f", {file}" if kinds.count(encoder) > 1 else ""): rows
        for encoder, file, rows in parts
    }


def _kinds(rows: list[Result]) -> list[tuple[str, str]]:
    """Every pooling and head that ``rows`` were scored with."""
    scores = rows[0]["scores"]
    return [(pooling, head) for pooling in scores for head in next(iter(scores[pooling].values()))]


def _headline(rows: list[Result]) -> tuple[str, str]:
    """The default features of an encoder, which for most are its only ones, and head."""
    poolings = list(rows[0]["scores"])
    return (POOLING if POOLING in poolings else poolings[0]), HEAD


def _accuracies(rows: list[Result], pooling: str, head: str) -> Accuracies:
    return list(_by_seed(rows, pooling, head).values())


def _by_seed(rows: list[Result], pooling: str = POOLING, head: str = HEAD) -> BySeed:
    by_seed: BySeed = {}
    for row in rows:
        for share, heads in row["scores"].get(pooling, {}).items():
            found = 100 * float(np.mean(heads[head]["accuracy"]))
            by_seed.setdefault(row["seed"], {})[row["set"], share] = found
    return by_seed


def _texts(columns: Iterable[Accuracies], cells: Sequence[Cell]) -> list[str]:
    return [_text(column, cells) for column in columns]


def _text(column: Accuracies, cells: Sequence[Cell]) -> str:
    """The mean over ``cells`` of the seeds that have them all."""
    found = [np.mean([one[cell] for cell in cells]) for one in column if one.keys() >= set(cells)]
    return mean_and_sd(np.array(found), 1) if found else "-"


def _seconds(rows: list[Result]) -> float:
    return float(np.mean([row["seconds_training"] + row["seconds_embedding"] for row in rows]))
