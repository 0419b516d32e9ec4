"""The weights of transformer layers, shared by windows, slots, neighbourhoods and CLS.

Shapes: T rows, D width; "..." is any batch.
"""

import torch
from torch import Tensor, nn

from progmem.ops import compute_dtype, layers
from progmem.ops.layers import FeedForwardWeights, NormWeights

PIECE = 2**16  # rows at a time where no gradient is kept: four times as wide, they are most memory


class Norm(nn.LayerNorm):
    """LayerNorm in the precision of its input: the memory stays float32 in a bf16 model."""

    def forward(self, x: Tensor) -> Tensor:
        return layers.layer_norm(x, self.weights, dtype=x.dtype)

    @property
    def weights(self) -> NormWeights:
        return NormWeights(self.weight, self.bias, self.eps)


class FeedForward(nn.Module):
    """Pre-norm feed-forward sub-layer with its skip: x + W2 gelu(W1 LN x), four times as wide."""

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__()
        self.norm = Norm(dim)
        self.widen = nn.Linear(dim, 4 * dim)
        self.narrow = nn.Linear(4 * dim, dim)
        self.dropout = dropout

    def forward(self, x: Tensor, *, valid: Tensor | None = None) -> Tensor:
        """Rows (..., D) after the sub-layer, 0 where not ``valid``."""
        dropout, weights = self.dropout if self.training else 0.0, self.weights
        if not _cuts(self, x):
            return layers.feed_forward(x, weights, dropout=dropout, valid=valid)
        rows, kind = x.flatten(0, -2), torch.promote_types(x.dtype, compute_dtype(weights.fc2))
        out = x.new_empty(x.shape, dtype=kind)
        there = None if valid is None else valid.flatten()
        for part in _pieces(len(rows)):
            some = None if there is None else there[part]
            out.view(rows.shape)[part] = layers.feed_forward(rows[part], weights, valid=some)
        return out

    @property
    def weights(self) -> FeedForwardWeights:
        first, last = self.widen, self.narrow
        return FeedForwardWeights(
            self.norm.weights, first.weight, first.bias, last.weight, last.bias
        )


class AttentionLayer(nn.Module):
    """The weights of one transformer layer; who looks at whom is the caller's business.

    ``project`` makes queries, keys and values; the caller attends; ``complete`` adds the result
    to the stream and runs the feed-forward sub-layer. Operations take the weights of its linear
    maps, so hooks of these are not called; those of blocks, layers and encoders are.
    """

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__()
        self.norm = Norm(dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim)
        self.feed_forward = FeedForward(dim, dropout)
        self.dropout = dropout

    def project(self, x: Tensor, segment: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """``x`` to go on with, and q, k, v of rows (..., T, D) in one tensor, (..., T, 3D).

        ``segment`` (D,) says what the rows are.
        """
        dtype = compute_dtype(self.qkv.weight)
        x, h = layers.norm_residual(x, self.norm.weights, dtype=dtype, segment=segment)
        return x, self.qkv(h)

    def complete(self, x: Tensor, attended: Tensor) -> Tensor:
        """The rows (..., T, D) after both sub-layers, from attention (..., T, D)."""
        return layers.attention_output(
            x, attended, self.out.weight, self.out.bias, self.feed_forward.weights,
            dropout=self.dropout if self.training else 0.0,
        )  # fmt: skip

    def complete_rows(self, x: Tensor, attended: Tensor) -> Tensor:
        """`complete` of dense rows (B, T, D); without a gradient some rows at a time."""
        if not _cuts(self, x):
            return self.complete(x, attended)
        rows, given = x.flatten(0, 1), attended.flatten(0, 1)
        out = x.new_empty(x.shape, dtype=torch.promote_types(x.dtype, attended.dtype))
        for part in _pieces(len(rows)):
            out.view(rows.shape)[part] = self.complete(rows[part], given[part])
        return out

    def complete_windows(self, x: Tensor, attended: Tensor) -> Tensor:
        """`complete` of windows (B, N, W, D), views of tokens; `complete_rows` says the rest."""
        B, N, W, D = x.shape
        if not _cuts(self, x):
            return self.complete(x, attended)
        series, windows = max(1, PIECE // (N * W)), max(1, PIECE // W)
        out = x.new_empty(B, N, W, D, dtype=torch.promote_types(x.dtype, attended.dtype))
        for b in range(0, B, series):
            for n in range(0, N, windows):
                part = slice(b, b + series), slice(n, n + windows)
                out[part] = self.complete(x[part], attended[part])
        return out


def _cuts(module: nn.Module, x: Tensor) -> bool:
    """Whether rows (..., D) are taken in pieces.

    Not in training mode: there a pass without a gradient draws what the pass with one draws.
    """
    whole = torch.is_grad_enabled() or module.training or torch.compiler.is_compiling()
    return not whole and x.numel() > PIECE * x.shape[-1]


def _pieces(rows: int) -> list[slice]:
    return [slice(first, first + PIECE) for first in range(0, rows, PIECE)]
