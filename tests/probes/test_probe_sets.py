"""``probe classify`` on one of the paper's sets, and what may not reach it."""

import json

import numpy as np
import pytest
import torch
from probe_setup import waves

import progmem
from progmem.cli import main
from progmem.config import read_config
from progmem.data.labels import draw_labels
from progmem.data.sets import LabelledSet
from progmem.detail import CONVOLUTIONS
from progmem.errors import InputError
from progmem.features import all_scales
from progmem.pooling import POOLINGS, feature_stats_for, pool
from progmem.probes import classify as classify_module
from progmem.probes import protocols
from progmem.probes.classify import probe_set, untrained_copy
from progmem.training.pretrain import pretrain

TINY = ["model.dim=16", "model.heads=2", "model.blocks=1", "train.epochs=2", "train.batch_size=16"]


def test_pooling_looks_only_at_what_is_there(model):
    encoder = progmem.load(model)
    rng = np.random.default_rng(0)
    series = [rng.normal(size=(n, 2)) for n in (60, 35, 60)]
    series[2][10:40] = np.nan
    stats = feature_stats_for(encoder, series)
    together = pool(encoder, series, POOLINGS, stats=stats)
    for i, one in enumerate(series):
        z = encoder.encode([one])
        alone = {
            "sequence": z.sequence[0],
            "mean_tokens": z.tokens[0][z.token_mask[0]].mean(0),
            "max_tokens": z.tokens[0][z.token_mask[0]].amax(0),
            "mean_memory": z.memory[0][z.window_mask[0]].mean((0, 1)),
            "all": all_scales(z, torch.from_numpy(one)[None], stats)[0],
        }
        for name, value in alone.items():
            np.testing.assert_allclose(together[name][i], value, atol=1e-5)
        assert together["all"].shape == (3, 4 * 32 + CONVOLUTIONS)
    assert np.isfinite(together["all"]).all()


def test_a_message_says_where_the_series_of_a_piece_begin(model, monkeypatch):
    monkeypatch.setattr("progmem.pooling.MAX_SAMPLES", 100)  # two at a time
    series = [np.zeros((60, 2)) for _ in range(5)]
    series[3][7, 1] = np.inf
    with pytest.raises(InputError, match=r"series 1, sample 7, .* \(counted from series 2 on\)"):
        pool(progmem.load(model), series, ["sequence"])
    with pytest.raises(InputError, match=r"series 1, sample 7, channel 1 is inf; .*NaN$"):
        pool(progmem.load(model), series[2:], ["sequence"])


def made_set(test_value=0.0):
    (x, y), (test, test_y) = waves(40, 0), waves(20, 1)
    x, test = x.transpose(0, 2, 1), test.transpose(0, 2, 1) + np.float32(test_value)
    return LabelledSet("made", "official", x, y, test, test_y, ("slow", "fast"))


@pytest.mark.slow
def test_test_rows_change_nothing_but_their_own_predictions(tmp_path, monkeypatch):
    """Markers of a million in every test row: model, draws, scaling and machines stay the same."""
    seen, fit = [], classify_module.fit_svm

    def kept(x, y, head):
        machine = fit(x, y, head)
        seen.append((x, machine.C, machine.dual_coef_, machine.support_))
        return machine

    monkeypatch.setattr(classify_module, "fit_svm", kept)
    runs = []
    for number, value in enumerate((0.0, 1e6)):
        data = made_set(value)
        model = pretrain(
            data.training_recordings(), tmp_path / str(number), read_config(None, TINY), log=None
        )
        result = probe_set(model, data, label_shares=[0.1], heads=["linear", "rbf"])
        scores = result["scores"]["sequence"]["10%"]["linear"]["accuracy"]
        runs.append((model.state_dict(), result["labelled_rows"], seen.copy(), scores))
        seen.clear()
    clean, marked = runs
    assert all(torch.equal(clean[0][name], marked[0][name]) for name in clean[0])
    assert clean[1] == marked[1] and len(clean[2]) == len(marked[2]) > 0
    for ours, theirs in zip(clean[2], marked[2], strict=True):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(a, b)
    assert clean[3] != marked[3]  # the markers were really there


def test_the_untrained_copy_has_learnt_the_statistics_and_nothing_else(tmp_path):
    data = made_set()
    cfg = read_config(None, TINY)
    model = pretrain(data.training_recordings(), tmp_path / "run", cfg, log=None)
    untrained, trained = untrained_copy(model, seed=3).cpu().state_dict(), model.cpu().state_dict()
    assert (
        torch.equal(untrained["stats.mean"], trained["stats.mean"])
        and untrained["stats.mean"].any()
    )
    torch.manual_seed(3)
    for name, tensor in progmem.PMT(model.cfg).named_parameters():
        assert torch.equal(untrained[name], tensor)
    assert not torch.equal(untrained["tokenizer.conv.weight"], trained["tokenizer.conv.weight"])
    assert trained["feature_stats.scale"].all() and not untrained["feature_stats.scale"].any()


def test_every_encoder_is_probed_on_the_same_draws_which_are_kept(model):
    data = made_set()
    first = probe_set(progmem.load(model), data, label_shares=[1, 0.25], poolings=["sequence"])
    other = progmem.PMT(progmem.ModelConfig.for_length(60, 2, dim=16, heads=2, blocks=1))
    second = probe_set(other, data, label_shares=[1, 0.25], poolings=["sequence"])
    assert first["labelled_rows"] == second["labelled_rows"]
    kept = first["labelled_rows"]["25%"][3]
    assert kept == draw_labels(data.y_train, 0.25, 3).tolist()
    assert json.loads(json.dumps(first)) == first


@pytest.mark.slow
def test_a_set_by_name_is_pretrained_on_and_probed(made_sets, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    where, probed = ["--data-dir", str(made_sets)], []

    def probe_one_pooling(encoder, data, **options):
        probed.append(encoder)
        return probe_set(encoder, data, poolings=["sequence"], **options)

    monkeypatch.setattr(protocols, "probe_set", probe_one_pooling)
    assert main(["pretrain", "Wafer", "-o", "run", *where, *TINY]) == 0
    probe = ["probe", "classify", "run/model", "Wafer", *where, "--label-share", "1", "50%"]
    assert main(probe) == 0
    printed = capsys.readouterr().out
    assert "| Wafer | 1 a class |" in printed and "written: results/classify/Wafer.json" in printed
    result = json.loads((tmp_path / "results/classify/Wafer.json").read_text())
    assert {"config", "seeds", "commit", "dirty", "versions", "device", "seconds"} <= set(result)
    assert result["seeds"] == [0] and result["config"]["run"]["train"]["epochs"] == 2
    assert result["config"]["source"] == {"name": "Wafer", "split": "official"}
    assert [row["encoder"] for row in result["rows"]] == ["trained", "untrained"]
    assert probed[0] is not probed[1]
    weight = "tokenizer.conv.weight"
    assert not torch.equal(probed[0].state_dict()[weight], probed[1].state_dict()[weight])
    assert main(["results", "classify"]) == 0
    assert "| Wafer | 50% |" in capsys.readouterr().out
    assert main([*probe, "--split", "validation"]) == 2
    assert "trained on the official split of Wafer" in capsys.readouterr().err
    again = ["pretrain", "Wafer", "-o", "run", "--split", "validation", *where, *TINY]
    assert main(again) == 2
    assert (
        "was begun on Wafer (official split), not on Wafer (validation" in capsys.readouterr().err
    )
    assert main([*probe, "--split", "validation"]) == 2  # what was refused has changed nothing
