"""Recordings in, the built-in sample, rows, the report."""

import ast
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from training_setup import assert_same_model, made_recordings, run, small_config

import progmem
from progmem.data.reader import read
from progmem.data.recordings import Recording
from progmem.data.sample import TEST_SUBJECTS, cut_windows, load_sample
from progmem.data.windows import DeviceCache, TrainingWindows, fits_on_device
from progmem.errors import InputError
from progmem.series import ChannelStats


def imported(path):
    """The modules that a file imports anywhere, and the names it takes from them."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports by a relative name"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_no_module_of_data_imports_from_the_model():
    files = sorted((Path(progmem.__file__).parent / "data").rglob("*.py"))
    names = [(path.name, name) for path in files for name in imported(path)]
    assert ("windows.py", "progmem.series.Series") in names
    assert not [pair for pair in names if f"{pair[1]}.".startswith("progmem.model.")]


def test_files_of_all_kinds_are_read(tmp_path):
    x = np.arange(12.0).reshape(6, 2)
    np.save(tmp_path / "a.npy", x)
    np.savez(tmp_path / "b.npz", first=x, second=np.stack([x, x + 1]))
    (tmp_path / "c.csv").write_text("ax,ay\n0,1\n2,\n4,5\n")
    (tmp_path / "d.csv").write_text("0,1\n2,3\n")
    (tmp_path / "notes.txt").write_text("not a recording")
    found = read(tmp_path)
    names = ["a", "b.first", "b.second.0", "b.second.1", "c", "d"]
    assert [r.name for r in found] == names
    assert isinstance(found[0].values, np.memmap)
    np.testing.assert_array_equal(found[3].values, x + 1)
    np.testing.assert_array_equal(found[4].values, [[0, 1], [2, np.nan], [4, 5]])
    assert read(tmp_path / "a.npy")[0].values.shape == (6, 2)


@pytest.mark.parametrize(
    "text, values",
    [
        ("1,\n2,3\n4,5\n", [[1, np.nan], [2, 3], [4, 5]]),
        ("nan,1\n2,3\n", [[np.nan, 1], [2, 3]]),
        ("1\n\n3\n", [[1], [np.nan], [3]]),
        ("a\n1\n\n3\n", [[1], [np.nan], [3]]),
        ("a,b\n1,2,\n3,,\n", [[1, 2], [3, np.nan]]),
    ],
)
def test_gaps_in_a_csv_are_samples_too(text, values, tmp_path):
    (tmp_path / "x.CSV").write_text(text)
    (recording,) = read(tmp_path)
    np.testing.assert_array_equal(recording.values, values)


def hostile(folder):
    np.save(folder / "x.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)


def swapped(folder):
    dates = ("date", "2024-01-01", "2024-01-02", "2024-01-03")
    np.save(folder / "b.npy", np.zeros((3, 2)))  # nothing is said of its columns
    for name, columns in (("a", ("load", "heat")), ("c", ("heat", "load"))):
        cells = zip(dates, *((c, "1", "2", "3") for c in columns), strict=True)
        (folder / f"{name}.csv").write_text("\n".join(map(",".join, cells)))


@pytest.mark.parametrize(
    "prepare, message",
    [
        (lambda f: None, "holds no .npy, .npz, .csv, "),
        (lambda f: (f / "x.npy").write_bytes(b"nonsense"), "x.npy cannot be read"),
        (hostile, "x.npy cannot be read: .*Python objects"),
        (lambda f: (f / "x.npy").write_bytes(b""), "x.npy cannot be read: No data"),
        (lambda f: (f / "x.npz").write_bytes(b"PK\x03\x04 half"), "x.npz cannot be read: .*zip"),
        (lambda f: (f / "x.csv").write_text("a,b\n1,x\n"), "real numbers; column b does not"),
        (lambda f: (f / "x.csv").write_text(""), "x.csv cannot be read"),
        (lambda f: (f / "x.csv").write_text('"' + 2**18 * "1"), "x.csv cannot be read: field larg"),
        (lambda f: pd.DataFrame({"a": [3, 1]}).to_csv(f / "x.csv"), "no name and a number"),
        (
            lambda f: (f / "x.csv").write_text("kW\n1,5\n2,5\n"),
            "x.csv cannot .*more cells than the f",
        ),
        (
            lambda f: pd.DataFrame(np.ones((9, 2))).to_csv(f / "x.csv"),
            "no name and a number of its own",
        ),
        (
            lambda f: pd.DataFrame(np.ones((9, 2))).sample(frac=0.5).to_csv(f / "x.csv"),
            "no name and a number of its own",
        ),
        (
            lambda f: (f / "x.csv").write_text("ax;ay\n1;2\n"),
            "column ax;ay does not hold them; is it separated by .*--sep",
        ),
        (
            lambda f: (f / "x.csv").write_text("Date,a\n2024-01-01,2\n"),
            "dates need at least 3 samples to show their step, got 1",
        ),
        (
            lambda f: np.savez(f / "x.npz", X=np.ones((9, 20, 1)), kind=np.ones(9)),
            r"x.npz: kind \(9,\) looks like labels; name the series X and .*--labels",
        ),
        (
            lambda f: [np.save(f / "x.npy", np.ones(9)), (f / "x.csv").write_text("1\n2\n")],
            "holds 2 recordings called 'x'; rename their files",
        ),
        (swapped, "columns in one order: c has 'heat' where a has 'load'"),
        (lambda f: (f / "x.csv").write_text("a,b\n"), "x.csv has no rows below its header"),
        (lambda f: np.save(f / "x.npy", np.zeros((0, 9, 2))), "holds no recording"),
        (lambda f: np.save(f / "x.npy", np.zeros((1, 2, 3, 4))), r"got shape \(1, 2, 3, 4\)"),
        (lambda f: np.save(f / "x.npy", np.array(["a"])), "must hold real numbers, got dtype"),
        (
            lambda f: [np.save(f / f"{c}.npy", np.zeros((9, c))) for c in (2, 3)],
            "same channels: 2 has 2, 3 has 3",
        ),
    ],
)
def test_files_that_cannot_be_used_are_named(tmp_path, prepare, message):
    prepare(tmp_path)
    with pytest.raises(InputError, match=message):
        read(tmp_path)


def test_a_path_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"there is no .*nowhere; give a \.npy"):
        read(tmp_path / "nowhere")


def test_long_recordings_are_cut_and_covered():
    cfg = small_config("data.longest=100", "data.window=60", "data.hop=25").data
    rows = TrainingWindows(
        [Recording("a", np.zeros((250, 2))), Recording("b", np.zeros((100, 2)))], cfg
    )
    starts = rows.start[rows.recording == 0].tolist()
    assert starts == [0, 25, 50, 75, 100, 125, 150, 175, 190]
    assert rows.length[rows.recording == 0].unique().tolist() == [60]
    assert rows.length[rows.recording == 1].tolist() == [100]


def test_statistics_are_those_of_the_recordings():
    recordings = made_recordings()
    model = progmem.PMT(progmem.ModelConfig(channels=2, size="tiny"))
    TrainingWindows(recordings, small_config().data).set_statistics(model.stats)
    everything = np.concatenate([r.values for r in recordings]).astype(np.float64)
    np.testing.assert_allclose(model.stats.mean, np.nanmean(everything, 0), rtol=1e-10)
    np.testing.assert_allclose(model.stats.scale, np.nanstd(everything, 0), rtol=1e-10)


def test_a_channel_that_never_varies_has_scale_1_though_its_mean_is_rounded():
    recordings = [Recording(str(i), np.tile([0.1, i, np.nan], (300, 1))) for i in range(2)]
    stats = progmem.PMT(progmem.ModelConfig(channels=3, size="tiny")).stats
    TrainingWindows(recordings, small_config().data).set_statistics(stats)
    assert stats.scale.tolist() == [1.0, 0.5, 1.0]
    assert stats.mean[0] != 0.1 and stats.mean[0] == pytest.approx(0.1)


def test_values_too_large_to_be_squared_are_refused():
    values = np.ones((300, 2))
    values[7, 1] = 1e200
    stats = progmem.PMT(progmem.ModelConfig(channels=2, size="tiny")).stats
    with pytest.raises(InputError, match=r"channel 1 ranges from 1 to 1e\+200, too far"):
        TrainingWindows([Recording("a", values)] * 2, small_config().data).set_statistics(stats)


def test_inf_in_a_recording_is_named_before_training():
    recordings = made_recordings()
    recordings[4].values[7, 1] = np.inf
    model = progmem.PMT(progmem.ModelConfig(channels=2, size="tiny"))
    with pytest.raises(InputError, match="4, sample 7, channel 1 is inf; mark missing"):
        TrainingWindows(recordings, small_config().data).set_statistics(model.stats)


def test_the_sample_is_what_its_readme_says():
    sample = load_sample()
    assert len(sample.recordings) == 140 and len(sample.classes) == 7
    lengths = [len(r.values) for r in sample.recordings]
    assert (min(lengths), max(lengths)) == (947, 2618)
    assert all(np.isfinite(r.values).all() for r in sample.recordings)
    for subject in range(1, 11):
        assert np.bincount(sample.y[sample.subject == subject]).tolist() == [2] * 7
    windows = cut_windows(sample, np.isin(sample.subject, TEST_SUBJECTS), length=200, hop=200)
    assert windows.x.shape[1:] == (200, 6) and len(windows.y) == len(windows.x)


def test_a_value_too_large_to_train_on_is_named_by_its_recording():
    recordings = made_recordings()
    recordings[-1].values[105, 1] = 1e17
    cfg = small_config("data.longest=100", "data.window=100", "data.hop=50", "model.normalise=none")
    rows = TrainingWindows(recordings, cfg.data)
    model = progmem.ModelConfig(channels=2, size="tiny", normalise="none")
    stats, like = ChannelStats(2), torch.zeros(1)
    cut = int((rows.offset == 50).nonzero()[0])
    with pytest.raises(InputError, match="19 from 50 on, sample 55, channel 1 is 1e"):
        rows.fetch(torch.tensor([cut]), model, stats, like)


def test_a_report_holds_its_pictures_and_escapes_its_text(tmp_path):
    from progmem.report.figures import loss_curves
    from progmem.report.html import Section, write_report

    figure = loss_curves([{"step": s, "loss": 1.0 / s, "icl": 1.0} for s in (1, 2, 3)])
    sections = [
        Section("A <title>", "text", figure),
        Section("B", "t", table=[["a", "b"], ["1", "<2>"]]),
    ]
    write_report(tmp_path / "r.html", "T", "lead", sections)
    page = (tmp_path / "r.html").read_text()
    assert page.count("data:image/png;base64,") == 1
    assert "A &lt;title&gt;" in page and "<td>&lt;2&gt;</td>" in page
    assert "http" not in page.replace("data:image", "")


def test_principal_components_find_the_plane():
    from progmem.report.figures import principal_components

    rng = np.random.default_rng(0)
    plane = rng.normal(size=(50, 2)) @ rng.normal(size=(2, 9))
    points, share = principal_components(plane)
    assert share.sum() == pytest.approx(1.0)
    apart = np.linalg.norm(plane[0] - plane[1])
    assert np.linalg.norm(points[0] - points[1]) == pytest.approx(apart)


@pytest.mark.parametrize("normalise", ["channel", "series"])
def test_cached_rows_are_those_that_are_fetched(normalise):
    """Unequal lengths, a gap and windows of a long recording among them."""
    rows = TrainingWindows(made_recordings(), small_config().data)
    cfg = progmem.ModelConfig(channels=2, size="tiny", normalise=normalise)
    model = progmem.PMT(cfg)
    rows.set_statistics(model.stats)
    like = model.tokenizer.conv.weight
    cache = DeviceCache(rows, cfg, model.stats, like)
    rng = np.random.default_rng(0)
    for count in (1, 3, len(rows)):
        chosen = torch.from_numpy(rng.permutation(len(rows))[:count])
        ours, theirs = cache.fetch(chosen), rows.fetch(chosen, cfg, model.stats, like)
        for a, b in zip(ours, theirs, strict=True):
            assert torch.equal(a, b)
    assert fits_on_device(rows, like)


@pytest.mark.slow
def test_rows_too_large_to_keep_are_fetched_and_train_the_same(monkeypatch, finished, tmp_path):
    monkeypatch.setattr("progmem.data.windows.MAX_CACHE_BYTES", 0)
    run(tmp_path / "run")
    assert_same_model(tmp_path / "run", finished)
