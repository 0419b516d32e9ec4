"""Tables of the methods that PMT is compared with, by `benchmarks.baselines` and `peers`."""

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.few_labels_tables import SHARES
from progmem.baselines import ENCODERS
from progmem.errors import InputError
from progmem.report import record
from progmem.report.paper import CLASSIFICATION
from progmem.report.tables import markdown, mean_and_sd

Result = dict[str, Any]
Accuracies = dict[tuple[str, str], list[float]]  # in %, by set and share, one a training seed


class Method(NamedTuple):
    """What a method is called, how it is trained, and which column of the paper's table is its."""

    label: str
    printed: str | None = None
    encoder: str = "pmt"  # of the registry
    settings: tuple[str, ...] = ()
    trained: bool = True
    alike: bool = False  # trained as all encoders in PMT's frame are, to compare these


NAMES = {  # of the registry, as they are written, and in the paper's table
    "pmt": ("PMT", "PMT"),
    "vanilla": ("vanilla transformer", None),
    "windowed": ("windowed transformer", None),
    "windowed_state": ("windowed transformer with a state", None),
    "transformer_xl": ("Transformer-XL", None),
    "xlstm": ("xLSTM", None),
    "ts2vec": ("TS2Vec", None),
    "softclt": ("SoftCLT on TS2Vec", "TS2Vec+SoftCLT"),
    "tstcc": ("TS-TCC", None),
    "soft_tstcc": ("SoftCLT on TS-TCC", "TS-TCC+SoftCLT"),
    "cpc": ("CPC", "CPC"),
    "simclr": ("SimCLR", "SimCLR"),
    "sslecg": ("SSL-ECG", "SSL-ECG"),
}
ALIKE = ("model.size=small", "train.steps=400", "train.batch_size=64")
IN_FRAME = [name for name, method in ENCODERS.items() if method.in_frame]
METHODS = {
    "raw": Method("raw values", trained=False),
    "minirocket": Method("MiniRocket", trained=False),
    "untrained": Method("untrained PMT", trained=False),
    **{
        name: Method(*NAMES.get(name, (name, None)), encoder=name)
        for name in ENCODERS
        if name == "pmt" or name not in IN_FRAME
    },
    "softclt_euclidean": Method(
        "SoftCLT on TS2Vec, Euclidean", encoder="softclt", settings=("encoder.distance=euclidean",)
    ),
    "untrained_alike": Method("untrained PMT", settings=ALIKE, trained=False, alike=True),
    **{
        name if name != "pmt" else "pmt_alike": Method(
            NAMES[name][0], encoder=name, settings=ALIKE, alike=True
        )
        for name in IN_FRAME
    },
}
SETS = tuple(CLASSIFICATION["1%"]["PMT"])
WAYS = (  # kind of features and head, and what they are
    ("published", "linear", "Published features, linear SVM (the paper's)"),
    ("published", "rbf", "Published features, RBF SVM (that of TS2Vec and SoftCLT)"),
    ("unwhitened", "logistic", "All features of this library but whitening, logistic regression"),
    ("ours", "logistic", "All features of this library, logistic regression"),
)
FAR = 3.0  # points between an accuracy here and one that is printed
PUBLIC = "ts2vec"  # the method whose public code was measured too, and whose time is 1


def baselines_table(results: list[Result]) -> str:
    """Accuracy in % with 1 % / 5 % of the labels, in each way, and what the methods cost.

    Accuracies are mean ± sd over training seeds of the mean over label draws. The paper's figures
    stand below the method they are of.
    """
    _check_draws(results)
    order = list(METHODS)
    results = sorted(results, key=lambda result: order.index(result["rows"][0]["encoder"]))
    alike = [result for result in results if METHODS[result["rows"][0]["encoder"]].alike]
    others = [result for result in results if result not in alike]
    parts = []
    for group, start in ((others, ""), (alike, "In PMT's frame, all trained alike. ")):
        for kind, head, title in WAYS if group else ():
            found = _accuracies(group, kind, head)
            table = _accuracy_table(found, printed=group is others)
            parts += [f"{start}{title}:", table, _above_pmt(found)]
        for device in dict.fromkeys(result["device"] for result in group):
            there = [result for result in group if result["device"] == device]
            parts += [
                f"{start}Parameters, and time to train / to embed, {device}:", _cost_table(there)
            ]  # fmt: skip
    return "\n\n".join(parts)


# of results/few_labels, the features of a file by the kinds of the rows here: the whole default
# recipe was measured before there was whitening, and with it on the sets of another file
DEFAULT = {
    "default": {"published": "sequence", "unwhitened": "all"},
    "whitened": {"ours": "all"},
}


