"""The compute benchmarks run, small and on the CPU, and their tables say what was measured."""

import json
import sys

import pytest
import torch

from benchmarks import compute_stream, compute_vectorised, full_attention
from progmem.report.paper import STREAMING
from progmem.report.tables import render

STREAM = ["--samples", "512", "1024", "--dim", "32", "--long", "9000", "--hour", "2", "--sizes",
          "tiny"]  # fmt: skip
VECTORISED = ["--samples", "700", "--batches", "2", "--dim", "32", "--growth", "500", "1000"]


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run a benchmark on the CPU: what it wrote, and what it printed last."""

    def run(module, arguments):
        name = module.__name__.removeprefix("benchmarks.")
        common = ["--device", "cpu", "--repeats", "2", "--commit", "made", "--out", str(tmp_path)]
        monkeypatch.setattr(sys, "argv", [name, *common, *arguments])
        module.main()
        result = json.loads((tmp_path / name / "cpu.json").read_text())
        assert result["commit"] == "made" and result["device"].endswith("CPU")
        printed = capsys.readouterr().out
        assert printed.endswith(render(name, tmp_path) + "\n")
        return result, printed

    return run


def shown_for_a_gpu(result, tmp_path, name):
    """The table of ``result``, had it been measured on a GPU that needs 3 MB for everything."""
    text = json.dumps(result | {"device": "a GPU"}).replace('"peak_mb": null', '"peak_mb": 3.0')
    (tmp_path / name / "cpu.json").write_text(text)
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
    assert "| fused | 0.1 | 0.01 | 1.00x | - |" in printed and "growth" in printed
    result["batches"][0] |= {"batch": 32, "samples": 100_000}
    table = shown_for_a_gpu(result | {"config": {"dim": 320}}, tmp_path, "compute_vectorised")
    assert (
        "| the paper's PMT | 20.1 | 329.99 | 12,337 | 5,381.27 | 74,326 | 1.55x | 1.48x |" in table
    )


def test_nothing_is_timed_where_the_forms_differ(run, monkeypatch):
    monkeypatch.setattr(full_attention, "attend", lambda q, k, v, mask: torch.zeros_like(q))
    with pytest.raises(AssertionError):
        run(compute_stream, STREAM)
    monkeypatch.setattr(full_attention, "attend_written_out", lambda q, k, v: v)
    with pytest.raises(AssertionError):
        run(compute_vectorised, VECTORISED)
