"""The demonstration: pretrain on the built-in sample, probe with few labels, write a report."""

import json
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from progmem.config import read_config
from progmem.data.sample import (
    SAMPLING_RATE,
    TEST_SUBJECTS,
    Sample,
    Windows,
    cut_windows,
    load_sample,
)
from progmem.model.pmt import PMT
from progmem.pooling import feature_stats_for, pool
from progmem.probes.classify import LabelScores, classify, untrained_copy
from progmem.probes.comparison import baseline_features, does_it_pay
from progmem.report import figures
from progmem.report.html import Section, write_report
from progmem.training.pretrain import pretrain

LENGTH = 200  # samples of a window: 4 s
LABELS_PER_CLASS = (2, 10)
DRAWS = range(10)
UNWHITENED = "untrained, not whitened"
BASES = ("untrained", UNWHITENED)  # that the trained encoder is compared with
SETTINGS = (
    f"data.longest={LENGTH}", f"data.window={LENGTH}", f"data.hop={LENGTH // 2}",
    "train.log_every=25",
)  # fmt: skip


def demo(out: Path) -> dict[tuple[str, int], LabelScores]:
    """Pretrain on seven people without labels, then recognise the exercises of three others.

    Returns the scores by features and labels a class; ``out`` then holds the report and the run.
    """
    sample = load_sample()
    test = np.isin(sample.subject, TEST_SUBJECTS)
    train = cut_windows(sample, ~test, length=LENGTH, hop=LENGTH // 2)
    test_windows = cut_windows(sample, test, length=LENGTH, hop=LENGTH)
    print(f"{len(train.x)} windows of 4 s of seven people to learn from, "
          f"{len(test_windows.x)} of three others to recognise\n")  # fmt: skip
    recordings = [sample.recordings[i] for i in np.flatnonzero(~test)]
    model = pretrain(recordings, out / "run", read_config(None, SETTINGS))
    features, left_out = embed_windows(model, train, test_windows)
    scores = {
        (name, count): classify(
            train_x,
            train.y,
            test_x,
            test_windows.y,
            label_share=count,
            seeds=DRAWS,
            head="logistic",
        )
        for name, (train_x, test_x) in features.items()
        for count in LABELS_PER_CLASS
    }
    table = score_table(scores)
    said = [f"{name} was left out: {why}" for name, why in left_out.items()]
    said += [does_it_pay_with(scores, count) for count in LABELS_PER_CLASS]
    print("\n".join([*table_lines(scores), "", *said]))
    report = out / "report.html"
    metrics = [json.loads(line) for line in (out / "run/metrics.jsonl").read_text().splitlines()]
    write_report(
        report,
        "progmem: shoulder exercises from a smartwatch",
        f"A tiny model trained without labels for {len(metrics)} steps on the recordings of seven "
        f"people, then asked for the exercise in {len(test_windows.x)} windows of 4 s of three "
        "others.",
        [
            Section(
                "Training",
                "The three objectives, one per scale, and the error of hidden samples.",
                figures.loss_curves(metrics),
            ),
            Section(
                "Few labels",
                "Accuracy in % on people never seen, the same logistic regression on all features, "
                "mean and sd over ten draws of the labels; gains are paired on the same draws. "
                "Whitening is learnt from the seven people without labels too, by the untrained "
                f"encoder as well. {'. '.join(said)}.",
                table=table,
            ),
            Section(
                "A splice of three recordings",
                "Three exercises one after the other. Blocks on the diagonal: the level tells them "
                "apart; stripes inside: repetitions.",
                splice_figure(model, sample, test),
            ),
            Section(
                "What a few labels have to separate",
                "Features of the other people's windows on two principal components.",
                figures.scatter_by_class(
                    {name: features[name][1] for name in ("trained", "untrained")},
                    test_windows.y,
                    sample.classes,
                ),
            ),
            Section(
                "Memory along a recording",
                "The memory's most varied channels, window by window, and how much it changes.",
                _memory_figure(model, sample, test),
            ),
        ],
    )
    print(
        f"\nwritten: {report}, {out / 'run/model'}; next, with files of your own: progmem classify "
        "DATA --labels labels.csv -o predictions.csv"
    )
    print("see and label the sample in the browser: progmem explore")
    return scores


def embed_windows(
    model: PMT, train: Windows, test: Windows
) -> tuple[dict[str, tuple[np.ndarray, np.ndarray]], dict[str, str]]:
    """Features of training and test windows by trained and untrained encoder, raw, by MiniRocket.

    Those of the untrained encoder with and without whitening. And which are left out, and why.
    """
    features = {}
    other = untrained_copy(model)
    fitted = feature_stats_for(other, train.x)
    for name, encoder, stats in (
        ("trained", model, feature_stats_for(model, train.x)),
        ("untrained", other, fitted),
        (UNWHITENED, other, fitted.unwhitened),
    ):
        train_x, test_x = (pool(encoder, w.x, ["all"], stats=stats)["all"] for w in (train, test))
        features[name] = train_x, test_x
    baselines, left_out = baseline_features(list(train.x), list(test.x))
    features |= {name: (parts[0], parts[1]) for name, parts in baselines.items()}
    return features, left_out


def score_table(scores: dict[tuple[str, int], LabelScores]) -> list[list[str]]:
    """Accuracy of each kind of features at each number of labels, and the paired gains."""
    table = [["features", *(f"{n} labels a class" for n in LABELS_PER_CLASS)]]
    for name in dict.fromkeys(name for name, _ in scores):
        cells = [_mean_sd(scores[name, n].accuracy) for n in LABELS_PER_CLASS]
        table.append([name, *cells])
    for base in BASES:
        gains = [_mean_sd(gain_over(base, scores, n), sign="+") for n in LABELS_PER_CLASS]
        table.append([f"gain over {base}", *gains])
    return table


def gain_over(base: str, scores: dict[tuple[str, int], LabelScores], count: int) -> np.ndarray:
    """By how much the trained encoder is more accurate than ``base``, one value per draw."""
    return scores["trained", count].accuracy - scores[base, count].accuracy


def does_it_pay_with(scores: dict[tuple[str, int], LabelScores], count: int) -> str:
    """Whether pretraining pays with ``count`` labels a class.

    All draws are scored on the same people, so the error of the gain is taken as that of one draw.
    """
    gain = gain_over("untrained", scores, count)
    return f"{count} labels a class: {does_it_pay(gain.mean(), gain.std(ddof=1))}"


def table_lines(scores: dict[tuple[str, int], LabelScores]) -> list[str]:
    """The table as text."""
    rows = score_table(scores)
    return ["".join(f"{cell:>22}" if i else f"{cell:34}" for i, cell in enumerate(r)) for r in rows]


def _mean_sd(values: np.ndarray, sign: str = "") -> str:
    return f"{100 * values.mean():{sign}.1f} ± {100 * values.std(ddof=1):.1f}"


def splice_figure(model: PMT, sample: Sample, test: np.ndarray) -> Figure:
    """Three exercises of a person who was not trained on, one after the other."""
    subject = np.flatnonzero(test & (sample.subject == TEST_SUBJECTS[0]))
    chosen = [subject[sample.y[subject] == label][0] for label in (0, 2, 5)]
    pieces = [sample.recordings[i].values[200:600] for i in chosen]
    values = np.concatenate(pieces)
    z = model.encode(values[None])
    assert z.memory is not None and z.window_spans is not None
    ends = np.cumsum([0, *(len(p) for p in pieces)])
    edges = {
        "tokens": np.searchsorted(z.token_spans[:, 0].numpy(), ends).tolist(),
        "memory": np.searchsorted(z.window_spans[:, 0].numpy(), ends).tolist(),
    }
    levels = {"tokens": z.tokens[0].numpy(), "memory": z.memory[0].mean(1).numpy()}
    names = [sample.classes[sample.y[i]] for i in chosen]
    return figures.similarity(values, levels, edges, names)


def _memory_figure(model: PMT, sample: Sample, test: np.ndarray) -> Figure:
    values = sample.recordings[int(np.flatnonzero(test)[0])].values
    z = model.encode(values[None])
    assert z.memory is not None and z.window_spans is not None
    memory = z.memory[0].mean(1).numpy()
    return figures.memory_along_time(
        values, sample.channels, memory, z.window_spans.numpy(), SAMPLING_RATE
    )
