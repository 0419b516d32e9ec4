"""Cue retention: what the cue is, where it may lie, and what the probe can and cannot know."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from probe_setup import noise, small

import progmem
from benchmarks.cue import FINAL, SMALL, VARIANTS, read_variant
from progmem.baselines import ENCODERS, make_encoder
from progmem.cli import main
from progmem.config import read_config
from progmem.encoding import Encoding
from progmem.errors import InputError
from progmem.geometry import count_tokens, count_windows, window_spans
from progmem.probes import cue
from progmem.probes.cue import Span, insert_cues, place_cues, probe_cue, score_detection
from progmem.report.tables import cue_table

TINY = ["model.dim=16", "model.heads=2", "model.blocks=1", "train.epochs=1", "train.batch_size=16"]
EXPERIMENTS = Path(__file__).parents[2] / "experiments/cue"


class Listener:
    """An encoder whose state at the end is the highest stretch of the samples it ``hears``."""

    def __init__(self, hears):
        self.hears, self.seen = hears, []

    def encode(self, x):
        x = torch.as_tensor(np.asarray(x))
        self.seen.append(x)
        B, L, _ = x.shape
        piece = x[:, self.hears(L)].sum(2)
        loudest = piece.unfold(1, L // 5, L // 20).sum(2).amax(1, keepdim=True)
        empty, mask = x.new_zeros(B, 1, 2), torch.ones(B, 1, dtype=torch.bool)
        spans = torch.tensor([[0, L - L // 4], [L - L // 4, L]])
        return Encoding(empty, None, empty[:, 0], loudest, mask, None, spans[-1:], spans)


def test_the_cue_ends_a_gap_before_the_final_window():
    assert place_cues(500, 352) == [(252, 352), (202, 302), (127, 227), (2, 102)]
    with pytest.raises(InputError, match="before a sample of a series, 0 to 500, got 501"):
        place_cues(500, 501)
    with pytest.raises(InputError, match=r"gap of 0\.5 x 500 samples do not fit .* sample 349"):
        place_cues(500, 349)


def test_the_cue_is_half_a_standard_deviation_of_its_channel_outside_its_span():
    x = noise(3, 100, 2)
    x[0, 5, 1] = np.nan
    before = x.copy()
    out = insert_cues(x, Span(40, 60), channel=np.array([1, 0, 1]))
    np.testing.assert_array_equal(x, before)
    difference = out - x
    for row, channel in enumerate([1, 0, 1]):
        apart = np.concatenate([x[row, :40, channel], x[row, 60:, channel]])
        sd = apart[~np.isnan(apart)].std()
        taper = np.sin(np.pi * (np.arange(20) + 0.5) / 20) ** 2
        np.testing.assert_allclose(difference[row, 40:60, channel], 0.5 * sd * taper, atol=1e-12)
        difference[row, 40:60, channel] = 0
    assert np.nanmax(np.abs(difference)) == 0
    assert (np.isnan(out) == np.isnan(x)).all()


def test_normalisation_cannot_tell_of_the_cue(monkeypatch):
    """What goes into the model is the same bit for bit outside the cue's span, cued or not."""
    model = progmem.PMT(progmem.ModelConfig.for_length(200, 1, dim=16, heads=2, blocks=1))
    model.stats.mean.fill_(0.3)
    model.stats.scale.fill_(1.7)
    seen, forward = [], model.forward
    monkeypatch.setattr(
        model, "forward", lambda x, *rest, **more: seen.append(x) or forward(x, *rest, **more)
    )
    x, span = noise(4), Span(60, 100)
    model.encode(x)
    model.encode(insert_cues(x, span, channel=np.zeros(4, dtype=int)))
    clean, cued = seen
    differs = (clean != cued).any(2)
    assert differs[:, 60:100].float().mean() > 0.9
    differs[:, 60:100] = False
    assert not differs.any()


