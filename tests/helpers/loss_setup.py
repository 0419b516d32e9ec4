"""Embedded views and draws to compute objectives of."""

import torch

from progmem.config import LossConfig, ModelConfig
from progmem.losses.total import Embedded, draw_step_negatives, total_loss
from progmem.training.distributed import OneProcess

B, D = 4, 6


def make_embedded(cfg, *, K=11, n=2, gaps=True, requires_grad=True):
    N = -(-(K - cfg.window) // cfg.stride) + 1

    def leaf(*shape):
        return torch.randn(shape, dtype=torch.float64, requires_grad=requires_grad)

    token_mask = torch.ones(B, K, dtype=torch.bool)
    window_mask = torch.ones(B, N, dtype=torch.bool)
    if gaps:
        token_mask[1, 2:5] = token_mask[2, -3:] = False
        window_mask[2, -1] = False
    return Embedded(
        leaf(B, 5), leaf(B, N, n, D), leaf(B, K, D), token_mask, window_mask, None, None
    )


def setting(window, stride):
    return ModelConfig(channels=1, size="tiny", window=window, stride=stride)


def draws_for(views, n=2, overlap=None, count=13):
    K, N = views[0].token_mask.shape[1], views[0].window_mask.shape[1]
    if overlap is None:
        overlap = torch.eye(B, dtype=torch.bool)
        overlap[0, 1] = overlap[1, 0] = True  # two rows share samples
    generator = torch.Generator().manual_seed(3)
    return draw_step_negatives(overlap, K, N, n, count=count, generator=generator)


def entry_of(negatives):
    """Which entries each sequence meets, (B, M)."""
    B, M = negatives.mask.shape
    pool = len(negatives.order)
    place = torch.arange(B)[:, None] * (pool // B) + torch.arange(M)
    return negatives.order[place % pool]


def run(views, drawn, model, **settings):
    settings = {
        "pcl": 1,
        "icl_temperature": 0.3,
        "token_temperature": 0.5,
        "window_temperature": 0.4,
    } | settings
    loss_cfg = LossConfig(**settings)
    return total_loss(views, drawn, OneProcess(B), cfg=loss_cfg, model=model, pcl_temperature=0.25)
