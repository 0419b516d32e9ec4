"""What large data need: the made ones are as they say, and memory is measured for each command."""

import sys

import numpy as np
import pytest

import progmem
from benchmarks import large_data
from progmem.report import record


def test_made_recordings_have_mixed_lengths_and_gaps_and_a_made_file_its_size(tmp_path):
    large_data.make_folder(tmp_path / "x", 6)
    found = progmem.read(tmp_path / "x")
    assert len({len(values) for values in found.values}) == 6
    assert all(0 < np.isnan(values).mean() < 0.2 for values in found.values)
    large_data.make_file(tmp_path / "x.npy", 204_800)
    (whole,) = progmem.read(tmp_path / "x.npy").values
    assert whole.nbytes == 204_800 and whole.std() == pytest.approx(1, abs=0.05)


def test_the_table_has_a_line_for_each_folder_and_file():
    need = {command: {"mb": 300.4, "seconds": 7.0} for command in large_data.COMMANDS}
    rows = [{"kind": "file", "size": 2 * 10**9, "files": 1, "mb": 2000.0, **need},
            {"kind": "folder", "size": 2000, "files": 2000, "mb": 30.2, **need}]  # fmt: skip
    results = [{"rows": [row]} for row in rows]  # a file of results each, read in any order
    _, _, *lines = large_data.large_data_table(results).splitlines()
    cells = " | ".join(["300 MB, 7 s"] * 3)
    assert lines == [f"| 2,000 recordings | 30 MB | {cells} |",
                     f"| one `.npy` file | 2,000 MB | {cells} |"]  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_the_memory_of_every_command_is_measured(tmp_path, monkeypatch):
    arguments = ["--counts", "4", "--bytes", "300000", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["large_data", *arguments])
    large_data.main()
    found = [record.read(tmp_path / f"large_data/{n}.json") for n in ("folder-4", "file-300000")]
    rows = [row for result in found for row in result["rows"]]
    assert [(row["kind"], row["files"]) for row in rows] == [("folder", 4), ("file", 1)]
    assert all(row[command]["mb"] > 50 for row in rows for command in large_data.COMMANDS)
    with pytest.raises(RuntimeError, match=r"there is no nothing\.npy"):
        large_data.run(["check", "nothing.npy"], tmp_path)
