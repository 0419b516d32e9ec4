"""Results kept and shown: what a file says, tables worked by hand, the paper beside."""

import json
import warnings
from pathlib import Path

import pytest

from benchmarks.results import TABLES, render, render_all, write_page
from progmem.cli import main
from progmem.errors import ArtifactError, InputError
from progmem.report import record
from progmem.report.paper import CLASSIFICATION
from progmem.report.tables import cue_table

ROOT = Path(__file__).parents[2]


def made_result(name="HAR", split="official"):
    def row(encoder, accuracy):
        scores = {"linear": {"accuracy": accuracy, "macro_f1": [0.5, 0.7]}}
        return {"set": name, "split": split, "encoder": encoder,
                "scores": {"sequence": {"1%": scores}}}  # fmt: skip

    rows = [row("untrained", [0.5, 0.5]), row("trained", [0.8, 0.9])]
    return record.environment() | {"rows": rows}


def test_a_classification_table_is_the_one_worked_by_hand(tmp_path):
    record.save("classify", "HAR", made_result(), folder=tmp_path)
    assert render("classify", tmp_path).splitlines() == [
        "| set | labels | untrained | trained | paper's PMT |",
        "|---|---|---|---|---|",
        "| HAR | 1% | 50.0 ± 0.0 / 60.0 | 85.0 ± 7.1 / 60.0 | 92.9 / 93.2 |",
    ]


def test_the_papers_figures_do_not_stand_beside_rows_they_are_not_of(tmp_path):
    record.save("tune", "a", made_result(split="validation"), folder=tmp_path)
    assert "paper" not in render("tune", tmp_path) and "92.9" not in render("tune", tmp_path)
    record.save("classify", "b", made_result("Other"), folder=tmp_path)
    assert render("classify", tmp_path).splitlines()[-1].endswith("| - |")


