"""PMT with another stack of layers in the place of its PMA blocks, so that only these are compared.

Tokenizer, neighbourhood encoder, windows, missing data, views and objectives are PMT's, and the
stacks of a size have about as many parameters. A stack has no writable memory of its own, except
where it says so.

Shapes: B series, L samples, C channels, K tokens, N windows, n slots, D width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from progmem.config import ModelConfig, checked
from progmem.encoding import Encoding
from progmem.geometry import (
    count_tokens,
    count_windows,
    token_spans,
    window_masks,
    window_spans,
)
from progmem.model.encoder import NeighbourhoodEncoder
from progmem.model.tokenizer import Tokenizer
from progmem.series import check_tensor

LAYERS_PER_BLOCK = 2  # a PMA block weighs about as much as two transformer layers


@dataclass(frozen=True, kw_only=True)
class MemorylessConfig(ModelConfig):
    """The settings ``model.*`` of an encoder that has no memory."""

    slots: int = checked(0, lambda v: v == 0, "0, as this encoder has no memory")


class StackOutput(NamedTuple):
    """What a stack of layers makes of tokens (B, K, D), 0 where missing, and their masks."""

    tokens: Tensor  # (B, K, D)
    eos: Tensor  # (B, D), the state at the end of each series
    memory: Tensor | None = None  # (B, N, n, D), if the stack hands one from window to window


class MatchedNetwork(nn.Module):
    """PMT's tokenizer and neighbourhood encoder around a stack of layers.

    Example:
        >>> import torch
        >>> from progmem.baselines import make_encoder
        >>> encoder = make_encoder("transformer_xl", channels=3, size="tiny")
        >>> z = encoder.encode(torch.randn(2, 200, 3))
        >>> z.tokens.shape, z.sequence.shape, z.eos.shape
        (torch.Size([2, 97, 64]), torch.Size([2, 64]), torch.Size([2, 64]))
    """

    def __init__(self, cfg: ModelConfig, stack: Callable[[ModelConfig], nn.Module]) -> None:
        super().__init__()
        self.cfg = cfg
        self.tokenizer = Tokenizer(cfg)
        self.stack = stack(cfg)
        self.encoder = NeighbourhoodEncoder(cfg)
        self.predictor = nn.Linear(cfg.dim, cfg.channels * cfg.patch) if cfg.predictor else None

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        *,
        lengths: Tensor | None = None,
        hidden: Tensor | None = None,
    ) -> Encoding:
        """Encode normalised series (B, L, C), as `PMT.forward` does."""
        cfg = self.cfg
        check_tensor(x, cfg)
        K = count_tokens(cfg, x.shape[1])
        N = count_windows(cfg, K)
        tokens, valid = self.tokenizer(x, mask, lengths, hidden)  # (B, K, D), (B, K)
        counts = self.tokenizer.counts(x, lengths)
        masks = window_masks(cfg, valid, counts, N, gaps=mask is not None)
        out: StackOutput = self.stack(tokens, masks)
        memory = out.memory
        if memory is not None:
            memory = torch.where(masks.windows[..., None, None], memory, 0.0)
        tokens = torch.where(valid[..., None], out.tokens, 0.0)
        tokens, sequence = self.encoder(tokens, valid, gaps=masks.gaps)
        return Encoding(
            tokens=tokens,
            memory=memory,
            sequence=sequence,
            eos=out.eos,
            token_mask=valid,
            window_mask=masks.nonempty,
            token_spans=token_spans(cfg, 0, K),
            window_spans=window_spans(cfg, 0, N, tokens=K),
        )

    def decode(self, tokens: Tensor) -> Tensor:
        """What the predictor says of the samples of each token's patch, (B, K, C, patch)."""
        assert self.predictor is not None, "this model was not trained to predict hidden samples"
        return self.predictor(tokens).unflatten(2, (self.cfg.channels, self.cfg.patch))

    def token_spans(self, length: int) -> Tensor:
        """Samples [from, to) of each token of a series of ``length`` samples, (K, 2)."""
        return token_spans(self.cfg, 0, count_tokens(self.cfg, length))
