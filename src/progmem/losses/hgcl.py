"""HGCL, the token objective (eq. 4 and the bucket form of the appendix), at two levels.

An anchor has its positive p in the other view, local candidates c around p weighed by a Gaussian
q of their distance, and negatives from other sequences. With the bucket T = sum_{c != p} q_c s_c:

    printed:        -log  e^{s_p} / (e^{s_p} + e^{T} + sum_n e^{s_n})
    soft_positive:  -log  (e^{s_p} + e^{T / sum q}) / (e^{s_p} + e^{T / sum q} + sum_n e^{s_n})

(all similarities over the temperature). As printed, neighbours stand in the denominator only, so
they are repelled; `soft_positive` attracts their weighted mean.

Shapes: B sequences, K tokens, N windows, W window, M negatives, D width; T = K or N.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from progmem.config import ModelConfig
from progmem.losses.align import Match
from progmem.losses.bounded import cut, in_pieces
from progmem.losses.contrast import Bank, repulsion
from progmem.model.geometry import unfold_windows

FORMS = ("printed", "soft_positive")


class Level(NamedTuple):
    """Anchors of one view and their counterparts, at the level of tokens or of windows."""

    anchors: Tensor  # (B, T, D), normalised
    keys: Tensor  # (B, T, D), the same sequences in the other view
    key_valid: Tensor  # (B, T)
    match: Match
    bank: Bank  # the negatives


class HGCLSums(NamedTuple):
    """Sums over each sequence's anchors, (B,); shares are of the denominator's softmax mass."""

    loss: Tensor
    anchors: Tensor
    bucket_share: Tensor
    negative_share: Tensor
    gap: Tensor  # cosine with the positive minus mean cosine with the negatives


def token_level(
    level: Level,
    windows: Tensor,
    cfg: ModelConfig,
    *,
    temperature: float,
    width: float,
    form: str,
) -> HGCLSums:
    """Every token in each of its windows; candidates are that window's tokens around the match.

    ``windows`` (B, N) tells the windows that each sequence has.
    """
    W = cfg.window
    sigma = width * W
    position = torch.arange(W, device=level.anchors.device)
    offset = position - position[:, None]  # candidate minus anchor, (W, W)
    weight = _gaussian(offset, sigma).to(level.anchors.dtype)
    B, K, _ = level.anchors.shape
    N = windows.shape[1]
    number = torch.arange(1, K + 1, device=offset.device).expand(B, K)
    number = unfold_windows(number, cfg, N)  # (B, N, W), 1 + token, 0 where there is none
    repelled = repulsion(level.bank, temperature)

    def term(rows: slice) -> tuple[Tensor, ...]:
        token = (number[rows] - 1).clamp(min=0)  # (b, N, W)
        found = (number[rows] > 0) & windows[rows, :, None] & _pick(level.match.found[rows], token)
        near = _pick(level.match.place[rows], token)[..., None] + offset  # (b, N, W, W)
        inside = (near >= 0) & (near < K)
        near = near.clamp(0, K - 1)
        there = inside & _pick(level.key_valid[rows], near)
        anchors = cut(level.anchors, rows)
        similarity = anchors @ cut(level.keys, rows).mT  # (b, K, K)
        local = _pick(similarity.flatten(1), token[..., None] * K + near)  # (b, N, W, W)
        pull = local.diagonal(dim1=-2, dim2=-1)  # offset 0 is the match itself
        q = weight * there * (offset != 0)
        push, away = (_pick(t, token) for t in repelled(anchors, rows))
        return _bucket(pull, (q * local).sum(-1), q.sum(-1), push, away, found, temperature, form)

    return HGCLSums(*in_pieces(term, B, cost=K * K + N * W * W + K * level.bank.negatives))


def window_level(
    level: Level, cfg: ModelConfig, *, temperature: float, width: float, form: str
) -> HGCLSums:
    """Every window; candidates are all windows of the sequence in the other view."""
    sigma = max(width * (cfg.window - cfg.stride), 1e-3)  # side by side: the match alone
    B, N, _ = level.anchors.shape
    number = torch.arange(N, device=level.anchors.device)
    repelled = repulsion(level.bank, temperature)

    def term(rows: slice) -> tuple[Tensor, ...]:
        index, found = level.match.place[rows], level.match.found[rows]  # (b, N)
        apart = (number - index[..., None]) * cfg.stride  # (b, N, N), tokens
        anchors = cut(level.anchors, rows)
        similarity = anchors @ cut(level.keys, rows).mT  # (b, N, N)
        pull = similarity.gather(2, index[..., None]).squeeze(2)
        q = (
            _gaussian(apart, sigma).to(similarity.dtype)
            * level.key_valid[rows, None]
            * (apart != 0)
        )
        push, away = repelled(anchors, rows)
        total, mass = (q * similarity).sum(-1), q.sum(-1)
        return _bucket(pull, total, mass, push, away, found, temperature, form)

    return HGCLSums(*in_pieces(term, B, cost=N * (N + level.bank.negatives)))


def window_means(z: Tensor, valid: Tensor, cfg: ModelConfig, windows: int) -> Tensor:
    """Normalised mean of each window's projected tokens, (B, N, D)."""
    present = valid[..., None].to(z.dtype)
    total = unfold_windows(z * present, cfg, windows).sum(2)
    return F.normalize(total, dim=-1)  # the count cancels


def _bucket(
    pull: Tensor,
    bucket: Tensor,
    mass: Tensor,
    push: Tensor,
    away: Tensor,
    found: Tensor,
    tau: float,
    form: str,
) -> tuple[Tensor, ...]:
    """The sums, from s_p, T, sum q, log sum_n e^{s_n / tau} and the mean of s_n."""
    found = found & push.isfinite()
    push = push.masked_fill(~found, 0.0)
    if form == "printed":
        near = bucket / tau
        numerator = pull / tau
    else:
        mean = bucket / mass.clamp(min=torch.finfo(mass.dtype).tiny)
        near = (mean / tau).masked_fill(mass < 1e-6, -float("inf"))  # no neighbours
        numerator = torch.logaddexp(pull / tau, near)
    denominator = torch.logsumexp(torch.stack([pull / tau, near, push]), dim=0)
    loss = torch.where(found, denominator - numerator, 0.0).flatten(1).sum(1)  # (b,)
    with torch.no_grad():
        shares = torch.exp(torch.stack([near, push]) - denominator)
        told = torch.cat([shares, (pull - away)[None]])
        told = torch.where(found, told, 0.0).flatten(2).sum(2)  # (3, b)
        return loss, found.flatten(1).sum(1).to(loss.dtype), *told.unbind(0)


def _gaussian(distance: Tensor, sigma: float) -> Tensor:
    return torch.exp(-(distance.double() ** 2) / (2 * sigma**2))


def _pick(values: Tensor, index: Tensor) -> Tensor:
    """values (B, X) at index (B, ...)."""
    return values.gather(1, index.flatten(1)).view(index.shape)
