"""Embeddings on disk: those of encode, in order, or none at all."""

import json

import numpy as np
import pytest
import torch
from training_setup import made_recordings, small_config

import progmem
from progmem.data.recordings import Recording
from progmem.data.windows import TrainingWindows
from progmem.embed import embed
from progmem.errors import InputError, WriteError
from progmem.features import all_scales
from progmem.pooling import fit_feature_stats
from progmem.series import ChannelStats


@pytest.mark.parametrize("chunk", [20, 100, 65_536])  # in pieces, two together, all of a length
@pytest.mark.parametrize("slots", [0, 2])
def test_embeddings_on_disk_are_those_of_encode(tmp_path, slots, chunk, monkeypatch):
    monkeypatch.setattr("progmem.embed.CHUNK", chunk)
    cfg = progmem.ModelConfig(channels=2, size="tiny", slots=slots)
    model = progmem.PMT(cfg)
    if slots:
        monkeypatch.setattr("progmem.embed.TOKENS", 17)  # in pieces
        model.feature_stats.set(fit_feature_stats(model, [r.values for r in made_recordings()]))
    made = {recording.name: recording for recording in made_recordings()}
    recordings = [made[name] for name in ("3", "7", "11", "0", "19")]  # three of one length
    said = []
    embed(model, recordings, tmp_path / "out", sampling_rate=50.0, log=said.append)
    assert said[0] == "encoding 5 recordings ..." and len(said) == 2
    assert said[1].startswith(f"written: {tmp_path / 'out'} (5 recordings, ")
    assert said[1].count("all.npy") == (slots > 0)
    read = {p.stem: np.load(p) for p in (tmp_path / "out").glob("*.npy")}
    assert ("memory" in read) == ("all" in read) == (slots > 0)
    assert json.loads((tmp_path / "out/series.json").read_text())["names"] == [
        r.name for r in recordings
    ]
    for i, recording in enumerate(recordings):
        z = model.encode(recording.values[None])
        mine = read["token_series"] == i
        np.testing.assert_allclose(read["tokens"][mine], z.tokens[0], atol=1e-5)
        np.testing.assert_array_equal(read["token_mask"][mine], z.token_mask[0])
        np.testing.assert_array_equal(read["token_spans"][mine], z.token_spans)
        np.testing.assert_allclose(read["token_times"][mine], z.token_spans / 50)
        np.testing.assert_allclose(read["sequence"][i], z.sequence[0], atol=1e-5)
        windows = read["window_series"] == i
        np.testing.assert_array_equal(read["window_spans"][windows], z.window_spans)
        if slots:
            np.testing.assert_allclose(read["memory"][windows], z.memory[0], atol=1e-5)
            np.testing.assert_allclose(read["eos"][i], z.eos[0], atol=1e-5)
            samples = torch.from_numpy(recording.values)[None]
            expected = all_scales(z, samples, model.feature_stats.values)[0]
            np.testing.assert_allclose(read["all"][i], expected, atol=1e-5)


def test_recordings_of_one_length_are_embedded_together(tmp_path, monkeypatch):
    monkeypatch.setattr("progmem.embed.SERIES_AT_ONCE", 2)
    checked = []
    monkeypatch.setattr("progmem.embed.check_finite", lambda part, names: checked.append(names))
    model = progmem.PMT(progmem.ModelConfig(channels=2, size="tiny"))
    lengths = (40, 50, 50, 50, 60, 60, 40)
    recordings = [Recording(str(i), np.ones((n, 2))) for i, n in enumerate(lengths)]
    embed(model, recordings, tmp_path / "out", log=lambda _: None)
    assert checked == [["0"], ["1", "2"], ["3"], ["4", "5"], ["6"]]


def test_the_time_that_is_left_is_that_of_the_features_too(tmp_path, monkeypatch):
    monkeypatch.setattr("progmem.embed.CHUNK", 30)
    monkeypatch.setattr("progmem.progress.EVERY", 0.0)
    model = progmem.PMT(progmem.ModelConfig(channels=2, size="tiny"))
    for passes in (1, 2):
        said = []
        embed(model, [Recording("a", np.ones((120, 2)))], tmp_path / f"{passes}", log=said.append)
        done = [int(line.split(": ")[1].split()[0]) for line in said[1:-1]]
        assert done == list(range(30, 120 * passes, 30))
        assert all(f" of {120 * passes}, about" in line for line in said[1:-1])
        model.feature_stats.set(fit_feature_stats(model, [r.values for r in made_recordings()]))


def test_recordings_without_a_value_are_told_of(tmp_path):
    model = progmem.PMT(progmem.ModelConfig(channels=2, size="tiny"))
    nothing = Recording("nothing", np.full((40, 2), np.nan))
    with pytest.warns(UserWarning, match="no value is observed of nothing: what is made of it"):
        embed(model, [made_recordings()[0], nothing], tmp_path / "out", log=None)
    with pytest.raises(InputError, match="no recording has an observed value; there is nothing to"):
        TrainingWindows([nothing] * 3, small_config().data).set_statistics(ChannelStats(2))


def test_a_failed_embed_leaves_nothing_behind(tmp_path):
    model = progmem.PMT(progmem.ModelConfig(channels=2, size="tiny"))
    recordings = made_recordings()[:3]
    recordings[2].values[5, 0] = np.inf
    with pytest.raises(InputError, match=r"^2, sample 5, channel 0 is inf"):
        embed(model, recordings, tmp_path / "out", log=lambda _: None)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "out").mkdir()
    with pytest.raises(InputError, match="out exists already; give a new folder"):
        embed(model, recordings[:2], tmp_path / "out")


def test_two_that_embed_into_one_folder_leave_the_first_ones_whole(tmp_path, monkeypatch):
    model = progmem.PMT(progmem.ModelConfig(channels=2, size="tiny"))
    recordings, out = made_recordings()[:3], tmp_path / "out"
    seconds = []

    def meanwhile(*_):
        if not seconds:
            seconds.append(True)
            with pytest.raises(InputError, match=r"out is in use by process \d+"):
                embed(model, recordings[:1], out, log=None)

    monkeypatch.setattr("progmem.embed.check_finite", meanwhile)
    embed(model, recordings, out, log=None)
    assert seconds and [p.name for p in tmp_path.iterdir()] == ["out"]
    sequence = np.load(out / "sequence.npy")
    assert len(sequence) == 3 and sequence.any(1).all()


def test_a_disk_with_too_little_space_is_named_before_anything_is_encoded(
    tmp_path, small_files, monkeypatch
):
    model = progmem.PMT(progmem.ModelConfig(channels=2, size="tiny"))
    monkeypatch.setattr("progmem.embed.encode_in_chunks", lambda *_, **__: pytest.fail("encoded"))
    long = Recording("long", np.zeros((2000, 2)))
    with pytest.raises(
        WriteError, match=r"out was not written: File too large; nothing of it is left"
    ):
        embed(model, [long], tmp_path / "out", log=None)
    assert list(tmp_path.iterdir()) == []
