"""The commands that ask an index: tables with times, what is said, and what is refused."""

import errno
import shlex
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from page_setup import KIND, made_recordings, small_model

from progmem import explore, files
from progmem.cli import main
from progmem.explore.folder import FILE

DAY = pd.Timestamp("2024-03-31 00:59:50", tz="Europe/Oslo")  # the clock is put on an hour then
STEP = pd.Timedelta("20ms")
ODD = "=<script>alert(1)</script>"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a model, dated recordings, their index, and an index of odd recordings."""
    folder = tmp_path_factory.mktemp("commands")
    small_model().save(folder / "model")
    small_model(3).save(folder / "three")
    torch.manual_seed(1)
    small_model().save(folder / "other")
    (folder / "recordings").mkdir()
    for i, recording in enumerate(made_recordings()):
        table = pd.DataFrame(recording.values, columns=["x", "y"])
        dates = pd.date_range(DAY + pd.Timedelta(i, "D"), periods=len(table), freq=STEP)
        table.insert(0, "date", dates)
        table.to_csv(folder / f"recordings/walk {i}.csv", index=False)
    assert main(shlex.split(f"index {folder}/model {folder}/recordings -o {folder}/idx")) == 0
    values = made_recordings(1)[0].values
    odd = {f"{ODD}\n": values, "gaps": np.full((400, 2), np.nan), "short": values[:30]}
    explore.index(small_model(), odd, folder / "odd")
    return folder


@pytest.fixture
def idx(made, monkeypatch, tmp_path):
    """The index, and a new folder to be in that has links to all that was made."""
    for path in made.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    return explore.open_index("idx")


def ask(command):
    """The table that a command writes."""
    assert main(shlex.split(command)) == 0
    return pd.read_csv(shlex.split(command)[shlex.split(command).index("-o") + 1])


def check_times(table, idx):
    """The times of a table are the dates of its samples."""
    assert len(table)
    for row in table.itertuples():
        first = DAY + pd.Timedelta(idx.number(row.series), "D")
        assert pd.Timestamp(row.start_time) == first + row.start * STEP
        assert pd.Timestamp(row.end_time) == first + row.end * STEP


def test_a_search_between_samples_or_dates_writes_what_the_library_finds(idx):
    table = ask(f"search idx 'walk 0' 0 {KIND} -k 3 -o found.csv")
    found = explore.search(idx, "walk 0", 0, KIND, k=3)
    assert [tuple(row[:3]) for row in table.to_numpy().tolist()] == [one[:3] for one in found]
    assert np.allclose(table["distance"], [one.distance for one in found], atol=1e-4)
    check_times(table, idx)
    start, end = DAY, DAY + KIND * STEP  # which lies on both sides of the change of the clock
    dated = ask(f"search idx 'walk 0' '{start}' '{end}' -k 3 -o dated.csv")
    pd.testing.assert_frame_equal(dated, table)


def test_regimes_of_all_recordings_or_of_one(idx):
    table = ask("segment idx -o all.csv")
    found = [segment for name in idx.names for segment in explore.segment(idx, name)]
    columns = table[["series", "start", "end", "regime"]]
    assert [tuple(row) for row in columns.to_numpy().tolist()] == [tuple(one) for one in found]
    check_times(table, idx)
    one = ask("segment idx --series 'walk 2' --count 2 -o one.csv")
    assert one["series"].tolist() == ["walk 2"] * 2
    assert len(ask("segment idx --series 'walk 2' --penalty 1000 -o few.csv")) == 1


def test_states_cover_what_is_observed_and_their_profile_has_the_units_of_the_signal(idx):
    table = ask("states idx -k 2 -o states.csv --profile profile.csv")
    found = explore.states(idx, 2)
    for name in idx.names:
        state = np.full(len(idx.windows(name)), -1)
        for row in table[table["series"] == name].itertuples():
            inside = (idx.windows(name)[:, 0] >= row.start) & (idx.windows(name)[:, 1] <= row.end)
            state[inside] = row.state
        np.testing.assert_array_equal(state, found.labels[name])
    check_times(table, idx)
    profile = pd.read_csv("profile.csv")
    assert profile["channel"].tolist() == ["x", "y"] * 2
    assert np.allclose(profile["mean"], found.mean.ravel(), atol=1e-5)
    assert np.allclose(profile["share"], found.share.repeat(2), atol=1e-4)


def test_surprise_has_a_row_for_each_window_that_has_some_before(idx):
    table = ask("surprise idx -o surprise.csv")
    for name in idx.names:
        values = explore.surprise(idx, name)
        own = table[table["series"] == name]
        assert own["start"].tolist() == idx.windows(name)[np.isfinite(values), 0].tolist()
        assert np.allclose(own["surprise"], values[np.isfinite(values)], rtol=1e-3)
    check_times(table, idx)


def test_suggestions_are_a_file_of_labels_once_it_is_filled_in(idx):
    first = ask("suggest idx --count 3 -o todo.csv")
    assert first["label"].isna().all() and len(set(map(tuple, first.iloc[:, :3].to_numpy()))) == 3
    check_times(first, idx)
    first.assign(label=["slow", "fast", ""]).to_csv("labels.csv", index=False)
    more = ask("suggest idx --labels labels.csv -o more.csv")
    known = [(*row[:3], row[3]) for row in first.assign(label="a").to_numpy().tolist()[:2]]
    assert tuple(more.iloc[0, :3]) == explore.suggest(idx, known)[:3]
    dated = first.assign(label="a").drop(columns=["start", "end"])[:2]
    dated.rename(columns={"start_time": "start", "end_time": "end"}).to_csv("d.csv", index=False)
    pd.testing.assert_frame_equal(ask("suggest idx --labels d.csv -o again.csv"), more)


def test_fewer_are_suggested_where_little_is_left(idx):
    assert 3 < len(ask("suggest idx --count 1000 -o all.csv")) < 30


def test_a_table_says_what_each_row_of_an_index_is(idx, capsys):
    shutil.copytree("idx", "again")
    before = files._identity(files.Path("again"))
    assert main(shlex.split("index model recordings -o again --windows rows.csv")) == 0
    table = pd.read_csv("rows.csv")
    assert len(table) == len(idx)
    assert table[["start", "end"]].to_numpy().tolist() == [
        span for name in idx.names for span in idx.windows(name).tolist()
    ]
    check_times(table, idx)
    assert files._identity(files.Path("again")) == before
    assert "it is used as it is" in capsys.readouterr().out


QUESTIONS = {
    "index": "index model recordings -o again",
    "search": "search idx 'walk 0' 0 200 -o a.csv",
    "segment": "segment idx -o a.csv",
    "states": "states idx -o a.csv",
    "surprise": "surprise idx -o a.csv",
    "suggest": "suggest idx -o a.csv",
}


@pytest.mark.parametrize("command", QUESTIONS.values(), ids=QUESTIONS)
def test_a_command_says_what_was_written_and_what_comes_next_or_nothing(command, idx, capsys):
    shutil.copytree("idx", "again")
    assert main(shlex.split(command)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("reading ") and lines[0].endswith(" ...")
    assert lines[-1].startswith("written: a") and "; next: " in lines[-1]
    assert main([*shlex.split(command), "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_gaps_and_odd_names_do_no_harm(idx, capsys):
    assert "left out" not in capsys.readouterr().out
    for command in ("segment odd -o s.csv", "surprise odd -o n.csv"):
        table = ask(command)
        assert "gaps" not in set(table["series"])
        assert "nothing is observed in 1 recordings, such as gaps; left out" in (
            capsys.readouterr().out
        )
    table = ask("states odd -k 2 -o states.csv")
    assert set(table["series"]) == {f"'{ODD}\\n", "short"}  # no cell is a formula or two lines
    assert table["start_time"].isna().all()
    assert len(ask(f"search odd '{ODD}\\n' 0 100 -k 2 -o m.csv")) == 2
    assert main(["search", "odd", f"{ODD}\n", "0", "100", "-o", "m.csv"]) == 0


BAD = {
    "no index": ("segment nowhere -o a.csv", "there is no index nowhere; `progmem index` makes"),
    "a model for an index": ("states model -o a.csv", "there is no index model"),
    "no table": ("segment idx -o a.txt", "tables are .csv files, got a.txt"),
    "no profile": ("states idx -o a.csv --profile a.png", "tables are .csv files, got a.png"),
    "no windows": ("index model recordings -o new --windows new", "tables are .csv files, got new"),
    "windows over a recording": (
        "index model recordings -o new --windows 'recordings/walk 0.csv'",
        "recordings/walk 0.csv lies in recordings, whose files are read as recordings; name a",
    ),
    "an index in the recordings": (
        "index model recordings -o recordings/idx",
        "recordings/idx lies in recordings, whose files are read",
    ),
    "no such folder": ("surprise idx -o no/a.csv", "there is no folder no to write a.csv into"),
    "no such recording": ("segment idx --series run -o a.csv", "the index has no recording 'run'"),
    "no such stretch": ("search idx run 0 9 -o a.csv", "the index has no recording 'run'"),
    "neither number nor date": (
        "search idx 'walk 0' monday 9 -o a.csv",
        "the stretch: 'monday' is neither a number of a sample nor a date such as 2024-03-31",
    ),
    "no dates": ("search odd short 2024-01-01 9 -o a.csv", "and short has no dates"),
    "nothing but gaps": ("segment odd --series gaps -o a.csv", "nothing is observed in gaps"),
    "a stretch in a gap": ("search odd gaps 0 90 -o a.csv", "nothing is observed in gaps from 0"),
    "no suggestion": ("suggest idx --count 0 -o a.csv", "count must be a whole number from 1 up"),
    "no labels": ("suggest idx --labels none.csv -o a.csv", "there is no file none.csv"),
    "over the labels": ("suggest idx --labels l.csv -o l.csv", "l.csv is what is read, and would"),
    "a label elsewhere": (
        "suggest idx --labels other.csv -o a.csv",
        "other.csv names 'swim', which is not in idx: walk 0, walk 1, walk 2",
    ),
    "a model of other channels": (
        "index three recordings -o idx",
        "walk 0: model has 3 channels, got 2",
    ),
    "a folder of other things": (
        "index model recordings -o model",
        "model holds other files; give an index a folder of its own",
    ),
    "a file": ("index model recordings -o l.csv", "l.csv is a file; give an index a folder"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_done_is_one_line_and_nothing_is_lost(case, idx, tmp_path, capsys):
    command, message = BAD[case]
    (tmp_path / "l.csv").write_text("series,start,end,label\nwalk 0,0,90,a\n")
    (tmp_path / "other.csv").write_text("series,start,end,label\nswim,0,90,a\n")
    (tmp_path / "a.csv").write_text("before")
    before = sorted(tmp_path.iterdir())
    assert main([*shlex.split(command), "--quiet"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("progmem: ") and message in said and said.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "a.csv").read_text() == "before"
    assert explore.open_index("idx").sha256 == idx.sha256


def test_on_a_full_disk_what_was_there_before_stays(idx, tmp_path, capsys, monkeypatch):

    def full(path):
        raise OSError(errno.ENOSPC, "no space")

    (tmp_path / "a.csv").write_text("before")
    monkeypatch.setattr(files, "_sync", full)
    for command, path in {
        "segment idx -o a.csv": "a.csv",
        "index other recordings -o idx": "idx",
    }.items():
        assert main([*shlex.split(command), "--quiet"]) == 1
        said = capsys.readouterr().err
        assert f"{path} was not written: No space left on device" in said and said.count("\n") == 1
    assert (tmp_path / "a.csv").read_text() == "before"
    assert explore.open_index("idx").sha256 == idx.sha256


def test_an_index_of_another_model_is_made_anew_and_says_so(idx, capsys):
    shutil.copytree("idx", "own")
    assert main(shlex.split("index other recordings -o own")) == 0
    assert "own is of another model; it is made anew" in capsys.readouterr().out
    assert explore.open_index("own").sha256 != idx.sha256


def test_a_damaged_index_is_named(idx, capsys):
    shutil.copytree("idx", "own")
    path = files.Path("own") / FILE
    path.write_bytes(path.read_bytes()[:-9])
    assert main(shlex.split("segment own -o a.csv --quiet")) == 2
    assert "make the index anew" in capsys.readouterr().err
