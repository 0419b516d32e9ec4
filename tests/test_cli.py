"""The command: its version, its demonstration, and one helpful line for bad use."""

import pytest

import progmem
from progmem.cli import main


def test_version(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"progmem {progmem.__version__}\n"


def test_the_demo_shows_three_levels_and_a_stream_that_agrees(capsys):
    assert main(["demo"]) == 0
    out = capsys.readouterr().out
    assert all(level in out for level in ("tokens", "memory", "sequence"))
    assert float(out.split("largest difference ")[1].split()[0]) < 1e-5


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "the following arguments are required: COMMAND"),
        (["dmeo"], "invalid choice: 'dmeo'"),
        (["demo", "extra"], "unrecognized arguments: extra"),
    ],
)
def test_bad_use_gives_one_line_and_exit_code_2(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    printed = capsys.readouterr().err
    assert printed.startswith("progmem: ") and message in printed
    assert printed.count("\n") == 1
