"""What the documents show is true: README blocks run, tables are those of the results."""

import re
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest

from benchmarks.results import render
from progmem.cli import main

ROOT = Path(__file__).parent.parent


def test_the_readmes_python_blocks_run_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.S)
    assert len(blocks) >= 4
    names = {}
    for block in blocks:
        exec(block, names)


@pytest.mark.slow
def test_the_readmes_shell_lines_turn_own_files_into_predictions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    series, known = np.random.default_rng(0).normal(size=(30, 60, 2)), ["", "rest", "walk"] * 10
    np.save("X.npy", series)
    (tmp_path / "labels.csv").write_text("\n".join(["label", *known]))
    (block,) = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.S)
    lines = [shlex.split(line, comments=True) for line in block.splitlines()]
    commands = [words for words in lines if words]
    assert len(block.splitlines()) == 5 and len(commands) == 4
    for words in commands:
        if words[0] == "progmem":
            assert main(words[1:]) == 0
        else:
            subprocess.run(words, check=True)
    rows = (tmp_path / "predictions.csv").read_text().splitlines()
    assert rows[0] == "series,label,margin" and len(rows) == 31
    assert {row.split(",")[1] for row in rows[1:]} <= {"rest", "walk"}
    assert (tmp_path / "later.csv").read_text().splitlines() == rows


def test_every_file_of_the_readmes_tree_exists_and_none_is_left_out():
    tree = (ROOT / "README.md").read_text().split("## Files")[1]
    named = set(re.findall(r"[a-z_]+\.py", tree))
    there = {p.name for p in (ROOT / "src").rglob("*.py") if not p.name.startswith("__")}
    there |= {"reference.py", "reference_losses.py"}
    assert named == there


@pytest.mark.parametrize("name", ["demo", "backbone"])
def test_the_readmes_tables_are_those_of_the_results(name):
    assert render(name, ROOT / "results") in (ROOT / "README.md").read_text()


def test_the_readmes_figures_are_those_of_the_results():
    section = (ROOT / "README.md").read_text().split("## What it reaches")[1].split("\n## ")[0]
    figures = re.findall(r"[\d.]+ ± [\d.]*\d", section)
    shown = (ROOT / "docs/results.md").read_text()
    assert len(figures) > 20 and [one for one in figures if one not in shown] == []
