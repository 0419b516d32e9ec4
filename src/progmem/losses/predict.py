"""Prediction of hidden samples, which the paper does not have: each token decodes its patch.

    loss = 1/|H| sum over (i, k, s, c) in H of (y_i(k, s, c) - x_i(k stride + s, c))^2

y_i(k, s, c) is what token k of series i says of sample s of its patch in channel c. H holds each
hidden sample once for every token whose patch contains it.

Shapes: B series, L samples, C channels, K tokens, P samples of a patch.
"""

from torch import Tensor


def squared_errors(
    decoded: Tensor, x: Tensor, *, hidden: Tensor, valid: Tensor, stride: int
) -> tuple[Tensor, Tensor]:
    """The squared errors of each series, summed, and their number: (B,), (B,).

    Args:
        decoded: (B, K, C, P).
        x: what there was to see, (B, L, C).
        hidden: the samples that count, (B, L, C).
        valid: the tokens that count, (B, K).
        stride: samples between the starts of two patches.
    """
    patches, counts = (t.unfold(1, decoded.shape[3], stride) for t in (x, hidden))  # (B, K, C, P)
    counts = (counts & valid[..., None, None]).to(decoded.dtype)
    errors = (decoded - patches).square() * counts
    return errors.sum((1, 2, 3)), counts.sum((1, 2, 3))
