"""TS-TCC, CPC, SimCLR and SSL-ECG: their views, what their losses see, and their formulas."""

import math
from dataclasses import asdict

import numpy as np
import pytest
import reference_losses
import torch
import torch.nn.functional as F

from progmem.baselines import cpc, make_encoder, simclr, sslecg, tstcc
from progmem.baselines.cnn import CNN
from progmem.baselines.cnn_task import CNNTask, View
from progmem.config import DataConfig, run_config
from progmem.data.recordings import Recording
from progmem.data.windows import TrainingWindows
from progmem.errors import InputError
from progmem.training.distributed import OneProcess

B, L, C = 5, 96, 3
CPU = torch.device("cpu")
LEARNERS = {
    "tstcc": (tstcc.TSTCCLearner, tstcc.TSTCCConfig(channels=C, dim=8, context=8)),
    "cpc": (cpc.CPCLearner, cpc.CPCConfig(channels=C, dim=8, context=8)),
    "simclr": (simclr.SimCLRLearner, simclr.SimCLRConfig(channels=C, dim=8)),
    "sslecg": (sslecg.SSLECGLearner, sslecg.SSLECGConfig(channels=C, dim=8)),
}


def make_learner(name, **settings):
    cls, cfg = LEARNERS[name]
    cfg = type(cfg)(**{**{k: getattr(cfg, k) for k in ("channels", "dim")}, **settings})
    return cls(CNN(cfg), cfg).double()


def make_views(learner, x, observed=None, lengths=None, seed=0):
    """The views of series (B, L, C), and their draws, as the task makes them."""
    draws = learner.draw(len(x), x.shape[1], torch.Generator().manual_seed(seed))
    draws = type(draws)._make(t.to(x.dtype) for t in draws)
    seen = torch.ones_like(x, dtype=torch.bool) if observed is None else observed
    sizes = torch.full((len(x),), x.shape[1]) if lengths is None else lengths
    views = learner.make_views(x, seen, sizes, draws)
    given = None if observed is None else True
    return tuple(View(v, given and o, lengths) for v, o in views), draws


def apart():
    return torch.eye(B, dtype=torch.bool)


def test_the_weak_view_is_scaled_sample_by_sample_and_the_strong_one_permuted():
    learner = make_learner("tstcc", jitter=0)
    x = torch.arange(L).double()[None, :, None] + 1000 * torch.arange(1, C + 1)
    x = x.expand(B, -1, -1)
    (weak, strong), draws = make_views(learner, x)
    factor = weak.x / x
    torch.testing.assert_close(factor, draws.factor.expand_as(x))  # the same for all channels
    assert abs(draws.factor.mean() - 2) < 0.3 and abs(draws.factor.std() - 1.1) < 0.2
    order = strong.x[..., 0] - 1000
    for channel in range(C):  # the public code gives all channels the first one's values
        assert torch.equal(strong.x[..., channel], order + 1000 * (channel + 1))
    assert torch.equal(order.sort(1)[0], x[..., 0] - 1000) and not torch.equal(order, x[..., 0])


def test_ts_tcc_is_its_formula():
    """Both directions of the prediction, and 0.7 times the contrast of the contexts."""
    learner = make_learner("tstcc").eval()
    views, draws = make_views(learner, torch.randn(B, L, C).double())
    embedded, _ = learner(views, draws)
    parts = learner.losses(embedded, apart(), OneProcess(B))
    temporal = 0.0
    tokens = [F.normalize(learner.encoder(view.x).tokens, dim=-1) for view in views]
    present = int(draws.share[0] * (tokens[0].shape[1] - 6))
    for one, other in ((0, 1), (1, 0)):
        seen = tokens[one][:, : present + 1]
        context = learner.context(seen, torch.ones(seen.shape[:2], dtype=torch.bool))
        for step in range(6):
            rows = slice(8 * step, 8 * step + 8)
            said = context @ learner.predict.map.weight[rows].T + learner.predict.map.bias[rows]
            for i in range(B):  # which series' prediction is this token?
                token = tokens[other][i, present + 1 + step]
                scores = torch.stack([prediction @ token for prediction in said])
                temporal -= scores.log_softmax(0)[i] / (6 * B)
    contexts = embedded.contexts.chunk(2)
    contextual = reference_losses.icl(*contexts, 0.2, apart())
    assert parts["temporal"].item() == pytest.approx(temporal.item(), rel=1e-10)
    assert parts["contextual"].item() == pytest.approx(contextual.item(), rel=1e-10)
    assert parts["loss"].item() == pytest.approx((temporal + 0.7 * contextual).item(), rel=1e-10)


