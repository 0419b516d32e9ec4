"""What the documents show is true: README blocks run, public names are the promised ones."""

import re
from pathlib import Path

import pytest

import progmem
from progmem.report.tables import render

ROOT = Path(__file__).parent.parent


def test_the_readmes_python_blocks_run_in_order():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.S)
    assert len(blocks) >= 4
    names = {}
    for block in blocks:
        exec(block, names)


def test_every_file_of_the_readmes_tree_exists_and_none_is_left_out():
    tree = (ROOT / "README.md").read_text().split("## Files")[1]
    named = set(re.findall(r"[a-z_]+\.py", tree))
    there = {p.name for p in (ROOT / "src").rglob("*.py") if not p.name.startswith("__")}
    there |= {"reference.py", "reference_losses.py"}
    assert named == there


def test_public_names():
    assert progmem.__all__ == [
        "PMT", "ConfigError", "Encoder", "Encoding", "InputError", "ModelConfig",
        "ModelFolderError", "PMTEncoder", "Stream", "count_macs", "count_params", "load",
    ]  # fmt: skip
    assert all(hasattr(progmem, name) for name in progmem.__all__)


@pytest.mark.parametrize("name", ["demo", "backbone"])
def test_the_readmes_tables_are_those_of_the_results(name):
    assert render(name, ROOT / "results") in (ROOT / "README.md").read_text()
