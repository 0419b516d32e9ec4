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

from progmem.config import LossConfig, ModelConfig
from progmem.losses.hgcl import Level, token_level, window_level, window_means
from progmem.losses.icl import icl_loss
from progmem.losses.pairs import Match, draw_negatives, match
from progmem.losses.pcl import pcl_loss
from progmem.ops.sampled_contrast import Bank, Negatives


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
    both = _together(views)
    if cfg.icl:
        parts |= _icl(both, drawn, group, cfg)
    windows = _match(both.window_time, both.window_mask, model.stride * model.patch_stride)
    if cfg.pcl:
        parts |= _pcl(both, windows, drawn, group, pcl_temperature)
    if cfg.hgcl:
        parts |= _hgcl(both, windows, drawn, group, cfg, model)
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


def _from_all(x: Tensor, group: Group) -> Tensor:
    """Both views' own rows (2b, ...) of all processes, (2, B, ...)."""
    return group.gather(x.view(2, -1, *x.shape[1:]).transpose(0, 1)).transpose(0, 1)


def _means(anchors: Tensor, sums: list[Tensor], group: Group) -> tuple[Tensor, ...]:
    """Mean of each direction's mean over its anchors, from counts and sums of 2b sequences."""
    totals = torch.stack([anchors, *sums]).view(1 + len(sums), 2, -1).sum(2)  # (., 2)
    everywhere = group.total(totals[0].detach()).clamp(min=1)
    return (totals[1:] / everywhere).mean(1).unbind(0)


def _icl(both: Embedded, drawn: Drawn, group: Group, cfg: LossConfig) -> dict[str, Tensor]:
    own = F.normalize(_there(both.sequence), dim=-1)  # (2b, d)
    keys = _from_all(own, group).flatten(0, 1)  # (2B, d)
    B = len(keys) // 2
    row = torch.arange(B, device=keys.device)[group.rows]
    positive = torch.cat([row + B, row])
    mask = ~drawn.overlap[group.rows].repeat(2, 2)  # (2b, 2B)
    mask = mask.scatter(1, positive[:, None], True)
    total, anchors, gaps = icl_loss(
        own, keys, positive=positive, mask=mask, temperature=cfg.icl_temperature
    )
    loss, gap = torch.stack([total, gaps]) / group.total(anchors).clamp(min=1)
    return {"icl": loss, "icl_gap": gap}


def _pcl(
    both: Embedded, matched: Match, drawn: Drawn, group: Group, temperature: float | Tensor
) -> dict[str, Tensor]:
    slots = F.normalize(_there(both.memory), dim=-1)  # (2b, N, n, D)
    n = slots.shape[2]
    there = both.window_mask.repeat_interleave(n, dim=1)  # (2b, N n)
    bank = _bank(slots.flatten(1, 2), there, drawn.slots, group)
    total, count, gaps = pcl_loss(
        slots, _swapped(slots), matched, bank=bank, temperature=temperature
    )
    loss, gap = _means(count, [total, gaps], group)
    return {"pcl": loss, "pcl_gap": gap}


def _hgcl(
    both: Embedded,
    of_windows: Match,
    drawn: Drawn,
    group: Group,
    cfg: LossConfig,
    model: ModelConfig,
) -> dict[str, Tensor]:
    anchors, valid = F.normalize(_there(both.tokens), dim=-1), both.token_mask  # (2b, K, D)
    means = window_means(anchors, valid, model, both.window_mask.shape[1])
    windows = _level(means, both.window_mask, of_windows, drawn.windows, group)
    of_tokens = _match(both.token_time, valid, max(model.patch, model.patch_stride) / 2)
    tokens = _level(anchors, valid, of_tokens, drawn.tokens, group)
    form = cfg.hgcl_form
    tau, width = cfg.token_temperature, cfg.token_width
    by_token = token_level(tokens, both.window_mask, model, temperature=tau, width=width, form=form)
    tau, width = cfg.window_temperature, cfg.window_width
    by_window = window_level(windows, model, temperature=tau, width=width, form=form)
    told = [_means(count, sums, group) for count, *sums in (by_token, by_window)]
    result: dict[str, Tensor] = {}
    for name, (loss, bucket, negative, _) in zip(("tokens", "windows"), told, strict=True):
        result |= {
            f"hgcl_{name}": loss,
            f"{name}_bucket_share": bucket,
            f"{name}_negative_share": negative,
        }
    return result | {"hgcl_gap": told[0][3]}


def _level(anchors: Tensor, valid: Tensor, matched: Match, drawn: Negatives, group: Group) -> Level:
    bank = _bank(anchors, valid, drawn, group)
    return Level(anchors, _swapped(anchors), _swapped(valid), matched, bank)


def _bank(own: Tensor, there: Tensor, drawn: Negatives, group: Group) -> Bank:
    """All sequences' entries, from the own ones (2b, P, D) and which of them are there."""
    vectors, known = (_from_all(t, group).flatten(1, 2) for t in (own, there))  # (2, B P, ...)
    return Bank(vectors, known, drawn, group.rows)


def _match(time: Tensor | None, valid: Tensor, tolerance: float) -> Match:
    other = None if time is None else _swapped(time)
    return match(time, valid, other, _swapped(valid), tolerance=tolerance)


def _there(x: Tensor | None) -> Tensor:
    assert x is not None, "an objective is on whose scale was not embedded"
    return x
