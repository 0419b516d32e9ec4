"""The compute benchmarks run, small and on the CPU, and their tables say what was measured."""

import argparse
import json
import os
import runpy
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.attention.bias import causal_upper_left

import progmem
from benchmarks import (
    compute_aggregator,
    compute_stream,
    compute_vectorised,
    full_attention,
    kernel_families,
    numerics,
    recipe_step,
    training_step,
)
from benchmarks.compute_tables import before_and_after_table, families_table
from benchmarks.paper import AGGREGATOR_STREAMING, STREAMING
from benchmarks.results import render
from progmem.config import read_config
from progmem.model.block import OverlapAggregator
from progmem.report import record
from progmem.training.pretrain import pretrain

STREAM = ["--samples", "512", "1024", "--dim", "32", "--long", "9000", "--hour", "2", "--sizes",
          "tiny"]  # fmt: skip
VECTORISED = ["--samples", "700", "--batches", "2", "--dim", "32", "--growth", "500", "1000"]

AGGREGATOR = ["--windows", "16", "--tokens", "200", "--dim", "32"]
NUMERICS = ["--size", "tiny", "--batch", "6"]
TRAINING = ["--size", "tiny", "--batch", "6", "--rows", "12", "--steps", "2"]


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run a benchmark: what it wrote and what it printed, the table last."""

    def run(module, arguments, device="cpu"):
        name = module.__name__.removeprefix("benchmarks.")
        common = ["--device", device, "--repeats", "2", "--commit", "made", "--out", str(tmp_path)]
        monkeypatch.setattr(sys, "argv", [name, *common, *arguments])
        module.main()
        result = record.read(tmp_path / name / f"{device}.json")
        assert result["commit"] == "made" and result["device"].endswith("CPU") == (device == "cpu")
        printed = capsys.readouterr().out
        assert printed.endswith(render(name, tmp_path) + "\n")
        return result, printed

    return run


def shown_for_a_gpu(result, tmp_path, name):
    """The table of ``result``, had it been measured on a GPU that needs 3 MB for everything."""
    text = json.dumps(result | {"device": "a GPU"}).replace('"peak_mb": null', '"peak_mb": 3.0')
    record.save(name, "cpu", json.loads(text), folder=tmp_path)
    return render(name, tmp_path)


def test_the_streaming_benchmark_shows_ratios_on_a_cpu_and_figures_on_a_gpu(run, tmp_path):
    result, printed = run(compute_stream, STREAM)
    first = result["rows"][0]
    assert (first["tokens"], first["window"], first["stride"], first["windows"]) == (63, 12, 6, 10)
    assert first["ours"]["rate"] == pytest.approx(0.8 * 48 / first["ours"]["seconds"])
    assert " ms" not in printed and " Hz |" not in printed
    assert "a push after 9,000 samples takes" in printed and "of real time" in printed
    table = shown_for_a_gpu(result | {"config": {"dim": 320}}, tmp_path, "compute_stream")
    line = next(line for line in table.splitlines() if line.startswith("| 1,024 → 127"))
    assert "(0.8)" in line and "(48,000)" in line and "+0 % (+0 %)" in line


@pytest.mark.parametrize("samples, printed", STREAMING.items())
def test_counted_changes_of_flops_are_those_the_paper_prints(samples, printed):
    counted = compute_stream._counted(samples, 320)
    assert round(100 * (counted["macs"] / counted["macs_full"] - 1)) == printed.flops_change


def test_the_vectorised_benchmark_holds_four_models_against_fused_attention(run, tmp_path):
    result, printed = run(compute_vectorised, VECTORISED)
    rows = {row["model"]: row for row in result["batches"][0]["rows"]}
    assert list(rows) == ["vanilla", "fused", "PMA", "PMT"]
    assert rows["vanilla"]["params"] == rows["fused"]["params"] < rows["PMA"]["params"]
    assert rows["PMA"]["macs"] < rows["PMT"]["macs"]
    assert all(row["recorded_seconds"] is None for row in rows.values())
    assert "| fused | 0.1 | 0.01 | 1.00x | - |" in printed and "growth" in printed
    assert "as a graph" not in printed
    result["batches"][0] |= {"batch": 32, "samples": 100_000}
    rows["fused"] |= {"seconds": 0.5, "recorded_seconds": 0.5}
    rows["PMT"] |= {"seconds": 0.6, "recorded_seconds": 0.3, "tokens": 600}
    table = shown_for_a_gpu(result | {"config": {"dim": 320}}, tmp_path, "compute_vectorised")
    for line in (
        "3 | 600.0 | 300.0 | 1,000 | 1.20x | 0.60x | 1.00x |",
        "| the paper's PMT | 20.1 | 329.99 | 12,337 | 5,381.27 | - | 74,326 | 1.55x | - | 1.48x |",
    ):
        assert line in table
    vanilla = next(line for line in table.splitlines() if line.startswith("| vanilla"))
    assert vanilla.split(" | ")[5] == vanilla.split(" | ")[8] == "-"


def test_nothing_is_timed_where_the_forms_differ(run, monkeypatch):
    monkeypatch.setattr(full_attention, "causal_lower_right", causal_upper_left)
    with pytest.raises(AssertionError):
        run(compute_stream, STREAM)
    monkeypatch.setattr(full_attention, "attend_written_out", lambda q, k, v: v)
    with pytest.raises(AssertionError):
        run(compute_vectorised, VECTORISED)


def test_the_aggregator_benchmark_gives_the_papers_count_and_shares_of_a_block(run, tmp_path):
    result, printed = run(compute_aggregator, AGGREGATOR)
    assert result["streaming"][0]["seconds"].keys() == {"push", "aggregator"}
    assert result["vectorised"][0]["seconds"].keys() == compute_aggregator.PARTS.keys()
    assert "in brackets" not in printed
    result["streaming"][0] |= {"window": 1024, "macs": 240e6}
    table = shown_for_a_gpu(result | {"config": {"dim": 320}}, tmp_path, "compute_aggregator")
    assert "| 1024 | 2 | 0.24 (0.24) |" in table and "(3.1)" in table
    counted = progmem.count_macs(
        compute_aggregator.geometry(2048, 320), 1024 * 8 + 8, convention="paper"
    )
    assert round(counted["aggregator"] / 1e9, 2) == AGGREGATOR_STREAMING[2048][0]


def test_a_part_that_gives_something_else_alone_is_not_timed(run, monkeypatch):
    calls = []

    def unlike(self, rows, exists, projected=None):
        calls.append(rows)
        return rows.new_full((*exists.shape[:2], rows.shape[-1]), len(calls))

    monkeypatch.setattr(OverlapAggregator, "forward", unlike)
    with pytest.raises(AssertionError):
        run(compute_aggregator, AGGREGATOR)


@pytest.mark.slow
def test_the_training_benchmark_trains_twice_alike_and_breaks_a_step_down(
    run, tmp_path, monkeypatch
):
    monkeypatch.setattr(training_step, "PROFILED", 1)
    result, printed = run(training_step, TRAINING)
    row, other = result["rows"]
    for each in (row, other):  # on a CPU the two are one
        assert each["largest_difference"] == 0
    assert other["same_twice"] and other["difference_of_repeat"] == 0
    assert len(row["losses"]) == 2 and row["losses"][0] != row["losses"][1]
    top = row["profile"]["top"]
    assert [kernel["ms"] for kernel in top] == sorted((k["ms"] for k in top), reverse=True)
    assert any("mm" in kernel["name"] for kernel in top) and "`aten::" in printed
    assert "| ms |" not in printed
    assert "| ms |" in shown_for_a_gpu(result, tmp_path, "training_step")


def test_a_training_is_timed_in_stretches_of_steps(monkeypatch):
    steps, reads, timed = [], [], []

    class Metrics:
        def read(self):
            reads.append(len(steps))

    class Ten(training_step.Settled):
        def begin(self, variant, precision):
            metrics = []
            return training_step.Training(
                lambda: (steps.append(1), metrics.append(Metrics())), metrics, torch.nn.Module()
            )

    def seconds_of(call, device):
        timed.append(-len(steps))
        call()
        timed[-1] += len(steps)
        return 5.0

    monkeypatch.setitem(training_step.STRETCH, "cpu", 10)
    monkeypatch.setattr(training_step.timing, "seconds_of", seconds_of)
    found = training_step.clock(Ten([], 0, 0, "cpu", 2), "plain", "32")
    assert timed == [10, 10] and found["seconds"] == 0.5
    assert reads[:5] == [2, 3, 4, 5, 6]  # each when the next was launched


def test_the_peak_memory_is_that_of_steps_and_not_of_what_begins_them(monkeypatch):
    done = []
    training = training_step.Training(lambda: done.append("step"), [], torch.nn.Module())
    monkeypatch.setattr(kernel_families, "begin", lambda *_, **__: done.append("begin") or training)
    for name in ("empty_cache", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: done.append("reset"))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: done.append("peak") or 3 << 20)
    monkeypatch.setattr(kernel_families.timing, "median_seconds", lambda *_, **__: 0.5)
    chosen = argparse.Namespace(
        device="cuda", size="tiny", batch=4, repeats=1, lock=Path(os.devnull)
    )
    found = kernel_families.time_step(chosen, graph=True)
    assert (found["ms"], found["peak_mb"]) == (50.0, 3.0)
    assert done == ["begin", "reset", *["step"] * kernel_families.FIRST, "peak"]


def test_a_step_of_the_default_recipe_is_timed_beside_one_of_the_papers(run):
    result, printed = run(recipe_step, ["--size", "tiny", "--batch", "4"])
    assert [row["recipe"] for row in result["rows"]] == ["the paper's", "default"]
    assert "| the paper's | - | 1.00x |" in printed  # times are shown on a GPU only


def test_a_variant_that_trains_otherwise_is_not_timed(run, monkeypatch):
    def double(rows, cfg, total):
        training = training_step.plain(rows, cfg, total)

        def step():
            training.step()
            training.metrics[-1] = training.metrics[-1]._replace(
                values=2 * training.metrics[-1].values
            )

        return training._replace(step=step)

    monkeypatch.setitem(training_step.VARIANTS, "double", double)
    with pytest.raises(AssertionError, match="double, 32: the first loss is off"):
        run(training_step, TRAINING)


def test_a_step_is_compared_with_float64_and_may_not_be_far_from_it(run):
    result, printed = run(numerics, NUMERICS)
    plain, ours = (row["errors"] for row in result["rows"])
    assert plain == ours  # on a CPU the two are one
    assert all(error < 1e-4 for error in plain.values()) and len(plain) == 5
    del plain["loss"]  # of the two, rounded to float32: it may be the same number
    assert min(plain.values()) > 0
    assert "| as in a run, 32 | " in printed
    worse = {"path": "x", "precision": "bf16", "errors": {"loss": 3e-2}}
    numerics.check(worse, worse | {"errors": {"loss": 1.6e-2}})
    with pytest.raises(AssertionError, match=r"x, bf16: loss off by 3.0e-02, at most 2.0e-02"):
        numerics.check(worse, worse | {"errors": {"loss": 1e-3}})


def test_the_benchmarks_step_is_the_step_of_pretrain(tmp_path):
    settings = [*training_step.SETTINGS, "model.size=tiny", "train.batch_size=6",
                "train.epochs=2", "train.device=cpu", "train.log_every=1"]  # fmt: skip
    cfg = read_config(None, settings)
    rows = training_step.made_rows(12, cfg)
    training = training_step.begin(rows, cfg, 4)
    for _ in range(4):
        training.step()
    model = pretrain(rows.recordings, tmp_path / "run", cfg, log=None)
    for ours, theirs in zip(training.learner.model.parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    "module, arguments",
    [
        (compute_stream, STREAM),
        (compute_vectorised, VECTORISED),
        (compute_aggregator, AGGREGATOR),
        (numerics, NUMERICS),
        (training_step, TRAINING),
    ],
)
def test_figures_of_a_gpu_come_with_its_name(run, module, arguments):
    result, printed = run(module, arguments, device="cuda")
    assert result["device"] == torch.cuda.get_device_name() and result["device"] in printed
    assert '"peak_mb": null' not in json.dumps(result.get("rows"))


def test_families_of_kernels_are_modules_and_their_table_says_what_each_is_worth():
    fused = Path(progmem.__file__).parent / "ops/fused"
    for modules in kernel_families.FAMILIES.values():
        assert all((fused / f"{module}.py").is_file() for module in modules)
    ours = {"variant": "ours", "ms": 20.0, "peak_mb": 400.0}
    step = [ours, {"variant": "without norm", "ms": 25.0, "peak_mb": 500.0}]
    encode = [ours | {"graph_ms": 15.0}, {"variant": "torch.compile", "error": "no"}]
    shown = families_table([{"device": "a GPU", "commit": "a", "step": step, "encode": encode}])
    assert "| without norm | 1.25x | 25.0 | 500 | - |" in shown
    assert "| ours | 1.00x | 20.0 | 400 | 15.0 |" in shown
    assert "| torch.compile | does not run | - | - | - |" in shown
    assert "20.0" not in families_table(
        [{"device": "x86_64 CPU", "commit": "a", "step": step, "encode": step}]
    )


def test_what_a_refactoring_cost_is_shown_as_a_ratio():
    rows = [{"measure": "step", "ratio": 1.0125, "seconds": {}}]
    found = {"device": "a GPU", "commit": "abcdefgh", "base": "def", "bound": 1.05, "rows": rows}
    shown = before_and_after_table([found])
    assert "this tree (abcdefg) / def" in shown and "| step | 1.012x | - | 1.05 |" in shown
    rows[0] |= {"interval": [0.99, 1.02], "bound": 1.02}
    assert "| step | 1.012x | 0.990 to 1.020 | 1.02 |" in before_and_after_table([found])


def compare_cpu_speed():
    return runpy.run_path(Path(__file__).parents[2] / "scripts/compare_cpu_speed.py")


def test_two_trees_are_told_apart_by_the_median_ratio_of_their_turns():
    turns = [[1.0, 1.1], [2.0, 2.0], [1.0, 0.7], [4.0, 4.4], [1.0, 9.0]]
    found = compare_cpu_speed()["summarise"](turns)
    assert found["ratio"] == pytest.approx(1.1)
    assert found["interval"][0] < 1.1 < found["interval"][1] <= 9


@pytest.mark.slow
def test_two_trees_take_turns():
    trees = [Path(progmem.__file__).parents[2]] * 2
    ((before, after),) = compare_cpu_speed()["compare"](trees, "load", 1)
    assert before > 0 and after > 0
