"""TS-TCC (Eldele et al. 2021): what one view predicts of the other is told from other series.

    loss = TC(weak, strong) + TC(strong, weak) + 0.7 NT-Xent(context of weak, context of strong)

A transformer sums up the tokens of one view, as unit vectors, up to a drawn one as a context. From
it the tokens of the other view that follow are predicted, and TC tells by each of these tokens
which series' prediction it is (`prediction_contrast`). NT-Xent compares the two contexts by a
projection head. This is what the public code computes; its paper prints TC with the roles of tokens
and predictions exchanged. Other than there, views are drawn anew at every step, and all channels of
a series are permuted together: the code gives them all the values of the first one.

Shapes: B rows of the global batch, b own rows, L samples, C channels, K tokens, D width, S steps
ahead, d width of the context.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from progmem.baselines.cnn import CNNConfig, ProjectionHead, precise
from progmem.baselines.cnn_task import Batch, CNNTask, View, count_existing
from progmem.baselines.prediction import (
    Predictors,
    draw_present,
    prediction_contrast,
    tokens_ahead,
)
from progmem.baselines.transforms import Segments, Source, draw_segments, permute
from progmem.config import RunConfig, number, positive, whole
from progmem.data.windows import TrainingWindows
from progmem.encoding import Encoding
from progmem.losses.total import nt_xent
from progmem.ops.layers import merge_heads, split_heads

TRAINING = {  # a constant rate, no clipping, and no autocast
    "epochs": 40, "batch_size": 128, "lr": 3e-4, "lr_end": 3e-4, "warmup": 0.0,
    "weight_decay": 3e-4, "clip": 1e9, "precision": "32",
}  # fmt: skip
SCALE_MEAN = 2.0  # of the factors of the weak view
HEADS = 4
LAYERS = 4
HIDDEN = 64  # of a layer's feed-forward part
CONTEXT_DROPOUT = 0.1


@dataclass(frozen=True, kw_only=True)
class TSTCCConfig(CNNConfig):
    """The published settings, of views those for HAR."""

    ahead: int = whole(6, 1)  # tokens that are predicted
    context: int = whole(100, HEADS)  # width of the transformer
    temperature: float = positive(0.2)
    contextual: float = number(0.7, 0)  # weight of NT-Xent
    scale: float = number(1.1, 0)  # sd of the factor of each sample around 2, weak view
    segments: int = whole(7, 1)  # most that the strong view is cut into and permuted
    jitter: float = number(0.8, 0)  # sd of the noise on the strong view


class Draws(NamedTuple):
    """The random numbers of both views of a batch, and of where contexts end."""

    factor: Tensor  # (B, L, 1), of the weak view, the same for all channels
    noise: Tensor  # (B, L, C), on the strong view
    cuts: Tensor  # of its segments
    order: Tensor
    share: Tensor  # (B,), how far a context reaches, as a share of where it may end


class Embedded(NamedTuple):
    """What the loss compares: for each view what it predicts, and what the other one has there."""

    predicted: tuple[Tensor, Tensor]  # (b, S, D)
    targets: tuple[Tensor, Tensor]  # (b, S, D)
    valid: tuple[Tensor, Tensor]  # (b, S)
    contexts: Tensor  # (2b, D/4), projected


class TSTCCLearner(nn.Module):
    """The encoder with the transformer, the predictors and the head that only training needs."""

    def __init__(self, encoder: Any, cfg: TSTCCConfig) -> None:
        super().__init__()
        self.encoder, self.cfg, self.ahead = encoder, cfg, cfg.ahead
        self.context = ContextTransformer(cfg.dim, cfg.context)
        self.predict = Predictors(cfg.context, cfg.dim, cfg.ahead)
        self.project = ProjectionHead(cfg.context, cfg.dim // 2, cfg.dim // 4)

    def draw(self, batch: int, length: int, generator: torch.Generator) -> Draws:
        cfg, source = self.cfg, Source(generator)
        segments = draw_segments(batch, cfg.segments, source)
        return Draws(
            factor=SCALE_MEAN + cfg.scale * source.normal(batch, length, 1),
            noise=cfg.jitter * source.normal(batch, length, cfg.channels),
            cuts=segments.cuts,
            order=segments.order,
            share=source.uniform(1).expand(batch),  # one for the batch, as published
        )

    def make_views(
        self, x: Tensor, observed: Tensor, lengths: Tensor, draws: Draws
    ) -> tuple[tuple[Tensor, Tensor], ...]:
        """The weak view is scaled, the strong one permuted, with noise."""
        moved, seen = permute(x, observed, lengths, Segments(draws.cuts, draws.order))
        return (x * draws.factor, observed), (moved + draws.noise, seen)

    def forward(self, views: tuple[View, View], draws: Draws) -> tuple[Embedded, Tensor]:
        """What is compared, and the weak view's sequence vectors (b, D)."""
        weak, strong = (self.encoder(view.x, view.observed, lengths=view.lengths) for view in views)
        return self.compared(views[0], (weak, strong), draws), weak.sequence.detach().float()

    def compared(self, view: View, encodings: tuple[Encoding, Encoding], draws: Draws) -> Embedded:
        """What the loss compares of the encodings of both views, of which ``view`` is one."""
        ahead = self.ahead
        tokens = [precise(F.normalize(z.tokens, dim=-1)) for z in encodings]
        valid = [z.token_mask for z in encodings]
        present = draw_present(draws.share, count_existing(view, encodings[0]), ahead)  # (b,)
        number = torch.arange(tokens[0].shape[1], device=present.device)
        past = number <= present[:, None]  # (b, K)
        contexts = [self.context(z, past & v) for z, v in zip(tokens, valid, strict=True)]
        following = [
            (tokens_ahead(z, present, ahead), tokens_ahead(v[..., None], present, ahead)[..., 0])
            for z, v in zip(tokens, valid, strict=True)
        ]
        (weak, weak_valid), (strong, strong_valid) = following
        return Embedded(
            predicted=(precise(self.predict(contexts[0])), precise(self.predict(contexts[1]))),
            targets=(strong, weak),
            valid=(strong_valid, weak_valid),
            contexts=precise(torch.cat([self.project(context) for context in contexts])),
        )

    def losses(self, embedded: Embedded, batch: Batch) -> dict[str, Tensor]:
        temporal = torch.stack([
            prediction_contrast(targets, predicted, valid, batch.overlap, batch.group)
            for predicted, targets, valid in zip(*embedded[:3], strict=True)
        ]).sum()  # fmt: skip
        contextual, gap = nt_xent(
            embedded.contexts, batch.overlap, batch.group, temperature=self.cfg.temperature
        )
        loss = temporal + self.cfg.contextual * contextual
        return {"loss": loss, "temporal": temporal, "contextual": contextual, "gap": gap}


