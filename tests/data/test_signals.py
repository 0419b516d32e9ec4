"""Files of biosignals and seismology: samples, names, units, rate and start are as written."""

import datetime

import numpy as np
import pandas as pd
import pytest

import progmem
from progmem.errors import InputError

START = datetime.datetime(2024, 5, 31, 12, 30, 0)
X = np.random.default_rng(0).normal(size=(500, 2))
X /= np.abs(X).max()


def write_edf(path, *, slow=False, kind="Edf"):
    edfio = pytest.importorskip("edfio")
    signal = edfio.EdfSignal if kind == "Edf" else edfio.BdfSignal
    named = zip(("EEG C3", "EEG C4"), X.T, strict=True)
    signals = [
        signal(x, 100, label=name, physical_dimension="mV", physical_range=(-1, 1))
        for name, x in named
    ]
    if slow:
        signals.append(signal(X[:5, 0], 1, label="Resp", physical_range=(-1, 1)))
    made = getattr(edfio, kind)(signals, starttime=START.time(), recording=edfio.Recording(
        startdate=START.date()))  # fmt: skip
    made.write(path)


def write_bdf(path):
    write_edf(path, kind="Bdf")


def write_wfdb(path):
    wfdb = pytest.importorskip("wfdb")
    wfdb.wrsamp(
        path.stem, fs=100, units=["mV", "mV"], sig_name=["EEG C3", "EEG C4"], p_signal=X,
        fmt=["32", "32"], base_date=START.date(), base_time=START.time(),
        write_dir=str(path.parent),
    )  # fmt: skip


def write_miniseed(path, *, gap=False, stations=("ONE",)):
    obspy = pytest.importorskip("obspy")
    traces = []
    for station in stations:
        for channel, x in zip(("EEG C3", "EEG C4"), X.T, strict=True):
            head = {"network": "NO", "station": station, "channel": channel[-2:] + "Z",
                    "sampling_rate": 100.0}  # fmt: skip
            for start, end in ((0, 200), (250, 500)) if gap else ((0, 500),):
                when = obspy.UTCDateTime(START) + start / 100
                traces.append(obspy.Trace(x[start:end].copy(), {**head, "starttime": when}))
    obspy.Stream(traces).write(str(path), format="MSEED")


FORMATS = {
    "x.edf": (write_edf, 1e-4, "mV"),  # 16 bits of a range of 2
    "x.bdf": (write_bdf, 1e-6, "mV"),
    "x.hea": (write_wfdb, 1e-6, "mV"),
    "x.mseed": (write_miniseed, 0, ""),
}


@pytest.mark.parametrize("file", FORMATS)
def test_a_recording_comes_with_names_units_rate_and_start(tmp_path, file):
    write, error, unit = FORMATS[file]
    write(tmp_path / file)
    (recording,) = found = progmem.read(tmp_path / file)
    assert recording.name == "x" and found.skipped == () and found.notes == ()
    np.testing.assert_allclose(recording.values, X, atol=error, rtol=0)
    names = ("C3Z", "C4Z") if file == "x.mseed" else ("EEG C3", "EEG C4")
    assert (recording.columns, recording.units, recording.rate) == (names, (unit, unit), 100)
    assert recording.calendar.at(np.array([0, 150])).tolist() == [
        pd.Timestamp(START), pd.Timestamp(START) + pd.Timedelta("1.5s")
    ]  # fmt: skip


def test_a_folder_of_records_is_read_without_their_other_files(tmp_path):
    write_wfdb(tmp_path / "x.hea")
    (tmp_path / "x.atr").touch()
    (tmp_path / "y.dat").touch()
    found = progmem.read(tmp_path)
    assert found.names == ["x"] and found.skipped == ("y.dat",)


def test_channels_of_another_rate_are_left_out_and_named(tmp_path):
    write_edf(tmp_path / "x.edf", slow=True)
    found = progmem.read(tmp_path / "x.edf")
    assert found.columns == ("EEG C3", "EEG C4")
    assert found.notes == (
        "x: left out Resp, which have another rate than the 100 samples a second of most channels",
    )


def test_traces_with_a_gap_are_one_recording_and_stations_are_several(tmp_path):
    write_miniseed(tmp_path / "x.mseed", gap=True, stations=("ONE", "TWO"))
    found = progmem.read(tmp_path / "x.mseed")
    assert found.names == ["x.NO.ONE", "x.NO.TWO"]
    expected = X.copy()
    expected[200:250] = np.nan
    for values in found.values:
        np.testing.assert_array_equal(values, expected)


@pytest.mark.parametrize("file", FORMATS)
def test_a_damaged_file_is_named(tmp_path, file):
    write, _, _ = FORMATS[file]
    write(tmp_path / file)
    (tmp_path / file).write_bytes(b"nonsense")
    with pytest.raises(InputError, match=rf"{file} cannot be read: "):
        progmem.read(tmp_path / file)
    write(tmp_path / file)
    with pytest.raises(InputError, match="says itself what its axes are; leave layout out"):
        progmem.read(tmp_path / file, layout="time,channels")


def test_a_file_that_was_cut_is_named_and_what_is_whole_of_it_is_read(tmp_path):
    for file, size in (("x.edf", 2), ("x.bdf", 3)):
        FORMATS[file][0](tmp_path / file)
        data = (tmp_path / file).read_bytes()
        (tmp_path / file).write_bytes(data[: -size * 90])
        with pytest.warns(
            UserWarning, match=f"{file} was cut: of its 5 records 4 are whole"
        ) as all:
            found = progmem.read(tmp_path / file)
        assert len(all) == 1 and len(found[0].values) == 400


def test_one_format_under_the_name_of_the_other_is_refused(tmp_path):
    write_edf(tmp_path / "x.edf")
    (tmp_path / "x.edf").rename(tmp_path / "x.bdf")
    with pytest.raises(InputError, match=r"x.bdf cannot be read: its header is not .* BDF file"):
        progmem.read(tmp_path / "x.bdf")
    write_bdf(tmp_path / "y.bdf")
    (tmp_path / "y.bdf").rename(tmp_path / "y.edf")
    with pytest.raises(InputError, match=r"y.edf cannot be read: its header is not .* an EDF file"):
        progmem.read(tmp_path / "y.edf")


def test_a_rate_that_cannot_be_is_refused(tmp_path):
    write_wfdb(tmp_path / "x.hea")
    head = (tmp_path / "x.hea").read_text()
    (tmp_path / "x.hea").write_text(head.replace("x 2 100 ", "x 2 0 "))
    with pytest.raises(InputError, match="it says 0 samples a second; the rate must be a number a"):
        progmem.read(tmp_path / "x.hea")
