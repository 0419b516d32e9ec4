"""The command: its version, its demonstration, and one helpful line for bad use."""

import argparse
import dataclasses
import shlex
from dataclasses import fields
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from training_setup import SETTINGS, made_recordings

import progmem
from progmem.cli import _make_parser, main
from progmem.config import DataConfig, LossConfig, TrainConfig, ViewConfig
from progmem.probes import comparison


@pytest.fixture(autouse=True)
def _without_minirocket(monkeypatch):
    """The first comparison with it would wait most of a minute for numba to compile it."""
    monkeypatch.delitem(comparison.BASELINES, "MiniRocket")


def test_version(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"progmem {progmem.__version__}\n"


def commands(parser):
    """The parsers of all commands that can be run."""
    groups = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if not groups:
        return [parser]
    return [one for group in groups for child in group.choices.values() for one in commands(child)]


@pytest.mark.parametrize("parser", commands(_make_parser()), ids=lambda parser: parser.prog)
def test_the_help_of_a_command_is_a_sentence_an_example_and_a_text_for_every_option(parser):
    assert parser.description[0].isupper() and parser.description.count(".") >= 1
    assert parser.description.endswith(".") and "\n" not in parser.description
    example = parser.epilog.split("example:\n  ")[1]
    assert example.startswith(f"{parser.prog} ") and "\n" not in example
    args, rest = _make_parser().parse_known_args(shlex.split(example)[1:])
    assert args.parser.prog == parser.prog and all("=" in text for text in rest)
    assert all(len(action.help) > 10 for action in parser._actions)
    assert parser.format_help().count("example:") == 1


@pytest.mark.parametrize("name", ["MODEL", "SET", "--data-dir", "--split", "--config"])
def test_an_option_of_several_commands_has_one_meaning(name):
    found = [
        (action.type, action.help, action.metavar)
        for parser in commands(_make_parser())
        for action in parser._actions
        if name in action.option_strings or (name == action.metavar and action.dest != "name")
    ]
    assert len(found) > 1 and len(set(found)) == 1


def test_settings_can_be_shown(capsys):
    assert main(["pretrain", "--print-config", "train.lr=1e-3"]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert shown["train"]["lr"] == 1e-3
    assert set(shown) == {"encoder", "model", "data", "views", "loss", "train"}
    assert set(shown["model"]) == {field.name for field in fields(progmem.ModelConfig)}
    assert main(["pretrain", "x.npy", "-o", "run", "--print-config", "model.slots=3"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["model"]["slots"] == 3
    assert main(["pretrain", "--print-config", "encoder.name=ts2vec", "encoder.dim=64"]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert set(shown) == {"encoder", "data", "train"} and shown["train"]["batch_size"] == 8
    assert shown["encoder"]["dim"] == 64 and shown["encoder"]["hidden"] == 64
    assert shown["encoder"]["name"] == "ts2vec" and shown["encoder"]["channels"] is None


def test_pretrain_and_embed_from_files(tmp_path, capsys):
    data = tmp_path / "data"
    data.mkdir()
    for recording in made_recordings():
        np.save(data / f"{recording.name}.npy", recording.values)
    config = tmp_path / "config.yaml"
    config.write_text("train:\n  epochs: 1\n  lr: 1e-3\n")
    run, out = tmp_path / "run", tmp_path / "out"
    overrides = [text for text in SETTINGS if not text.startswith(("train.epochs", "train.lr"))]
    overrides.append("data.sampling_rate=25")
    assert main(["pretrain", str(data), "-o", str(run), "-c", str(config), *overrides]) == 0
    assert main(["embed", str(run / "model"), str(data), "-o", str(out)]) == 0
    assert np.load(out / "sequence.npy").shape == (20, 16)
    spans, times = np.load(out / "token_spans.npy"), np.load(out / "token_times.npy")
    np.testing.assert_allclose(times, spans / 25)
    assert main(["pretrain", str(data), "-o", str(run), "-c", str(config), *overrides]) == 0
    assert "has finished its 3 steps" in capsys.readouterr().out


def test_channels_of_other_files_come_in_the_order_of_the_run(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dates = pd.date_range("2024-01-01", periods=250, freq="h", name="date")
    table = pd.DataFrame(
        {"load": made_recordings()[-1].values[:, 0], "heat": 1.0 * dates.hour}, dates
    )
    swapped = table[["heat", "load"]]
    for name, dated in (("own", table), ("swapped", swapped)):
        dated.to_csv(f"{name}.csv")
        dated.to_csv(f"{name}-plain.csv", index=False)
    for kind in ("", "-plain"):
        assert main(["pretrain", f"own{kind}.csv", "-o", f"run{kind}", *SETTINGS]) == 0
    assert "recordings: 1, samples: 250, channels: 2 (load, heat)" in capsys.readouterr().out
    Path("two").mkdir()
    for name in "ab":
        swapped.to_csv(f"two/{name}.csv", index=False)
    Path("y.csv").write_text("series,label\na,1\nb,2\n")
    for command in (
        ["embed", "run/model", "swapped.csv", "-o", "out"],
        ["embed", "run-plain/model", "swapped-plain.csv", "-o", "out"],
        ["forecast", "swapped.csv", "--model", "run/model", "--horizon", "3"],
        ["forecast", "swapped.csv", "--model", "run-plain/model", "--horizon", "3"],
        ["classify", "two", "--model", "run-plain/model", "--labels", "y.csv", "-o", "p.csv"],
        ["finetune", "two", "-o", "tuned", "--from", "run-plain", "--labels", "y.csv"],
    ):
        assert main(command) == 2, command
        assert "has 'heat' where run" in capsys.readouterr().err, command
    with monkeypatch.context() as inside:
        inside.chdir("run/model")
        assert main(["embed", ".", "../../swapped.csv", "-o", "out"]) == 2
        assert "has 'heat' where" in capsys.readouterr().err
    swapped.rename(columns={"load": "wind"}).to_csv("some.csv")  # a shared name is enough
    assert main(["embed", "run/model", "some.csv", "-o", "out"]) == 2
    assert "some has 'heat' where run has 'load'" in capsys.readouterr().err
    assert main(["embed", "run/model", "own.csv", "-o", "out"]) == 0
    assert main(["embed", "run-plain/model", "own.csv", "-o", "values"]) == 0  # not their dates
    assert main(["embed", "run-plain/model", "own-plain.csv", "-o", "plain"]) == 0
    np.testing.assert_array_equal(np.load("values/tokens.npy"), np.load("plain/tokens.npy"))
    Path("own.csv").unlink()
    Path("swapped.csv").rename("own.csv")
    assert main(["pretrain", "own.csv", "-o", "run", *SETTINGS]) == 2
    assert "begun on columns load, heat, not on" in capsys.readouterr().err


def test_the_order_of_channels_outlives_training_on_arrays(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    short = [*SETTINGS, "train.epochs=1"]
    arrays = np.stack([r.values[:36] for r in made_recordings()[:8]])
    for folder, columns in (("csv", ["load", "heat"]), ("swapped", ["heat", "load"])):
        Path(folder).mkdir()
        for i, values in enumerate(arrays):
            table = pd.DataFrame(values, columns=["load", "heat"])
            table[columns].to_csv(f"{folder}/{i}.csv", index=False)
    np.save("x.npy", arrays)
    np.save("y.npy", np.arange(8) % 2)
    labels = "\n".join(f"{i},{i % 2}" for i in range(8))
    Path("y.csv").write_text(f"series,label\n{labels}\n")
    assert main(["pretrain", "csv", "-o", "run", *short]) == 0
    tune = [
        "finetune",
        "x.npy",
        "--labels",
        "y.npy",
        "--from",
        "run",
        "-o",
        "tuned",
        "train.epochs=1",
    ]
    assert main(tune) == 0
    from_scratch = ["finetune", "csv", "--labels", "y.csv", "-o", "scratch", "model.size=tiny"]
    assert main([*from_scratch, "train.epochs=1"]) == 0
    fit = ["classify", "csv", "--labels", "y.csv", "--model", "nameless/model", "-o", "p.csv"]
    assert main(["pretrain", "x.npy", "-o", "nameless", *short]) == 0
    assert main(fit) == 0
    capsys.readouterr()
    for command, where in (
        (["embed", "tuned/model", "swapped", "-o", "out"], "tuned"),
        (["embed", "scratch/model", "swapped", "-o", "out"], "scratch"),
        ([*fit, "--predict", "swapped"], "csv"),
        (["classify", "swapped", "--probe", "p.safetensors", *fit[4:]], "p.safetensors"),
        (["classify", "swapped", "--probe", "tuned", "--model", "tuned/model", *fit[6:]], "tuned"),
    ):
        assert main(command) == 2, command
        assert f"0 has 'heat' where {where} has 'load'" in capsys.readouterr().err, command


def test_a_run_without_dates_is_tuned_on_dated_files_without_their_calendar(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dates = pd.date_range("2024-01-01", periods=36, freq="h", name="date")
    for folder, dated in (("plain", False), ("dated", True)):
        Path(folder).mkdir()
        for recording in made_recordings()[:8]:
            table = pd.DataFrame(recording.values[:36], dates, ["load", "heat"])
            table.to_csv(f"{folder}/{recording.name}.csv", index=dated)
    labels = "\n".join(f"{i},{i % 2}" for i in range(8))
    Path("y.csv").write_text(f"series,label\n{labels}\n")
    assert main(["pretrain", "plain", "-o", "run", *SETTINGS]) == 0
    for folder in ("plain", "dated"):
        tune = ["finetune", folder, "--labels", "y.csv", "--from", "run", "-o", f"on-{folder}"]
        assert main([*tune, "train.epochs=1"]) == 0
        assert main(["embed", f"on-{folder}/model", folder, "-o", f"of-{folder}"]) == 0
    plain, dated = (np.load(f"of-{folder}/tokens.npy") for folder in ("plain", "dated"))
    np.testing.assert_array_equal(plain, dated)


def test_columns_are_not_taken_for_the_calendar(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dates = pd.date_range("2024-01-01", periods=250, freq="h", name="date")
    rng = np.random.default_rng(0)
    for name, count in (("one", 1), ("eight", 8)):
        pd.DataFrame(rng.normal(size=(250, count)), dates, list("abcdefgh")[:count]).to_csv(
            f"{name}.csv"
        )
    assert main(["pretrain", "one.csv", "-o", "run", *SETTINGS, "data.covariates=true"]) == 0
    assert main(["forecast", "eight.csv", "--model", "run/model", "--horizon", "3"]) == 2
    message = "eight.csv has 8 columns; run was trained on the calendar and a"
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "the following arguments are required: COMMAND"),
        (["dmeo"], "invalid choice: 'dmeo'"),
        (["demo", "extra"], "unrecognized arguments: extra"),
        (["demo", "a.b=1"], "unrecognized arguments: a.b=1"),
        (["pretrain", "x.npy"], "the following arguments are required: -o/--out"),
        (["pretrain", "x.npy", "-o", "r", "epochs"], "unrecognized arguments: epochs"),
        (["embed", "m", "x", "-o", "o", "--sampling-rate", "a"], "invalid float value: 'a'"),
        (["finetune", "x.npy", "-o", "r", "--y", "y.npy"], "unrecognized arguments: --y y.npy"),
        (["forecast", "x.csv", "--model", "m"], "arguments are required: --horizon"),
        (["probe"], "the following arguments are required: COMMAND; see progmem probe --help"),
        (["probe", "cue", "m"], "are required: SET; see progmem probe cue --help"),
    ],
)
def test_bad_use_gives_one_line_and_exit_code_2(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    printed = capsys.readouterr().err
    assert printed.startswith("progmem: ") and message in printed
    assert printed.count("\n") == 1


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["pretrain", "nowhere.npy"], "there is no nowhere.npy; give a .npy, .npz, .csv, "),
        (["pretrain", "x.npy", "trian.epochs=3"], "unknown setting 'trian'; did you mean 'train'?"),
        (["pretrain", "x.npy", "train.epoch=3"], "did you mean 'train.epochs'?"),
        (["pretrain", "x.npy", "train=3"], "must be section.key=value, e.g. train.epochs=20"),
        (["pretrain", "x.npy", "train.epochs=0"], "train.epochs must be a whole number from 1 up"),
        (["pretrain", "x.npy", "train.epochs=[1"], "has a value that is not yaml"),
        (["pretrain", "x.npy", "train.lr=fast"], "train.lr must be a number above 0, got 'fast'"),
        (["pretrain", "x.npy", "train.lr_end=1"], "train.lr_end must be at most train.lr"),
        (
            ["pretrain", "x.npy", "train.precision=16"],
            "must be one of auto, 32, bf16, 64, got '16'",
        ),
        (["pretrain", "x.npy", "train.device=cuda"], "no GPU is available here"),
        (
            ["pretrain", "x.npy", "views.preset=wild"],
            "must be one of hidden, gentle, medium, strong",
        ),
        (["pretrain", "x.npy", "views.crop=1"], "views.crop must be in [0, 1), got 1"),
        (["pretrain", "x.npy", "loss.icl=-1"], "loss.icl must be a number from 0 up, got -1"),
        (
            ["pretrain", "x.npy", "loss.icl=0", "loss.pcl=0", "loss.hgcl=0", "loss.predict=0"],
            "nothing would be learnt",
        ),
        (["pretrain", "x.npy", "loss.hgcl_form=new"], "one of printed, soft_positive, got 'new'"),
        (
            ["pretrain", "x.npy", "data.window=4000"],
            "data.window must be in 1..2048 (data.longest)",
        ),
        (["pretrain", "x.npy", "data.sampling_rate=0"], "must be a number above 0 or null, got 0"),
        (["pretrain", "x.npy", "model.slots=-1"], "model.slots must be a whole number from 0 up"),
        (["pretrain", "x.npy", "-c", "nowhere.yaml"], "nowhere.yaml cannot be read: No such file"),
        (["pretrain", "x.npy", "-c", "bad.yaml"], "bad.yaml is not yaml"),
        (["pretrain", "x.npy", "-c", "list.yaml"], "list.yaml must be a mapping of settings"),
        (["embed", "nowhere", "x.npy"], "there is no model folder nowhere"),
        (["embed", ".", "x.npy"], "is not a progmem model folder"),
        (["embed", "nowhere", "."], "out lies in ., whose files are read as recordings"),
    ],
)
def test_bad_input_gives_one_line_exit_code_2_and_no_folder(
    arguments, message, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.zeros((9, 48, 2)))
    (tmp_path / "bad.yaml").write_text("a: [")
    (tmp_path / "list.yaml").write_text("- a")
    if torch.cuda.is_available() and "train.device=cuda" in arguments:
        return
    assert main([*arguments, "-o", "out"]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("progmem: ") and message in printed, printed
    assert printed.count("\n") == 1
    assert not (tmp_path / "out").exists()


FIELDS = [
    (section, field.name)
    for section, cls in [
        ("model", progmem.ModelConfig), ("data", DataConfig), ("views", ViewConfig),
        ("loss", LossConfig), ("train", TrainConfig),
    ]
    for field in dataclasses.fields(cls)
]  # fmt: skip


@pytest.mark.parametrize("section, name", FIELDS)
def test_every_setting_refuses_nonsense_by_name(section, name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.zeros((9, 48, 2)))
    for nonsense in ("[1]", "nonsense", "-7.5"):
        assert main(["pretrain", "x.npy", "-o", "out", f"{section}.{name}={nonsense}"]) == 2
        printed = capsys.readouterr().err
        assert f"{section}.{name} " in printed and printed.count("\n") == 1, printed
    assert not (tmp_path / "out").exists()
