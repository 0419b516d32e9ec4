"""One reader for commands and Python: the same recordings whatever they are kept in."""

import gzip
import json

import numpy as np
import pandas as pd
import pytest
import torch
from made_tables import ts_text

import progmem
from progmem.cli import main
from progmem.data.reader import read_with
from progmem.errors import InputError

X = np.random.default_rng(0).normal(size=(4, 50, 3)).round(3)  # (series, time, channels)
DATES = pd.date_range("2024-03-30", periods=50, freq="h")
NAMES = ["ax", "ay", "az"]


def long_table(x=X, **names):
    named = {"case": "case", "time": "time", **names}
    parts = [
        pd.DataFrame(one, columns=NAMES).assign(
            **{named["case"]: f"c{i}", named["time"]: range(50)}
        )
        for i, one in enumerate(x)
    ]
    return pd.concat(parts, ignore_index=True)


def dated(x=X[0]):
    return pd.DataFrame(x, index=DATES.rename("date"), columns=NAMES)


def melted():
    return long_table().melt(["case", "time"], var_name="channel", value_name="value")


def write_arff(path):
    head = ["@relation made", *(f"@attribute t{i} numeric" for i in range(50))]
    rows = [",".join([*map(str, one[:, 0]), "a"]) for one in X]
    path.write_text("\n".join([*head, "@attribute target {a,b}", "@data", *rows]) + "\n")


def write_folder(path):
    (path / "in" / "depth").mkdir(parents=True)
    for i, one in enumerate(X):
        np.save(path / "in" / ("depth" if i % 2 else ".") / f"{i}.npy", one)


def write_gz(path):
    with gzip.open(path, "wt") as stream:
        long_table().to_csv(stream, index=False)


