"""HGCL, the token objective (eq. 4 and the bucket form of the appendix), at two levels.

An anchor has its positive p in the other view, local candidates c around p weighed by a Gaussian
q of their distance, and negatives from other sequences. With the bucket T = sum_{c != p} q_c s_c:

    printed:        -log  e^{s_p} / (e^{s_p} + e^{T} + sum_n e^{s_n})
    soft_positive:  -log  (e^{s_p} + e^{T / sum q}) / (e^{s_p} + e^{T / sum q} + sum_n e^{s_n})

(all similarities over the temperature). As printed, neighbours stand in the denominator only, so
they are repelled; `soft_positive` attracts their weighted mean.

Shapes: B sequences, K tokens, N windows, W window, M negatives, D width; T = K or N.
"""

from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from progmem.config import ModelConfig
from progmem.geometry import unfold_windows
from progmem.losses.pairs import Match, cut, in_pieces
from progmem.ops.sampled_contrast import Bank, repulsion


class Level(NamedTuple):
    """Anchors of both views and their counterparts, at the level of tokens or of windows."""

    anchors: Tensor  # (B, T, D), normalised
    keys: Tensor  # (B, T, D), the same sequences in the other view
    key_valid: Tensor  # (B, T)
    match: Match
    bank: Bank  # the negatives


class HGCLSums(NamedTuple):
    """Sums over each sequence's anchors, (B,); shares are of the denominator's softmax mass."""

    anchors: Tensor
    loss: Tensor
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
    B, K, _ = level.anchors.shape
    N, W = windows.shape[1], cfg.window
    made = {"device": level.anchors.device, "dtype": level.anchors.dtype}
    weight = _weights_by_distance(W, width * W, **made)  # (2W-1, W)
    apart = torch.arange(1 - W, W, device=level.anchors.device)  # of a candidate and the match
    cell = _cells(K, N, W, cfg.stride, level.anchors.device)
    repelled = repulsion(level.bank, temperature)

    def term(rows: slice) -> tuple[Tensor, ...]:
        place, found = (t[rows] for t in level.match)  # (b, K)
        beside = place[..., None] + apart  # (b, K, 2W-1)
        near = beside.clamp(0, K - 1)
        there = (near == beside) & level.key_valid[rows].gather(1, near.flatten(1)).view_as(near)
        anchors = cut(level.anchors, rows)
        similarity = anchors @ cut(level.keys, rows).mT  # (b, K, K)
        local = similarity.gather(2, near)  # (b, K, 2W-1)
        pull = local[..., W - 1]  # the match itself

        def weighed(x: Tensor) -> Tensor:
            """(b, N, W) of candidates (b, K, 2W-1).

            As if a token stood at each place of a window, then where it does stand: no value is
            picked twice, so gradients are summed in one order.
            """
            every = (x @ weight).flatten(1)  # (b, K W)
            return every.gather(1, cell.expand(len(x), -1)).view(-1, N, W)

        bucket = weighed(torch.where(there, local, 0.0))
        mass = weighed(there.to(local.dtype)) if form == "soft_positive" else None
        told = (pull, *repelled(anchors, rows), found)
        pull, push, away, found = (unfold_windows(t, cfg, N) for t in told)  # (b, N, W)
        found = found & windows[rows, :, None]
        return _terms(pull, bucket, mass, push, away, found, temperature)

    return HGCLSums(*in_pieces(term, B, cost=K * (K + 3 * W + level.bank.negatives)))


def window_level(
    level: Level, cfg: ModelConfig, *, temperature: float, width: float, form: str
) -> HGCLSums:
    """Every window; candidates are all windows of the sequence in the other view."""
    sigma = max(width * (cfg.window - cfg.stride), 1e-3)  # side by side: the match alone
    B, N, _ = level.anchors.shape
    made = {"device": level.anchors.device, "dtype": level.anchors.dtype}
    weight = _weights(N, cfg.stride, sigma, **made)
    repelled = repulsion(level.bank, temperature)

    def term(rows: slice) -> tuple[Tensor, ...]:
        place, found = (t[rows] for t in level.match)  # (b, N)
        anchors = cut(level.anchors, rows)
        similarity = anchors @ cut(level.keys, rows).mT  # (b, N, N)
        pull = similarity.gather(2, place[..., None]).squeeze(2)
        q = weight[place] * level.key_valid[rows, None]  # (b, N, N)
        push, away = repelled(anchors, rows)
        bucket = (q * similarity).sum(-1)
        mass = q.sum(-1) if form == "soft_positive" else None
        return _terms(pull, bucket, mass, push, away, found, temperature)

    return HGCLSums(*in_pieces(term, B, cost=N * (N + level.bank.negatives)))


def window_means(z: Tensor, valid: Tensor, cfg: ModelConfig, windows: int) -> Tensor:
    """Normalised mean of each window's projected tokens, (B, N, D)."""
    present = valid[..., None].to(z.dtype)
    total = unfold_windows(z * present, cfg, windows).sum(2)
    return F.normalize(total, dim=-1)  # the count cancels


def _terms(
    pull: Tensor,
    bucket: Tensor,
    mass: Tensor | None,
    push: Tensor,
    away: Tensor,
    found: Tensor,
    tau: float,
) -> tuple[Tensor, ...]:
    """The sums, from s_p, T, sum q, log sum_n e^{s_n / tau} and the mean of s_n.

    Without sum q, the printed form.
    """
    found = found & (push > -float("inf"))
    near = bucket / tau
    if mass is not None:
        near = near / mass.clamp(min=torch.finfo(mass.dtype).tiny)
        near = near.masked_fill(mass < 1e-6, -float("inf"))  # no neighbours
    shares = torch.stack([pull / tau, near, torch.where(found, push, 0.0)]).log_softmax(0)
    loss = -shares[0] if mass is None else -torch.logaddexp(shares[0], shares[1])
    with torch.no_grad():
        told = [*shares[1:].exp(), pull - away]
    terms = torch.stack([torch.ones_like(loss), loss, *told])
    sums = torch.where(found, terms, 0.0).flatten(2).sum(2)
    return sums.unbind(0)  # (b,) each


@cache
def _weights(
    places: int, step: int, sigma: float, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """q between places ``step`` tokens apart, (places, places); 0 at the match itself.

    Kept for good, like the other tables: a recorded graph goes on reading it.
    """
    with torch.inference_mode(False):  # a gradient may want them later
        place = torch.arange(places, device=device, dtype=torch.float64) * step
        q = torch.exp(-((place - place[:, None]) ** 2) / (2 * sigma**2))
        return q.fill_diagonal_(0.0).to(dtype)


@cache
def _weights_by_distance(
    window: int, sigma: float, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """q of the candidates 1-W .. W-1 tokens from the match, of an anchor at each place: (2W-1, W).

    Candidates outside the window weigh nothing.
    """
    weight = _weights(window, 1, sigma, device, dtype)  # (W, W), anchor and candidate
    with torch.inference_mode(False):
        anchor = torch.arange(window, device=device)
        candidate = torch.arange(1 - window, window, device=device)[:, None] + anchor  # (2W-1, W)
        inside = (candidate >= 0) & (candidate < window)
        return torch.where(inside, weight[anchor, candidate.clamp(0, window - 1)], 0.0)


@cache
def _cells(tokens: int, windows: int, window: int, stride: int, device: torch.device) -> Tensor:
    """The cells of (tokens, places) that the windows' places are, (N W,)."""
    with torch.inference_mode(False):
        place = torch.arange(window, device=device)
        token = torch.arange(windows, device=device)[:, None] * stride + place
        return (token.clamp(max=tokens - 1) * window + place).flatten()