def baselines_and_default_table(folder: Path) -> str:
    """`baselines_table`, with PMT by the default recipe and untrained from results/few_labels.

    There they were given the same labels, with more training seeds and without the RBF SVM.
    """
    own = [record.read(path) for path in sorted((folder / "baselines").glob("*.json"))]
    measured = {(row["set"], row["encoder"]) for result in own for row in result["rows"]}
    more = []
    for name, kinds in DEFAULT.items():
        default = record.read(folder / f"few_labels/{name}.json")
        for row in default["rows"]:
            encoder = {"trained": "pmt", "untrained": "untrained"}[row["encoder"]]
            if (row["set"], encoder) in measured:
                continue
            scores = {kind: row["scores"][features] for kind, features in kinds.items()}
            # times of another run, on a machine that did other work, tell nothing here
            unknown = dict.fromkeys(("parameters", "seconds_training", "seconds_embedding"))
            more.append({
                "config": default["config"][row["encoder"]][row["set"]],
                "device": default["device"],
                "labelled_rows_sha256": draws_sha256(default["labelled_rows"][row["set"]]),
                "rows": [{**row, **unknown, "encoder": encoder, "scores": scores}],
            })  # fmt: skip
    return baselines_table([*own, *more])


def far_from_printed_table(folder: Path) -> str:
    """Cells of the paper's table that differ by more than `FAR` points from what was reached here.

    By published features and the linear SVM. A cell has what was reached here, what is printed, and
    the difference.
    """
    results = [record.read(path) for path in sorted((folder / "baselines").glob("*.json"))]
    found = _accuracies(results, "published", "linear")
    lines = []
    for method in (m for m in METHODS.values() if m.printed and m.label in found):
        cells = {name: "" for name in SETS}
        for (name, share), values in sorted(found[method.label].items()):
            printed = CLASSIFICATION[share][method.printed or ""][name][0]
            apart = float(np.mean(values)) - printed
            if abs(apart) > FAR:
                cell = f"{share.replace('%', ' %')}: {np.mean(values):.1f}, {printed:.1f}"
                cells[name] += f"{'; ' if cells[name] else ''}{cell}, {apart:+.1f}"
        lines.append([method.printed or "", *(cell or "-" for cell in cells.values())])
    return markdown(["method", *SETS], lines)


def _accuracies(results: list[Result], kind: str, head: str) -> dict[str, Accuracies]:
    found: dict[str, Accuracies] = {}
    for result in results:
        (row,) = result["rows"]
        one = found.setdefault(_label(result), {})
        for share in SHARES:
            if head in row["scores"].get(kind, {}).get(share, ()):
                accuracy = 100 * float(np.mean(row["scores"][kind][share][head]["accuracy"]))
                one.setdefault((row["set"], share), []).append(accuracy)
    return {label: one for label, one in found.items() if one}


def _label(result: Result) -> str:
    """What a method is called, with its size where the device decides on that."""
    label = METHODS[result["rows"][0]["encoder"]].label
    size = result["config"].get("model", {}).get("size")
    return label if size is None else f"{label}, {size}"


def _accuracy_table(found: dict[str, Accuracies], *, printed: bool) -> str:
    """A line a method, with the paper's below it if that is ``printed``; a column a set."""
    sets = [name for name in SETS if any((name, SHARES[0]) in one for one in found.values())]
    names = {m.label: m.printed for m in METHODS.values() if not m.alike}
    lines = []
    for label, one in found.items():
        cells = [[_accuracy(one.get((name, share))) for share in SHARES] for name in sets]
        lines.append([label, *map(" / ".join, cells)])
        of_paper = names.get(label, names.get(label.partition(",")[0])) if printed else None
        if of_paper is not None:
            cells = [
                [f"{CLASSIFICATION[share][of_paper][name][0]:.1f}" for share in SHARES]
                for name in sets
            ]
            lines.append([f"*{of_paper}, printed in the paper*", *map(" / ".join, cells)])
    return markdown(["method", *sets], lines)


def _accuracy(values: list[float] | None) -> str:
    return "-" if values is None else mean_and_sd(np.array(values), 1)


def _above_pmt(found: dict[str, Accuracies]) -> str:
    """Which methods have a higher mean than the PMT that was trained here, and where."""
    sentences = []
    for pmt in (label for label in found if label.partition(",")[0] == METHODS["pmt"].label):
        better = []
        for label, one in found.items():
            cells = [
                f"{name} {share.replace('%', ' %')}"
                for (name, share), values in found[pmt].items()
                if (name, share) in one and np.mean(one[name, share]) > np.mean(values)
            ]
            if cells:
                better.append(f"{label} ({', '.join(cells)})")
        sentences.append(f"Above {pmt}: {'; '.join(better) or 'no method'}.")
    return " ".join(sentences) or "PMT was not among the methods of these runs."


def _cost_table(results: list[Result]) -> str:
    """Time is in seconds of TS2Vec, and of others as a multiple of TS2Vec's on that set."""
    found: dict[str, dict[str, list[Result]]] = {}
    for result in results:
        (row,) = result["rows"]
        found.setdefault(_label(result), {}).setdefault(row["set"], []).append(row)
    sets = [name for name in SETS if any(name in one for one in found.values())]
    unit = {n: _seconds(rows) for n, rows in found.get(METHODS[PUBLIC].label, {}).items()}
    lines = []
    for label, one in found.items():
        counts = sorted({r["parameters"] for rows in one.values() for r in rows} - {None})
        cells = []
        for name in sets:
            own = _seconds(one.get(name, []))
            times = unit.get(name, [None, None]) if label != METHODS[PUBLIC].label else [None, None]
            cells.append(" / ".join(_time(a, b) for a, b in zip(own, times, strict=True)))
        between = " to ".join(f"{count:,}" for count in dict.fromkeys([*counts[:1], *counts[-1:]]))
        lines.append([label, between or "-", *cells])
    return markdown(["method", "parameters", *sets], lines)


