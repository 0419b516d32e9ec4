"""Training without labels: what a run leaves, refuses and repeats exactly."""

import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from training_setup import (
    assert_same_model,
    made_recordings,
    run,
    small_config,
    steps_of,
    weights,
)

import progmem
from progmem import artifact, files
from progmem.data.recordings import Recording
from progmem.data.windows import TrainingWindows, cut_alone
from progmem.detail import Detail
from progmem.errors import ConfigError, InputError
from progmem.pooling import fit_feature_stats
from progmem.training.pretrain import pretrain, settle_feature_stats
from progmem.whitening import Whitening

HERE = Path(__file__).parents[1]


def test_a_run_leaves_all_that_it_promises(finished):
    assert {p.name for p in finished.iterdir()} >= {
        "config.yaml", "metrics.jsonl", "checkpoints", "model"
    }  # fmt: skip
    steps = steps_of(finished)
    assert steps == list(range(1, len(steps) + 1))
    lines = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert {"loss", "icl", "pcl", "hgcl", "hgcl_tokens", "tokens_bucket_share", "lr"} <= set(
        lines[0]
    )
    assert {"feature_sd", "effective_rank"} <= set(lines[3])
    model = progmem.load(finished / "model")
    assert not torch.equal(model.stats.mean, torch.zeros(2, dtype=torch.float64))
    assert model.encode(made_recordings()[0].values[None]).sequence.isfinite().all()


def test_two_runs_with_one_seed_are_identical_and_another_seed_is_not(finished, tmp_path):
    run(tmp_path / "again")
    assert_same_model(tmp_path / "again", finished)
    run(tmp_path / "other", "train.seed=1")
    name = "blocks.0.layer.qkv.weight"
    assert not torch.equal(weights(tmp_path / "other")[name], weights(finished)[name])


def test_the_first_steps_lose_as_stored():
    """A golden curve, one series an objective: refactoring must not move it.

    In float64 a sum in another order moves a loss of the first 20 steps by about 1e-15, a changed
    formula by far more than 1e-9. The recordings have a gap and unequal lengths.
    """
    stored = json.loads((HERE / "golden/losses.json").read_text())
    losses = golden_losses()
    assert losses.keys() == stored.keys()
    for name, curve in stored.items():
        assert losses[name] == pytest.approx(curve, rel=1e-9), name


def golden_losses():
    """What golden/losses.json holds, as json with all digits."""
    torch.set_default_dtype(torch.float64)  # Fabric gives the losses tensors of the default type
    try:
        with tempfile.TemporaryDirectory() as parent:
            folder = Path(parent) / "run"
            run(folder, "train.epochs=7", "train.precision=64")
            lines = (folder / "metrics.jsonl").read_text().splitlines()[:20]
    finally:
        torch.set_default_dtype(torch.float32)
    steps = [json.loads(line) for line in lines]
    return {name: [step[name] for step in steps] for name in ("loss", "icl", "pcl", "hgcl")}


def test_a_run_ends_with_the_feature_statistics_of_its_rows(finished, monkeypatch):
    monkeypatch.setattr("progmem.pooling.FITTED_SERIES", 7)
    model = progmem.load(finished / "model")
    rows = TrainingWindows(made_recordings(), small_config().data)
    assert len(rows) > len(made_recordings())  # one recording is cut
    kept = model.feature_stats.values
    with torch.no_grad():
        model.encoder.cls.add_(1.0)  # no longer the model that was saved there
    settle_feature_stats(model, rows, finished / "model")
    series = [
        r.values[offset : offset + length]
        for r, offset, length in zip(
            [rows.recordings[i] for i in rows.source], rows.offset, rows.length, strict=True
        )
    ]
    assert same_stats(model.feature_stats.values, fit_feature_stats(model, series))
    monkeypatch.undo()
    assert same_stats(kept, fit_feature_stats(progmem.load(finished / "model"), series))


def test_a_finished_run_that_is_opened_again_keeps_its_file_and_its_statistics(
    finished, tmp_path, monkeypatch
):
    shutil.copytree(finished, tmp_path / "run")
    path = tmp_path / "run/model/model.safetensors"
    before = path.read_bytes()
    monkeypatch.setattr(
        "progmem.training.pretrain.fit_feature_stats", None
    )  # elsewhere: other digits
    model = run(tmp_path / "run")
    assert path.read_bytes() == before
    assert torch.equal(model.feature_stats.scale, weights(finished)["feature_stats.scale"])
    monkeypatch.undo()
    found = artifact.read(path, "model")  # as if of an earlier version: they are fitted now
    artifact.write(path, "model", without_feature_stats(found.tensors), found.note)
    run(tmp_path / "run")
    assert path.read_bytes() == before


