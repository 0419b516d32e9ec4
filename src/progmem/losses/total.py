"""The weighted sum of the three objectives (eq. 6) on two views of a batch, with its parts.

Each process holds some rows of the global batch. Anchors are its own rows; keys and negatives come
from all rows, gathered with gradients; sums are divided by the number of anchors everywhere. The
gradients of all processes then add up to those of one process with the whole batch.

Shapes: b own rows, B rows of the global batch, K tokens, N windows, n slots, D width.
"""

from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from progmem.config import ModelConfig
from progmem.losses.align import Match, match
from progmem.losses.contrast import Bank
from progmem.losses.hgcl import Level, token_level, window_level, window_means
from progmem.losses.icl import icl_loss
from progmem.losses.negatives import Negatives, draw_negatives
from progmem.losses.pcl import pcl_loss
from progmem.settings import LossConfig


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

    def rows(self, part: slice) -> "Embedded":
        return Embedded._make(None if t is None else t[part] for t in self)


class Drawn(NamedTuple):
    """Negatives of a step, the same in every process."""

    overlap: Tensor  # (B, B), rows that share samples
    slots: Negatives
    tokens: Negatives
    windows: Negatives


def draw(
    overlap: Tensor,
    tokens: int,
    windows: int,
    slots: int,
    *,
    count: int,
    generator: torch.Generator,
) -> Drawn:
    """Negatives for sequences of ``tokens`` tokens and ``windows`` windows of ``slots`` slots."""
    of_slots, of_tokens, of_windows = (
        draw_negatives(overlap, entries, count=count, generator=generator)
        for entries in (max(1, windows * slots), tokens, windows)
    )
    return Drawn(overlap, of_slots, of_tokens, of_windows)


