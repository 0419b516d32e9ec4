"""PMT on a live stream: the numbers of the batch, in memory that does not grow.

Shapes: B series, L samples, C channels, K tokens, N windows, n neighbourhood, D width,
H convolutions of the detail.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from progmem import artifact, legacy
from progmem.data.given_dates import chunk_with_dates
from progmem.data.recordings import ChannelInfo
from progmem.encoding import Encoding
from progmem.errors import ArtifactError, InputError
from progmem.features import FeatureSummary
from progmem.files import check_output
from progmem.geometry import token_spans, window_spans
from progmem.missing import Watch
from progmem.model.encode import eval_mode
from progmem.model.pmt import PMT, only_pmt
from progmem.ops.cuda_graphs import graphed
from progmem.ops.neighbourhood_attention import no_keys
from progmem.series import (
    as_array,
    as_float64,
    check_count,
    check_finite,
    check_samples,
    default_names,
    normalise,
)
from progmem.streaming import state as stream_state
from progmem.streaming.block_stream import BackboneStream, Final
from progmem.streaming.graphed_push import GraphedPush, Levels
from progmem.streaming.ring import ClsRings


class Stream:
    """A session on ``batch_size`` series that arrive in chunks of any size.

    ``push`` returns what became final: every token and memory equals the batch result on the
    whole series. The sequence vector is CLS over the last ``horizon`` tokens, so it equals the
    batch while the series is no longer than that.

    Args:
        model: a PMT, in any mode; it is not changed.
        batch_size: how many series arrive side by side.
        horizon: tokens that the sequence vector looks back on.
        features: whether all tokens are summarised on the way, for `features`; the model needs
            feature statistics for that, which training gives it.

    Example:
        >>> import progmem, torch
        >>> model = progmem.PMT(progmem.ModelConfig(channels=1, size="tiny"))
        >>> recording = torch.randn(1, 300, 1)
        >>> stream = progmem.Stream(model)
        >>> parts = [stream.push(chunk) for chunk in recording.split(50, dim=1)]
        >>> parts.append(stream.finish())
        >>> tokens = torch.cat([part.tokens for part in parts], dim=1)
        >>> torch.allclose(tokens, model.encode(recording).tokens, atol=1e-5)
        True
    """

    summary: FeatureSummary | None  # of samples and tokens given out, if features are wanted

    def __init__(
        self, model: PMT, batch_size: int = 1, *, horizon: int = 4096, features: bool = False
    ) -> None:
        only_pmt(model, "a stream")
        if model.cfg.normalise == "series":
            raise InputError(
                "a stream cannot be normalised by statistics known only at its end "
                "(model.normalise is 'series'); use a model with 'channel' or 'none'"
            )
        check_count("batch_size", batch_size)
        check_count("horizon", horizon)
        stats = model.feature_stats.values if features else None
        if features and stats is None:
            raise InputError(
                "the model has no feature statistics, which the features of a stream need; "
                "train it with this version, or leave out features=True"
            )
        self.model, self.batch_size, self.horizon = model, batch_size, horizon
        cfg = model.cfg
        self.samples = 0  # so far
        self.tokens = 0  # given out
        self.windows = 0  # given out
        self.ended = False
        window = cfg.patch + (cfg.window - 1) * cfg.patch_stride
        self.names: Sequence[str] = default_names(batch_size)  # of the series, in what is told
        self.watch = Watch(self.names, model.info.columns, samples=window)
        with torch.inference_mode(False), torch.no_grad(), eval_mode(model):
            self.backbone = BackboneStream(model, batch_size)
            encoder, like = model.encoder, self.backbone.x.new_zeros(batch_size, 0, model.cfg.dim)
            self.before = [no_keys(like, encoder.reach) for _ in encoder.layers]
            self.cls_rings = ClsRings(encoder, batch_size, horizon)
            self.sequence = self.cls_rings.summarise()
            self.summary = None
            if stats is not None:
                self.summary = FeatureSummary(
                    stats, batch_size, self.sequence.device, self.sequence.dtype
                )
        self.graphed_push: GraphedPush | None = None
        if self.sequence.is_cuda:
            capture = partial(graphed, device=self.sequence.device)
            self.graphed_push = GraphedPush(model, capture)

    def push(self, chunk: Any, *, dates: Any = None) -> Encoding:
        """Advance by ``chunk`` (B, L, C), numpy or tensor, L from 0 up, NaN for missing.

        A model that was trained with time covariates needs the ``dates`` of the samples (L,), the
        same for all series or a list of them for each.
        """
        chunk = as_array(chunk, "a chunk")
        if chunk.ndim != 3 or chunk.shape[0] != self.batch_size:
            raise InputError(
                f"a chunk must be (batch, time, channels) with batch {self.batch_size}, "
                f"got shape {tuple(chunk.shape)}"
            )
        channels, info = self.model.cfg.channels, self.model.info
        chunk = chunk_with_dates(chunk, dates, info, channels)
        check_samples(chunk, channels, columns=info.columns)
        return self._advance(as_float64(chunk), ended=False)

    def finish(self) -> Encoding:
        """End the series: everything that waited becomes final."""
        values = torch.zeros(self.batch_size, 0, self.model.cfg.channels, dtype=torch.float64)
        return self._advance(values, ended=True)

    @torch.inference_mode(False)
    @torch.no_grad()
    def _advance(self, values: Tensor, *, ended: bool) -> Encoding:
        if self.ended:
            raise InputError("the stream has ended; start a new Stream for another series")
        x, observed = normalise(
            values, self.model.stats.moments, self.backbone.x, names=self.names, start=self.samples
        )
        if self.graphed_push is None or ended:
            levels = self.step(x, observed, ended=ended)
        else:
            levels = self.graphed_push.step(self, x, observed)
        check_finite(self.sequence, self.names)
        self.watch.add(values, ended=ended)
        self.samples += x.shape[1]
        self.ended = ended
        encoding = self._encoding(levels)
        if self.summary is not None:  # not part of what a graph replays
            self.summary.add_tokens(encoding.tokens, encoding.token_mask)
            self.summary.add_samples(values)
        return encoding

    def features(self) -> Tensor:
        """One vector for each series, (B, 4D + H), of all tokens that are final so far.

        The sequence vector is joined with the maximum, the standard deviation and the share above
        the median of each feature of the tokens, and with the detail of all samples so far, as by
        the pooling "all" of a batch. The sequence vector looks back on the horizon, the rest on the
        whole stream. A stream keeps what this needs only if it was made with ``features=True``.
        """
        if self.summary is None:
            raise InputError(
                "this stream keeps no features; make it with Stream(model, features=True)"
            )
        return self.summary.features(self.sequence)

    def step(
        self, x: Tensor, observed: Tensor, *, ended: bool = False, masked: bool = False
    ) -> Levels:
        """Advance by normalised samples (B, L, C): all of a push that is tensor code.

        ``masked`` keeps it from reading values on the way, so that it can be captured.
        """
        with eval_mode(self.model):
            final = self.backbone.push(x, observed, ended=ended, masked=masked)
            tokens = self._refine(final)
        memory = self.backbone.blocks[-1].state.memory
        eos = None if memory is None else memory.mean(1)
        return tokens, final.memory, self.sequence.clone(), eos, final.valid, final.nonempty

    def _refine(self, final: Final) -> Tensor:
        """The neighbourhood encoder on final tokens, whose outputs are final at once."""
        encoder, tokens, valid = self.model.encoder, final.tokens, final.valid
        if not tokens.shape[1]:
            return tokens
        keys_by_layer = []
        for i, layer in enumerate(encoder.attention_layers):
            tokens, keys = encoder.refine(layer, tokens, valid, self.before[i])
            self.before[i] = self.before[i].shifted_by(keys)
            keys_by_layer.append(keys)
        self.cls_rings.add(keys_by_layer)
        self.sequence = self.cls_rings.summarise()
        return encoder.finish(tokens, valid)

    def _encoding(self, levels: Levels) -> Encoding:
        """The levels that became final, with their spans."""
        tokens, memory, sequence, eos, token_mask, window_mask = levels
        cfg, token, window = self.model.cfg, self.tokens, self.windows
        self.tokens += token_mask.shape[1]
        self.windows += window_mask.shape[1]
        return Encoding(
            tokens=tokens,
            memory=memory,
            sequence=sequence,
            eos=eos,
            token_mask=token_mask,
            window_mask=window_mask,
            token_spans=token_spans(cfg, token, self.tokens),
            window_spans=window_spans(cfg, window, self.windows, tokens=self.backbone.seen),
            channels=None if self.model.info == ChannelInfo() else self.model.info,
        )

    def state_dict(self) -> dict[str, Tensor]:
        """All that the stream holds, as tensors; ``save`` keeps them in a file."""
        return stream_state.pack(self)

    @classmethod
    def restore(cls, model: PMT, state: Mapping[str, Tensor]) -> "Stream":
        """The stream that ``state_dict`` was taken from, to go on with the same model."""
        batch_size, horizon = stream_state.check(model, state)
        stream = cls(model, batch_size, horizon=horizon)
        stream.summary = stream_state.blank_summary(stream, state)
        stream_state.unpack(stream, state)
        return stream

    def save(self, path: str | Path) -> None:
        """Write what the stream holds to a file under a checksum, without the model."""
        path = Path(path)
        check_output(path)
        artifact.write(path, "stream", self.state_dict(), {})

    @classmethod
    def load(cls, model: PMT, path: str | Path) -> "Stream":
        """The stream that ``save`` wrote, to go on with the same model."""
        path = Path(path)
        try:
            found = legacy.read_stream(path) or artifact.read(path, "stream")
            return cls.restore(model, found.tensors)
        except ArtifactError as error:
            raise InputError(str(error)) from error
        except InputError as error:
            raise InputError(f"{path}: {error}") from error
