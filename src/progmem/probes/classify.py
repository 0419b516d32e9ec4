"""Few-label classification: support vector machines on frozen features, over draws of the labels.

Two kernels, linear and RBF, with C fixed or cross-validated. The encoder to beat is the untrained
one: the same shape and normalisation, weights as they were drawn.

Shapes: R series, D features, n labelled series, V support vectors, Y classes,
P = Y (Y - 1) / 2 pairs of classes, B series to classify.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import torch
from joblib import Parallel, delayed
from sklearn import config_context
from sklearn.metrics import f1_score
from sklearn.metrics.pairwise import linear_kernel, rbf_kernel
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from progmem.config import Amount
from progmem.data.labels import amount_name, check_labels, draw_labels
from progmem.data.sets import LabelledSet
from progmem.encoding import Encoder
from progmem.model.pmt import PMT
from progmem.pooling import POOLINGS, pool


def untrained_twin(model: PMT, seed: int = 0) -> PMT:
    """A PMT like ``model`` that has learnt nothing but the channels' statistics."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        twin = PMT(model.cfg)
    twin.stats.load_state_dict(model.stats.state_dict())
    return twin.to(model.tokenizer.conv.weight.device).eval()


FIXED_C = {"linear": 0.01, "rbf": 10.0}
GRID = tuple(10.0**power for power in range(-4, 5))  # as SoftCLT's; of a tie the first is taken
FOLDS = 5
MOST_IN_GRAM = 4_000  # labelled series whose products are kept: 128 MB


class Head(NamedTuple):
    """A kernel, and whether its C is chosen by cross-validation inside the labelled series."""

    kernel: str
    cross_validated: bool


HEADS = {
    "linear": Head("linear", True),  # the headline
    "linear, fixed C": Head("linear", False),
    "rbf": Head("rbf", True),
    "rbf, fixed C": Head("rbf", False),
}


class Machine(NamedTuple):
    """A fitted machine and the scaling of its features, as arrays: all that prediction needs.

    It decides as scikit-learn's SVC does. Each pair of classes i < j has a machine of its own,
    which uses the support vectors of both: positive values vote for i. SVC has it the other way
    round where there are only two classes.
    """

    mean: np.ndarray  # (D,)
    scale: np.ndarray  # (D,)
    support: np.ndarray  # (V, D), those of the first class first
    dual: np.ndarray  # (Y-1, V), a support vector's coefficients against each of the other classes
    intercept: np.ndarray  # (P,)
    counts: np.ndarray  # (Y,), support vectors of each class
    kernel: str
    gamma: float  # of the kernel rbf
    classes: np.ndarray  # (Y,), in order

    @classmethod
    def of(cls, scaler: StandardScaler, svc: SVC) -> "Machine":
        return cls(
            scaler.mean_, scaler.scale_, svc.support_vectors_, svc.dual_coef_, svc.intercept_,
            svc.n_support_.astype(np.int64), svc.kernel, svc.gamma, svc.classes_,
        )  # fmt: skip

    def scaled(self, features: np.ndarray) -> np.ndarray:
        """Features (B, D) as `StandardScaler` gives them, in the dtype they have."""
        mean, scale = (array.astype(features.dtype) for array in (self.mean, self.scale))
        return (features - mean) / scale

    def decision_function(self, features: np.ndarray) -> np.ndarray:
        """(B, Y): votes, and within less than half a vote how clear they were.

        Of two classes (B,), positive for the second one.
        """
        pairs = self._pairs(features)
        Y = len(self.classes)
        if Y == 2:
            return pairs[:, 0]
        votes, clear = np.zeros((len(pairs), Y)), np.zeros((len(pairs), Y))
        for p, (i, j) in enumerate(combinations(range(Y), 2)):
            for_second = pairs[:, p] < 0
            votes[:, i] += ~for_second
            votes[:, j] += for_second
            clear[:, i] += pairs[:, p]
            clear[:, j] -= pairs[:, p]
        return votes + clear / (3 * (np.abs(clear) + 1))

    def predict(self, features: np.ndarray) -> np.ndarray:
        """The class with the most votes (B,), of equals the first."""
        pairs = self._pairs(features)
        Y = len(self.classes)
        if Y == 2:
            return self.classes[(pairs[:, 0] >= 0).astype(int)]
        votes = np.zeros((len(pairs), Y), dtype=int)
        for p, (i, j) in enumerate(combinations(range(Y), 2)):
            for_first = pairs[:, p] > 0
            votes[:, i] += for_first
            votes[:, j] += ~for_first
        return self.classes[votes.argmax(1)]

    def _pairs(self, features: np.ndarray) -> np.ndarray:
        """The values (B, P) of the machines of all pairs of classes."""
        x = self.scaled(features).astype(np.float64)
        similar = x @ self.support.T  # (B, V)
        if self.kernel == "rbf":
            square = (x**2).sum(1)[:, None] + (self.support**2).sum(1) - 2 * similar
            similar = np.exp(-self.gamma * square)
        ends = self.counts.cumsum()
        of = [slice(end - count, end) for end, count in zip(ends, self.counts, strict=True)]
        if len(self.classes) == 2:  # one row of coefficients for both
            return similar @ self.dual.T + self.intercept
        return np.stack(
            [
                similar[:, of[i]] @ self.dual[j - 1, of[i]]
                + similar[:, of[j]] @ self.dual[i, of[j]]
                + self.intercept[p]
                for p, (i, j) in enumerate(combinations(range(len(self.classes)), 2))
            ],
            axis=1,
        )