def test_who_hears_all_is_sure_and_who_hears_the_final_window_alone_is_by_chance():
    x = noise(60, 1000)
    everything = probe_cue(Listener(lambda L: slice(0, L)), x, seeds=[0])["scores"]
    for name in ("mixed", "gap 0", "gap 0.5", "without gap 0.25"):
        assert everything[name]["auc"][0] > 0.9, name
    late = probe_cue(Listener(lambda L: slice(L - L // 4, L)), x, seeds=[0])["scores"]
    for name, scores in late.items():
        if name != "shuffled labels":
            assert scores["auc"] == [0.5] and scores["top1"] == [0.5], name


def test_shuffled_labels_are_told_by_chance():
    x = noise(100)
    encoder = Listener(lambda L: slice(0, L))
    scores = probe_cue(encoder, x, seeds=range(4))["scores"]
    found = scores["shuffled labels"]["auc"]
    assert len(found) == 4 and 0.4 < np.mean(found) < 0.6


def test_the_encoder_meets_each_series_once_clean_and_once_a_gap():
    encoder = Listener(lambda L: slice(0, L))
    x = noise(20)
    result = probe_cue(encoder, x, seeds=[0])
    copies = [np.asarray(seen) for seen in encoder.seen if len(seen) == 20]
    assert len(copies) == 5
    np.testing.assert_array_equal(copies[0], x)
    assert result["final_window"] == 150
    for copy, (start, end) in zip(copies[1:], result["cue_spans"].values(), strict=True):
        touched = np.flatnonzero((copy != x).any((0, 2)))
        assert start <= touched[0] and touched[-1] < end <= 150


def test_scores_of_a_threshold_are_those_worked_by_hand():
    """One feature; of four clean copies one lies where cued ones do."""
    clean = np.array([[0.0], [0.1], [0.2], [0.3], [0.0], [0.1], [0.2], [0.9]])
    cued = np.array([[0.8], [0.9], [1.0], [1.1], [0.8], [0.95], [1.0], [1.1]])
    folds = [(np.arange(4), np.arange(4, 8))]
    (scores,) = score_detection(clean, cued, [cued], folds)
    assert scores.auc == pytest.approx(15 / 16)  # 0.9 lies above 0.8 alone
    assert scores.top1 == pytest.approx(7 / 8)
    assert scores.macro_f1 == pytest.approx((6 / 7 + 8 / 9) / 2)


def test_a_gap_that_is_left_out_is_not_learnt_from(monkeypatch):
    calls = []
    monkeypatch.setattr(
        cue,
        "score_detection",
        lambda clean, learnt, tested, folds, swapped: (
            calls.append((learnt, tested)) or [cue.CueScores(0, 0, 0)] * len(tested)
        ),
    )
    clean = np.zeros((20, 1))
    cued = np.stack([np.full((20, 1), gap) for gap in cue.GAPS])
    cue._score_draw(clean, cued, [], np.random.default_rng(0))
    left_out = {tested[0].item(0): set(learnt.ravel()) for learnt, tested in calls[2:]}
    assert left_out == {gap: set(cue.GAPS) - {gap} for gap in cue.GAPS}
    assert all((learnt == gap).sum() == 5 for learnt, _ in calls[:1] for gap in cue.GAPS)


def test_series_of_one_recording_share_a_fold(monkeypatch):
    seen = []
    monkeypatch.setattr(cue, "_score_draw", lambda c, d, folds, r: seen.append(folds) or {})
    recordings = np.arange(40) // 4
    probe_cue(Listener(lambda L: slice(0, L)), noise(), recordings=recordings, seeds=[0])
    for train, test in seen[0]:
        assert len(test) and not set(recordings[train]) & set(recordings[test])
    assert sorted(np.concatenate([test for _, test in seen[0]])) == list(range(40))


def test_cues_lie_before_a_sample_that_is_given():
    """So an encoder without windows has the cues that others have."""
    x, hears_early = noise(), Listener(lambda L: slice(0, L // 2))
    spans = probe_cue(hears_early, x, final=140, seeds=[0])["cue_spans"]
    assert [end for _, end in spans.values()] == [140, 120, 90, 40]
    torch.manual_seed(0)
    encoder = make_encoder("ts2vec", channels=1, dim=16, hidden=8)
    found = probe_cue(encoder, x, final=140, seeds=[0])
    assert found["final_window"] == 140 and len(found["cue_spans"]) == 4


def short():
    return small(patch=4, patch_stride=4, window=2, stride=2)


@pytest.mark.parametrize(
    "encoder, x, message",
    [
        (
            lambda: progmem.PMT(small(slots=0)),
            noise(),
            "the encoder pmt has none; a PMT needs model.slot",
        ),
        (lambda: make_encoder("tstcc", channels=1), noise(), "the encoder tstcc has none"),
        (lambda: progmem.PMT(small(normalise="series")), noise(), "by its own statistics"),
        (lambda: progmem.PMT(small(window=60, stride=60)), noise(), "do not fit before the final"),
        (lambda: progmem.PMT(small()), noise(4), "5 recordings or more, got 4"),
        (lambda: progmem.PMT(short()), noise(9, 12), "is shorter than 3; series need 15 samples"),
        (lambda: progmem.PMT(small()), np.ones((9, 200, 1)), "got 0; 9 series are flat outside"),
    ],
)
def test_what_cannot_be_probed_is_refused(encoder, x, message):
    with pytest.raises(InputError, match=message):
        probe_cue(encoder(), x)


def test_a_flat_channel_is_refused_by_its_series():
    x = noise(3)
    x[2] = 1.0
    with pytest.raises(InputError, match="series 2, channel 0 does not vary"):
        insert_cues(x, Span(0, 40), channel=np.zeros(3, dtype=int))


def test_flat_series_are_left_out_and_counted():
    """A spike inside a cue's span is all that series 3 has; the others are as without it."""
    x = noise(20)
    x[3] = 0.0
    x[3, 100] = 1.0
    encoder = Listener(lambda L: slice(0, L))
    result, others = (probe_cue(encoder, some, seeds=[0]) for some in (x, np.delete(x, 3, axis=0)))
    assert (result["series"], result["left_out"]) == (19, 1) and others["left_out"] == 0
    assert result["scores"] == others["scores"]


@pytest.mark.slow
def test_a_model_is_probed_by_one_command(made_sets, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    where = ["--data-dir", str(made_sets)]
    assert main(["pretrain", "Wafer", "-o", "wafer", *where, *TINY]) == 0
    assert main(["probe", "cue", "wafer/model", "Wafer", *where]) == 0
    printed = capsys.readouterr().out
    assert "written: results/cue/Wafer-wafer.json" in printed and "paper's" not in printed
    result = json.loads((tmp_path / "results/cue/Wafer-wafer.json").read_text())
    assert {"config", "seeds", "cue_seeds", "commit", "versions", "device"} <= set(result)
    assert [row["encoder"] for row in result["rows"]] == ["trained", "untrained"]
    assert main(["results", "cue"]) == 0
    assert "| Wafer: custom, S < W, read-out carry, λ_PCL 0 | trained |" in capsys.readouterr().out
    for arguments, message in [
        (["--split", "validation"], "trained on the official split of Wafer"),
        (["-o", "x.csv"], "-o must name the .json file to write, got x.csv"),
    ]:
        assert main(["probe", "cue", "wafer/model", "Wafer", *where, *arguments]) == 2
        printed = capsys.readouterr().err
        assert message in printed and printed.count("\n") == 1


def made_result(auc, seed, pcl=1.0, name="FordA"):
    def scores(value):
        return {"auc": [value], "top1": [value / 2], "macro_f1": [value / 4]}

    names = ["mixed", "gap 0", "gap 0.5", "without gap 0", "without gap 0.5", "shuffled labels"]
    config = {
        "model": {"size": "small", "stride": 11, "window": 11, "readout": "carry"},
        "run": {"loss": {"pcl": pcl}, "train": {"seed": seed}},
    }
    row = {"encoder": "trained", "set": name, "split": "official"}
    row["scores"] = {name: scores(auc) for name in names}
    return {"config": config, "rows": [row]}


def test_seeds_are_averaged_and_settings_are_not():
    results = [made_result(0.9, 0), made_result(0.8, 1), made_result(0.6, 0, pcl=0.0)]
    lines = cue_table(results).splitlines()
    assert lines[2:5] == [
        "| FordA: small, S = W, read-out carry, λ_PCL 1 | trained | 0.850 ± 0.071 | 0.425 ± 0.035 "
        "| 0.213 ± 0.018 | 0.850 | 0.850 | 0.850 | 0.850 |",
        "| FordA: small, S = W, read-out carry, λ_PCL 0 | trained | 0.600 | 0.300 | 0.150 "
        "| 0.600 | 0.600 | 0.600 | 0.600 |",
        "| paper's PMT | trained | 0.994 | 0.921 | 0.920 | - | - | - | - |",
    ]
    assert len(lines) == 2 + 2 + 5
    assert "paper" not in cue_table([made_result(0.9, 0, name="Wafer")])


def test_the_experiments_differ_in_what_they_compare_and_leave_room_for_every_gap():
    configs = {path.stem: read_config(path) for path in sorted(EXPERIMENTS.glob("*.yaml"))}
    assert configs.pop("default") == read_config(None)
    assert configs.pop("default-pcl") == read_config(None, ["loss.pcl=1"])
    assert configs.pop("softclt") == read_config(None, ["encoder.name=softclt"])
    ours = {"pcl-carry", "pcl-block", "no-pcl-carry", "no-pcl-block"}
    others = {name for name, method in ENCODERS.items() if method.in_frame} - {"pmt"}
    assert set(configs) == ours | others
    rest = []
    for name, cfg in configs.items():
        shape = progmem.ModelConfig.for_length(500, 1, **cfg.model)
        assert shape.stride == shape.window
        assert cfg.encoder == {"name": name if name in others else "pmt"}
        if name in ours:
            assert shape.readout == name.rsplit("-")[-1]
        assert (cfg.loss.pcl == 0) == (name in others or name.startswith("no-"))
        tokens = count_tokens(shape, 500)
        windows = count_windows(shape, tokens)
        final = int(window_spans(shape, 0, windows, tokens=tokens)[-1, 0])
        assert tokens == 5 * shape.window and final == FINAL
        values = cfg.to_dict()
        values["model"].pop("readout", None)
        values["loss"].pop("pcl"), values.pop("encoder")
        rest.append(values)
    assert all(values == rest[0] for values in rest)


def test_a_small_variant_differs_in_its_size_alone():
    sized = {text.partition("=")[0] for more in SMALL.values() for text in more} | {"train.steps"}

    def flat(cfg):
        values = {"encoder": cfg.encoder, **cfg.to_dict()}
        return {
            f"{s}.{key}": value for s, section in values.items() for key, value in section.items()
        }

    for name in VARIANTS:
        whole, small_one = flat(read_variant(name, 4)), flat(read_variant(name, 4, small=True))
        differ = {k for k in whole.keys() | small_one.keys() if whole.get(k) != small_one.get(k)}
        assert differ and differ <= sized and small_one["train.seed"] == 4