def test_a_layer_of_the_context_is_attention_and_a_feed_forward_part():
    layer = tstcc.ContextLayer(8).double().eval()
    rows, seen = torch.randn(2, 5, 8).double(), torch.rand(2, 5) > 0.3
    seen[:, 0] = True
    found = layer(rows, seen[:, None, None])
    for row, keys, ours in zip(rows, seen, found, strict=True):
        q, k, v = layer.qkv(layer.norm(row)).chunk(3, dim=-1)
        heads = []
        for h in range(4):
            part = slice(2 * h, 2 * h + 2)
            scores = q[:, part] @ k[keys][:, part].T / math.sqrt(8)
            heads.append(scores.softmax(1) @ v[keys][:, part])
        after = row + layer.out(torch.cat(heads, dim=1))
        expected = after + layer.fc2(F.relu(layer.fc1(layer.feed_norm(after))))
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["tstcc", "cpc"])
def test_a_prediction_does_not_see_what_it_predicts(name):
    """Tokens after the present change nothing; those before do."""
    learner = make_learner(name, ahead=4).eval()
    views, draws = make_views(learner, torch.randn(B, L, C).double())
    draws = draws._replace(share=torch.full((B,), 0.5).double())
    K, present = 14, 5
    z = learner.encoder(views[0].x)
    assert z.tokens.shape[1] == K

    def predicted(change):
        tokens = z.tokens.detach().clone()
        tokens[:, change] += 1
        learner.encoder.forward = lambda *_, **__: z._replace(tokens=tokens)
        found = learner(views, draws)[0].predicted
        return torch.cat([found] if isinstance(found, torch.Tensor) else list(found))

    before = predicted(slice(0, 0))
    assert torch.equal(predicted(slice(present + 1, K)), before)
    for token in range(present + 1):
        assert (predicted(slice(token, token + 1)) - before).abs().max() > 1e-6, token


def test_the_views_of_ssl_ecg_are_its_transforms():
    learner = make_learner("sslecg")
    x = torch.randn(B, L, C).double()
    (same, noisy, scaled, negated, back, permuted, warped), _ = (v for v in make_views(learner, x))
    power, noise = x.square().mean((0, 1)), (noisy.x - x).square().mean((0, 1))
    assert torch.equal(same.x, x) and torch.equal(negated.x, -x)
    torch.testing.assert_close(scaled.x, 1.1 * x)
    torch.testing.assert_close(back.x, x.flip(1))
    assert (10 * (power / noise).log10() - 15).abs().max() < 1
    assert torch.equal(permuted.x.sort(1)[0], x.sort(1)[0])
    assert not torch.equal(permuted.x, x)
    torch.testing.assert_close(warped.x[:, [0, -1]], x[:, [0, -1]])
    assert 0 < (warped.x - x).abs().max() < (x.max() - x.min())


def test_ssl_ecg_is_its_formula():
    said = torch.randn(7, 3, 7).double()
    loss, right = sslecg.transform_loss(said)
    expected, hits = 0.0, 0
    for went in range(7):
        for row in range(3):
            for j, weight in enumerate((0.195, 0.195, 0.195, 0.0125, 0.0125, 0.195, 0.195)):
                p = 1 / (1 + math.exp(-said[went, row, j]))
                expected -= weight * math.log(p if went == j else 1 - p) / 7
                hits += (p > 0.5) == (went == j)
    assert loss.item() == pytest.approx(expected) and right.item() == pytest.approx(hits / 49)


def test_heads_that_say_nothing_lose_log_2():
    """The closed form: the weights sum to one, and 6 of 7 answers no are right."""
    loss, right = sslecg.transform_loss(torch.zeros(7, 4, 7))
    assert loss.item() / 4 == pytest.approx(math.log(2))
    assert right.item() / 4 == pytest.approx(6 / 7)


def test_simclr_compares_two_views_by_their_projected_means():
    learner = make_learner("simclr").eval()
    views, draws = make_views(learner, torch.randn(B, L, C).double())
    projected, _ = learner(views, draws)
    means = [learner.encoder(view.x).tokens.mean(1) for view in views]
    torch.testing.assert_close(projected, torch.cat([learner.project(m) for m in means]))
    loss = learner.losses(projected, apart(), OneProcess(B))["loss"]
    expected = reference_losses.icl(*projected.chunk(2), 0.2, apart())
    assert loss.item() == pytest.approx(expected.item(), rel=1e-10)


@pytest.mark.parametrize("name", LEARNERS)
def test_padding_and_gaps_reach_no_loss(name):
    """Whatever lies in padding and gaps, the loss of a training step is the same."""
    learner = make_learner(name)
    x, lengths = torch.randn(B, L, C).double(), torch.tensor([96, 90, 96, 81, 77])
    observed = torch.rand(B, L, 1).expand(-1, -1, C) > 0.2
    losses = []
    for filling in (0.0, 1e3):
        there = observed & (torch.arange(L) < lengths[:, None])[..., None]
        views, draws = make_views(learner, torch.where(there, x, filling), there, lengths)
        views = tuple(v._replace(x=torch.where(v.observed, v.x, filling)) for v in views)
        torch.manual_seed(1)
        embedded, sequence = learner(views, draws)
        losses.append(learner.losses(embedded, apart(), OneProcess(B))["loss"].item())
        assert sequence.isfinite().all()
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)


def make_rows(length, count=4):
    series = [np.random.default_rng(i).normal(size=(length, C)) for i in range(count)]
    return TrainingWindows([Recording(f"row {i}", s) for i, s in enumerate(series)], DataConfig())


@pytest.mark.parametrize(
    "name, length, message",
    [
        ("tstcc", 30, r"row 0 has 30 samples, which give 6 tokens, too few to "
         r"predict 6; leave it out, or set encoder.ahead below 6"),
        ("cpc", 40, r"which give 7 tokens, too few to predict 8"),
    ],
)  # fmt: skip
def test_rows_too_short_to_be_predicted_are_refused(name, length, message):
    cls, cfg = LEARNERS[name]
    run = run_config({"train": {"batch_size": 4}})
    with pytest.raises(InputError, match=message):
        CNNTask(cls(make_encoder(name, **asdict(cfg)), cfg), make_rows(length), run, device=CPU)
