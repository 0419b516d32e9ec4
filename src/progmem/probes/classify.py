"""Few-label classification: support vector machines on frozen features, over draws of the labels.

Two kernels, linear and RBF, with C fixed or cross-validated. The baseline is the untrained encoder:
the same shape and normalisation, with the weights of its initialisation.

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
from progmem.pooling import POOLINGS, pool, token_stats_for


def untrained_copy(model: PMT, seed: int = 0) -> PMT:
    """A PMT like ``model`` with freshly drawn weights and the same channel statistics.

    It has no token statistics: its tokens are others.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        copy = PMT(model.cfg)
    copy.stats.load_state_dict(model.stats.state_dict())
    return copy.to(model.tokenizer.conv.weight.device).eval()


FIXED_C = {"linear": 0.01, "rbf": 10.0}
C_GRID = tuple(10.0**power for power in range(-4, 5))  # as SoftCLT's; the first wins a tie
FOLDS = 5
MAX_GRAM_SIZE = 4_000  # labelled series whose products are kept: 128 MB


class SvmHead(NamedTuple):
    """A kernel, and whether its C is chosen by cross-validation inside the labelled series."""

    kernel: str
    cross_validated: bool


HEADS = {
    "linear": SvmHead("linear", True),  # the headline
    "linear, fixed C": SvmHead("linear", False),
    "rbf": SvmHead("rbf", True),
    "rbf, fixed C": SvmHead("rbf", False),
}


