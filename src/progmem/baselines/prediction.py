"""Contrast of predictions, as CPC and TS-TCC use it: which row of the batch did this come from?

    loss = -1/(B S) sum over i, s of log( exp(p_i(s) z_i(s)) / sum over j of exp(p_i(s) z_j(s)) )

In CPC p_i(s) is what is predicted of token t + s of row i, and z_j(s) is that token of row j; in
TS-TCC it is the other way round.

Shapes: b own rows, B rows of the global batch, S steps ahead, K tokens, D width.
"""

import torch
from torch import Tensor, nn

from progmem.losses.total import Group


def prediction_contrast(
    anchors: Tensor, keys: Tensor, valid: Tensor, overlap: Tensor, group: Group
) -> Tensor:
    """The loss above, p the ``anchors`` and z the ``keys`` of own rows (b, S, D).

    Only steps whose token is observed, ``valid`` (b, S), count or are negatives.
    Rows that share samples, which ``overlap`` (B, B) tells, are no negatives of each other.
    """
    of_all, valid_keys = group.gather(keys).transpose(0, 1), group.gather(valid).T  # (S, B, ...)
    scores = anchors.transpose(0, 1) @ of_all.mT  # (S, b, B)
    row = torch.arange(len(overlap), device=scores.device)
    own = row[group.rows]
    itself = own[:, None] == row
    negative = ~overlap[group.rows] & valid_keys[:, None]  # (S, b, B)
    logits = torch.where(negative | itself, scores, -torch.inf).log_softmax(2)
    loss = -torch.where(itself & valid.T[..., None], logits, 0.0).sum()
    return loss / group.total(valid.sum()).clamp(min=1)


def draw_present(share: Tensor, tokens: Tensor, ahead: int) -> Tensor:
    """The last token that predictions may see, by a share in [0, 1) of those possible: (b,)."""
    return (share * (tokens - ahead)).floor().long().clamp(min=0)


def tokens_ahead(tokens: Tensor, present: Tensor, ahead: int) -> Tensor:
    """Of tokens (b, K, D) those 1 to ``ahead`` after the ``present`` (b,): (b, S, D)."""
    index = present[:, None] + torch.arange(1, ahead + 1, device=tokens.device)
    return tokens.gather(1, index[..., None].expand(-1, -1, tokens.shape[2]))


class Predictors(nn.Module):
    """A linear map of the context for each step ahead."""

    def __init__(self, context: int, dim: int, ahead: int) -> None:
        super().__init__()
        self.ahead, self.map = ahead, nn.Linear(context, ahead * dim)

    def forward(self, context: Tensor) -> Tensor:
        """Contexts (b, c) to predictions (b, S, D)."""
        return self.map(context).unflatten(1, (self.ahead, -1))
