"""HGCL, the token objective (eq. 3 and the bucket form of the appendix), at two levels.

An anchor has its positive p in the other view, local candidates c around p weighted by a Gaussian
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
from progmem.losses.pairs import Match, in_chunks, take_rows
from progmem.ops.sampled_contrast import Bank, negative_logsumexp


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
    like = {"device": level.anchors.device, "dtype": level.anchors.dtype}
    weight = _weights_by_distance(W, width * W, **like)  # (2W-1, W)
    offset = torch.arange(1 - W, W, device=level.anchors.device)  # of a candidate from the match
    flat_index = _window_positions(K, N, W, cfg.stride, level.anchors.device)
    score_negatives = negative_logsumexp(level.bank, temperature)

    def term(rows: slice) -> tuple[Tensor, ...]:
        position, found = (t[rows] for t in level.match)  # (b, K)
        unclamped = position[..., None] + offset  # (b, K, 2W-1)
        candidate = unclamped.clamp(0, K - 1)
        valid = level.key_valid[rows].gather(1, candidate.flatten(1)).view_as(candidate)
        valid = (candidate == unclamped) & valid
        anchors = take_rows(level.anchors, rows)
        similarity = anchors @ take_rows(level.keys, rows).mT  # (b, K, K)
        local = similarity.gather(2, candidate)  # (b, K, 2W-1)
        positive_sim = local[..., W - 1]  # of the match itself

        def weighted_sum(x: Tensor) -> Tensor:
            """Sums (b, N, W) of candidates' values (b, K, 2W-1), weighted by their distance.

            They are computed for a token at every position of a window, and those of its real
            positions are then selected. No value is gathered twice, so that gradients are always
            summed in the same order.
            """
            every = (x @ weight).flatten(1)  # (b, K W)
            return every.gather(1, flat_index.expand(len(x), -1)).view(-1, N, W)

        bucket = weighted_sum(torch.where(valid, local, 0.0))
        mass = weighted_sum(valid.to(local.dtype)) if form == "soft_positive" else None
        by_token = (positive_sim, *score_negatives(anchors, rows), found)  # (b, K) each
        positive_sim, negative_lse, negative_sim, found = (
            unfold_windows(t, cfg, N) for t in by_token
        )  # (b, N, W) each
        found = found & windows[rows, :, None]
        return _terms(positive_sim, bucket, mass, negative_lse, negative_sim, found, temperature)

    return HGCLSums(*in_chunks(term, B, cost=K * (K + 3 * W + level.bank.sample_size)))


def window_level(
    level: Level, cfg: ModelConfig, *, temperature: float, width: float, form: str
) -> HGCLSums:
    """Every window; candidates are all windows of the sequence in the other view."""
    sigma = max(width * (cfg.window - cfg.stride), 1e-3)  # windows without overlap: 0 is clamped
    B, N, _ = level.anchors.shape
    like = {"device": level.anchors.device, "dtype": level.anchors.dtype}
    weight = _weights(N, cfg.stride, sigma, **like)
    score_negatives = negative_logsumexp(level.bank, temperature)

    def term(rows: slice) -> tuple[Tensor, ...]:
        position, found = (t[rows] for t in level.match)  # (b, N)
        anchors = take_rows(level.anchors, rows)
        similarity = anchors @ take_rows(level.keys, rows).mT  # (b, N, N)
        positive_sim = similarity.gather(2, position[..., None]).squeeze(2)
        q = weight[position] * level.key_valid[rows, None]  # (b, N, N)
        negative_lse, negative_sim = score_negatives(anchors, rows)
        bucket = (q * similarity).sum(-1)
        mass = q.sum(-1) if form == "soft_positive" else None
        return _terms(positive_sim, bucket, mass, negative_lse, negative_sim, found, temperature)

    return HGCLSums(*in_chunks(term, B, cost=N * (N + level.bank.sample_size)))


def window_means(z: Tensor, valid: Tensor, cfg: ModelConfig, windows: int) -> Tensor:
    """Normalised mean of each window's projected tokens, (B, N, D)."""
    present = valid[..., None].to(z.dtype)
    total = unfold_windows(z * present, cfg, windows).sum(2)
    return F.normalize(total, dim=-1)  # the count cancels


def _terms(
    positive_sim: Tensor,
    bucket: Tensor,
    mass: Tensor | None,
    negative_lse: Tensor,
    negative_sim: Tensor,
    found: Tensor,
    tau: float,
) -> tuple[Tensor, ...]:
    """The sums of `HGCLSums`, from s_p, T, sum q, log sum_n e^{s_n / tau} and the mean of s_n.

    Without sum q (``mass`` None), the loss is that of the printed form.
    """
    found = found & (negative_lse > -float("inf"))
    neighbours = bucket / tau
    if mass is not None:
        neighbours = neighbours / mass.clamp(min=torch.finfo(mass.dtype).tiny)
        neighbours = neighbours.masked_fill(mass < 1e-6, -float("inf"))  # there are none
    logits = [positive_sim / tau, neighbours, torch.where(found, negative_lse, 0.0)]
    shares = torch.stack(logits).log_softmax(0)
    loss = -shares[0] if mass is None else -torch.logaddexp(shares[0], shares[1])
    with torch.no_grad():
        metrics = [*shares[1:].exp(), positive_sim - negative_sim]
    terms = torch.stack([torch.ones_like(loss), loss, *metrics])
    sums = torch.where(found, terms, 0.0).flatten(2).sum(2)
    return sums.unbind(0)  # (b,) each


@cache
def _weights(
    positions: int, step: int, sigma: float, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """q between positions ``step`` tokens apart, (positions, positions); 0 at the match itself.

    The table is cached for good, like those below: a captured CUDA graph keeps reading it.
    """
    with torch.inference_mode(False):  # a later call may need gradients
        position = torch.arange(positions, device=device, dtype=torch.float64) * step
        q = torch.exp(-((position - position[:, None]) ** 2) / (2 * sigma**2))
        return q.fill_diagonal_(0.0).to(dtype)


@cache
def _weights_by_distance(
    window: int, sigma: float, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """q of candidates 1-W .. W-1 tokens from the match, for an anchor at each position: (2W-1, W).

    Candidates outside the window have weight 0.
    """
    weight = _weights(window, 1, sigma, device, dtype)  # (W, W), anchor and candidate
    with torch.inference_mode(False):
        anchor = torch.arange(window, device=device)
        candidate = torch.arange(1 - window, window, device=device)[:, None] + anchor  # (2W-1, W)
        inside = (candidate >= 0) & (candidate < window)
        return torch.where(inside, weight[anchor, candidate.clamp(0, window - 1)], 0.0)


@cache
def _window_positions(
    tokens: int, windows: int, window: int, stride: int, device: torch.device
) -> Tensor:
    """Flat index into a table (tokens, positions) of every position of every window, (N W,)."""
    with torch.inference_mode(False):
        position = torch.arange(window, device=device)
        token = torch.arange(windows, device=device)[:, None] * stride + position
        return (token.clamp(max=tokens - 1) * window + position).flatten()
