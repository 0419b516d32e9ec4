"""The weighted sum of the objectives on two views of a batch, with its parts.

Three are the paper's (eq. 5) and contrastive: with similarities s over a temperature, an anchor's
loss is -log e^{s_p} / (e^{s_p} + sum_n e^{s_n}), p its counterpart in the other view, n its
negatives.

- ICL: anchors are series, by their projected CLS; negatives are the other series of the batch.
- PCL: anchors are memory slots; the counterpart is the same slot of the window at the same time.
- HGCL: anchors are tokens, and window means of tokens. Neighbours of the counterpart, weighed by a
  Gaussian of their distance, are one more term of the denominator (`printed`, the default) or
  attract too (`soft_positive`).

PCL and HGCL draw their negatives from other series (`progmem.losses.pairs`). The fourth is the
squared error of predicted hidden samples (`progmem.losses.predict`).

Each process holds some rows of the global batch. Anchors are its own rows; keys and negatives come
from all rows, gathered with gradients; sums are divided by the number of anchors everywhere. The
gradients of all processes then add up to those of one process with the whole batch.

Shapes: b own rows, B rows of the global batch, K tokens, N windows, n slots, D width.
"""

from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from progmem.config import LossConfig, ModelConfig
from progmem.losses.hgcl import Level, token_level, window_level, window_means
from progmem.losses.icl import icl_loss
from progmem.losses.pairs import Match, draw_negatives, match
from progmem.losses.pcl import pcl_loss
from progmem.ops.sampled_contrast import Bank, Negatives

OBJECTIVES = ("icl", "pcl", "hgcl", "predict")  # as the settings name their weights


class Group(Protocol):
    """The processes that share a batch."""

    rows: slice  # own rows of the global batch

    def gather(self, x: Tensor) -> Tensor: ...  # (b, ...) -> (B, ...), differentiable
    def total(self, x: Tensor) -> Tensor: ...  # sum over processes, no gradient


class Embedded(NamedTuple):
    """One view of the own rows as the losses take it, float32."""

    sequence: Tensor | None  # (b, d), projected
    memory: Tensor | None  # (b, N, n, D)
    tokens: Tensor | None  # (b, K, D), projected
    token_mask: Tensor  # (b, K)
    window_mask: Tensor  # (b, N)
    token_time: Tensor | None  # (b, K), input samples; None: positives by number
    window_time: Tensor | None  # (b, N)
    errors: Tensor | None = None  # (b,), squared errors of hidden samples, summed by series
    error_counts: Tensor | None = None  # (b,), and how many there are


class StepNegatives(NamedTuple):
    """The negatives of all objectives in one step, the same in every process."""

    overlap: Tensor  # (B, B), rows that share samples
    slots: Negatives
    tokens: Negatives
    windows: Negatives


def draw_step_negatives(
    overlap: Tensor,
    tokens: int,
    windows: int,
    slots: int,
    *,
    count: int,
    generator: torch.Generator,
) -> StepNegatives:
    """Negatives for sequences of ``tokens`` tokens and ``windows`` windows of ``slots`` slots."""
    of_slots, of_tokens, of_windows = (
        draw_negatives(overlap, entries, count=count, generator=generator)
        for entries in (max(1, windows * slots), tokens, windows)
    )
    return StepNegatives(overlap, of_slots, of_tokens, of_windows)


