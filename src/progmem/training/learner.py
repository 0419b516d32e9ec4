"""Model and heads together: what is trained, and what data parallelism wraps.

Shapes: B series, L samples, K tokens, N windows, W window, D width.
"""

import torch
from torch import Tensor, nn

from progmem.losses.heads import make_heads
from progmem.losses.total import Embedded
from progmem.model.geometry import unfold_windows
from progmem.model.pmt import PMT
from progmem.model.twins import for_autocast
from progmem.settings import LossConfig
from progmem.views import View


class Learner(nn.Module):
    """Two views of a batch in, what the losses compare out."""

    def __init__(self, model: PMT, cfg: LossConfig) -> None:
        super().__init__()
        self.model, self.cfg = model, cfg
        self.heads = make_heads(model.cfg.dim, cfg)

    def forward(
        self, views: tuple[View, View], lengths: Tensor, *, gaps: bool, by_time: bool
    ) -> tuple[tuple[Embedded, Embedded], Tensor]:
        """Both views embedded, and the first view's sequence vectors (B, D) for diagnostics."""
        x, observed, time = (torch.cat(pair) for pair in zip(*views, strict=True))
        z = for_autocast(self.model, x)(x, observed if gaps else None, lengths=lengths.repeat(2))
        assert z.window_mask is not None
        precise = torch.promote_types(z.sequence.dtype, torch.float32)  # losses in float32
        sequence = tokens = memory = token_time = window_time = None
        if self.cfg.icl:
            sequence = self.heads["icl"](z.sequence).to(precise)
        if self.cfg.hgcl:
            tokens = self.heads["hgcl"](z.tokens).to(precise)
        if self.cfg.pcl and z.memory is not None:
            memory = z.memory.to(precise)
        if by_time:
            token_time, window_time = self._times(time, z.token_mask, z.window_mask.shape[1])
        both = Embedded(
            sequence, memory, tokens, z.token_mask, z.window_mask, token_time, window_time
        )
        halves = zip(*((t, t) if t is None else t.chunk(2) for t in both), strict=True)
        first, second = (Embedded._make(half) for half in halves)
        return (first, second), z.sequence.detach()[: len(lengths)].float()

    def _times(self, time: Tensor, valid: Tensor, windows: int) -> tuple[Tensor, Tensor]:
        """Input time of each token's middle, (B, K), and of each window's tokens, (B, N)."""
        cfg = self.model.cfg
        token = time.unfold(1, cfg.patch, cfg.patch_stride).mean(2)  # (B, K)
        total, there = (
            unfold_windows(t, cfg, windows).sum(2) for t in (token * valid, valid.to(token.dtype))
        )
        return token, total / there.clamp(min=1)


def parameter_groups(learner: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Matrices decay; norms, biases, slots, CLS and other vectors do not."""
    decay: list[nn.Parameter] = []
    keep: list[nn.Parameter] = []
    for name, parameter in learner.named_parameters():
        if parameter.requires_grad:
            plain = parameter.dim() < 2 or name.endswith(("reset", "segments", "bias", "taps"))
            (keep if plain else decay).append(parameter)
    return [
        {"params": decay, "weight_decay": weight_decay},
        {"params": keep, "weight_decay": 0.0},
    ]
