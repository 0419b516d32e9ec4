"""Whatever a name holds, a terminal, a table and a page show it and obey none of it."""

import io
import sys

import numpy as np
import pandas as pd
import pytest

import progmem
from progmem.cli import main
from progmem.names import first_few, from_cell, printable, to_cell

ODD = ["red \x1b[31m", "two\nlines", "\u202eturned", "half \ud800", "bell\x07", "\x9b2J"]


@pytest.mark.parametrize("text", ODD)
def test_what_a_terminal_would_obey_is_escaped_and_ordinary_letters_are_not(text):
    shown = printable(text)
    assert shown.isprintable() and printable(shown) == shown
    assert shown == text.encode("unicode_escape", "surrogatepass").decode()
    assert printable("Köln, 東京, 5 °C") == "Köln, 東京, 5 °C"


@pytest.mark.parametrize("text", ["=cmd|' /C calc'!A0", "+1+2", "-a", "@SUM(A1)", "'=1", "''=1"])
def test_a_cell_that_a_spreadsheet_would_run_is_text_and_reads_back(text):
    assert to_cell(text) == f"'{text}" and from_cell(to_cell(text)) == text


@pytest.mark.parametrize("text", ["a", "-1", "+1.5e-3", "'quoted'", "5%", "", "-.5"])
def test_other_cells_stay_as_they_are(text):
    assert to_cell(text) == text == from_cell(text)


def test_of_many_names_the_first_are_shown():
    assert first_few("abcde") == "a, b, c, d, e" and first_few("abcdefg").endswith("e and 2 more")


def test_odd_names_go_through_a_command_and_its_table_on_an_ascii_terminal(
    model, tmp_path, monkeypatch
):
    """Colours, a formula and letters that the terminal has not."""
    names, data = ["=cmd", "Köln", "red \x1b[31m"], tmp_path / "data"
    data.mkdir()
    x = np.random.default_rng(0).normal(size=(60, 2))
    for name in names:
        np.save(data / f"{name}.npy", x)
    out, error = (io.TextIOWrapper(io.BytesIO(), "ascii") for _ in range(2))
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", error)
    embed = ["embed", str(model), str(data), "-o"]
    assert main([*embed, str(tmp_path / "out")]) == 0
    for name in names[1:]:
        np.save(data / f"{name}.npy", np.full_like(x, np.inf))
    assert main([*embed, str(tmp_path / "none")]) == 2
    np.save(data / "Köln.npy", x)
    assert main([*embed, str(tmp_path / "Köln")]) == 2
    said = error.buffer.getvalue().decode("ascii")
    assert "K\\xf6ln, sample 0" in said and "red \\x1b[31m, sample 0" in said
    assert b"\x1b" not in out.buffer.getvalue() + error.buffer.getvalue()
    index = (tmp_path / "out/index.csv").read_text()
    assert "'=cmd" in index and "\x1b" not in index
    found = pd.read_csv(tmp_path / "out/index.csv")["series"].map(from_cell)
    assert set(found) == {printable(name) for name in names}
    (tmp_path / "kept.csv").write_text("'=cmd,a\n1,2\n3,4\n")
    assert progmem.read(tmp_path / "kept.csv")[0].columns == ("=cmd", "a")
