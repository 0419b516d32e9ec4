"""The Progressive Memory Transformer: tokenizer, PMA blocks, neighbourhood encoder.

Shapes: B series, L samples, C channels, K tokens, N windows, n slots, D width.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from progmem import config
from progmem.config import ModelConfig
from progmem.data.given_dates import with_dates
from progmem.data.recordings import ChannelInfo
from progmem.encoding import Encoding
from progmem.errors import InputError
from progmem.features import FeatureStatsBuffers
from progmem.geometry import (
    count_tokens,
    count_windows,
    covered_tokens,
    token_spans,
    window_masks,
    window_spans,
)
from progmem.missing import tell_of_missing
from progmem.model import saving
from progmem.model.block import PMABlock
from progmem.model.encode import (
    blank_encoding,
    encode_in_chunks,
    encode_rows,
    eval_mode,
    moments_for,
    write,
)
from progmem.model.encoder import NeighbourhoodEncoder
from progmem.model.tokenizer import Tokenizer
from progmem.ops import cuda_graphs
from progmem.provenance import History
from progmem.series import ChannelStats, Series, check_count, check_finite, check_tensor

SERIES_AT_ONCE = 64  # of a batch; more on a GPU, where short series cost mostly launches
SAMPLES_AT_ONCE = 2**16  # of a batch; mapping memory for larger buffers costs more than it saves
TOKENS_ON_GPU = 2**17  # of a batch; a token takes about 13 kB of memory at D = 320
SHORTEST_CHUNK = 4096


class PMT(nn.Module):
    """A transformer whose windows carry a writable memory, seen at three scales.

    ``encode`` takes a user's series; ``forward`` is differentiable and takes normalised tensors.

    Example:
        >>> import progmem, torch
        >>> model = progmem.PMT(progmem.ModelConfig(channels=3, size="tiny"))
        >>> z = model.encode([torch.randn(200, 3), torch.randn(120, 3)])  # of unequal length
        >>> z.sequence.shape, z.token_mask.sum(1).tolist()
        (torch.Size([2, 64]), [97, 57])
        >>> model(torch.randn(2, 200, 3)).sequence.requires_grad
        True
    """

    name = config.PMT  # among the encoders

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.info = ChannelInfo()  # of what it was trained on
        self.history: History | None = ()  # its trainings; None if saved by 0.1.0, which kept none
        self.stats = ChannelStats(cfg.channels)
        self.feature_stats = FeatureStatsBuffers(cfg.dim, cfg.channels)  # forward does not use it
        self.tokenizer = Tokenizer(cfg)
        self.blocks = nn.ModuleList(PMABlock(cfg, b) for b in range(cfg.blocks))
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
        """Encode normalised series.

        Args:
            x: (B, L, C), finite wherever it is observed.
            mask: True where observed, (B, L) or (B, L, C); None if nothing is missing.
            lengths: samples of each series, (B,), from one patch to L, if some end before L.
            hidden: True where a sample is observed but not to be seen, (B, L, C); its token stays,
                with the mask vector in it. The model must have one.

        Shapes are checked here, values are not: `encode` does that.
        """
        cfg = self.cfg
        check_tensor(x, cfg)
        K = count_tokens(cfg, x.shape[1])
        N = count_windows(cfg, K)
        signal, valid = self.tokenizer(x, mask, lengths, hidden)  # (B, K, D), (B, K)
        counts = self.tokenizer.counts(x, lengths)
        # padded once to the end of the last window, so that windows are views everywhere
        short = max(0, covered_tokens(cfg, N) - K)
        signal, all_valid = F.pad(signal, (0, 0, 0, short)), F.pad(valid, (0, short))
        # windows: it exists for this series; nonempty: and holds a token that is there
        masks = window_masks(cfg, all_valid, counts, N, gaps=mask is not None)
        tokens, memory, eos = signal, self.first_memory(), None
        for block in self.blocks:
            tokens, memory = block(tokens, signal, memory, masks)
        tokens, sequence = self.encoder(tokens[:, :K], valid, gaps=masks.gaps)
        if memory is not None:
            eos = memory[:, -1].mean(1)  # windows that do not exist pass their carry on
            memory = torch.where(masks.windows[..., None, None], memory, 0.0)
        return Encoding(
            tokens=tokens,
            memory=memory,
            sequence=sequence,
            eos=eos,
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

    def first_memory(self) -> Tensor | None:
        """M_{w,0} = M_r, the same for every window: (1, 1, n, D)."""
        slots = self.pma_blocks[0].slots
        return None if slots is None else slots.reset_state()[None, None]

    @property
    def pma_blocks(self) -> list[PMABlock]:
        return [cast(PMABlock, block) for block in self.blocks]

    @torch.no_grad()
    def encode(
        self,
        x: Any,
        *,
        lengths: Any = None,
        dates: Any = None,
        batch_size: int | None = None,
        chunk: int | None = None,
    ) -> Encoding:
        """Encode series as they are: normalised, gaps and lengths respected, in eval mode.

        Args:
            x: (batch, time, channels), numpy or tensor, or a list of (time, channels) of unequal
                length, or recordings that `progmem.read` returns. NaN marks missing values.
            lengths: samples of each series, if an array is padded on the right.
            dates: of the samples, the same for all series or a list of them for each. A model that
                was trained with time covariates sees them; `Encoding.times` gives them back.
            batch_size: the most series encoded at a time; fewer where they are long. None: 64, on a
                GPU as many as make 131,072 tokens.
            chunk: samples of each series taken in at a time. The numbers stay the same; memory is
                needed for the result and one chunk. None: whole series up to 65,536 samples, on a
                GPU up to 131,072 tokens.
        """
        x, calendars, names = with_dates(x, dates, self.info, self.cfg.channels)
        series = Series(x, lengths, self.cfg, names, columns=self.info.columns)
        tell_of_missing(series.arrays, series.names, self.info.columns, lengths=series.lengths)
        like = self.tokenizer.conv.weight
        batches, chunk = self._batches(series, batch_size, chunk)
        sizes = Counter((len(rows), max(series.lengths[row] for row in rows)) for rows in batches)
        run = cuda_graphs.graphed_forward(self, sizes)
        out = blank_encoding(self.cfg, series, like=like, memory=self.first_memory())
        with eval_mode(self):
            for rows in batches:
                moments = moments_for(self.cfg, self.stats, series, rows)
                if chunk is None:
                    part = encode_rows(run, series, rows, moments=moments, like=like)
                    write(out, rows, part)
                else:
                    index = torch.tensor(rows)
                    encode_in_chunks(self, series, rows, out, index, moments=moments, chunk=chunk)
        check_finite(out.sequence, series.names)
        known = None if self.info == ChannelInfo() else self.info
        return out._replace(channels=known, calendars=calendars)

    def _batches(
        self, series: Series, batch_size: int | None, chunk: int | None
    ) -> tuple[list[Sequence[int]], int | None]:
        """Which series are encoded together, and how many samples at a time; None: all."""
        for name, value in (("batch_size", batch_size), ("chunk", chunk)):
            if value is not None:
                check_count(name, value)
        like = self.tokenizer.conv.weight
        at_once, longest = samples_at_once(like, self.cfg), max(series.lengths)
        most = batch_size or SERIES_AT_ONCE
        if chunk is None and longest > at_once:
            chunk = max(SHORTEST_CHUNK, at_once // min(most, len(series)))
        elif chunk is None:
            fit = at_once // longest
            most = fit if batch_size is None and cuda_graphs.on_gpu(like) else min(most, fit)
        return list(series.batches(most, equal_lengths=chunk is not None)), chunk

    def untrained(self) -> "PMT":
        """Another of the same config, freshly drawn."""
        return PMT(self.cfg)

    def export(self, path: str | Path) -> None:
        """Write `encode` as a file for other software: .onnx, or .pt2 for `torch.export.load`.

        Its inputs are ``x`` (batch, time, channels), float32 as the series are, NaN where missing,
        and ``lengths``, the samples of each series. Batch and time may be of any size. Its outputs
        are those of `Encoding`; on made series they equal those of `encode` to 1e-5.
        """
        from progmem.model.export import export

        export(self, Path(path))

    def save(self, folder: str | Path) -> None:
        """Write weights and config under a checksum; `progmem.load` reads them back."""
        saving.save(self, Path(folder))


def only_pmt(model: Any, what: str) -> PMT:
    """The model, if it is a PMT: ``what`` needs one."""
    if not isinstance(model, PMT):
        name = getattr(model, "name", type(model).__name__)
        raise InputError(
            f"{what} needs a PMT, and this is {name}; other encoders take whole series, by encode"
        )
    return model


def samples_at_once(like: Tensor, cfg: ModelConfig) -> int:
    """The most samples of a batch that are encoded without cutting them into chunks.

    ``like`` is a weight of the model, on its device.
    """
    if not cuda_graphs.on_gpu(like):
        return SAMPLES_AT_ONCE
    return TOKENS_ON_GPU * cfg.patch_stride * 320 // max(320, cfg.dim)