def total_loss(
    views: tuple[Embedded, Embedded],
    negatives: StepNegatives,
    group: Group,
    *,
    cfg: LossConfig,
    model: ModelConfig,
    pcl_temperature: float | Tensor,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss to be differentiated, and its parts: unweighted terms, gaps, shares of HGCL."""
    parts: dict[str, Tensor] = {}
    both = _concatenate(views)
    if cfg.icl:
        sequence, tau = _require(both.sequence), cfg.icl_temperature
        parts["icl"], parts["icl_gap"] = nt_xent(
            sequence, negatives.overlap, group, temperature=tau
        )
    windows = _match(both.window_time, both.window_mask, model.stride * model.patch_stride)
    if cfg.pcl:
        parts |= _pcl(both, windows, negatives, group, pcl_temperature)
    if cfg.hgcl:
        parts |= _hgcl(both, windows, negatives, group, cfg, model)
        parts["hgcl"] = cfg.alpha * parts["hgcl_tokens"] + cfg.beta * parts["hgcl_windows"]
    if cfg.predict:
        total, count = _require(both.errors).sum(), _require(both.error_counts).sum()
        parts["predict"] = total / group.total(count).clamp(min=1)
    terms = [getattr(cfg, name) * parts[name] for name in OBJECTIVES if name in parts]
    loss = torch.stack(terms).sum()
    return loss, parts


def _concatenate(views: tuple[Embedded, Embedded]) -> Embedded:
    """Both views as one batch of 2b rows: each is anchor once, with the other as its keys."""
    return Embedded._make(None if x is None or y is None else torch.cat([x, y])
                          for x, y in zip(*views, strict=True))  # fmt: skip


def _other_view(x: Tensor) -> Tensor:
    """The rows of the other view, (2b, ...)."""
    return x.roll(len(x) // 2, 0)


def _gather_views(x: Tensor, group: Group) -> Tensor:
    """Both views' own rows (2b, ...) of all processes, (2, B, ...)."""
    return group.gather(x.view(2, -1, *x.shape[1:]).transpose(0, 1)).transpose(0, 1)


def _means(anchors: Tensor, sums: list[Tensor], group: Group) -> tuple[Tensor, ...]:
    """Mean of each direction's mean over its anchors, from counts and sums of 2b sequences."""
    totals = torch.stack([anchors, *sums]).view(1 + len(sums), 2, -1).sum(2)  # (., 2)
    everywhere = group.total(totals[0].detach()).clamp(min=1)
    return (totals[1:] / everywhere).mean(1).unbind(0)


def nt_xent(
    sequence: Tensor, overlap: Tensor, group: Group, *, temperature: float
) -> tuple[Tensor, Tensor]:
    """ICL of projected vectors (2b, d) of both views, averaged over both directions; and its gap.

    Rows that share samples, which ``overlap`` (B, B) tells, are no negatives of each other.
    """
    own = F.normalize(sequence, dim=-1)
    keys = _gather_views(own, group).flatten(0, 1)  # (2B, d)
    B = len(keys) // 2
    row = torch.arange(B, device=keys.device)[group.rows]
    positive = torch.cat([row + B, row])
    mask = ~overlap[group.rows].repeat(2, 2)  # (2b, 2B)
    mask = mask.scatter(1, positive[:, None], True)
    total, anchors, gaps = icl_loss(
        own, keys, positive=positive, mask=mask, temperature=temperature
    )
    loss, gap = torch.stack([total, gaps]) / group.total(anchors).clamp(min=1)
    return loss, gap


def _pcl(
    both: Embedded,
    matched: Match,
    negatives: StepNegatives,
    group: Group,
    temperature: float | Tensor,
) -> dict[str, Tensor]:
    slots = F.normalize(_require(both.memory), dim=-1)  # (2b, N, n, D)
    n = slots.shape[2]
    valid = both.window_mask.repeat_interleave(n, dim=1)  # (2b, N n)
    bank = _bank(slots.flatten(1, 2), valid, negatives.slots, group)
    total, count, gaps = pcl_loss(
        slots, _other_view(slots), matched, bank=bank, temperature=temperature
    )
    loss, gap = _means(count, [total, gaps], group)
    return {"pcl": loss, "pcl_gap": gap}


def _hgcl(
    both: Embedded,
    of_windows: Match,
    negatives: StepNegatives,
    group: Group,
    cfg: LossConfig,
    model: ModelConfig,
) -> dict[str, Tensor]:
    anchors, valid = F.normalize(_require(both.tokens), dim=-1), both.token_mask  # (2b, K, D)
    means = window_means(anchors, valid, model, both.window_mask.shape[1])
    windows = _level(means, both.window_mask, of_windows, negatives.windows, group)
    of_tokens = _match(both.token_time, valid, model.patch / 2)
    tokens = _level(anchors, valid, of_tokens, negatives.tokens, group)
    form = cfg.hgcl_form
    tau, width = cfg.token_temperature, cfg.token_width
    by_token = token_level(tokens, both.window_mask, model, temperature=tau, width=width, form=form)
    tau, width = cfg.window_temperature, cfg.window_width
    by_window = window_level(windows, model, temperature=tau, width=width, form=form)
    means_by_level = [_means(count, sums, group) for count, *sums in (by_token, by_window)]
    result: dict[str, Tensor] = {}
    for name, (loss, bucket, negative, _) in zip(
        ("tokens", "windows"), means_by_level, strict=True
    ):
        result |= {
            f"hgcl_{name}": loss,
            f"{name}_bucket_share": bucket,
            f"{name}_negative_share": negative,
        }
    return result | {"hgcl_gap": means_by_level[0][3]}


def _level(
    anchors: Tensor, valid: Tensor, matched: Match, negatives: Negatives, group: Group
) -> Level:
    bank = _bank(anchors, valid, negatives, group)
    return Level(anchors, _other_view(anchors), _other_view(valid), matched, bank)


def _bank(own: Tensor, valid: Tensor, negatives: Negatives, group: Group) -> Bank:
    """The entries of all sequences, from the own ones (2b, P, D) and which of them are valid."""
    vectors, valid = (_gather_views(t, group).flatten(1, 2) for t in (own, valid))  # (2, B P, ...)
    return Bank(vectors, valid, negatives, group.rows)


def _match(time: Tensor | None, valid: Tensor, tolerance: float) -> Match:
    other = None if time is None else _other_view(time)
    return match(time, valid, other, _other_view(valid), tolerance=tolerance)


def _require(x: Tensor | None) -> Tensor:
    assert x is not None, "this level of the views was not embedded, but its objective is on"
    return x
