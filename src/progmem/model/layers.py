"""The weights of transformer layers, shared by windows, slots, neighbourhoods and CLS.

Shapes: T rows, D width; "..." is any batch.
"""

import torch
from torch import Tensor, nn

from progmem.ops import compute_dtype, layers
from progmem.ops.layers import FeedForwardWeights, NormWeights

CHUNK = 2**16  # rows at a time without a gradient: the hidden layer, 4D wide, takes most memory


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
        self.fc1 = nn.Linear(dim, 4 * dim)
        self.fc2 = nn.Linear(4 * dim, dim)
        self.dropout = dropout

    def forward(self, x: Tensor, *, valid: Tensor | None = None) -> Tensor:
        """Rows (..., D) after the sub-layer, 0 where not ``valid``."""
        dropout, weights = self.dropout if self.training else 0.0, self.weights
        if not _in_chunks(self, x):
            return layers.feed_forward(x, weights, dropout=dropout, valid=valid)
        rows, dtype = x.flatten(0, -2), torch.promote_types(x.dtype, compute_dtype(weights.fc2))
        out = x.new_empty(x.shape, dtype=dtype)
        valid_rows = None if valid is None else valid.flatten()
        for part in _chunks(len(rows)):
            some = None if valid_rows is None else valid_rows[part]
            out.view(rows.shape)[part] = layers.feed_forward(rows[part], weights, valid=some)
        return out

    @property
    def weights(self) -> FeedForwardWeights:
        return FeedForwardWeights(
            self.norm.weights, self.fc1.weight, self.fc1.bias, self.fc2.weight, self.fc2.bias
        )


class AttentionLayer(nn.Module):
    """The weights of one transformer layer; the caller computes attention between its two halves.

    ``project`` computes queries, keys and values, the caller attends, ``attention_output``
    adds the projected result to the residual and runs the feed-forward sub-layer. Operations read
    the weights of the linear maps, whose hooks are not called; those of blocks, layers and encoders
    are.
    """

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__()
        self.norm = Norm(dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim)
        self.feed_forward = FeedForward(dim, dropout)
        self.dropout = dropout

    def project(self, x: Tensor, segment: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """``x`` for the residual path, and q, k, v of rows (..., T, D) in one tensor, (..., T, 3D).

        ``segment`` (D,) is the learned vector that tells carry, memory and tokens apart.
        """
        dtype = compute_dtype(self.qkv.weight)
        x, h = layers.norm_residual(x, self.norm.weights, dtype=dtype, segment=segment)
        return x, self.qkv(h)

    def attention_output(self, x: Tensor, attended: Tensor) -> Tensor:
        """The rows (..., T, D) after both sub-layers, from attention (..., T, D)."""
        return layers.attention_output(
            x, attended, self.out.weight, self.out.bias, self.feed_forward.weights,
            dropout=self.dropout if self.training else 0.0,
        )  # fmt: skip

    def attention_output_rows(self, x: Tensor, attended: Tensor) -> Tensor:
        """`attention_output` of dense rows (B, T, D); without a gradient in chunks of rows."""
        if not _in_chunks(self, x):
            return self.attention_output(x, attended)
        rows, attended_rows = x.flatten(0, 1), attended.flatten(0, 1)
        out = x.new_empty(x.shape, dtype=torch.promote_types(x.dtype, attended.dtype))
        for part in _chunks(len(rows)):
            out.view(rows.shape)[part] = self.attention_output(rows[part], attended_rows[part])
        return out

    def attention_output_windows(self, x: Tensor, attended: Tensor) -> Tensor:
        """`attention_output_rows` of windows (B, N, W, D), views of tokens that are not copied."""
        B, N, W, D = x.shape
        if not _in_chunks(self, x):
            return self.attention_output(x, attended)
        series, windows = max(1, CHUNK // (N * W)), max(1, CHUNK // W)
        out = x.new_empty(B, N, W, D, dtype=torch.promote_types(x.dtype, attended.dtype))
        for b in range(0, B, series):
            for n in range(0, N, windows):
                part = slice(b, b + series), slice(n, n + windows)
                out[part] = self.attention_output(x[part], attended[part])
        return out


def _in_chunks(module: nn.Module, x: Tensor) -> bool:
    """Whether rows (..., D) are processed in chunks.

    They are not in training mode, where dropout must not depend on whether gradients are enabled.
    """
    whole = torch.is_grad_enabled() or module.training or torch.compiler.is_compiling()
    return not whole and x.numel() > CHUNK * x.shape[-1]


def _chunks(rows: int) -> list[slice]:
    return [slice(first, first + CHUNK) for first in range(0, rows, CHUNK)]
