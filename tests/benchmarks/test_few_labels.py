"""Encoders on the same label draws: what a row measures, and the tables worked by hand."""

import json
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import cpu_time, few_labels, recipe_parts, small_sets
from benchmarks.few_labels_tables import (
    CELLS,
    cpu_time_table,
    few_labels_table,
    parts_summary,
    recipe_parts_table,
    small_sets_table,
    whitening_table,
)
from benchmarks.short_training import untrained_model
from progmem.config import read_config
from progmem.data.datasets import DATA_VARIABLE, load_labelled
from progmem.errors import InputError
from progmem.training.pretrain import pretrain

TINY = ["model.dim=16", "model.heads=2", "model.blocks=1", "train.epochs=1",
        "train.batch_size=25"]  # fmt: skip
# in place of their code: a "training" that keeps the seed's number and what it was given
TS2VEC = """
import numpy as np
class TS2Vec:
    def __init__(self, input_dims, output_dims, batch_size, device):
        self.width = output_dims
    def fit(self, train, n_iters):
        assert abs(train.mean()) < 1e-6 and train.shape[1] == 128
        self.weights = np.random.normal(size=(train.shape[2], self.width)) * n_iters
    def encode(self, x, encoding_window):
        return (x @ self.weights).max(1)
"""


@pytest.fixture
def run(made_sets, tmp_path, monkeypatch, capsys):
    """Run the benchmark with each row in this process: what it wrote, printed, and its rows."""
    (tmp_path / "ts2vec.py").write_text(TS2VEC)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "ts2vec", raising=False)
    few = partial(few_labels.probe_features, seeds=[0, 1])
    monkeypatch.setattr(few_labels, "probe_features", few)
    rows = []

    def printed(module, arguments):
        monkeypatch.setattr(sys, "argv", ["few_labels", *map(str, arguments)])
        module.main()
        return capsys.readouterr().out

    def run_rows(module, names, chosen, more):
        own = {f"benchmarks.{m.__name__.split('.')[1]}": m for m in (few_labels, small_sets)}
        for name in names:
            given = ["--row", name, "--data-dir", chosen.data_dir, *more]
            rows.append(json.loads(printed(own[module], given)))
        return [dict(row) for row in rows]

    def run(module, *arguments):
        rows.clear()
        monkeypatch.setattr(module, "run_rows", run_rows)
        common = ["--data-dir", made_sets, "--out", tmp_path, "--commit", "made"]
        common += [] if module is small_sets else ["--ts2vec", tmp_path]
        text = printed(module, [*common, *arguments])
        path = text.partition("written: ")[2].splitlines()[0]
        return json.loads(Path(path).read_text()), text, path

    return run


def test_every_encoder_is_scored_on_the_same_draws_with_its_times_and_settings(run):
    result, text, path = run(
        few_labels, "--sets", "HAR", "--encoders", "raw", "untrained", "ts2vec", "--seeds", 1, 2,
        "--iterations", 3, "--settings", *TINY,
    )  # fmt: skip
    assert path.endswith("few_labels/raw-untrained-ts2vec.json")
    rows = {(row["encoder"], row["seed"]): row for row in result["rows"]}
    assert set(rows) == {("raw", 1)} | {(e, s) for e in ("untrained", "ts2vec") for s in (1, 2)}
    assert result["labelled_rows"].keys() == {"HAR"} and result["commit"] == "made"
    for row in rows.values():
        parts = [row[f"seconds_{part}"] for part in ("training", "embedding", "probe")]
        assert sum(parts) == pytest.approx(row["seconds"]) and min(parts) > 0
        assert row["split"] == "official"
        for scores in row["scores"].values():
            assert scores.keys() == {"1%", "5%"} and scores["1%"].keys() == {"logistic", "linear"}
    parts = {"unwhitened", "levels", "detail"}
    assert set(rows["untrained", 1]["scores"]) == {"all", "sequence", *parts}
    assert rows["untrained", 1]["scores"] != rows["untrained", 2]["scores"]
    assert result["config"]["ts2vec"]["HAR"]["iterations"] == 3
    assert result["config"]["untrained"]["HAR"]["model"]["dim"] == 16
    assert result["config"]["run"]["train"]["batch_size"] == 25
    assert "| HAR, 1 % | " in text and "Wafer, 1 %" not in text
    again = run(few_labels, "--sets", "HAR", "--encoders", "ts2vec", "--seeds", 2,
                "--iterations", 3)[0]["rows"][0]["scores"]  # fmt: skip
    assert again == rows["ts2vec", 2]["scores"] != rows["ts2vec", 1]["scores"]


