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
from torch import Tensor

from progmem.config import ModelConfig
from progmem.losses.align import Match
from progmem.losses.bounded import cut, in_pieces
from progmem.losses.contrast import Bank, repulsion
from progmem.losses.unit import unit
from progmem.model.geometry import unfold_windows

FORMS = ("printed", "soft_positive")


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
    weight = _weights(W, 1, width * W, **made)
    token, offset = _places(K, N, W, cfg.stride, level.anchors.device)
    repelled = repulsion(level.bank, temperature)

    def term(rows: slice) -> tuple[Tensor, ...]:
        place, found = (unfold_windows(t[rows], cfg, N) for t in level.match)  # (b, N, W)
        beside = place[..., None] + offset  # (b, N, W, W)
        near = beside.clamp(0, K - 1)
        there = (near == beside) & _pick(level.key_valid[rows], near)
        anchors = cut(level.anchors, rows)
        similarity = anchors @ cut(level.keys, rows).mT  # (b, K, K)
        local = _pick(similarity.flatten(1), token[..., None] * K + near)  # (b, N, W, W)
        pull = local.diagonal(dim1=-2, dim2=-1)  # offset 0 is the match itself
        push, away = (unfold_windows(t, cfg, N) for t in repelled(anchors, rows))
        found = found & windows[rows, :, None]
        return _bucket(pull, weight * there, local, push, away, found, temperature, form)

    return HGCLSums(*in_pieces(term, B, cost=K * K + N * W * W + K * level.bank.negatives))


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
        return _bucket(pull, q, similarity, push, away, found, temperature, form)

    return HGCLSums(*in_pieces(term, B, cost=N * (N + level.bank.negatives)))


def window_means(z: Tensor, valid: Tensor, cfg: ModelConfig, windows: int) -> Tensor:
    """Normalised mean of each window's projected tokens, (B, N, D)."""
    present = valid[..., None].to(z.dtype)
    total = unfold_windows(z * present, cfg, windows).sum(2)
    return unit(total)  # the count cancels


def _bucket(
    pull: Tensor,
    q: Tensor,
    local: Tensor,
    push: Tensor,
    away: Tensor,
    found: Tensor,
    tau: float,
    form: str,
) -> tuple[Tensor, ...]:
    """The sums, from s_p, q_c and s_c, log sum_n e^{s_n / tau} and the mean of s_n."""
    found = found & (push > -float("inf"))
    near = (q * local).sum(-1) / tau
    if form == "soft_positive":
        mass = q.sum(-1)
        near = near / mass.clamp(min=torch.finfo(mass.dtype).tiny)
        near = near.masked_fill(mass < 1e-6, -float("inf"))  # no neighbours
    shares = torch.stack([pull / tau, near, torch.where(found, push, 0.0)]).log_softmax(0)
    loss = -shares[0] if form == "printed" else -torch.logaddexp(shares[0], shares[1])
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

    Kept for good, like `_places`: a recorded graph goes on reading it.
    """
    with torch.inference_mode(False):  # a gradient may want them later
        place = torch.arange(places, device=device, dtype=torch.float64) * step
        q = torch.exp(-((place - place[:, None]) ** 2) / (2 * sigma**2))
        return q.fill_diagonal_(0.0).to(dtype)


@cache
def _places(
    tokens: int, windows: int, window: int, stride: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Tokens of the windows (N, W), and how far each place of a window is from another (W, W)."""
    with torch.inference_mode(False):
        place = torch.arange(window, device=device)
        token = torch.arange(windows, device=device)[:, None] * stride + place
        return token.clamp(max=tokens - 1), place - place[:, None]


def _pick(values: Tensor, index: Tensor) -> Tensor:
    """values (B, X) at index (B, ...)."""
    return values.gather(1, index.flatten(1)).view(index.shape)