def test_a_result_says_where_it_came_from_and_reads_back(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    result = made_result() | {"nested": [[1, 2], {"a": []}], "text": 'a "word" é'}
    path = record.save("x", "y", result, folder=tmp_path)
    read = record.read(path)
    assert (
        read == result == {k: v for k, v in json.loads(path.read_text()).items() if k != "sha256"}
    )
    assert (read["commit"] is not None) == (ROOT / ".git").exists()
    assert read["device"].endswith("CPU")
    assert read["waiting_threads"]["OMP_WAIT_POLICY"] == "PASSIVE"
    assert {"progmem", "python", "torch", "numpy", "scikit-learn"} <= set(read["versions"])


def test_no_flipped_bit_of_a_result_changes_what_is_read(tmp_path):
    result = {"rows": [{"score": 0.5, "n": [1, 2]}], "what": "é"}
    path = record.save("x", "y", result, folder=tmp_path)
    whole, same = path.read_bytes(), 0
    for bit in range(8 * len(whole)):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("error", "no checksum")
                assert record.read(path) == result
            same += 1  # white space
        except (ArtifactError, UserWarning):
            continue
    assert 0 < same < bit / 4


@pytest.mark.parametrize(
    "data, message",
    [
        (b"{", "is not a result: Expecting property name"),
        (b"[1]", "it holds no mapping"),
        (b"\xff", "is not a result: 'utf-8' codec"),
        (b"[" * 100_000, "is not a result: it is nested too deeply"),
        (b'{"rows": [1], "sha256": "0"}', "is damaged: its sha256 is not that of what it holds"),
    ],
)
def test_a_damaged_result_is_named(data, message, tmp_path, capsys):
    record.save("classify", "a", made_result(), folder=tmp_path)
    (tmp_path / "classify/b.json").write_bytes(data)
    assert main(["results", "--results", str(tmp_path)]) == 2
    printed = capsys.readouterr().err
    assert f"classify/b.json {message}" in printed or message in printed
    assert printed.count("\n") == 1


def test_a_result_of_0_1_0_is_read_and_said_to_be_unverified(tmp_path):
    (tmp_path / "a.json").write_text('{"rows": []}')
    with pytest.warns(UserWarning, match="a.json has no checksum, as results of 0.1.0"):
        assert record.read(tmp_path / "a.json") == {"rows": []}


@pytest.mark.parametrize(
    "git, given, dirty",
    [(None, None, None), ("", None, False), (" M a", None, True), ("", "1a", None)],
)
def test_dirty_says_no_more_than_is_known(git, given, dirty, monkeypatch):
    monkeypatch.setattr(record, "_git", lambda *arguments: git)
    assert record.environment(commit=given)["dirty"] is dirty


def test_files_of_one_set_are_not_averaged(tmp_path):
    for name in ("HAR-a", "HAR-b"):
        record.save("classify", name, made_result(), folder=tmp_path)
    assert [line.split(" | ")[0] for line in render("classify", tmp_path).splitlines()[2:]] == [
        "| HAR-a", "| HAR-b",
    ]  # fmt: skip


def test_sets_of_one_file_have_a_line_each(tmp_path):
    rows = [*made_result("HAR")["rows"], *made_result("Wafer")["rows"]]
    record.save("end_to_end", "both", made_result() | {"rows": rows}, folder=tmp_path)
    assert render("end_to_end", tmp_path).splitlines()[2:] == [
        "| HAR, both | 1% | 50.0 ± 0.0 / 60.0 | 85.0 ± 7.1 / 60.0 | 92.9 / 93.2 |",
        "| Wafer, both | 1% | 50.0 ± 0.0 / 60.0 | 85.0 ± 7.1 / 60.0 | 98.7 / 96.5 |",
    ]


def test_a_file_that_is_another_result_is_named(tmp_path):
    record.save("classify", "x", {"rows": []}, folder=tmp_path)
    record.save("cue", "x", {}, folder=tmp_path)
    with pytest.raises(InputError, match="no scores of"):
        render("classify", tmp_path)
    with pytest.raises(InputError, match=r"a file in .*cue is not a result: KeyError"):
        render("cue", tmp_path)


def test_the_papers_averages_are_those_it_prints():
    both = [CLASSIFICATION[amount] for amount in ("1%", "5%")]
    mean = {
        name: sum(accuracy for part in both for accuracy, _ in part[name].values()) / 14
        for name in both[0]
    }
    assert mean["PMT"] == pytest.approx(84.4, abs=0.05)
    assert mean["TS2Vec+SoftCLT"] == pytest.approx(82.5, abs=0.05)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["nothing"], "no table for 'nothing'; known: classify, forecast, cue, finetune"),
        (["cue"], "cue holds no results"),
        (["classify", "--head", "cubic"], "no scores of 'cubic' on 'sequence'; poolings: sequence"),
        (["classify", "--pooling", "max_tokens"], "no scores of 'linear' on 'max_tokens'"),
    ],
)
def test_what_was_not_measured_is_said_in_one_line(arguments, message, tmp_path, capsys):
    record.save("classify", "a", made_result(), folder=tmp_path)
    assert main(["results", *arguments, "--results", str(tmp_path)]) == 2
    printed = capsys.readouterr().err
    assert message in printed and printed.count("\n") == 1


def test_all_tables_are_shown_and_an_empty_folder_is_named(tmp_path, capsys):
    record.save("classify", "a", made_result(), folder=tmp_path)
    assert main(["results", "--results", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("## classify\n\n| set |")
    with pytest.raises(InputError, match="holds no results"):
        render("demo", tmp_path / "none")
    assert main(["results", "--results", str(tmp_path / "none")]) == 2


def test_the_kept_results_are_shown_in_docs(tmp_path):
    page = tmp_path / "results.md"
    shown = (ROOT / "docs/results.md").read_text()
    assert shown.endswith(f"\n{render_all(ROOT / 'results')}\n")
    page.write_text(shown.partition("\n## ")[0] + "\n\n## an old table\n")
    write_page(page, ROOT / "results")
    assert page.read_text() == shown


def test_the_page_of_results_shows_what_the_commands_measure_as_they_do():
    from progmem.report import tables

    assert tables.TABLES.items() <= TABLES.items()


def test_a_hop_that_was_not_given_is_the_same_setting_in_results_of_0_1_0():
    old = json.loads((ROOT / "results/cue/FordA-pcl-carry-0.json").read_text())
    new = json.loads((ROOT / "results/cue/FordA-pcl-carry-1.json").read_text())
    assert old["config"]["run"]["data"]["hop"] == 0
    expected = cue_table([old, new]).count("\n")
    new["config"]["run"]["data"]["hop"] = None
    assert cue_table([old, new]).count("\n") == expected
    new["config"]["run"]["data"]["hop"] = 7
    assert cue_table([old, new]).count("\n") > expected
