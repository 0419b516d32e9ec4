"""The objectives: loops from the formulas, closed forms, values by hand."""

import math

import pytest
import reference_losses as loops
import torch
from loss_setup import B, draws_for, entry_of, make_embedded, run, setting

from progmem.config import LossConfig, ModelConfig
from progmem.losses.hgcl import Level, token_level
from progmem.losses.pairs import Match
from progmem.losses.total import Embedded, draw_step_negatives, total_loss
from progmem.ops.sampled_contrast import Bank
from progmem.training.distributed import OneProcess


@pytest.mark.parametrize("form", ["printed", "soft_positive"])
@pytest.mark.parametrize("window, stride", [(6, 3), (5, 2), (4, 4)])
def test_losses_are_the_papers_formulas(window, stride, form):
    model = setting(window, stride)
    views = make_embedded(model), make_embedded(model)
    drawn = draws_for(views)
    loss, parts = run(views, drawn, model, hgcl_form=form)

    expected = {"icl": loops.icl(views[0].sequence, views[1].sequence, 0.3, drawn.overlap)}
    terms = {"pcl": [], "hgcl_tokens": [], "hgcl_windows": []}
    sigma = max(0.5 * (window - stride), 1e-3)
    for a, k in (views, views[::-1]):
        slots = entry_of(drawn.slots), drawn.slots.mask
        terms["pcl"].append(
            loops.pcl_direction(a.memory, k.memory, a.window_mask, k.window_mask, *slots, 0.25)
        )
        masks = a.window_mask, a.token_mask, k.token_mask
        of_tokens = entry_of(drawn.tokens), drawn.tokens.mask
        terms["hgcl_tokens"].append(
            loops.hgcl_tokens(
                a.tokens, k.tokens, *masks, *of_tokens, window, stride, 0.25 * window, 0.5, form
            )
        )
        means = [loops.window_mean(v.tokens, v.token_mask, window, stride) for v in (a, k)]
        of_windows = entry_of(drawn.windows), drawn.windows.mask
        terms["hgcl_windows"].append(
            loops.hgcl_windows(
                *means, a.window_mask, k.window_mask, *of_windows, stride, sigma, 0.4, form
            )
        )
    expected |= {name: torch.stack(both).mean() for name, both in terms.items()}
    for name, value in expected.items():
        torch.testing.assert_close(parts[name], value, rtol=0, atol=1e-10)
    hgcl = 0.5 * expected["hgcl_tokens"] + 0.5 * expected["hgcl_windows"]
    total = expected["icl"] + expected["pcl"] + hgcl
    torch.testing.assert_close(loss, total, rtol=0, atol=1e-10)

    leaves = [t for v in views for t in (v.sequence, v.memory, v.tokens)]
    for ours, theirs in zip(
        torch.autograd.grad(loss, leaves), torch.autograd.grad(total, leaves), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def constant(views):
    return tuple(
        v._replace(**{n: torch.ones_like(getattr(v, n)) for n in ("sequence", "memory", "tokens")})
        for v in views
    )


def test_a_collapsed_encoder_gives_the_values_of_not_knowing():
    model = setting(4, 4)
    views = constant((make_embedded(model, K=12, gaps=False),) * 2)
    drawn = draws_for(views, overlap=torch.eye(B, dtype=torch.bool), count=10_000)
    _, parts = run(views, drawn, model)
    assert parts["icl"].item() == pytest.approx(math.log(2 * B - 1))
    N, K = 3, 12
    assert parts["pcl"].item() == pytest.approx(math.log(1 + (B - 1) * N * 2))
    # windows side by side: the bucket is an empty sum, e^0 as printed, against e^{1/tau}
    negatives = (B - 1) * N
    window = math.log(1 + negatives + math.exp(-1 / 0.4))
    assert parts["hgcl_windows"].item() == pytest.approx(window)
    tau, tokens = 0.5, []
    for k in range(4):  # position in its window decides the bucket
        T = sum(math.exp(-((k - j) ** 2) / 2) for j in range(4) if j != k)  # sigma = W/4 = 1
        tokens.append(math.log(1 + (B - 1) * K + math.exp((T - 1) / tau)))
    assert parts["hgcl_tokens"].item() == pytest.approx(sum(tokens) / 4)


def test_one_value_of_each_loss_by_hand():
    """Two sequences at right angles, views equal: cosines are 1 and 0, temperature 1."""
    model = ModelConfig(channels=1, size="tiny", window=2, stride=2)
    e = torch.eye(2, dtype=torch.float64)
    mask = torch.ones(2, 2, dtype=torch.bool)
    view = Embedded(e, e[:, None, None], e[:, None].repeat(1, 2, 1), mask, mask[:, :1], None, None)
    drawn = draw_step_negatives(
        torch.eye(2, dtype=torch.bool),
        2,
        1,
        1,
        count=99,
        generator=torch.Generator().manual_seed(0),
    )
    cfg = LossConfig(
        pcl=1, icl_temperature=1, token_temperature=1, window_temperature=1, token_width=0.5
    )
    _, parts = total_loss(
        (view, view), drawn, OneProcess(2), cfg=cfg, model=model, pcl_temperature=1
    )
    # ICL: e / (e + 2): the positive against two vectors of the other sequence
    assert parts["icl"].item() == pytest.approx(math.log((math.e + 2) / math.e))
    assert parts["pcl"].item() == pytest.approx(math.log((math.e + 1) / math.e))
    # tokens: sigma 1, one neighbour of cosine 1 weighs e^-1/2; two negatives of cosine 0
    bucket = math.exp(math.exp(-0.5))
    expected = math.log((math.e + bucket + 2) / math.e)
    assert parts["hgcl_tokens"].item() == pytest.approx(expected)
    # windows: no neighbour, printed as e^0; one negative of cosine 0
    assert parts["hgcl_windows"].item() == pytest.approx(math.log((math.e + 1 + 1) / math.e))


def test_as_printed_neighbours_are_repelled_and_as_soft_positives_attracted():
    """The sign that makes the two forms differ."""
    model = setting(6, 3)
    for form, sign in (("printed", 1), ("soft_positive", -1)):
        views = make_embedded(model, gaps=False), make_embedded(model, gaps=False)
        similarity = []
        for step in (0.0, 1e-4):
            anchor = torch.nn.functional.normalize(views[0].tokens.detach(), dim=-1)
            moved = views[1].tokens.detach().clone()
            moved[0, 4] += step * anchor[0, 3]  # a neighbour of token 3 moves towards it
            keys = torch.nn.functional.normalize(moved, dim=-1)
            mask = views[0].token_mask
            both, there = torch.cat([anchor, keys]), torch.ones_like(mask).repeat(2, 1)
            place = torch.arange(mask.shape[1]).expand(there.shape)
            bank = Bank(
                torch.stack([anchor, keys]).flatten(1, 2), there.view(2, -1),
                draws_for(views).tokens, slice(0, B),
            )  # fmt: skip
            level = Level(
                both, both.roll(B, 0), there, Match(place, _only(there, 0, 3)), bank
            )  # fmt: skip
            windows = torch.ones_like(views[0].window_mask).repeat(2, 1)
            sums = token_level(level, windows, model, temperature=0.2, width=0.25, form=form)
            similarity.append(sums.loss.sum().item())
        assert sign * (similarity[1] - similarity[0]) > 0


def _only(mask, row, place):
    only = torch.zeros_like(mask)
    only[row, place] = True
    return only