CHANNELS_FIRST = X.transpose(0, 2, 1)
CTS = {"layout": "series,channels,time"}
FILES = {  # name of the file, how it is written, how it is read
    "npy": ("x.npy", lambda p: np.save(p, X), {}),
    "npy, channels first": ("x.npy", lambda p: np.save(p, CHANNELS_FIRST), CTS),
    "npz": ("x.npz", lambda p: np.savez(p, X=X), {}),
    "npz, named recordings": (
        "x.npz", lambda p: np.savez(p, **{f"r{i}": one for i, one in enumerate(X)}), {}),
    "npz with labels": ("x.npz", lambda p: np.savez(p, X_train=X, y_train=np.arange(4)), {}),
    "npz, two parts": (
        "x.npz", lambda p: np.savez(p, X_train=X[:3], y_train=[0, 1, 0], X_test=X[3:], y_test=[1]),
        {}),
    "long csv": ("x.csv", lambda p: long_table().to_csv(p, index=False), {}),
    "long csv, other names": (
        "x.csv", lambda p: long_table(case="who", time="when").to_csv(p, index=False),
        {"case": "who", "time": "when"}),
    "long csv, semicolons": (
        "x.csv", lambda p: long_table().to_csv(p, index=False, sep=";"), {"sep": ";"}),
    "long csv, decimal commas": (
        "x.csv", lambda p: long_table().to_csv(p, index=False, sep=";", decimal=","),
        {"sep": ";", "decimal": ","}),
    "long csv of unique_id and ds": (
        "x.csv", lambda p: long_table(case="unique_id", time="ds").to_csv(p, index=False), {}),
    "long csv of item_id and timestamp": (
        "x.csv", lambda p: long_table(case="item_id", time="timestamp").to_csv(p, index=False), {}),
    "long csv.gz": ("x.csv.gz", write_gz, {}),
    "long tsv": ("x.tsv", lambda p: long_table().to_csv(p, index=False, sep="\t"), {}),
    "melted csv": ("x.csv", lambda p: melted().to_csv(p, index=False), {}),
    "long parquet": ("x.parquet", lambda p: long_table().to_parquet(p), {}),
    "parquet with an index of two levels": (
        "x.parquet", lambda p: long_table().set_index(["case", "time"]).to_parquet(p), {}),
    "ts": ("x.ts", lambda p: p.write_text(ts_text(CHANNELS_FIRST, None)), {}),
    "nested folders": ("x", write_folder, {}),
}  # fmt: skip
ONE_CHANNEL = {
    "wide csv": (
        "x.csv", lambda p: pd.DataFrame(X[..., 0]).to_csv(p, index=False),
        {"layout": "series,time"}),
    "wide csv with labels": (
        "x.csv", lambda p: pd.DataFrame(X[..., 0]).assign(y=7).to_csv(p, index=False),
        {"layout": "series,time", "label": "y"}),
    "wide parquet": (
        "x.parquet", lambda p: pd.DataFrame(X[..., 0]).add_prefix("t").to_parquet(p),
        {"layout": "series,time"}),
    "tsv of the UCR archive": (
        "x.tsv",
        lambda p: np.savetxt(p, np.c_[[1, 2, 1, 2], X[..., 0]], fmt="%.8g", delimiter="\t"), {}),
    "flat npy": ("x.npy", lambda p: np.save(p, X[..., 0]), {"layout": "series,time"}),
    "arff": ("x.arff", write_arff, {}),
}  # fmt: skip
ONE_RECORDING = {
    "npy": ("x.npy", lambda p: np.save(p, X[0]), {}),
    "npy, channels first": ("x.npy", lambda p: np.save(p, X[0].T), {"layout": "channels,time"}),
    "csv": ("x.csv", lambda p: pd.DataFrame(X[0], columns=NAMES).to_csv(p, index=False), {}),
    "csv without names": ("x.csv", lambda p: np.savetxt(p, X[0], delimiter=",", fmt="%.8g"), {}),
    "csv with dates": ("x.csv", lambda p: dated().to_csv(p), {}),
    "csv with dates of another name": (
        "x.csv", lambda p: dated().rename_axis("when").to_csv(p), {"date_column": "when"}),
    "csv with dates of another form": (
        "x.csv", lambda p: dated().to_csv(p, date_format="%d.%m.%Y %H:%M"),
        {"date_format": "%d.%m.%Y %H:%M"}),
    "csv backwards in time": ("x.csv", lambda p: dated()[::-1].to_csv(p), {}),
    "csv with twice the same date": (
        "x.csv", lambda p: dated().iloc[[*range(9), *range(8, 50)]].to_csv(p),
        {"drop_duplicates": True}),
    "csv with numbered samples": (
        "x.csv", lambda p: pd.DataFrame(X[0], columns=NAMES).assign(Time=np.arange(50) / 100)
        .to_csv(p, index=False), {}),
    "csv without names, decimal commas": (
        "x.csv", lambda p: p.write_text("\n".join(
            ";".join(f"{v}".replace(".", ",") for v in row) for row in X[0].tolist())),
        {"sep": ";", "decimal": ","}),
    "parquet with dates": ("x.parquet", lambda p: dated().to_parquet(p), {}),
    "tsv with names": (
        "x.tsv", lambda p: pd.DataFrame(X[0], columns=NAMES).to_csv(p, index=False, sep="\t"), {}),
}  # fmt: skip


def write_edf(path, *, kind="Edf"):
    """Whole thousandths, which all of X is, have a number of their own in the file."""
    edfio = pytest.importorskip("edfio")
    signals = [
        getattr(edfio, f"{kind}Signal")(
            x, 50, label=name, physical_range=(-10, 10), digital_range=(-10_000, 10_000)
        )
        for name, x in zip(NAMES, X[0].T, strict=True)
    ]
    getattr(edfio, kind)(signals).write(path)


def write_wfdb(path):
    wfdb = pytest.importorskip("wfdb")
    wfdb.wrsamp(
        path.stem, fs=50, units=["g"] * 3, sig_name=NAMES, p_signal=X[0], fmt=["32"] * 3,
        adc_gain=[1000] * 3, baseline=[0] * 3, write_dir=str(path.parent),
    )  # fmt: skip


def write_miniseed(path):
    obspy = pytest.importorskip("obspy")
    traces = [
        obspy.Trace(x.copy(), {"station": "ONE", "channel": f"BH{c}", "sampling_rate": 50.0})
        for c, x in enumerate(X[0].T)
    ]
    obspy.Stream(traces).write(str(path), format="MSEED")


SIGNALS = {
    "edf": ("x.edf", write_edf, {}),
    "bdf": ("x.bdf", lambda p: write_edf(p, kind="Bdf"), {}),
    "wfdb": ("x.hea", write_wfdb, {}),
    "miniseed": ("x.mseed", write_miniseed, {}),
}
ALL_FILES = [
    *(pytest.param(*cell, X, id=name) for name, cell in FILES.items()),
    *(pytest.param(*cell, X[..., :1], id=name) for name, cell in ONE_CHANNEL.items()),
    *(
        pytest.param(*cell, X[:1], id=f"one recording: {n}")
        for n, cell in {**ONE_RECORDING, **SIGNALS}.items()
    ),
]