def total_loss(
    views: tuple[Embedded, Embedded],
    drawn: Drawn,
    group: Group,
    *,
    cfg: LossConfig,
    model: ModelConfig,
    pcl_temperature: float | Tensor,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss to be differentiated, and its parts: unweighted terms, gaps, shares of HGCL."""
    parts: dict[str, Tensor] = {}
    if cfg.icl:
        parts |= _icl(views, drawn, group, cfg)
    both = _together(views)
    if cfg.pcl:
        parts |= _pcl(both, drawn, group, model, pcl_temperature)
    if cfg.hgcl:
        parts |= _hgcl(both, drawn, group, cfg, model)
        parts["hgcl"] = cfg.alpha * parts["hgcl_tokens"] + cfg.beta * parts["hgcl_windows"]
    weights = {"icl": cfg.icl, "pcl": cfg.pcl, "hgcl": cfg.hgcl}
    loss = torch.stack([weights[name] * parts[name] for name in weights if name in parts]).sum()
    return loss, parts


def _together(views: tuple[Embedded, Embedded]) -> Embedded:
    """Both views as one batch of 2b rows: each is anchor once, with the other as its keys."""
    return Embedded._make(None if x is None or y is None else torch.cat([x, y])
                          for x, y in zip(*views, strict=True))  # fmt: skip


def _swapped(x: Tensor) -> Tensor:
    """The rows of the other view, (2b, ...)."""
    return x.roll(len(x) // 2, 0)


def _mean(total: Tensor, anchors: Tensor, group: Group) -> Tensor:
    """Mean over all anchors, from sums and counts of one batch."""
    return total / group.total(anchors).clamp(min=1)


def _mean_of_both(totals: Tensor, anchors: Tensor, group: Group) -> Tensor:
    """Mean of each direction's mean over its anchors, from sums and counts of 2b sequences."""
    totals, anchors = (t.view(2, -1).sum(1) for t in (totals, anchors))
    return _mean(totals, anchors, group).mean()


def _icl(
    views: tuple[Embedded, Embedded], drawn: Drawn, group: Group, cfg: LossConfig
) -> dict[str, Tensor]:
    own = [_there(view.sequence) for view in views]
    keys = torch.cat([group.gather(z) for z in own])  # (2B, d)
    B = len(keys) // 2
    row = torch.arange(B, device=keys.device)[group.rows]
    positive = torch.cat([row + B, row])
    mask = ~drawn.overlap[group.rows].repeat(2, 2)  # (2b, 2B)
    mask = mask.scatter(1, positive[:, None], True)
    total, anchors, gaps = icl_loss(
        torch.cat(own), keys, positive=positive, mask=mask, temperature=cfg.icl_temperature
    )
    return {"icl": _mean(total, anchors, group), "icl_gap": _mean(gaps, anchors, group)}


def _pcl(
    both: Embedded, drawn: Drawn, group: Group, model: ModelConfig, temperature: float | Tensor
) -> dict[str, Tensor]:
    anchors = F.normalize(_there(both.memory), dim=-1)  # (2b, N, n, D)
    keys = _swapped(anchors)
    n = anchors.shape[2]
    place, found = _match_windows(both, model)
    positives = keys.gather(1, place[..., None, None].expand_as(keys))
    there = both.window_mask.repeat_interleave(n, dim=1)  # (2b, N n)
    total, count, gaps = pcl_loss(
        anchors.flatten(1, 2),
        positives.flatten(1, 2),
        found.repeat_interleave(n, dim=1),
        bank=_bank(anchors.flatten(1, 2), there, drawn.slots, group),
        temperature=temperature,
    )
    return {
        "pcl": _mean_of_both(total, count, group), "pcl_gap": _mean_of_both(gaps, count, group)
    }  # fmt: skip


def _hgcl(
    both: Embedded, drawn: Drawn, group: Group, cfg: LossConfig, model: ModelConfig
) -> dict[str, Tensor]:
    anchors = F.normalize(_there(both.tokens), dim=-1)  # (2b, K, D)
    means = window_means(anchors, both.token_mask, model, both.window_mask.shape[1])
    tolerance = max(model.patch, model.patch_stride) / 2
    time, valid = both.token_time, both.token_mask
    other = None if time is None else _swapped(time)
    matched = match(time, valid, other, _swapped(valid), tolerance=tolerance)
    tokens = _level(anchors, valid, matched, drawn.tokens, group)
    matched = _match_windows(both, model)
    windows = _level(means, both.window_mask, matched, drawn.windows, group)
    form = cfg.hgcl_form
    tau, width = cfg.token_temperature, cfg.token_width
    by_token = token_level(tokens, both.window_mask, model, temperature=tau, width=width, form=form)
    tau, width = cfg.window_temperature, cfg.window_width
    by_window = window_level(windows, model, temperature=tau, width=width, form=form)
    result = {}
    for name, sums in (("tokens", by_token), ("windows", by_window)):
        loss, *shares = (
            _mean_of_both(s, sums.anchors, group)
            for s in (sums.loss, sums.bucket_share, sums.negative_share)
        )
        result[f"hgcl_{name}"] = loss
        result[f"{name}_bucket_share"], result[f"{name}_negative_share"] = shares
    result["hgcl_gap"] = _mean_of_both(by_token.gap, by_token.anchors, group)
    return result


def _level(anchors: Tensor, valid: Tensor, matched: Match, drawn: Negatives, group: Group) -> Level:
    bank = _bank(anchors, valid, drawn, group)
    return Level(anchors, _swapped(anchors), _swapped(valid), matched, bank)


def _bank(own: Tensor, there: Tensor, drawn: Negatives, group: Group) -> Bank:
    """All sequences' entries, from the own ones (2b, P, D) and which of them are there."""
    vectors, known = (
        group.gather(t.view(2, -1, *t.shape[1:]).transpose(0, 1)).transpose(0, 1).flatten(1, 2)
        for t in (own, there)
    )  # (2, B P, ...)
    return Bank(vectors, known, drawn, group.rows)


def _match_windows(both: Embedded, model: ModelConfig) -> Match:
    time, valid = both.window_time, both.window_mask
    other = None if time is None else _swapped(time)
    tolerance = model.stride * model.patch_stride
    return match(time, valid, other, _swapped(valid), tolerance=tolerance)


def _there(x: Tensor | None) -> Tensor:
    assert x is not None, "an objective is on whose scale was not embedded"
    return x
