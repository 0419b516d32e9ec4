"""How many labels are needed: stretches that `suggest` chooses beside stretches at random.

Of the people who are held out some are labelled, stretch by stretch, and the windows of the others
are predicted by `classify`. A draw says who they are, and which three quarters of their recordings
there are to label. A stretch has the class of most of its samples. Full labels are those of all
stretches, side by side.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.explore_archives import Known
from progmem import explore
from progmem.explore.suggestion import WIDTH
from progmem.model.pmt import PMT

MOST = 60  # labels
DRAWS = range(5)
KEPT = 0.75  # of the recordings
SHARE = 0.9  # of the accuracy with full labels

Stretch = tuple[str, int, int]


def draw_people(known: Sequence[Known], seed: int) -> tuple[list[Known], list[Known]]:
    """Most recordings of a little more than half of the people, and those of the others."""
    rng = np.random.default_rng(seed)
    people = rng.permutation(np.unique([one.person for one in known]))
    chosen = set(people[: len(people) // 2 + 1].tolist())
    asked = [one for one in known if one.person in chosen]
    kept = rng.permutation(len(asked))[: round(KEPT * len(asked))]
    return [asked[i] for i in sorted(kept)], [one for one in known if one.person not in chosen]


class Oracle:
    """What a person would say of a stretch, and whether windows are predicted right."""

    def __init__(self, known: Sequence[Known], scored: Sequence[Known], idx: explore.Index) -> None:
        self.classes = {one.recording.name: one.classes for one in known}
        self.idx, self.scored = idx, [one.recording.name for one in scored]
        self.truth = [
            np.array([_most(self.classes[name][a:b]) for a, b in idx.windows(name)])
            for name in self.scored
        ]

    def label(self, stretch: Stretch) -> explore.Label:
        name, start, end = stretch
        return explore.Label(name, start, end, str(_most(self.classes[name][start:end])))

    def accuracy(self, labels: Sequence[explore.Label]) -> float:
        """The share of the windows of the people who are scored."""
        classes = {one.label for one in labels}
        if len(classes) == 1:
            right = [truth == int(*classes) for truth in self.truth]
        else:
            found = explore.classify(self.idx, labels)
            right = [
                found.labels(name).astype(int) == truth
                for name, truth in zip(self.scored, self.truth, strict=True)
            ]
        return float(np.concatenate(right).mean())


def _most(classes: np.ndarray) -> int:
    """The class of most samples."""
    return int(np.bincount(classes).argmax())


def side_by_side(idx: explore.Index) -> list[Stretch]:
    """All stretches of the length that is suggested."""
    found = []
    for name in idx.names:
        spans = idx.windows(name)
        for first in range(0, len(spans) - WIDTH + 1, WIDTH):
            found.append((name, int(spans[first, 0]), int(spans[first + WIDTH - 1, 1])))
    return found


def suggested(idx: explore.Index, oracle: Oracle) -> Iterator[explore.Label]:
    """Labels of stretches as `suggest` asks for them."""
    known = list[explore.Label]()
    while True:
        known.append(oracle.label(explore.suggest(idx, known)[:3]))
        yield known[-1]


def at_random(idx: explore.Index, oracle: Oracle, seed: int) -> Iterator[explore.Label]:
    stretches = side_by_side(idx)
    for i in np.random.default_rng(seed).permutation(len(stretches)):
        yield oracle.label(stretches[i])


def needed(curve: Sequence[float], least: float) -> int | None:
    """The fewest labels with at least this accuracy."""
    return next((i + 1 for i, accuracy in enumerate(curve) if accuracy >= least), None)


def compare(model: PMT, known: Sequence[Known], folder: Path) -> list[dict[str, Any]]:
    """For each draw and way of choosing: the accuracy with 1, 2, ... labels."""
    rows: list[dict[str, Any]] = []
    for seed in DRAWS:
        asked, scored = draw_people(known, seed)
        whole = explore.index(
            model, [one.recording for one in (*asked, *scored)], folder / "whole", log=None
        )
        own = explore.index(model, [one.recording for one in asked], folder / "own", log=None)
        oracle = Oracle((*asked, *scored), scored, whole)
        full = oracle.accuracy([oracle.label(one) for one in side_by_side(own)])
        ways = {"suggest": suggested(own, oracle), "at random": at_random(own, oracle, seed)}
        for name, labels in ways.items():
            given, curve = list[explore.Label](), list[float]()
            while len(given) < MOST and needed(curve, SHARE * full) is None:
                given.append(next(labels))
                curve.append(oracle.accuracy(given))
            rows.append({
                "method": name, "seed": seed, "full": full, "accuracy": curve,
                "needed": needed(curve, SHARE * full),
                "labelled": sorted({one.person for one in asked}),
            })  # fmt: skip
            print(
                f"{name:12} draw {seed}: {rows[-1]['needed']} labels, full {full:.3f}", flush=True
            )
    return rows