def test_held_out_rows_are_scored_apart_from_test_rows(run, made_sets):
    result, text, path = run(few_labels, "--sets", "HAR", "--encoders", "raw", "--validation")
    assert path.endswith("few_labels_validation/raw.json") and "paper" not in text
    assert result["seeds"] == [0]
    held_out = load_labelled("HAR", made_sets, split="validation")
    drawn = np.concatenate(result["labelled_rows"]["HAR"]["5%"])
    assert result["rows"][0]["split"] == "validation"
    assert max(drawn) < len(held_out.y_train) < 50


@pytest.mark.slow
def test_training_and_minirocket_are_measured(run, monkeypatch):
    monkeypatch.setattr(few_labels, "KERNELS", 84)
    result, _, _ = run(
        few_labels, "--sets", "Wafer", "--encoders", "untrained", "trained", "minirocket",
        "--seeds", 0, "--name", "made", "--settings", *TINY,
    )  # fmt: skip
    untrained, trained, minirocket = result["rows"]
    assert untrained["scores"] != trained["scores"]
    assert [row["threads"] for row in result["rows"]] == [1, 1, 1] and torch.get_num_threads() == 1
    assert minirocket["scores"].keys() == {"PPV"} and "aeon" in result["versions"]
    config = result["config"]
    assert config["untrained"] == config["trained"] and config["minirocket"]["Wafer"]


@pytest.mark.slow
def test_the_default_and_ts2vec_are_timed_in_turns_on_the_same_threads(run):
    result, text, path = run(cpu_time, "--set", "Wafer", "--seeds", 0, 1, "--settings", *TINY)
    assert path.endswith("cpu_time/Wafer.json") and result["threads"] == 1
    assert [row["encoder"] for row in result["rows"]] == ["trained", "ts2vec"] * 2
    assert text.splitlines()[-1].endswith("| 1.00x |")