def test_a_run_goes_on_from_a_checkpoint_without_feature_statistics(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    shutil.rmtree(tmp_path / "run/model")
    *_, path, last = sorted((tmp_path / "run/checkpoints").iterdir())
    last.unlink()
    found = artifact.read(path, "checkpoint")
    artifact.write(path, "checkpoint", without_feature_stats(found.tensors), found.note)
    said = []
    run(tmp_path / "run", log=said.append)
    assert any("going on from step" in line for line in said)
    assert_same_model(tmp_path / "run", finished)


def same_stats(one, other):
    return all(map(torch.equal, one.tensors().values(), other.tensors().values()))


def without_feature_stats(tensors):
    kept = {name: tensor for name, tensor in tensors.items() if "feature_stats" not in name}
    assert len(kept) == len(tensors) - len(Detail._fields) - len(Whitening._fields) - 2
    return kept


@pytest.mark.parametrize(
    "settings, message",
    [
        (["train.lr=2e-3"], "begun with other settings: train.lr differ"),
        (["train.epochs=3"], "train.epochs differ; only train.epochs or train.steps may grow"),
        (["train.seed=1", "train.log_every=1"], "train.seed differ; .* and train.log_every change"),
        (["train.epochs=null", "train.steps=90"], "train.epochs, train.steps differ"),
        (["model.blocks=1", "loss.icl=0"], "loss.icl, model.blocks differ"),
    ],
)
def test_a_changed_config_is_refused_with_the_keys(finished, settings, message):
    with pytest.raises(ConfigError, match=message):
        run(finished, *settings)


def test_other_data_are_refused(finished):
    with pytest.raises(ConfigError, match="begun with other data: rows, samples, means"):
        pretrain(made_recordings(19), finished, small_config(), log=lambda _: None)


def test_a_busy_folder_is_refused(finished):
    with (
        files.held(finished / ".lock", finished, wait=0),
        pytest.raises(ConfigError, match=r"in use by process \d+ on"),
    ):
        run(finished)


def test_somebody_elses_folder_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match="holds other files"):
        run(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["icl", "pcl", "hgcl"])
def test_an_objective_alone_teaches_its_scale(tmp_path, name):
    """Over 200 steps positives come closer than negatives, at that objective's scale."""
    off = [f"loss.{other}=0" for other in ("icl", "pcl", "hgcl") if other != name]
    run(tmp_path / "run", *off, "train.epochs=67", "views.preset=gentle")
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    gaps = [json.loads(line)[f"{name}_gap"] for line in lines]
    assert len(gaps) >= 200
    assert np.mean(gaps[190:200]) > np.mean(gaps[:10])


def with_inf():
    recordings = made_recordings()
    recordings[2].values[7, 1] = -np.inf
    return recordings


@pytest.mark.parametrize(
    "recordings, settings, error, message",
    [
        (
            made_recordings()[:1],
            [],
            InputError,
            "at least 2 rows to tell apart, got 1 of .* one needs 128 samples or more, or a ",
        ),
        (
            made_recordings(),
            ["model.channels=3"],
            ConfigError,
            "model.channels is 3, the recordings",
        ),
        (
            [Recording(str(i), np.zeros((1, 60))) for i in range(5)],
            [],
            InputError,
            "60 channels and one sample each",
        ),
        (made_recordings(), ["model.slots=0"], ConfigError, "loss.pcl needs memory"),
        (made_recordings(), ["model.patch=40"], InputError, "needs at least 40 samples, got 39"),
        (with_inf(), [], InputError, "2, sample 7, channel 1 is -inf; mark missing values by NaN"),
    ],
)
def test_what_cannot_be_trained_is_refused(recordings, settings, error, message, tmp_path):
    with pytest.raises(error, match=message):
        pretrain(recordings, tmp_path / "run", small_config(*settings))
    assert not (tmp_path / "run").exists()


def test_data_smaller_than_a_batch_work_with_a_word(tmp_path):
    said = []
    run(tmp_path / "run", "train.batch_size=100", log=said.append)
    assert any("fewer than train.batch_size 100" in line for line in said)
    assert steps_of(tmp_path / "run") == [1, 2, 3, 4]


@pytest.mark.parametrize("normalise", ["series", "none"])
def test_other_normalisations_train(tmp_path, normalise):
    model = run(tmp_path / "run", f"model.normalise={normalise}", "train.epochs=1")
    assert torch.equal(model.stats.scale, torch.ones(2, dtype=torch.float64))


def test_axes_that_look_swapped_are_asked_about(tmp_path):
    said = []
    rng = np.random.default_rng(0)
    recordings = [Recording(str(i), rng.normal(size=(9, 40))) for i in range(4)]
    cfg = small_config("train.epochs=1")
    pretrain(recordings, tmp_path / "run", cfg, log=said.append)
    assert any("40 channels and at most 9 samples" in line and "swapped?" in line for line in said)


@pytest.mark.parametrize("length, told", [(99, True), (100, False)])
def test_rows_that_all_share_samples_are_told_of(tmp_path, length, told):
    said = []
    recording = Recording("one", np.random.default_rng(0).normal(size=(length, 2)))
    cfg = small_config("train.epochs=1", "data.longest=50", "data.window=50", "data.hop=10")
    pretrain([recording], tmp_path / "run", cfg, log=said.append)
    assert any("training rows share samples" in line for line in said) == told


def test_a_run_begun_before_a_setting_existed_goes_on(tmp_path):
    run(tmp_path / "run", "train.epochs=1")
    path = tmp_path / "run/config.yaml"
    config = yaml.safe_load(path.read_text())
    del config["train"]["parts"], config["model"]["reset_seed"]
    path.write_text(yaml.safe_dump(config))
    said = []
    run(tmp_path / "run", "train.epochs=1", log=said.append)
    assert any("has finished" in line for line in said)
    with pytest.raises(ConfigError, match=r"train\.parts differ"):
        run(tmp_path / "run", "train.epochs=1", "train.parts=2")


def test_one_recording_alone_is_cut_into_rows(tmp_path):
    """Eight rows side by side and seven between them, unless a user says how it is cut."""
    alone = [Recording("alone", np.random.default_rng(0).normal(size=(400, 2)))]
    said = []
    whole = small_config("data.longest=2048")
    pretrain(alone, tmp_path / "run", whole, log=said.append)
    told = "one recording alone is cut into 15 rows of 50 samples"
    assert any(line.startswith(told) for line in said)
    again = []
    pretrain(alone, tmp_path / "run", whole, log=again.append)  # the same rows
    assert "has finished its" in again[-1]
    assert cut_alone(alone, small_config().data) == small_config().data
    assert cut_alone(alone * 2, whole.data) == whole.data