class FittedSvm(NamedTuple):
    """A fitted SVM and the scaling of its features, as arrays: all that prediction needs.

    It predicts as scikit-learn's SVC does. Each pair of classes i < j has a binary classifier that
    uses the support vectors of both: positive values vote for i. Where there are only two classes,
    SVC has the opposite sign.
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
    def from_sklearn(cls, scaler: StandardScaler, svc: SVC) -> "FittedSvm":
        return cls(
            scaler.mean_, scaler.scale_, svc.support_vectors_, svc.dual_coef_, svc.intercept_,
            svc.n_support_.astype(np.int64), svc.kernel, svc.gamma, svc.classes_,
        )  # fmt: skip

    def scaled(self, features: np.ndarray) -> np.ndarray:
        """Features (B, D) as `StandardScaler` gives them, in the dtype they have."""
        mean, scale = (array.astype(features.dtype) for array in (self.mean, self.scale))
        return (features - mean) / scale

    def decision_function(self, features: np.ndarray) -> np.ndarray:
        """(B, Y): the votes of each class, plus its confidence as less than half a vote.

        With two classes (B,), positive for the second one.
        """
        pairs = self._pairwise(features)
        Y = len(self.classes)
        if Y == 2:
            return pairs[:, 0]
        votes, confidence = np.zeros((len(pairs), Y)), np.zeros((len(pairs), Y))
        for p, (i, j) in enumerate(combinations(range(Y), 2)):
            for_second = pairs[:, p] < 0
            votes[:, i] += ~for_second
            votes[:, j] += for_second
            confidence[:, i] += pairs[:, p]
            confidence[:, j] -= pairs[:, p]
        return votes + confidence / (3 * (np.abs(confidence) + 1))

    def predict(self, features: np.ndarray) -> np.ndarray:
        """The class with the most votes (B,); the first wins a tie."""
        pairs = self._pairwise(features)
        Y = len(self.classes)
        if Y == 2:
            return self.classes[(pairs[:, 0] >= 0).astype(int)]
        votes = np.zeros((len(pairs), Y), dtype=int)
        for p, (i, j) in enumerate(combinations(range(Y), 2)):
            for_first = pairs[:, p] > 0
            votes[:, i] += for_first
            votes[:, j] += ~for_first
        return self.classes[votes.argmax(1)]

    def _pairwise(self, features: np.ndarray) -> np.ndarray:
        """The decision values (B, P) of all pairs of classes."""
        x = self.scaled(features).astype(np.float64)
        kernel = x @ self.support.T  # (B, V)
        if self.kernel == "rbf":
            square = (x**2).sum(1)[:, None] + (self.support**2).sum(1) - 2 * kernel
            kernel = np.exp(-self.gamma * square)
        ends = self.counts.cumsum()
        of = [slice(end - count, end) for end, count in zip(ends, self.counts, strict=True)]
        if len(self.classes) == 2:  # one row of coefficients for both
            return kernel @ self.dual.T + self.intercept
        return np.stack(
            [
                kernel[:, of[i]] @ self.dual[j - 1, of[i]]
                + kernel[:, of[j]] @ self.dual[i, of[j]]
                + self.intercept[p]
                for p, (i, j) in enumerate(combinations(range(len(self.classes)), 2))
            ],
            axis=1,
        )


def fit_svm(x: np.ndarray, y: np.ndarray, head: SvmHead) -> SVC:
    """An SVM fitted on standardised features (n, D).

    C is fixed where the smallest class has one label: there is nothing to validate on.
    """
    smallest = int(np.unique(y, return_counts=True)[1].min())
    c = FIXED_C[head.kernel]
    if head.cross_validated and smallest > 1:
        c = _validated_c(x, y, head.kernel, folds=min(FOLDS, smallest))
    return SVC(kernel=head.kernel, C=c, gamma=_gamma(x)).fit(x, y)


def _gamma(x: np.ndarray) -> float:
    """What SVC calls "scale", as a number that can be saved."""
    variance = x.astype(np.float64).var()
    return float(1 / (x.shape[1] * variance)) if variance else 1.0


def _validated_c(x: np.ndarray, y: np.ndarray, kernel: str, *, folds: int) -> float:
    """The C of the grid with the best accuracy; the smallest of equally good ones.

    A kernel that is given as a function is computed by one matrix product, which libsvm's own
    kernels are not: the same C in a half to a quarter of the time.
    """
    svc = SVC(kernel=KERNELS[kernel] if len(x) <= MAX_GRAM_SIZE else kernel)
    split = StratifiedKFold(folds, shuffle=True, random_state=0)
    search = GridSearchCV(svc, {"C": C_GRID}, cv=split, refit=False)
    return float(search.fit(x.astype(np.float64), y).best_params_["C"])


def _rbf(x: np.ndarray, fitted: np.ndarray) -> np.ndarray:
    """The kernel of ``SVC(kernel="rbf")``, whose width comes from the series it is fitted on."""
    return rbf_kernel(x, fitted, gamma=1 / (fitted.shape[1] * (fitted.var() or 1.0)))  # (m, n)


KERNELS = {"linear": linear_kernel, "rbf": _rbf}


LABEL_SHARES: tuple[Amount, ...] = (0.01, 0.05)
SEEDS = tuple(range(5))


class LabelScores(NamedTuple):
    """One value per draw of labels."""

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
    label_share: Amount,
    seeds: Sequence[int] = SEEDS,
    head: str = "linear",
) -> LabelScores:
    """Scores on all test features (R, D) of SVMs fitted on some labelled training features.

    Features are standardised by all training series, which needs no labels.
    """
    check_labels(y, len(train))
    check_labels(test_y, len(test), classes=1)
    scaler = StandardScaler().fit(train)  # refuses what is not finite
    train, test = scaler.transform(train), scaler.transform(test)
    scores = []
    for seed in seeds:
        rows = draw_labels(y, label_share, seed)
        # in hundreds of fits of a millisecond, scikit-learn's checks would take half the time
        with config_context(assume_finite=True, skip_parameter_validation=True):
            svc = fit_svm(train[rows], y[rows], HEADS[head])
            predicted = svc.predict(test)
        macro, weighted = (
            float(f1_score(test_y, predicted, average=kind)) for kind in ("macro", "weighted")
        )
        scores.append((float((predicted == test_y).mean()), macro, weighted, svc.C))
    return LabelScores(*np.array(scores).T)


def probe_set(
    encoder: Encoder,
    data: LabelledSet,
    *,
    label_shares: Sequence[Amount] = LABEL_SHARES,
    seeds: Sequence[int] = SEEDS,
    poolings: Sequence[str] = POOLINGS,
    heads: Sequence[str] = tuple(HEADS),
) -> dict[str, Any]:
    """Every score of an encoder on a set, and the labelled rows of every draw, for a json file.

    Nothing but the frozen encoder, token statistics and the fitted SVMs is applied to test series.
    """
    train_x, test_x = (x.transpose(0, 2, 1) for x in (data.X_train, data.X_test))  # (R, L, C)
    stats = token_stats_for(encoder, train_x) if "all" in poolings else None
    train, test = (pool(encoder, x, poolings, stats=stats) for x in (train_x, test_x))
    return probe_features(train, test, data, label_shares=label_shares, seeds=seeds, heads=heads)


def probe_features(
    train: Mapping[str, np.ndarray],
    test: Mapping[str, np.ndarray],
    data: LabelledSet,
    *,
    label_shares: Sequence[Amount] = LABEL_SHARES,
    seeds: Sequence[int] = SEEDS,
    heads: Sequence[str] = tuple(HEADS),
) -> dict[str, Any]:
    """`probe_set` for features (R, D) that are already computed, by the name of their pooling."""
    cells = [
        (pooling, share, head) for pooling in train for share in label_shares for head in heads
    ]
    found = Parallel(n_jobs=torch.get_num_threads(), prefer="threads")(
        delayed(classify)(
            train[pooling], data.y_train, test[pooling], data.y_test,
            label_share=share, seeds=seeds, head=head,
        )
        for pooling, share, head in cells
    )  # fmt: skip
    scores: dict[str, Any] = {}
    for (pooling, share, head), one in zip(cells, found, strict=True):
        place = scores.setdefault(pooling, {}).setdefault(amount_name(share), {})
        place[head] = {key: values.tolist() for key, values in one._asdict().items()}
    rows = {
        amount_name(share): [draw_labels(data.y_train, share, seed).tolist() for seed in seeds]
        for share in label_shares
    }
    facts = {"set": data.name, "split": data.split, "label_seeds": list(seeds)}
    return {**facts, "labelled_rows": rows, "scores": scores}