def _seconds(rows: list[Result]) -> list[float | None]:
    """To train and to embed, mean over seeds; None where it is not known."""
    times = [
        [row[key] for row in rows if row[key] is not None]
        for key in ("seconds_training", "seconds_embedding")
    ]
    return [float(np.mean(values)) if values else None for values in times]


def _time(seconds: float | None, unit: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:.0f} s" if unit is None else f"{seconds / unit:.2f}x"


def _check_draws(results: list[Result]) -> None:
    """Refuse files whose methods were given other labels of a set."""
    first: dict[str, str] = {}
    for result in results:
        name, drawn = result["rows"][0]["set"], result["labelled_rows_sha256"]
        if first.setdefault(name, drawn) != drawn:
            raise InputError(
                f"a result of {name} has other labelled rows than the one before it; methods are "
                "compared on the same ones"
            )


def draws_sha256(labelled_rows: dict[str, list[list[int]]]) -> str:
    """A digest of the labelled rows of every draw, by share."""
    return hashlib.sha256(json.dumps(labelled_rows).encode()).hexdigest()


def ts2vec_pairs_table(folder: Path) -> str:
    """TS2Vec here beside its public code, on the same draws of labels.

    Each training gives a mean over the draws. Differences are those of the means over trainings, ±
    their standard error by how much the trainings of one code differ.
    """
    theirs = record.read(folder / f"few_labels/{PUBLIC}.json")
    drawn = {name: draws_sha256(rows) for name, rows in theirs["labelled_rows"].items()}
    both: dict[str, tuple[list[Any], list[Any]]] = {}  # scores of trainings here and there, by set
    for file in sorted((folder / "baselines").glob(f"*-{PUBLIC}-[0-9].json")):
        result = record.read(file)
        (row,) = result["rows"]
        if result["labelled_rows_sha256"] != drawn[row["set"]]:
            raise InputError(f"{file} has other labelled rows than results/few_labels")
        both.setdefault(row["set"], ([], []))[0].append(row["scores"]["published"])
    for row in theirs["rows"]:
        if row["set"] in both:
            both[row["set"]][1].append(row["scores"]["max"])
    lines = []
    for name in (name for name in SETS if name in both):
        for share, head in ((share, head) for share in SHARES for head in ("linear", "logistic")):
            ours, public = (
                np.array([100 * np.mean(scores[share][head]["accuracy"]) for scores in trainings])
                for trainings in both[name]
            )
            apart, error = ours.mean() - public.mean(), pooled_error(ours, public)
            lines.append([
                name, share.replace("%", " %"), head, mean_and_sd(ours, 1),
                mean_and_sd(public, 1), f"{apart:+.2f} ± {error:.2f}",
                "yes" if abs(apart) <= error else "no",
            ])  # fmt: skip
    header = ["set", "labels", "head", "here", "public code", "difference",
              "within one standard error"]  # fmt: skip
    return markdown(header, lines)


def pooled_error(a: np.ndarray, b: np.ndarray) -> float:
    """The standard error of the difference of two means, of values that spread alike."""
    spread = ((a - a.mean()) ** 2).sum() + ((b - b.mean()) ** 2).sum()
    return float(np.sqrt(spread / (len(a) + len(b) - 2) * (1 / len(a) + 1 / len(b))))


def peers_table(results: list[dict[str, Any]]) -> str:
    """Relative differences, and the time of a step over that of the public code."""
    (result,) = results
    lines = difference_lines(result)
    ratio, error = step_ratio(result["seconds_of_a_step"])
    lines.append(
        ["TS2Vec", f"time of a step, {result['device']}", "-", f"{ratio:.2f}x ± {error:.2f}"]
    )
    return markdown(["method", "what", "float64", "float32"], lines)


def peers_cnn_table(results: list[dict[str, Any]]) -> str:
    """Relative differences by method and precision."""
    (result,) = results
    return markdown(["method", "what", "float64", "float32"], difference_lines(result))


def difference_lines(result: dict[str, Any]) -> list[list[str]]:
    """One line for each thing that is compared with public code, by precision."""
    lines = []
    for method, by_precision in result["differences"].items():
        for what in by_precision["float64"]:
            cells = [f"{one[what]:.0e}" if what in one else "-" for one in by_precision.values()]
            lines.append([method, what, *cells])
    return lines


def step_ratio(seconds: dict[str, list[float]]) -> tuple[float, float]:
    """Our time over theirs, and its standard error over the stretches."""
    here, public = (np.array(seconds[key]) for key in ("here", "public"))
    ratio = here.mean() / public.mean()
    parts = [(times.std(ddof=1) / times.mean()) ** 2 / len(times) for times in (here, public)]
    return float(ratio), float(ratio * np.sqrt(sum(parts)))
