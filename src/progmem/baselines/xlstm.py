"""xLSTM (Beck et al., 2024): a recurrent state in the place of windows, by the official package.

The stack is of mLSTM blocks alone, xLSTM[1:0]: their state is a matrix, and all steps can be
computed at once. (The steps of an sLSTM cannot, and its kernels must be compiled on the machine.)
Only what the package has in plain torch is used. A missing token is a step without input. The
state at the end of a series is read as what the last block puts out at the last token that is
there.

Shapes: B series, K tokens, D width, H heads.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from progmem.baselines.encoder import last_row
from progmem.baselines.matched import StackOutput
from progmem.config import ModelConfig
from progmem.errors import ConfigError
from progmem.geometry import WindowMasks

MLSTM_PER_BLOCK = 4  # a PMA block weighs about as much as four mLSTM blocks
LONGEST_PARALLEL = 2048  # tokens; beyond, a K x K matrix takes more memory than chunks cost time
CHUNK = 64  # tokens


class XLSTM(nn.Module):
    """Four times ``cfg.blocks`` mLSTM blocks of the `xlstm` package, with its published settings.

    Example:
        >>> import progmem
        >>> from progmem.baselines.xlstm import XLSTM
        >>> stack = XLSTM(progmem.ModelConfig(channels=1, size="tiny"))  # needs xlstm installed
        >>> len(stack.blocks.blocks)
        8
    """

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        try:
            from xlstm import (
                mLSTMBlockConfig,
                mLSTMLayerConfig,
                xLSTMBlockStack,
                xLSTMBlockStackConfig,
            )
        except ImportError as error:
            raise ConfigError(
                "the encoder xlstm needs the package xlstm: pip install 'progmem[baselines]'"
            ) from error
        self.blocks = xLSTMBlockStack(
            xLSTMBlockStackConfig(
                mlstm_block=mLSTMBlockConfig(mlstm=mLSTMLayerConfig(num_heads=cfg.heads)),
                context_length=0,  # else a mask of that many steps is kept, and more are refused
                num_blocks=MLSTM_PER_BLOCK * cfg.blocks,
                embedding_dim=cfg.dim,
                dropout=cfg.dropout,
            )
        )
        for block in self.blocks.blocks:
            block.xlstm.mlstm_cell.causal_mask = None  # is made for as many steps as there are
            block.xlstm.mlstm_cell.backend_fn = mlstm

    def forward(self, tokens: Tensor, masks: WindowMasks) -> StackOutput:
        out = self.blocks(tokens)
        return StackOutput(out, last_row(out, masks.tokens))


def mlstm(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    igate_preact: Tensor,
    fgate_preact: Tensor,
    lower_triangular_matrix: None = None,
) -> Tensor:
    """The package's mLSTM cell (B, H, K, d): all steps at once, or by chunks if they are many."""
    from xlstm.blocks.mlstm.backends import chunkwise_simple, parallel_stabilized_simple

    steps = queries, keys, values, igate_preact, fgate_preact
    K = queries.shape[2]
    if K <= LONGEST_PARALLEL:
        out: Tensor = parallel_stabilized_simple(*steps)
        return out
    padded = [F.pad(t, (0, 0, 0, -K % CHUNK)) for t in steps]
    out = chunkwise_simple(*padded, chunk_size=CHUNK)
    return out[:, :, :K]