def fit_svm(x: np.ndarray, y: np.ndarray, head: Head) -> SVC:
    """A fitted machine on standardised features (n, D).

    C is the fixed one where the smallest class has one label: there is nothing to validate on.
    """
    smallest = int(np.unique(y, return_counts=True)[1].min())
    c = FIXED_C[head.kernel]
    if head.cross_validated and smallest > 1:
        c = _validated_c(x, y, head.kernel, folds=min(FOLDS, smallest))
    return SVC(kernel=head.kernel, C=c, gamma=_gamma(x)).fit(x, y)


def _gamma(x: np.ndarray) -> float:
    """What SVC calls "scale", as a number that can be kept."""
    variance = x.astype(np.float64).var()
    return float(1 / (x.shape[1] * variance)) if variance else 1.0


def _validated_c(x: np.ndarray, y: np.ndarray, kernel: str, *, folds: int) -> float:
    """The best C of the grid by accuracy; of equally good values the smallest.

    A kernel given as a function is worked out by one product of matrices, which libsvm's own are
    not: the same C in a half to a quarter of the time.
    """
    machine = SVC(kernel=KERNELS[kernel] if len(x) <= MOST_IN_GRAM else kernel)
    split = StratifiedKFold(folds, shuffle=True, random_state=0)
    search = GridSearchCV(machine, {"C": GRID}, cv=split, refit=False)
    return float(search.fit(x.astype(np.float64), y).best_params_["C"])


def _rbf(x: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """The kernel of ``SVC(kernel="rbf")``, whose width is that of the series it is fitted on."""
    return rbf_kernel(x, seen, gamma=1 / (seen.shape[1] * (seen.var() or 1.0)))  # (m, n)


KERNELS = {"linear": linear_kernel, "rbf": _rbf}


LABELS: tuple[Amount, ...] = (0.01, 0.05)
SEEDS = tuple(range(5))


class Scores(NamedTuple):
    """One value a draw of labels."""

    accuracy: np.ndarray  # (draws,)
    macro_f1: np.ndarray  # (draws,)
    weighted_f1: np.ndarray  # (draws,)
    c: np.ndarray  # (draws,), the C that was used


def classify(
    train: np.ndarray,
    y: np.ndarray,
    test: np.ndarray,
    test_y: np.ndarray,
    *,
    labels: Amount,
    seeds: Sequence[int] = SEEDS,
    head: str = "linear",
) -> Scores:
    """Scores on all test features (R, D) of machines that saw some labels of the training ones.

    Features are standardised by all training series: that needs no labels.
    """
    check_labels(y, len(train))
    check_labels(test_y, len(test), classes=1)
    scaler = StandardScaler().fit(train)  # refuses what is not finite
    train, test = scaler.transform(train), scaler.transform(test)
    found = []
    for seed in seeds:
        rows = draw_labels(y, labels, seed)
        # hundreds of fits of a millisecond: their own checks would take half the time
        with config_context(assume_finite=True, skip_parameter_validation=True):
            machine = fit_svm(train[rows], y[rows], HEADS[head])
            predicted = machine.predict(test)
        macro, weighted = (
            float(f1_score(test_y, predicted, average=kind)) for kind in ("macro", "weighted")
        )
        found.append((float((predicted == test_y).mean()), macro, weighted, machine.C))
    return Scores(*np.array(found).T)


def probe_set(
    encoder: Encoder,
    data: LabelledSet,
    *,
    labels: Sequence[Amount] = LABELS,
    seeds: Sequence[int] = SEEDS,
    poolings: Sequence[str] = tuple(POOLINGS),
    heads: Sequence[str] = tuple(HEADS),
) -> dict[str, Any]:
    """Every score of an encoder on a set, and the labelled rows of every draw, for a json file.

    Test series meet the frozen encoder and the fitted machines, nothing else.
    """
    train, test = (
        pool(encoder, x.transpose(0, 2, 1), poolings) for x in (data.X_train, data.X_test)
    )
    return probe_features(train, test, data, labels=labels, seeds=seeds, heads=heads)


def probe_features(
    train: Mapping[str, np.ndarray],
    test: Mapping[str, np.ndarray],
    data: LabelledSet,
    *,
    labels: Sequence[Amount] = LABELS,
    seeds: Sequence[int] = SEEDS,
    heads: Sequence[str] = tuple(HEADS),
) -> dict[str, Any]:
    """`probe_set` for features (R, D) that are there already, by the name of their pooling."""
    cells = [(pooling, amount, head) for pooling in train for amount in labels for head in heads]
    found = Parallel(n_jobs=torch.get_num_threads(), prefer="threads")(
        delayed(classify)(
            train[pooling], data.y_train, test[pooling], data.y_test,
            labels=amount, seeds=seeds, head=head,
        )
        for pooling, amount, head in cells
    )  # fmt: skip
    scores: dict[str, Any] = {}
    for (pooling, amount, head), one in zip(cells, found, strict=True):
        place = scores.setdefault(pooling, {}).setdefault(amount_name(amount), {})
        place[head] = {key: values.tolist() for key, values in one._asdict().items()}
    rows = {
        amount_name(amount): [draw_labels(data.y_train, amount, seed).tolist() for seed in seeds]
        for amount in labels
    }
    facts = {"set": data.name, "split": data.split, "label_seeds": list(seeds)}
    return {**facts, "labelled_rows": rows, "scores": scores}