@pytest.mark.parametrize(
    "module, arguments, message",
    [
        (few_labels, ["--encoders", "ts2vec"], "needs --ts2vec DIR"),
        (cpu_time, [], "--ts2vec DIR is needed"),
        (small_sets, ["--at-once", "0"], "must be a whole number from 1 up, got 0"),
        (small_sets, ["--sets", "HAR"], "HAR: where is HAR.npz? Give its folder"),
        (cpu_time, ["--ts2vec", ".", "--at-once", "2"], "would share the threads"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_runs(
    module, arguments, message, monkeypatch, capsys
):
    monkeypatch.delenv(DATA_VARIABLE, raising=False)  # with the sets at hand it would run
    monkeypatch.setattr(sys, "argv", ["benchmark", *arguments])
    with pytest.raises(SystemExit):
        module.main()
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("count", [1, 51])
def test_so_few_or_many_rows_as_a_set_cannot_give_are_refused_in_a_line(
    count, made_sets, monkeypatch, capsys
):
    arguments = ["--data-dir", made_sets, "--sets", "HAR", "--rows", count]
    monkeypatch.setattr(sys, "argv", ["small_sets", *map(str, arguments)])
    with pytest.raises(SystemExit):
        small_sets.main()
    message = f"HAR: rows must be in 2..50, one of each class, got {count}"
    assert capsys.readouterr().err.splitlines()[-1].endswith(message)


@pytest.mark.parametrize("sizes", [(97, 903), (1, 1, 998), (40, 40, 40), (7, 5)])
def test_rows_are_kept_in_proportion_at_least_one_of_a_class_and_nested(sizes):
    y = np.random.default_rng(1).permutation(np.repeat(np.arange(len(sizes)), sizes))
    before = set()
    for count in range(len(sizes), len(y) + 1, 3):
        rows = small_sets.draw_rows(y, count, seed=0)
        assert len(set(rows)) == count and list(rows) == sorted(rows) and before <= set(rows)
        of_class = np.bincount(y[rows], minlength=len(sizes))
        exact = count * np.array(sizes) / len(y)
        assert (of_class >= np.maximum(1, np.floor(exact) - len(sizes))).all()
        assert (of_class <= np.maximum(1, np.ceil(exact))).all()
        before = set(rows)
    small = [small_sets.draw_rows(y, len(sizes) + 2, seed).tolist() for seed in (0, 0, 1)]
    assert small[0] == small[1] != small[2]


def test_both_encoders_are_scored_on_the_same_few_rows_of_a_set(run, made_sets):
    result, text, path = run(
        small_sets, "--device", "cpu", "--sets", "HAR", "--rows", 6, 10, "--seeds", 0, 1,
        "--settings", *TINY,
    )  # fmt: skip
    assert path.endswith("small_sets/cpu.json") and result["commit"] == "made"
    found = [(row["row_count"], row["encoder"], row["seed"]) for row in result["rows"]]
    assert found == [(n, e, s) for n in (6, 10) for e in ("untrained", "trained") for s in (0, 1)]
    data = load_labelled("HAR", made_sets)
    for count in (6, 10):
        for seed in (0, 1):
            kept = small_sets.draw_rows(data.y_train, count, seed)
            drawn = result["labelled_rows"]["HAR"][str(count)][str(seed)]
            assert sorted(drawn["100%"][0]) == kept.tolist() and len(drawn["100%"]) == 1
            for pair in drawn["1 a class"]:
                assert sorted(data.y_train[pair]) == [0, 1] and set(pair) <= set(kept)
    untrained, trained = (result["rows"][i]["scores"] for i in (0, 2))
    assert untrained != trained and untrained.keys() == {"all"}
    for scores in (untrained["all"], trained["all"]):
        assert {k: len(v["logistic"]["accuracy"]) for k, v in scores.items()} == {
            "100%": 1, "1 a class": 5
        }  # fmt: skip
    assert result["config"]["trained"] == result["config"]["untrained"]
    assert "CPU | 6 | HAR | " in text and "CPU | 10 | mean of 1 | " in text


def test_a_training_on_few_rows_sees_no_other_rows(made_sets):
    data = load_labelled("HAR", made_sets)
    rows = np.array([3, 8, 20])
    kept = small_sets.keep_rows(data, rows)
    assert kept.X_train[:, 0, 0].tolist() == [3, 8, 20] and len(kept.y_test) == len(data.y_test)
    places = [(r.origin, r.start) for r in data.training_recordings()]
    assert [(r.origin, r.start) for r in kept.training_recordings()] == [places[i] for i in rows]
    plain = small_sets.keep_rows(load_labelled("Wafer", made_sets), rows)
    assert len(plain.training_recordings()) == 3 and plain.recording_train is None


def made_row(encoder, seed, name, accuracy, poolings=("all", "sequence"), seconds=1.0):
    """A row whose accuracies are ``accuracy`` plus what its features and head are worth."""

    def heads(worth):
        return {
            head: {"accuracy": [accuracy + worth + more - 0.01, accuracy + worth + more + 0.01]}
            for head, more in (("logistic", 0.02), ("linear", 0.0))
        }

    scores = {
        pooling: {"1%": heads(0.1 * i), "5%": heads(0.1 * i + 0.05)}
        for i, pooling in enumerate(poolings)
    }
    return {"encoder": encoder, "seed": seed, "set": name, "split": "official", "scores": scores,
            "seconds_training": seconds, "seconds_embedding": 1.0}  # fmt: skip


def made_file(name, rows):
    return {"name": name, "labelled_rows": {"HAR": {"1%": [[3, 5]]}}, "rows": rows}


def test_the_table_of_whitening_has_the_sets_that_both_encoders_have():
    def row(encoder, name, plain, whitened):
        kinds = {"unwhitened": plain, "all": whitened}
        one = made_row(encoder, 0, name, 0.0)
        for kind, value in kinds.items():
            heads = {"logistic": {"accuracy": [value, value + 0.1]}}
            one["scores"][kind] = {"1%": heads, "5%": heads}
        return one

    rows = [row("untrained", "HAR", 0.5, 0.6), row("untrained", "Wafer", 0.9, 0.9),
            row("trained", "HAR", 0.7, 0.65)]  # fmt: skip
    assert whitening_table(made_file("whitened", rows)).splitlines() == [
        "| encoder | whitening | HAR | 1 sets, 1 % | 1 sets, 5 % |",
        "|---|---|---|---|---|",
        "| untrained | without | 55.0 / 55.0 | 55.0 | 55.0 |",
        "| untrained | with | 65.0 / 65.0 | 65.0 | 65.0 |",
        "| progmem | without | 75.0 / 75.0 | 75.0 | 75.0 |",
        "| progmem | with | 70.0 / 70.0 | 70.0 | 70.0 |",
    ]


SETS = list(dict.fromkeys(name for name, _ in CELLS))


def test_the_table_has_a_mean_over_draws_then_seeds_and_means_of_complete_rows():
    trained = [
        made_row("trained", seed, name, 0.5 + 0.02 * seed + (0.07 if name == "Wafer" else 0))
        for seed in (0, 1)
        for name in SETS
    ]
    raw = [made_row("raw", 0, name, 0.4, ("values",)) for name in ("HAR", "Wafer")]
    table = few_labels_table([made_file("a", trained), made_file("b", raw)])
    first, second = (part.splitlines() for part in table.split("\n\n"))
    assert len(first) == 2 + 14 + 4
    assert first[0] == "| set, labels | progmem | raw values | paper's PMT |"
    # over seeds .52 and .54: mean .53, sd .014
    assert first[2] == "| HAR, 1 % | 53.0 ± 1.4 | 42.0 | 92.9 |"
    assert "| Wafer, 5 % | 65.0 ± 1.4 | 47.0 | 99.0 |" in first
    assert first[-4:] == [
        "| 1 %, mean | 54.0 ± 1.4 | - | 83.6 |",
        "| 5 %, mean | 59.0 ± 1.4 | - | 85.1 |",
        "| all 14, mean | 56.5 ± 1.4 | - | 84.4 |",
        "| without Wafer, mean | 55.5 ± 1.4 | - | 81.9 |",
    ]
    assert [line.split(" | ")[:4] for line in second[2:]] == [
        ["| progmem", "all", "logistic", "54.0 ± 1.4"],
        ["| progmem", "all", "linear", "52.0 ± 1.4"],
        ["| progmem", "sequence", "logistic", "64.0 ± 1.4"],
        ["| progmem", "sequence", "linear", "62.0 ± 1.4"],
        ["| raw values", "values", "logistic", "-"],
        ["| raw values", "values", "linear", "-"],
    ]


def test_an_encoder_of_several_files_has_a_column_for_each():
    files = [made_file(name, [made_row("trained", 0, "HAR", 0.5)]) for name in "ab"]
    files.append(made_file("c", [made_row("raw", 0, "HAR", 0.4)]))
    header = few_labels_table(files).splitlines()[0]
    assert header == "| set, labels | progmem, a | progmem, b | raw values | paper's PMT |"


def test_encoders_that_had_other_labels_are_not_put_into_one_table():
    files = [made_file(name, [made_row("raw", 0, "HAR", 0.4)]) for name in "ab"]
    files[1]["labelled_rows"]["HAR"]["1%"] = [[3, 6]]
    with pytest.raises(InputError, match="b has other labelled rows of HAR"):
        few_labels_table(files)


def test_parts_of_the_recipe_are_compared_by_their_means():
    rows = [
        made_row("trained", 0, name, worth, ("all",)) | {"variant": variant}
        for variant, worth in (("default", 0.5), ("nothing hidden", 0.4))
        for name in SETS
    ]
    lines = recipe_parts_table([{"rows": rows}]).splitlines()
    assert lines[0].startswith("| recipe | features | head | 1 %, mean | 5 %, mean |")
    assert lines[2] == "| default | all | logistic | 52.0 | 57.0 | 54.5 | 54.5 |"
    assert lines[4] == "| nothing hidden | all | logistic | 42.0 | 47.0 | 44.5 | 44.5 |"


def test_the_summary_of_parts_has_the_papers_features_and_head_and_the_librarys():
    def rows(encoder, worth, **more):
        return [made_row(encoder, 0, name, worth, ("all", "sequence")) | more for name in SETS]

    parts = {"rows": rows("trained", 0.4, variant="nothing hidden"), "steps": 400}
    default = {
        "rows": [*rows("untrained", 0.3), *rows("trained", 0.5)],
        "config": {"trained": {"HAR": {"model": {"size": "small"}, "train": {"steps": 1600}}}},
    }
    former = {"rows": [*rows("pmt", 0.2), *rows("untrained", 0.1)], "epochs": 100}
    for row in former["rows"]:
        del row["scores"]["all"]
    lines = parts_summary(parts, [default], former).splitlines()
    assert lines[0].startswith("| recipe | size | steps | sequence, linear: 1 %, mean | sequence,")
    recipes = [line.split(" | ")[:3] for line in lines[2:]]
    assert recipes == [
        ["| untrained", "small", "0"], ["| default", "small", "1,600"],
        ["| former default", "base", "100 epochs"], ["| nothing hidden", "small", "400"],
    ]  # fmt: skip
    by_logistic = [line.split(" | ")[6] for line in lines[2:]]
    assert by_logistic == ["32.0", "52.0", "-", "42.0"]


def test_trained_and_untrained_on_small_sets_differ_by_a_mean_over_the_same_seeds():
    def row(encoder, seed, name, accuracy):
        scores = {"100%": [accuracy], "1 a class": [accuracy - 0.3, accuracy - 0.1]}
        by_amount = {k: {"logistic": {"accuracy": v}} for k, v in scores.items()}
        return {"encoder": encoder, "seed": seed, "set": name, "row_count": 20,
                "scores": {"all": by_amount}}  # fmt: skip

    rows = [row("untrained", seed, name, 0.5) for seed in (0, 1) for name in ("HAR", "Wafer")]
    rows += [row("trained", 0, "HAR", 0.52), row("trained", 1, "HAR", 0.54)]
    rows += [row("trained", 0, "Wafer", 0.46)]
    lines = small_sets_table([{"device": "a GPU", "rows": rows}]).splitlines()
    assert lines[0].startswith(
        "| device | rows | set | all labels, trained | all labels, untrained"
    )
    # differences 2 and 4: mean 3, sd 1.41, over the root of 2 the standard error 1
    assert lines[2] == (
        "| a GPU | 20 | HAR | 53.0 ± 1.4 | 50.0 ± 0.0 | +3.0 ± 1.0 "
        "| 33.0 ± 1.4 | 30.0 ± 0.0 | +3.0 ± 1.0 |"
    )
    # a seed that only one of the two has does not count
    assert lines[3] == "| a GPU | 20 | Wafer | 46.0 | 50.0 | -4.0 | 26.0 | 30.0 | -4.0 |"
    assert lines[4] == "| a GPU | 20 | mean of 2 | 49.0 | 50.0 | -1.0 | 29.0 | 30.0 | -1.0 |"
    assert small_sets_table([{"device": "a GPU", "rows": rows[:4]}]).count("| - ") == 18


@pytest.mark.parametrize("variant", recipe_parts.VARIANTS)
def test_the_settings_of_a_part_are_settings_that_change_something(variant):
    changed = read_config(None, recipe_parts.VARIANTS[variant]) != read_config(None)
    assert changed == (variant not in ("default", "untrained"))


def test_time_on_a_cpu_is_shown_as_a_ratio_to_ts2vecs():
    rows = [made_row("trained", seed, "HAR", 0.9, ("all",), 1.0 + seed) for seed in (0, 1)]
    rows += [made_row("ts2vec", seed, "HAR", 0.8, ("max",), 2.0) for seed in (0, 1)]
    lines = cpu_time_table([{"rows": rows}]).splitlines()
    assert lines[2] == "| HAR | progmem | all | logistic | 92.0 ± 0.0 | 97.0 ± 0.0 | 0.83x |"
    assert lines[-1] == "| HAR | TS2Vec's code | max | linear | 80.0 ± 0.0 | 85.0 ± 0.0 | 1.00x |"


def test_an_untrained_model_is_the_one_a_training_starts_from(made_sets, tmp_path):
    recordings = load_labelled("HAR", made_sets).training_recordings()
    cfg = read_config(None, [*TINY, "train.device=cpu", "train.lr=1e-30", "train.lr_end=0",
                             "train.weight_decay=0"])  # fmt: skip
    untrained, trained = (
        untrained_model(recordings, cfg), pretrain(recordings, tmp_path / "run", cfg, log=None)
    )  # fmt: skip
    assert untrained.cfg == trained.cfg
    torch.testing.assert_close(
        untrained.state_dict()
        | {k: v for k, v in trained.state_dict().items() if "feature_stats" in k},
        trained.state_dict(),
    )
