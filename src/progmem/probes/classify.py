"""Few-label classification: heads on frozen features, over draws of the labels.

The paper's heads are support vector machines of two kernels, linear and RBF, with C fixed or
cross-validated; the logistic regression of `logistic` is the library's own. The baseline is the
untrained encoder: the same shape and normalisation, with the weights of its initialisation.

Shapes: R series, D features, n labelled series.
"""

from collections.abc import Mapping, Sequence
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
from threadpoolctl import threadpool_limits

from progmem.config import Amount
from progmem.data.labels import amount_name, check_labels, draw_labels
from progmem.data.sets import LabelledSet
from progmem.encoding import Encoder
from progmem.model.saving import AnyEncoder
from progmem.pooling import POOLINGS, feature_stats_for, pool
from progmem.probes import logistic
from progmem.probes.logistic import fit_logistic
from progmem.progress import Log, progress
from progmem.provenance import (
    check_labels_unseen,
    check_test_series,
    digests,
    history_of,
    labels_learnt,
)


def untrained_copy(model: AnyEncoder, seed: int = 0) -> AnyEncoder:
    """An encoder like ``model`` with freshly drawn weights and the same channel statistics.

    It has no feature statistics: its tokens are others.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        copy = model.untrained()
    copy.stats.load_state_dict(model.stats.state_dict())
    return copy.to(next(model.parameters()).device).eval()


FIXED_C = {"linear": 0.01, "rbf": 10.0}
C_GRID = tuple(10.0**power for power in range(-4, 5))  # as SoftCLT's; the first wins a tie
FOLDS = 5
MAX_GRAM_SIZE = 4_000  # labelled series whose products are kept: 128 MB


class SvmHead(NamedTuple):
    """A kernel, and whether its C is chosen by cross-validation inside the labelled series."""

    kernel: str
    cross_validated: bool


SVM_HEADS = {
    "linear": SvmHead("linear", True),  # the headline
    "linear, fixed C": SvmHead("linear", False),
    "rbf": SvmHead("rbf", True),
    "rbf, fixed C": SvmHead("rbf", False),
}
HEADS = (*SVM_HEADS, "logistic")


def fit_svm(x: np.ndarray, y: np.ndarray, head: SvmHead) -> SVC:
    """An SVM fitted on standardised features (n, D).

    C is fixed where the smallest class has one label: there is nothing to validate on.
    """
    smallest = int(np.unique(y, return_counts=True)[1].min())
    c = FIXED_C[head.kernel]
    if head.cross_validated and smallest > 1:
        c = _validated_c(x, y, head.kernel, folds=min(FOLDS, smallest))
    return SVC(kernel=head.kernel, C=c).fit(x, y)


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
    c: np.ndarray  # (draws,)
    log_loss: np.ndarray | None = None  # (draws,); an SVM has no probabilities

    def as_lists(self) -> dict[str, list[float]]:
        """The scores that there are, for a json file."""
        return {
            key: values.tolist() for key, values in self._asdict().items() if values is not None
        }


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
    """Scores on all test features (R, D) of heads fitted on some labelled training features.

    Features are standardised by all training series, which needs no labels.
    """
    check_labels(y, len(train))
    check_labels(test_y, len(test), classes=1)
    scaler = StandardScaler().fit(train)  # refuses what is not finite
    train, test = scaler.transform(train), scaler.transform(test)
    scores, losses = [], []
    for seed in seeds:
        rows = draw_labels(y, label_share, seed)
        if head == "logistic":
            fitted = fit_logistic(train[rows], y[rows])
            predicted, c = fitted.predict(test), logistic.C
            losses.append(float(fitted.log_loss(test, test_y).mean()))
        else:
            predicted, c = _predict_by_svm(train[rows], y[rows], test, SVM_HEADS[head])
        macro, weighted = (
            float(f1_score(test_y, predicted, average=kind)) for kind in ("macro", "weighted")
        )
        scores.append((float((predicted == test_y).mean()), macro, weighted, c))
    accuracy, macro_f1, weighted_f1, c = np.array(scores).T
    log_loss = np.array(losses) if losses else None
    return LabelScores(accuracy, macro_f1, weighted_f1, c, log_loss)


def _predict_by_svm(
    x: np.ndarray, y: np.ndarray, test: np.ndarray, head: SvmHead
) -> tuple[np.ndarray, float]:
    # in hundreds of fits of a millisecond, scikit-learn's checks would take half the time
    with config_context(assume_finite=True, skip_parameter_validation=True):
        svc = fit_svm(x, y, head)
        return svc.predict(test), svc.C


def probe_set(
    encoder: Encoder,
    data: LabelledSet,
    *,
    label_shares: Sequence[Amount] = LABEL_SHARES,
    seeds: Sequence[int] = SEEDS,
    poolings: Sequence[str] = POOLINGS,
    heads: Sequence[str] = HEADS,
    allow_seen_labels: bool = False,
    log: Log | None = None,
) -> dict[str, Any]:
    """Every score of an encoder on a set, and the labelled rows of every draw, for a json file.

    Nothing but the frozen encoder, feature statistics and fitted heads is applied to test series.
    An encoder that has seen test series is refused; one that has learnt labels of the set too,
    unless they are allowed, and then their number is noted.
    """
    train_x, test_x = (x.transpose(0, 2, 1) for x in (data.X_train, data.X_test))  # (R, L, C)
    known = check_unseen(encoder, data, allow_seen_labels=allow_seen_labels)
    stats = feature_stats_for(encoder, train_x) if "all" in poolings else None
    count = len(train_x) + len(test_x)
    with progress(f"encoding {count} series", count, log=log) as advance:
        train, test = (
            pool(encoder, x, poolings, stats=stats, advance=advance) for x in (train_x, test_x)
        )
    found = probe_features(
        train, test, data, label_shares=label_shares, seeds=seeds, heads=heads, log=log
    )
    return {**found, "labels_seen": known} if known else found


def check_unseen(encoder: Any, data: LabelledSet, *, allow_seen_labels: bool) -> int:
    """How many labels of a set an encoder has learnt; refused unless that is allowed.

    One that has seen test series is refused always.
    """
    history = history_of(encoder)
    if not history:
        return 0
    train, test = (digests(x.transpose(0, 2, 1)) for x in (data.X_train, data.X_test))
    check_test_series(history, train, test, name=data.name, split=data.split)
    known = labels_learnt(history, data.name, np.concatenate([train, test]))
    return check_labels_unseen(known, f"series of {data.name}", allow=allow_seen_labels)


def probe_features(
    train: Mapping[str, np.ndarray],
    test: Mapping[str, np.ndarray],
    data: LabelledSet,
    *,
    label_shares: Sequence[Amount] = LABEL_SHARES,
    seeds: Sequence[int] = SEEDS,
    heads: Sequence[str] = HEADS,
    log: Log | None = None,
) -> dict[str, Any]:
    """`probe_set` for features (R, D) that are already computed, by the name of their pooling."""
    cells = [
        (pooling, share, head) for pooling in train for share in label_shares for head in heads
    ]
    with (
        threadpool_limits(limits=1, user_api="blas"),  # threads of threads wait for each other
        progress(f"fitting {len(cells)} kinds of classifiers", len(cells), log=log) as advance,
    ):
        jobs = Parallel(n_jobs=torch.get_num_threads(), prefer="threads", return_as="generator")(
            delayed(classify)(
                train[pooling], data.y_train, test[pooling], data.y_test,
                label_share=share, seeds=seeds, head=head,
            )
            for pooling, share, head in cells
        )  # fmt: skip
        found = []
        for one in jobs:
            found.append(one)
            advance(1)
    scores: dict[str, Any] = {}
    for (pooling, share, head), one in zip(cells, found, strict=True):
        place = scores.setdefault(pooling, {}).setdefault(amount_name(share), {})
        place[head] = one.as_lists()
    rows = {
        amount_name(share): [draw_labels(data.y_train, share, seed).tolist() for seed in seeds]
        for share in label_shares
    }
    facts = {"set": data.name, "split": data.split, "label_seeds": list(seeds)}
    return {**facts, "labelled_rows": rows, "scores": scores}
