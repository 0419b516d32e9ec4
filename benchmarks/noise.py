"""Series of noise with drawn labels, through every way in which this software prints a score.

    python -m benchmarks.noise      # some minutes of a CPU, writes results/noise/cpu.json

A score above chance and three standard deviations would be a leak, unless it is marked as a score
on labels that were seen. Accuracy of two classes has its chance at one half; a forecast of white
noise has an error of one variance at least, so that less than that and three standard deviations
would be one. The standard deviations are those of the number of series, or of values, that are
scored; five scores of one row are scored on the same series.
"""

import argparse
import contextlib
import io
import json
import os
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.model_selection import cross_val_score

import progmem
from progmem.cli import main as command
from progmem.data.labels import amount_name
from progmem.data.sets import LabelledSet
from progmem.probes.classify import probe_set
from progmem.probes.own_data import LabelProbe, compare_on_held_out, compare_on_labels
from progmem.report import record
from progmem.report.tables import markdown

SERIES, SAMPLES, CHANNELS = 60, 40, 2
HORIZON, LONG = 4, 300
SETTINGS = ("train.device=cpu", "train.batch_size=16")
STRONG = (*SETTINGS, "train.lr=5e-4", "finetune.views=none")
BY_HEART, SOME = (*STRONG, "train.epochs=40"), (*STRONG, "train.epochs=10")
MARK = "LABELS SEEN"

Row = dict[str, Any]


def noise(count: int, seed: int = 0, samples: int = SAMPLES) -> np.ndarray:
    """Series (R, L, C) of white noise."""
    return np.random.default_rng(seed).normal(size=(count, samples, CHANNELS)).astype(np.float32)


def coins(count: int, seed: int = 0) -> np.ndarray:
    """Labels (R,) that have nothing to do with any series."""
    return np.random.default_rng([1, seed]).integers(0, 2, count)


def scored(path: str, scores: dict[str, float], count: int, *, marked: bool = False) -> Row:
    """Accuracies of one way to score, on ``count`` series."""
    return {
        "path": path, "scores": {name: float(score) for name, score in scores.items()},
        "scored": count, "chance": 0.5, "bound": 0.5 + 3 * 0.5 / count**0.5, "marked": marked,
    }  # fmt: skip


def is_leak(row: Row) -> bool:
    """Whether a score is better than chance allows, and is not marked."""
    if row["marked"]:
        return False
    if row["chance"] > row["bound"]:  # an error
        return min(row["scores"].values()) < row["bound"]
    return max(row["scores"].values()) > row["bound"]