class ContextTransformer(nn.Module):
    """Tokens (b, K, D) to the vector (b, d) of one more token that attends to them."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Linear(dim, width)
        self.start = nn.Parameter(torch.randn(width))
        self.layers = nn.ModuleList(ContextLayer(width) for _ in range(LAYERS))

    def forward(self, tokens: Tensor, seen: Tensor) -> Tensor:
        """The context of the tokens that are ``seen`` (b, K)."""
        start = self.start.expand(len(tokens), 1, -1)
        rows = torch.cat([start, self.embed(tokens)], dim=1)  # (b, 1+K, d)
        keys = F.pad(seen, (1, 0), value=True)[:, None, None]  # the first row is always seen
        for layer in self.layers:
            rows = layer(rows, keys)
        return rows[:, 0]


class ContextLayer(nn.Module):
    """Pre-norm attention and feed-forward; scores are scaled by the whole width, as published."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width, bias=False)
        self.out, self.feed_norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.fc1, self.fc2 = nn.Linear(width, HIDDEN), nn.Linear(HIDDEN, width)

    def forward(self, rows: Tensor, keys: Tensor) -> Tensor:
        q, k, v = (split_heads(t, HEADS) for t in self.qkv(self.norm(rows)).chunk(3, dim=-1))
        scale = rows.shape[-1] ** -0.5
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=keys, scale=scale)
        rows = rows + self._dropout(self.out(merge_heads(attended)))
        hidden = self._dropout(F.relu(self.fc1(self.feed_norm(rows))))
        return rows + self._dropout(self.fc2(hidden))

    def _dropout(self, x: Tensor) -> Tensor:
        return F.dropout(x, CONTEXT_DROPOUT, self.training)


def make_task(
    encoder: Any, rows: TrainingWindows, cfg: RunConfig, *, total: int, device: torch.device
) -> CNNTask:
    """The task of a run."""
    return CNNTask(TSTCCLearner(encoder, encoder.cfg), rows, cfg, device=device)
