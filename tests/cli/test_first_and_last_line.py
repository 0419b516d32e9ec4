"""What a command says: at once what it reads, into a pipe too, and at the end what was written."""

import io
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from training_setup import SETTINGS

from progmem.cli import main
from progmem.data import windows
from progmem.probes import comparison

TUNING = [setting for setting in SETTINGS if not setting.startswith("loss.")]
COMMANDS = {  # what is needed for each, and what it says first
    "check": ["check", "X"],
    "pretrain": ["pretrain", "X", "-o", "run"],
    "finetune": ["finetune", "X", "-o", "run"],
    "embed": ["embed", "m", "X", "-o", "out"],
    "classify": ["classify", "X", "-o", "p.csv"],
    "forecast": ["forecast", "X", "--horizon", "3"],
    "explore": ["explore", "m", "X"],
    "index": ["index", "m", "X", "-o", "out"],
    "search": ["search", "X", "night", "0", "9", "-o", "t.csv"],
    "segment": ["segment", "X", "-o", "t.csv"],
    "states": ["states", "X", "-o", "t.csv"],
    "surprise": ["surprise", "X", "-o", "t.csv"],
    "suggest": ["suggest", "X", "-o", "t.csv"],
    "export": ["export", "X", "-o", "m.onnx"],
    "probe classify": ["probe", "classify", "m", "X"],
    "data convert": ["data", "convert", "X"],
    "demo": ["demo"],
}

AT_ONCE = """
import sys
from pathlib import Path
from progmem.cli import main

class Said(BaseException):
    pass

class FirstLine:  # in place of the output: nothing goes on behind the first line
    def write(self, text):
        slow = [name for name in ("lightning", "sklearn", "pandas") if name in sys.modules]
        raise Said(f"{text.strip()} {' '.join(slow)}".strip())

out, sys.stdout = sys.stdout, FirstLine()
for command in COMMANDS:
    try:
        main(command)
    except Said as said:
        print(said, file=out)
sys.stdout = out
"""


def test_every_command_says_at_once_what_it_reads_before_anything_slow_is_loaded(tmp_path):
    code = AT_ONCE.replace("COMMANDS", repr([*COMMANDS.values()]))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    said = dict(zip(COMMANDS, done.stdout.splitlines(), strict=True))
    assert said.pop("demo") == "reading the built-in sample ..."
    assert set(said.values()) == {"reading X ..."}


def test_a_line_is_out_at_once_although_nobody_reads_on_a_terminal(monkeypatch):
    pipe = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(sys, "stdout", pipe)
    assert not pipe.line_buffering
    main(["data", "list"])
    assert pipe.line_buffering
    monkeypatch.undo()


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(comparison.BASELINES, "MiniRocket")
    (tmp_path / "recordings/night").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for i in range(12):
        np.save(f"recordings/{'night/' if i % 2 else ''}{i:02}.npy", rng.normal(size=(60, 2)))
    (tmp_path / "recordings/photo.jpg").touch()
    names = [f"{'night/' if i % 2 else ''}{i:02}" for i in range(12)]
    labels = pd.DataFrame({"series": names, "label": [*"aabb" * 3]})
    labels.to_csv("labels.csv", index=False)
    return tmp_path


def test_every_command_names_what_it_left_out_and_ends_with_what_comes_next(files, capsys):
    data, run, out = "my recordings", "a run", "p 1.csv"  # as people name them
    Path("recordings").rename(data)
    commands = [
        (["check", data], {data}),
        (["pretrain", data, "-o", run, *SETTINGS], {data, f"{run}/model"}),
        (["embed", f"{run}/model", data, "-o", "out"], set()),
        (
            ["classify", data, "--labels", "labels.csv", "--model", f"{run}/model", "-o", out],
            {f"{run}/model", "p 1.safetensors"},
        ),
        (["finetune", data, "--labels", "labels.csv", "-o", "a tuned", *TUNING], {"a tuned"}),
    ]
    for command, names in commands:
        assert main(command) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == f"reading {data} ...", command
        assert any("photo.jpg" in line for line in lines), command
        assert "next: " in lines[-1] or "later: " in lines[-1], command
        assert names <= set(shlex.split(lines[-1])), command  # can be pasted into a shell


def test_quiet_commands_say_nothing(files, capsys):
    for command in (
        ["pretrain", "recordings", "-o", "run", *SETTINGS],
        ["embed", "run/model", "recordings", "-o", "out"],
        ["finetune", "recordings", "--labels", "labels.csv", "-o", "tuned", *TUNING],
    ):
        assert main([*command, "--quiet"]) == 0
        assert capsys.readouterr() == ("", ""), command


def test_what_a_check_is_doing_does_not_stand_in_its_json(files, capsys, monkeypatch):
    monkeypatch.setattr(windows, "VALUES", 2**8)
    assert main(["check", "recordings", "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("{") and printed.out.rstrip().endswith("}")
    doing = ["reading recordings ...", "looking at 720 samples ...",
             "mean and spread of each channel ...", "timing a training step ..."]  # fmt: skip
    assert printed.err.splitlines() == doing
