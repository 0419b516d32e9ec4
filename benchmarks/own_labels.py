"""`PMTClassifier` without a setting, on a CPU: does it reach what the default recipe reaches?

    python -m benchmarks.own_labels --data-dir DATA    # ten minutes

The built-in sample, in windows of 4 s, and three of the paper's sets, with 5 % of the labels of
their training rows; all other labels are unknown. The classifier is scored on the test rows. Beside
it is the recipe's own protocol on the same network, with the same labels and with five draws of
labels (features from all scales, one logistic regression), and the share of the largest class.
Writes results/own_labels/cpu.json.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from progmem import PMTClassifier
from progmem.data.datasets import load_labelled
from progmem.data.labels import draw_labels
from progmem.data.sample import TEST_SUBJECTS, cut_windows, load_sample
from progmem.data.sets import LabelledSet
from progmem.demo import LENGTH
from progmem.probes.classify import SEEDS, probe_features
from progmem.probes.own_data import POOLING
from progmem.report import record
from progmem.report.tables import markdown, mean_and_sd

SAMPLE, SETS = "sample", ("Wafer", "PhalangesOutlinesCorrect", "FordB")
SHARE = 0.05


def sample_windows() -> LabelledSet:
    """The built-in sample in windows of 4 s: seven people to learn from, three to test on."""
    sample = load_sample()
    test = np.isin(sample.subject, TEST_SUBJECTS)
    learnt = cut_windows(sample, ~test, length=LENGTH, hop=LENGTH)
    tested = cut_windows(sample, test, length=LENGTH, hop=LENGTH)
    x, test_x = (part.x.transpose(0, 2, 1) for part in (learnt, tested))
    classes = tuple(sample.classes)
    return LabelledSet(SAMPLE, "official", x, learnt.y, test_x, tested.y, classes)


def measure(data: LabelledSet, seed: int, steps: int | None) -> dict[str, Any]:
    """Accuracy of the classifier, and of the recipe on its network."""
    known = draw_labels(data.y_train, SHARE, seed)
    y = np.full(len(data.y_train), np.nan)
    y[known] = data.y_train[known]
    classifier = PMTClassifier(seed=seed, device="cpu", steps=steps)
    classifier.fit(data.X_train, y)
    accuracy = float((classifier.predict(data.X_test) == data.y_test).mean())
    probe = classifier.probe_  # the features of a recipe's probe, scaled by all training rows
    train, test = (
        {POOLING: probe.scaled_features(x.transpose(0, 2, 1))} for x in (data.X_train, data.X_test)
    )
    found = probe_features(train, test, data, label_shares=(SHARE,), heads=("logistic",))
    (scores,) = found["scores"][POOLING].values()
    recipe = dict(zip(SEEDS, scores["logistic"]["accuracy"], strict=True))
    return {
        "set": data.name, "seed": seed, "labels": len(known), "accuracy": accuracy,
        "recipe": list(recipe.values()), "recipe_same_labels": recipe[seed],
        "guess": float(np.unique(data.y_test, return_counts=True)[1].max() / len(data.y_test)),
    }  # fmt: skip


def own_labels_table(results: list[dict[str, Any]]) -> str:
    """Accuracy in % of the classifier beside the recipe's protocol on its network."""
    lines = []
    for row in results[0]["rows"]:
        cells = [f"{100 * row[key]:.1f}" for key in ("accuracy", "recipe_same_labels", "guess")]
        mean = mean_and_sd(100 * np.array(row["recipe"]), 1)
        lines.append([row["set"], str(row["labels"]), *cells[:2], mean, cells[2]])
    header = ["set", "labels", "PMTClassifier", "the recipe, same labels",
              "the recipe, five draws of labels", "largest class"]  # fmt: skip
    return markdown(header, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--sets", nargs="*", default=list(SETS))
    parser.add_argument("--steps", type=int, help="of the training, by default the classifier's")
    parser.add_argument("--out", type=Path, default=record.RESULTS)
    chosen = parser.parse_args()
    rows = []
    for name in (SAMPLE, *chosen.sets):
        data = sample_windows() if name == SAMPLE else load_labelled(name, chosen.data_dir)
        rows.append(measure(data, 0, chosen.steps))
        print(rows[-1], flush=True)
    config = {"share": SHARE, "steps": chosen.steps}
    result = {"config": config, "seeds": [0], "label_seeds": SEEDS,
              **record.environment(), "rows": rows}  # fmt: skip
    print(f"written: {record.save('own_labels', 'cpu', result, folder=chosen.out)}\n")
    print(own_labels_table([result]))


if __name__ == "__main__":
    main()
