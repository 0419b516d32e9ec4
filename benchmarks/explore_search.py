"""How well stretches are found that are alike: `search` beside distances of values and MiniRocket.

Asked is with stretches of one class by people who are held out; scored is the share of the five
nearest stretches by other people that are of the same class. The others look at stretches of
the same length: Euclidean distance of values as they are or z-normalised, channel by channel, at
every sample; MiniRocket's features of stretches that begin where windows of the index do, fitted on
people the model was trained on.

Shapes: L samples, C channels, m samples of a stretch.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from benchmarks.explore_archives import Known
from progmem import explore
from progmem.data.recordings import Recording
from progmem.explore.tables import runs

NEAREST = 5
LENGTH = 4.0  # seconds of a stretch
KERNELS = 10_000  # of MiniRocket, its default
LEAST = 1e-12  # variance of a channel

Stretch = tuple[int, int, int]  # number of a recording, start, end


def queries(known: Sequence[Known], length: int, count: int, seed: int) -> list[Stretch]:
    """Up to ``count`` stretches of each class of each person, all of one class."""
    rng = np.random.default_rng(seed)
    places: dict[tuple[int, int], list[Stretch]] = {}
    for number, one in enumerate(known):
        for part in runs(one.classes):
            for start in range(part.start, part.stop - length + 1, length):
                key = one.person, int(one.classes[part.start])
                places.setdefault(key, []).append((number, start, start + length))
    return [
        found[i] for _, found in sorted(places.items()) for i in rng.permutation(len(found))[:count]
    ]


def share_alike(known: Sequence[Known], asked: Stretch, nearest: Iterator[Stretch]) -> float:
    """The share of the first five by other people that are of the class asked for."""
    person, label = known[asked[0]].person, known[asked[0]].classes[asked[1]]
    others = (one for one in nearest if known[one[0]].person != person)
    found = islice(others, NEAREST)
    return sum(np.mean(known[i].classes[a:b] == label) >= 0.5 for i, a, b in found) / NEAREST


def by_search(idx: explore.Index, asked: Stretch) -> Iterator[Stretch]:
    number, start, end = asked
    # other people are asked for, and the nearest may all be of the same
    for match in explore.search(idx, idx.names[number], start, end, k=len(idx)):
        yield idx.number(match.recording), match.start, match.end


def nearest_places(distances: Sequence[np.ndarray], hop: int, m: int) -> Iterator[Stretch]:
    """The nearest of stretches every ``hop`` samples of each recording, none over another."""
    sizes = np.cumsum([0, *map(len, distances)])
    distance = np.concatenate(distances).copy()
    across = -(-m // hop) - 1  # neighbours that overlap
    while np.isfinite(distance).any():
        at = int(distance.argmin())
        number = int(np.searchsorted(sizes, at, side="right")) - 1
        first = at - sizes[number]
        yield number, int(first * hop), int(first * hop) + m
        low, high = sizes[number], sizes[number + 1]
        distance[max(low, at - across) : min(high, at + across + 1)] = np.inf


class ValuesDistances:
    """Squared Euclidean distances of stretches of m samples at every sample."""

    def __init__(self, recordings: Sequence[Recording], m: int, *, normalised: bool) -> None:
        self.m, self.normalised = m, normalised
        self.x = [one.values.astype(np.float64) for one in recordings]
        self.squares = [_sums(x**2, m) for x in self.x]
        self.variance = [
            np.maximum(squares / m - (_sums(x, m) / m) ** 2, LEAST)
            for x, squares in zip(self.x, self.squares, strict=True)
        ]

    def __call__(self, asked: Stretch) -> list[np.ndarray]:
        number, start, end = asked
        query = self.x[number][start:end]
        if self.normalised:
            query = (query - query.mean(0)) / np.sqrt(np.maximum(query.var(0), LEAST))
        found = []
        for x, squares, variance in zip(self.x, self.squares, self.variance, strict=True):
            product = _product(x, query)
            if self.normalised:  # the query has mean 0 and variance 1
                apart = 2 * self.m - 2 * product / np.sqrt(variance)
            else:
                apart = squares - 2 * product + np.square(query).sum(0)
            found.append(apart.sum(1))
        return found


def _product(x: np.ndarray, query: np.ndarray) -> np.ndarray:
    """Products of every stretch of x (L, C) with one (m, C), (L - m + 1, C)."""
    size = 1 << (len(x) + len(query)).bit_length()
    spectrum = np.fft.rfft(x, size, axis=0) * np.fft.rfft(query[::-1], size, axis=0)
    return np.fft.irfft(spectrum, size, axis=0)[len(query) - 1 : len(x)]


def _sums(x: np.ndarray, m: int) -> np.ndarray:
    """Sums over every stretch, (L - m + 1, C)."""
    total = np.concatenate([np.zeros((1, x.shape[1])), np.cumsum(x, 0)])
    return total[m:] - total[:-m]


class MiniRocketDistances:
    """Distances of standardised MiniRocket features of stretches of m samples."""

    def __init__(
        self, training: Sequence[Known], recordings: Sequence[Recording], m: int, hop: int
    ):
        from aeon.transformations.collection.convolution_based import MiniRocket

        learnt = np.concatenate([_cut(one.recording.values, m, m) for one in training])
        self.transform = MiniRocket(n_kernels=KERNELS, random_state=0)
        features = self.transform.fit_transform(learnt).astype(np.float32)
        self.mean, self.scale = features.mean(0), features.std(0) + 1e-6
        self.hop = hop
        self.features = [self._of(_cut(one.values, m, hop)) for one in recordings]
        self.squares = [np.square(one).sum(1) for one in self.features]
        self.recordings = recordings

    def _of(self, pieces: np.ndarray) -> np.ndarray:
        return (self.transform.transform(pieces).astype(np.float32) - self.mean) / self.scale

    def __call__(self, asked: Stretch) -> list[np.ndarray]:
        number, start, end = asked
        (query,) = self._of(_cut(self.recordings[number].values[start:end], end - start, 1))
        return [
            squares - 2 * features @ query + query @ query
            for features, squares in zip(self.features, self.squares, strict=True)
        ]


def _cut(values: np.ndarray, m: int, hop: int) -> np.ndarray:
    """Stretches every ``hop`` samples, (number, C, m)."""
    return sliding_window_view(values, m, axis=0)[::hop].astype(np.float64)


def compare(
    training: Sequence[Known], known: Sequence[Known], idx: explore.Index, rate: float, count: int
) -> list[dict[str, Any]]:
    """Share of what was found that is alike, for each stretch asked with, by method."""
    m = int(LENGTH * rate)
    asked = queries(known, m, count, 0)
    recordings = [one.recording for one in known]
    plain, normalised = (ValuesDistances(recordings, m, normalised=on) for on in (False, True))
    rocket = MiniRocketDistances(training, recordings, m, idx.window)
    methods: dict[str, Callable[[Stretch], Iterator[Stretch]]] = {
        "search": lambda one: by_search(idx, one),
        "values": lambda one: nearest_places(plain(one), 1, m),
        "z-normalised values": lambda one: nearest_places(normalised(one), 1, m),
        "MiniRocket": lambda one: nearest_places(rocket(one), idx.window, m),
    }
    rows = []
    for name, method in methods.items():
        shares = [share_alike(known, one, method(one)) for one in asked]
        people = [known[number].person for number, _, _ in asked]
        rows.append({"method": name, "precision": shares, "person": people})
        print(f"{name:30} {np.mean(shares):.3f}", flush=True)
    return rows