@pytest.mark.parametrize("file, write, options, expected", ALL_FILES)
def test_the_same_recordings_come_out_of_every_file(tmp_path, file, write, options, expected):
    write(tmp_path / file)
    found = progmem.read(tmp_path / file, **options)
    assert len(found) == len(expected)
    order = np.argsort([name[-1] for name in found.names]) if file == "x" else range(len(found))
    for i, one in zip(order, expected, strict=True):  # a folder in a folder comes last
        np.testing.assert_allclose(found[int(i)].values, one, atol=1e-12, rtol=0)
    assert progmem.read(str(tmp_path / file), **options).names == found.names


REFUSED = {
    "flat npy": ("x.npy", lambda p: np.save(p, X[..., 0]), "'time,channels' .* or layout='series,"),
    "channels first": ("x.npy", lambda p: np.save(p, CHANNELS_FIRST), "or layout='series,channels"),
    "wide csv": (
        "x.csv", lambda p: pd.DataFrame(X[..., 0]).to_csv(p, index=False),
        "4 rows and 50 columns: .* say layout='time,channels' if so, or layout='series,time'"),
    "two series in one csv": (
        "x.csv", lambda p: pd.concat([dated(), dated()]).to_csv(p), "row 50, .* is there twice"),
    "gaps": ("x.csv", lambda p: dated().drop(DATES[7]).to_csv(p), "rows of NaN; fill_gaps=True"),
    "semicolons": ("x.csv", lambda p: dated().to_csv(p, sep=";"), r"sep \(--sep ';'\)"),
    "decimal commas": (
        "x.csv", lambda p: dated().reset_index(drop=True).to_csv(p, decimal=",", index=False),
        "column ax, ay, az does not hold them; are its commas decimal signs\\? .*--decimal ,"),
    "a decimal sign between cells": (
        "x.csv", lambda p: dated().to_csv(p), "',' cannot be the decimal sign and separate cells"),
    "another decimal sign": (
        "x.csv", lambda p: dated().to_csv(p), "decimal must be '.' or ',', got '#'"),
    "dates day first": (
        "x.csv", lambda p: dated().to_csv(p, date_format="%d.%m.%Y %H:%M"), "--date-format"),
    "text": ("x.csv", lambda p: dated().assign(note="a").to_csv(p), "column note does not .* drop"),
    "text in a npy": ("x.npy", lambda p: p.write_text("1,2\n"), "text: is it a .csv file?"),
    "another kind": ("x.mat", lambda p: p.write_text("?"), r"must end in one of \.npy, "),
    "no recording": ("x", lambda p: (p.mkdir(), (p / "a.txt").touch()), "holds no .* has a.txt"),
    "labels of other length": (
        "x.npz", lambda p: np.savez(p, X=X, y=[1, 2]), r"y has shape \(2,\), X holds 4 series"),
    "names of columns": ("x.npy", lambda p: np.save(p, X), "case names a column, but there is no"),
    "layout of a ts": ("x.ts", lambda p: p.write_text(ts_text(X, None)), "says itself what its ax"),
    "layout of other axes": ("x.npy", lambda p: np.save(p, X), r"\(4, 50, 3\), which is not \(ti"),
    "unknown layout": ("x.npy", lambda p: np.save(p, X), r"layout must be one of time \| time,cha"),
}  # fmt: skip
NEEDED = {
    "names of columns": {"case": "id"}, "layout of a ts": {"layout": "series,time,channels"},
    "a decimal sign between cells": {"decimal": ","}, "another decimal sign": {"decimal": "#"},
    "layout of other axes": {"layout": "time,channels"}, "unknown layout": {"layout": "wide"},
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_could_be_several_things_is_refused_with_the_ways_to_say_it(
    tmp_path, monkeypatch, capsys, name
):
    file, write, message = REFUSED[name]
    monkeypatch.chdir(tmp_path)
    write(tmp_path / file)
    options = NEEDED.get(name, {})
    with pytest.raises(InputError, match=message) as refused:
        progmem.read(file, **options)
    assert "\n" not in str(refused.value)
    given = [text for key, value in options.items() for text in (f"--{key}", value)]
    assert main(["pretrain", file, "-o", "run", *given]) == 2  # a command says the same
    assert capsys.readouterr().err == f"progmem: {refused.value}\n"


def test_a_gap_is_filled_where_that_is_asked_for(tmp_path):
    table = dated().drop(DATES[[7, 8, 30]])
    table.to_csv(tmp_path / "x.csv")
    found = progmem.read(tmp_path / "x.csv", fill_gaps=True)
    expected = X[0].copy()
    expected[[7, 8, 30]] = np.nan
    np.testing.assert_array_equal(found[0].values, expected)
    assert found.notes == ("x: put in 3 rows of NaN where samples are missing",)
    times = pd.DataFrame(X[0][[0, 1, 3, 4]], columns=NAMES).assign(time=[0, 0.1, 0.3, 0.4])
    assert np.isnan(progmem.read(times, fill_gaps=True)[0].values[2]).all()
    with pytest.raises(
        InputError, match=r"from time 0.1 to 0.3 \(row 2\) samples are missing, .*f"
    ):
        progmem.read(times)


def test_sentinels_are_missing_where_they_are_named(tmp_path):
    x = X[0].copy()
    x[3, 1], x[4, 0] = -9999, -99
    np.save(tmp_path / "x.npy", x)
    pd.DataFrame(x, columns=NAMES).replace(-99, "?").to_csv(tmp_path / "y.csv", index=False)
    for file in ("x.npy", "y.csv"):
        values = progmem.read(tmp_path / file, missing=[-9999, -99, "?"])[0].values
        assert np.argwhere(np.isnan(values)).tolist() == [[3, 1], [4, 0]]
    assert not np.isnan(progmem.read(tmp_path / "x.npy")[0].values).any()


def test_files_of_other_kinds_are_named_and_labels_are_no_recording(tmp_path):
    (tmp_path / "sub").mkdir()
    np.save(tmp_path / "sub" / "a.npy", X[0])
    long_table().to_csv(tmp_path / "long.csv", index=False)
    (tmp_path / "sub" / "readme.pdf").touch()
    (tmp_path / ".hidden.npy").touch()
    (tmp_path / "labels.csv").write_text("series,label\nsub/a,x\n")
    said = []
    found = read_with(tmp_path, log=said.append)
    assert said == []  # that it reads is said before, and all is read at once
    assert found.names == ["long.c0", "long.c1", "long.c2", "long.c3", "sub/a"]
    assert found.skipped == ("labels.csv", "sub/readme.pdf")
    assert found.lines()[-1] == "skipped files that are no recordings: labels.csv, sub/readme.pdf"


def test_notes_of_many_files_are_a_few_lines(tmp_path):
    table = pd.DataFrame({"time": [0, 1, 3], "x": [1.0, 2.0, 3.0]})
    table["time"] = pd.to_datetime(table["time"], unit="h")
    for i in range(9):
        table.to_csv(tmp_path / f"{i}.csv", index=False)
    found = progmem.read(tmp_path, fill_gaps=True)
    assert len(found.notes) == 9
    lines = found.lines()[1:]
    assert lines[4:] == [found.notes[4], "and 4 more such notes, all in progmem check --json"]


def test_reading_many_files_says_how_long_it_will_take(tmp_path, monkeypatch):
    for i in range(4):
        np.save(tmp_path / f"{i}.npy", X[i])
    monkeypatch.setattr("progmem.progress.EVERY", 0.0)
    said = []
    read_with(tmp_path, log=said.append)
    assert said[0].startswith("reading 4 files: 1 of 4, about 0 s left") and len(said) == 3


def test_a_case_of_uneven_dates_is_named_with_what_would_repair_it():
    table = long_table(time="date").assign(date=[*DATES] * 4).drop(index=57)
    found = progmem.read(table)
    assert found[1].calendar is None and found[0].calendar is not None
    assert "1 of 4 cases have dates that are not evenly spaced, or too few (c1)" in found.notes[1]
    assert found.notes[1].endswith("fill_gaps=True (--fill-gaps) puts rows of NaN there")
    assert all(one.calendar is not None for one in progmem.read(table, fill_gaps=True))


def test_labels_in_a_file_go_with_its_recordings(tmp_path):
    np.savez(tmp_path / "x.npz", X_train=X[:3], y_train=[4, 5, 4], X_test=X[3:], y_test=[5])
    assert progmem.read(tmp_path / "x.npz").labels.tolist() == [4, 5, 4, 5]
    np.savez(tmp_path / "y.npz", X_train=X[:3], y_train=[4, 5, 4], X_test=X[3:])
    assert progmem.read(tmp_path / "y.npz").labels.tolist() == [4, 5, 4, None]
    (tmp_path / "x.ts").write_text(ts_text(CHANNELS_FIRST, ["sit", "walk", "sit", "walk"]))
    assert progmem.read(tmp_path / "x.ts").labels.tolist() == ["sit", "walk", "sit", "walk"]


def objects():
    polars = pytest.importorskip("polars")
    xarray = pytest.importorskip("xarray")

    series = xarray.DataArray(X, dims=("case", "time", "channel"), coords={"channel": NAMES})
    yield "numpy", X, {}
    yield "torch", torch.from_numpy(X), {}
    yield "channels first", CHANNELS_FIRST, CTS
    yield "list", list(X), {}
    yield "list of channels first", list(CHANNELS_FIRST), {"layout": "channels,time"}
    yield "dict", {f"r{i}": one for i, one in enumerate(X)}, {}
    yield "long pandas", long_table(), {}
    yield "long pandas by names", long_table(case="a", time="b"), {"case": "a", "time": "b"}
    yield "melted pandas", melted(), {}
    yield "aeon's long table", melted().set_axis(
        ["case_index", "time_index", "dim_id", "value"], axis=1), {}  # fmt: skip
    yield "pandas with two levels", long_table().set_index(["case", "time"]), {}
    yield "list of tables", [pd.DataFrame(one, columns=NAMES) for one in X], {}
    yield "list of tables with dates", [dated(one) for one in X], {}
    yield "polars", polars.from_dict(long_table().to_dict("list")), {}
    yield "xarray", series, {}
    yield "xarray, transposed", series.transpose("channel", "case", "time"), {}
    yield (
        "xarray of other names",
        series.rename(case="who", time="when", channel="what"),
        {"layout": "series,time,channels"},
    )
    yield "xarray's set", series.to_dataset("channel"), {}


@pytest.mark.parametrize("name, source, options", [pytest.param(*o, id=o[0]) for o in objects()])
def test_the_same_recordings_come_out_of_every_object(name, source, options):
    found = progmem.read(source, **options)
    assert len(found) == 4
    for recording, expected in zip(found, X, strict=True):
        np.testing.assert_array_equal(recording.values, expected)


def test_names_and_dates_go_with_tables_and_arrays():
    xarray = pytest.importorskip("xarray")
    array = xarray.DataArray(
        X[0], dims=("time", "axis"), coords={"time": DATES, "axis": NAMES}, attrs={"units": "g"}
    )
    for source in (dated(), [dated()], array, dated().to_period("h")):
        (recording,) = progmem.read(source)
        assert recording.columns == tuple(NAMES)
        assert recording.rate == pytest.approx(1 / 3600)
        pd.testing.assert_index_equal(
            recording.calendar.at(np.arange(50)), DATES, check_names=False, exact="equiv"
        )
    assert recording.units == () and progmem.read(array)[0].units == ("g",) * 3


@pytest.mark.parametrize(
    "calendar",
    [
        pd.date_range("2024-01-31", periods=30, freq="ME"),
        pd.bdate_range("2024-01-31", periods=30),
        pd.date_range("2024-03-30", periods=72, freq="h", tz="Europe/Oslo"),
        pd.date_range("2024-03-30", periods=30, freq="D", tz="Europe/Oslo"),
    ],
)
def test_the_calendar_of_a_recording_gives_its_dates_back(calendar):
    (recording,) = progmem.read(pd.DataFrame({"v": np.ones(len(calendar))}, index=calendar))
    assert (recording.calendar.at(np.arange(len(calendar))) == calendar).all()
    assert recording.calendar.at(np.array([7, 3])).tolist() == [calendar[7], calendar[3]]


SMALL = ("model.dim=8", "model.heads=2", "model.blocks=1", "model.encoder_layers=1")


def encoder_of(x):
    return progmem.PMTEncoder(steps=1, device="cpu", settings=SMALL).fit(x.transpose(0, 2, 1))


@pytest.fixture(scope="module")
def encoder():
    return encoder_of(X)


@pytest.fixture(scope="module")
def encoders(encoder):
    """By the number of channels."""
    return {3: encoder, 1: encoder_of(X[..., :1])}


@pytest.mark.parametrize("file, write, options, expected", ALL_FILES)
def test_the_same_embedding_comes_out_of_every_file(
    tmp_path, encoders, file, write, options, expected
):
    write(tmp_path / file)
    encoder, found = encoders[expected.shape[-1]], progmem.read(tmp_path / file, **options)
    order = np.argsort([name[-1] for name in found.names]) if file == "x" else slice(None)
    expected = encoder.transform(expected.transpose(0, 2, 1))
    np.testing.assert_allclose(encoder.transform(found)[order], expected, atol=1e-6)
    if not options:  # an estimator reads a path as the commands do
        np.testing.assert_allclose(encoder.transform(tmp_path / file)[order], expected, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("file, write, options, expected", ALL_FILES)
def test_the_command_embeds_every_file_alike(
    tmp_path, monkeypatch, encoders, file, write, options, expected
):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / file)
    model = encoders[expected.shape[-1]].model_
    model.save("model")
    given = [f"--{key.replace('_', '-')}" + ("" if v is True else f"={v}")
             for key, v in options.items()]  # fmt: skip
    assert main(["embed", "model", file, "-o", "out", *given, "--quiet"]) == 0
    names = json.loads((tmp_path / "out/series.json").read_text())["names"]
    order = np.argsort([name[-1] for name in names]) if file == "x" else slice(None)
    z = model.encode(expected)
    np.testing.assert_allclose(np.load("out/sequence.npy")[order], z.sequence, atol=1e-6)


def test_a_long_table_is_never_one_case_a_row(encoder):
    expected = encoder.transform(CHANNELS_FIRST)
    for table in (long_table(), long_table(time="date").assign(date=[*DATES] * 4)):
        np.testing.assert_allclose(encoder.transform(table), expected, atol=1e-6)
    again = progmem.PMTEncoder(**encoder.get_params()).fit(long_table())
    assert again.channel_names_ == NAMES and again.channels_ == 3
    swapped = long_table()[["case", "az", "time", "ax", "ay"]]
    np.testing.assert_array_equal(again.transform(swapped), again.transform(long_table()))


def test_one_recording_with_dates_is_never_one_case_a_row(encoder):
    expected = encoder.transform(CHANNELS_FIRST[:1])
    np.testing.assert_allclose(encoder.transform(dated()), expected, atol=1e-6)
    np.testing.assert_allclose(encoder.transform(dated().reset_index()), expected, atol=1e-6)
    with pytest.raises(InputError, match="at least 2 cases to tell apart"):
        progmem.PMTEncoder(**encoder.get_params()).fit(dated())


def test_a_command_reads_with_the_options_that_python_has(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    table = long_table(case="who", time="when").assign(when=[f"{d:%d.%m.%Y %H}" for d in DATES] * 4)
    table.loc[3, "ax"] = -9999
    table.to_csv("x.txt.csv", index=False, sep=";")
    small = ("model.dim=8", "model.heads=2", "model.blocks=1", "model.encoder_layers=1")
    options = ["--sep", ";", "--case", "who", "--date-column", "when", "--missing=-9999"]
    options += ["--date-format", "%d.%m.%Y %H"]
    command = ["pretrain", "x.txt.csv", "-o", "run", *options, *small, "train.steps=1"]
    assert main([*command, "train.device=cpu"]) == 0
    out = capsys.readouterr().out
    assert "recordings: 4, samples: 50, channels: 3 (ax, ay, az)" in out
    assert "long: one recording for each 'who', in the order of 'when'" in out
    model = progmem.load("run/model")
    x = X.copy()
    x[0, 3, 0] = np.nan
    np.testing.assert_allclose(model.stats.mean, np.nanmean(x, (0, 1)))


@pytest.mark.parametrize("value", [0.0, 7.5])
def test_data_in_which_nothing_varies_are_not_trained_on(value):
    with pytest.raises(InputError, match="no channel varies in any recording"):
        progmem.PMTEncoder(steps=1).fit(np.full((6, 2, 60), value))


def test_a_series_without_an_observed_value_is_no_vector(encoder):
    x = CHANNELS_FIRST.copy()
    x[2] = np.nan
    for level in ("all", "sequence"):
        with pytest.raises(InputError, match="series 2 has no observed value; leave it out"):
            encoder.transform(x, level=level)
    assert np.isnan(encoder.transform(x, level="tokens")[2]).all()