def said_by(*arguments: str, code: int = 0) -> str:
    """What a command prints."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        found = command(arguments)
    assert found == code, said.getvalue()
    return said.getvalue()


def noise_rows() -> Iterator[Row]:
    """All ways, in the current folder, which holds the files that commands read and write."""
    x, y = noise(SERIES), coins(SERIES)
    new, truth = noise(SERIES, seed=1), coins(SERIES, seed=1)
    np.save("x.npy", x)
    np.save("y.npy", y)
    own = ("x.npy", "--labels", "y.npy")
    said_by("pretrain", "x.npy", "-o", "run", *SETTINGS, "model.size=tiny", "train.steps=20")
    yield from _finetune_rows(own)
    model: Any = progmem.load("run/model")
    untrained: Any = progmem.PMT(model.cfg)
    found = compare_on_labels(LabelProbe(model).fit(x, y), list(x))
    scores = {name: found.accuracy(name) for name in found.outcomes}
    yield scored("progmem classify --labels, folds", scores, SERIES)
    encoders = {"trained": model, "untrained": untrained}
    held_out = compare_on_held_out(encoders, list(x), y, list(new), truth)
    scores = {name: held_out.accuracy(name) for name in held_out.outcomes}
    yield scored("progmem finetune, the comparison on series held out", scores, SERIES)
    data = LabelledSet(
        "noise", "official", x.transpose(0, 2, 1), y, new.transpose(0, 2, 1), truth, ("a", "b")
    )
    shares: tuple[int, float] = 5, 1.0
    probed = probe_set(model, data, label_shares=shares, poolings=["sequence", "all"])
    for share in shares:
        scores = {
            f"{head}, {pooling}": float(np.mean(found["accuracy"]))
            for pooling, by_share in probed["scores"].items()
            for head, found in by_share[amount_name(share)].items()
        }
        yield scored(f"progmem probe classify, labels: {amount_name(share)}", scores, SERIES)
    yield from _classifier_rows(x, y, new, truth)
    yield _forecast_row()


def _finetune_rows(own: tuple[str, ...]) -> Iterator[Row]:
    """Accuracies that finetuning prints, with labels it has learnt and without."""
    held = (*SOME, "finetune.validation=0.25")
    on_15 = SERIES // 4
    for path, more, count in (
        ("progmem finetune --from RUN", (*BY_HEART, "--from", "run", "-o", "tuned"), SERIES),
        ("progmem finetune, from scratch", (*held, "-o", "scratch"), on_15),
        ("progmem finetune --from RUN, held out", (*held, "--from", "run", "-o", "held"), on_15),
    ):
        said_by("finetune", *own, *more)
        kept = record.read(Path(more[more.index("-o") + 1]) / "result.json")
        scores = {name: s["accuracy"] for name, s in kept["comparison"]["scores"].items()}
        yield scored(path, scores, count)
    again = ("finetune", *own, "--from", "tuned", *held)
    said_by(*again, "-o", "refused", code=2)
    said_by("classify", *own, "--model", "tuned/model", "-o", "p.csv", code=2)
    said = said_by(*again, "-o", "seen", "--allow-seen-labels")
    kept = record.read(Path("seen/result.json"))
    scores = {name: s["accuracy"] for name, s in kept["comparison"]["scores"].items()}
    path = "progmem finetune --from a network that learnt them, --allow-seen-labels"
    yield scored(path, scores, on_15, marked=MARK in said)


def _classifier_rows(
    x: np.ndarray, y: np.ndarray, new: np.ndarray, truth: np.ndarray
) -> Iterator[Row]:
    X = x.transpose(0, 2, 1)
    classifier = progmem.PMTClassifier(size="tiny", steps=5)
    crossed = float(cross_val_score(classifier, X, y, cv=4).mean())
    yield scored("PMTClassifier, cross-validated", {"mean": crossed}, SERIES)
    classifier.fit(X, y)
    score = classifier.score(new.transpose(0, 2, 1), truth)
    yield scored("PMTClassifier.score, new series", {"score": score}, SERIES)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        score = classifier.score(X, y)
    marked = any("labels of 60 of these 60 series were learnt" in str(w.message) for w in told)
    yield scored(
        "PMTClassifier.score, series it was fitted on", {"score": score}, SERIES, marked=marked
    )


def _forecast_row() -> Row:
    """Errors of forecasts in variances of what is predicted, as `PMTForecaster` estimates them."""
    values = noise(1, seed=2, samples=LONG * SERIES // CHANNELS)[0].reshape(LONG, SERIES)
    forecaster = progmem.PMTForecaster().fit({str(i): v for i, v in enumerate(values.T)})
    errors = forecaster.estimate(HORIZON)
    last = int(LONG * forecaster.validation)
    spread = values[-last:].var() / values[:-last].var()
    count = last * SERIES
    scores = {n: float(errors[n].mean() / spread) for n in ("forecast", "repeat last")}
    return {
        "path": f"progmem forecast, {HORIZON} ahead, errors in variances", "scores": scores,
        "scored": count, "chance": 1.0, "bound": 1 - 3 * (2 / count) ** 0.5, "marked": False,
    }  # fmt: skip


def noise_table(results: list[dict[str, Any]]) -> str:
    """The scores of each way, and what they may be by chance."""
    lines = []
    for row in results[0]["rows"]:
        low, high = min(row["scores"].values()), max(row["scores"].values())
        cell = f"{low:.3f}" if low == high else f"{low:.3f} to {high:.3f}"
        bound = f"{'below' if row['bound'] > row['chance'] else 'above'} {row['bound']:.3f}"
        lines.append([row["path"], str(len(row["scores"])), str(row["scored"]), cell,
                      "marked as seen" if row["marked"] else bound])  # fmt: skip
    return markdown(["scored by", "scores", "on so many", "found", "must be"], lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=record.RESULTS)
    chosen = parser.parse_args()
    out = chosen.out.resolve()
    torch.set_num_threads(1)
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            rows = list(noise_rows())
        finally:
            os.chdir(before)
    config = {"series": SERIES, "samples": SAMPLES, "channels": CHANNELS, "horizon": HORIZON}
    result = {"config": config, "seeds": [0], **record.environment(), "rows": rows}
    print(f"written: {record.save('noise', 'cpu', result, folder=out)}\n")
    print(noise_table([result]))
    leaks = [row["path"] for row in rows if is_leak(row)]
    print(json.dumps({"leaks": leaks}))


if __name__ == "__main__":
    main()
