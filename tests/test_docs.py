"""What the documents say is true: their blocks run, their tables and links are right."""

import re
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import progmem
from benchmarks.results import fill_page
from progmem.cli import main
from progmem.config import read_config
from progmem.data import datasets
from progmem.data.datasets import DatedFile
from progmem.errors import InputError
from progmem.probes import own_labels

ROOT = Path(__file__).parent.parent
TASKS = [ROOT / "docs" / f"{name}.md" for name in (
    "getting_started", "classify", "forecast", "streams", "own_files", "method", "reproduce",
    "performance", "reliability", "explore", "explore_page",
)]  # fmt: skip
PAGES = [ROOT / "README.md", *TASKS]
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.S | re.M)
TABLE = re.compile(r"<!-- table: .*?<!-- end of table -->", flags=re.S)
TYPED = re.compile(r"±|\d+\.\d+")  # how a measured number looks
NOT_MEASURED = re.compile(
    r"mean ± standard deviation|Python 3\.\d+|Apache-2\.0|\b0\.1\.0\b|section 2\.4|=0\.2`"
)


def blocks(page):
    return FENCED.findall(page.read_text())


@pytest.fixture
def folder(tmp_path, monkeypatch, made_sets):
    """The files that the pages speak of, small ones, in the folder where their blocks run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(datasets.DATA_VARIABLE, str(made_sets))
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    rng = np.random.default_rng(0)
    (tmp_path / "recordings").mkdir()
    for name, length in {"monday": 300, "tuesday": 240, "friday": 270}.items():
        np.save(tmp_path / f"recordings/{name}.npy", rng.normal(size=(length, 2)))
    np.save("X.npy", rng.normal(size=(30, 60, 2)))
    Path("labels.csv").write_text("\n".join(["label", *["", "rest", "walk"] * 10]))
    hours = np.arange(700)
    table = pd.DataFrame({"date": pd.date_range("2024-01-01", periods=700, freq="h")})
    table["load"] = np.sin(hours * 2 * np.pi / 24) + 0.1 * rng.normal(size=700)
    table.to_csv("load.csv", index=False)
    table.rename(columns={"load": "OT"}).to_csv(made_sets / "ETTh1.csv.gz", index=False)
    made = DatedFile("ETTh1.csv.gz", 700, ("OT",), "OT", (400, 550, 700), "2024-01-01", None)
    monkeypatch.setitem(datasets.FILES, "ETTh1", made)
    short = ["model.size=tiny", "train.steps=10", "train.batch_size=16"]
    monkeypatch.setattr(own_labels, "read_config", lambda *_: read_config(None, short))
    return tmp_path


def shortened(words):
    """A command of a page, on made files: a tiny model, a few steps, short horizons."""
    command = words[1:3] if words[1] == "probe" else words[1:2]
    settings = " ".join(word for word in words if "=" in word)
    if command[0] in ("pretrain", "finetune"):
        words = words if "model.size" in settings else [*words, "model.size=tiny"]
        if "train.steps" not in settings:
            words = [*words, "train.epochs=1", "train.batch_size=16"]
    if any(word.startswith("experiments/cue") for word in words):  # made series are short
        words = [
            *words,
            "model.patch=8",
            "model.patch_stride=4",
            "model.window=4",
            "model.stride=4",
        ]
    if command == ["probe", "forecast"]:
        words = [*words, "--horizons", "4", "8"]
    return words


def run_page(page):
    """Run all blocks of a page in order, the Python ones in one namespace."""
    names = {}
    for language, code in blocks(page):
        if language == "python":
            exec(code, names)
            continue
        assert language == "sh", f"a block of {page.name} says no language"
        for line in code.splitlines():
            words = shlex.split(line, comments=True)
            if words and words[0] == "progmem":
                assert main(shortened(words)[1:]) == 0, line
            elif words:
                subprocess.run(words, check=True)


@pytest.mark.slow
def test_the_readmes_blocks_run(folder):
    assert [language for language, _ in blocks(ROOT / "README.md")] == ["python", "sh"]
    run_page(ROOT / "README.md")


@pytest.mark.slow
@pytest.mark.parametrize("page", TASKS, ids=lambda page: page.stem)
def test_the_blocks_of_a_page_run_in_order(page, folder):
    run_page(page)


def test_the_commands_of_the_readme_are_targets_of_the_makefile():
    named = re.findall(r"^    make (\w+)", (ROOT / "README.md").read_text(), flags=re.M)
    makefile = (ROOT / "Makefile").read_text()
    assert named == ["demo", "test"] and all(f"\n{name}:" in makefile for name in named)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_tables_of_a_page_are_those_of_the_results(page):
    assert fill_page(page, ROOT / "results") == page.read_text()


def test_the_page_of_results_holds_every_table():
    from benchmarks.results import render_all

    assert render_all(ROOT / "results") in (ROOT / "docs/results.md").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_measured_number_is_typed_into_a_page(page):
    text = FENCED.sub("", TABLE.sub("", page.read_text()))
    assert TYPED.findall(NOT_MEASURED.sub("", text)) == []


def test_a_number_in_the_wrong_row_of_a_table_is_noticed(tmp_path):
    page = tmp_path / "README.md"
    text = (ROOT / "README.md").read_text()
    lines = re.findall(r"^\| .* ± .*$", text, flags=re.M)
    assert len(lines) > 5
    swapped = text.replace(lines[0], "<>").replace(lines[1], lines[0]).replace("<>", lines[1])
    page.write_text(swapped)
    assert fill_page(page, ROOT / "results") == text != swapped


def test_a_place_without_a_table_is_an_error(tmp_path):
    (tmp_path / "page.md").write_text("<!-- table: no_2 -->\n<!-- end of table -->\n")
    with pytest.raises(InputError, match="there is no table for 'no_2'"):
        fill_page(tmp_path / "page.md", ROOT / "results")


@pytest.mark.parametrize(
    "page", [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")], ids=lambda page: page.stem
)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        path, _, anchor = target.partition("#")
        linked = page.parent / path if path else page
        assert linked.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.*)$", linked.read_text(), flags=re.M)
            made = [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]
            assert anchor in made, target


def test_the_loops_that_the_method_names_exist():
    rows = (ROOT / "docs/method.md").read_text().split("## The objectives")[0]
    named = re.findall(r"\| `(\w+)` \|$", rows, flags=re.M)
    reference = (ROOT / "tests/reference.py").read_text()
    assert len(named) == 8 and all(f"\ndef {name}(" in reference for name in named)


def test_the_tests_that_reliability_names_exist():
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs/reliability.md").read_text()))
    files = (ROOT / "tests").rglob("test_*.py")
    there = {name for f in files for name in re.findall(r"^def (test_\w+)", f.read_text(), re.M)}
    assert len(named) > 40 and named <= there, named - there


def test_the_readme_is_short_and_no_line_is_long():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 150 and max(map(len, lines)) <= 120
    for page in TASKS:
        prose = FENCED.sub("", TABLE.sub("", page.read_text())).splitlines()
        assert max(len(line) for line in prose if not line.startswith("|")) <= 120, page


def test_every_file_of_the_tree_exists_and_none_is_left_out():
    tree = (ROOT / "CONTRIBUTING.md").read_text().split("## Where things are")[1]
    named = set(re.findall(r"[a-z_0-9]+\.py", tree.split("```")[1]))
    there = {p.name for p in (ROOT / "src").rglob("*.py") if not p.name.startswith("__")}
    there |= {"reference.py", "reference_losses.py"}
    assert named == there


def test_the_checks_of_scikit_learn_that_do_not_hold_are_named():
    from test_classifier import NOT_FOR_SERIES
    from test_estimators import OTHER_LENGTHS

    page = (ROOT / "docs/classify.md").read_text()
    named = re.findall(r"^\| `(check_\w+)`", page, flags=re.M)
    assert set(named) == NOT_FOR_SERIES.keys() | OTHER_LENGTHS.keys()


def test_public_names_are_there():
    assert all(hasattr(progmem, name) for name in progmem.__all__)
