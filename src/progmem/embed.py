"""Embeddings of recordings on disk: every level with its spans, masks and series, memory-mapped.

Shapes: R recordings, T tokens and V windows of all of them, n slots, D width, H convolutions.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch

from progmem.data.reader import Recording
from progmem.encoding import Encoding
from progmem.errors import InputError
from progmem.features import FeatureStats, FeatureSummary, features_in_all
from progmem.files import to_json, write_file
from progmem.geometry import count_tokens, count_windows, token_spans, window_spans
from progmem.model.encode import encode_in_chunks, eval_mode, moments_for
from progmem.model.pmt import PMT, SERIES_AT_ONCE
from progmem.model.saving import load
from progmem.series import Series, check_finite
from progmem.training.run_folder import data_settings, read_as_trained, run_of

CHUNK = 65_536  # samples encoded at a time
TOKENS = 32_768  # summarised at a time


def embed_files(
    model_folder: Path,
    data: Path,
    out: Path,
    *,
    sampling_rate: float | None = None,
    log: Callable[[str], None] = print,
) -> None:
    """`embed` for a saved model and files, which are read as those of the model's run were.

    The default of ``sampling_rate`` is that of the run.
    """
    model = load(model_folder, device="auto")
    run = run_of(model_folder)
    if sampling_rate is None:
        sampling_rate = data_settings(run).sampling_rate
    elif not 0 < sampling_rate < float("inf"):
        raise InputError(f"--sampling-rate must be a number above 0, got {sampling_rate:g}")
    embed(model, read_as_trained(data, run), out, sampling_rate=sampling_rate, log=log)


@torch.no_grad()
def embed(
    model: PMT,
    recordings: Sequence[Recording],
    out: Path,
    *,
    sampling_rate: float | None = None,
    log: Callable[[str], None] = print,
) -> None:
    """Write the three levels of all recordings into the new folder ``out``.

    sequence.npy is (R, D) and eos.npy too; all.npy (R, 4D + H) is one vector from all scales, if
    the model has feature statistics; tokens.npy (T, D) and memory.npy (V, n, D) hold all
    recordings one after the other. Files beside them hold the series each row belongs to, its span
    in samples (in seconds too, if ``sampling_rate`` is given) and whether anything of it was
    observed. series.json names the recordings.
    """
    if out.exists():
        raise InputError(f"{out} exists already; give a new folder")
    names = [r.name for r in recordings]
    series = Series([r.values for r in recordings], None, model.cfg, names)
    unfinished = out.with_name(f".{out.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        files = _LevelFiles(unfinished, model, series.lengths, sampling_rate)
        stats = model.feature_stats.values
        with eval_mode(model):
            for rows in _batches(series.lengths):
                moments = moments_for(model.cfg, model.stats, series, rows)
                part, index = files.part(rows), torch.arange(len(rows))
                encode_in_chunks(model, series, rows, part, index, moments=moments, chunk=CHUNK)
                check_finite(part.sequence, [names[i] for i in rows])
                if stats is not None:
                    features = _all_scales(part, series, rows, stats)
                    files.arrays["all"][rows[0] : rows[-1] + 1] = features
                for i, observed in zip(rows, part.token_mask.any(1), strict=True):
                    missing = "" if observed else ", none observed"
                    log(f"{i + 1}/{len(names)} {names[i]}: {series.lengths[i]} samples{missing}")
        note = {"names": names, "lengths": series.lengths, "sampling_rate": sampling_rate}
        write_file(unfinished / "series.json", to_json(note))
        unfinished.rename(out)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _all_scales(
    z: Encoding, series: Series, rows: Sequence[int], stats: FeatureStats
) -> np.ndarray:
    """The pooling "all" of tokens on disk and of their series, some samples at a time."""
    summary = FeatureSummary(stats, len(z.tokens), z.tokens.device, z.tokens.dtype)
    step = max(1, TOKENS // len(z.tokens))
    for start in range(0, z.tokens.shape[1], step):
        part = slice(start, start + step)
        summary.add_tokens(z.tokens[:, part], z.token_mask[:, part])
    for start in range(0, series.lengths[rows[0]], CHUNK):
        stop = min(start + CHUNK, series.lengths[rows[0]])
        summary.add_samples(series.cut(rows, start, stop))
    return summary.features(z.sequence).numpy()


def _batches(lengths: Sequence[int]) -> Iterator[Sequence[int]]:
    """Recordings in order, neighbours of equal length together, up to `CHUNK` samples."""
    for length, group in groupby(range(len(lengths)), key=lengths.__getitem__):
        rows, size = list(group), max(1, min(SERIES_AT_ONCE, CHUNK // length))
        for first in range(0, len(rows), size):
            yield rows[first : first + size]


class _LevelFiles:
    """Arrays on disk for all recordings, which are filled part by part."""

    def __init__(
        self, folder: Path, model: PMT, lengths: Sequence[int], rate: float | None
    ) -> None:
        cfg = model.cfg
        tokens = [count_tokens(cfg, length) for length in lengths]
        windows = [count_windows(cfg, count) for count in tokens]
        self.token_ends, self.window_ends = (
            np.cumsum([0, *counts]) for counts in (tokens, windows)
        )
        self.arrays: dict[str, Any] = {}
        R, T, V, n, D = len(lengths), sum(tokens), sum(windows), cfg.slots, cfg.dim
        absent = set() if n else {"memory", "eos"}
        if model.feature_stats.values is None:
            absent.add("all")
        for name, shape, kind in (
            ("tokens", (T, D), "float32"),
            ("memory", (V, n, D), "float32"),
            ("sequence", (R, D), "float32"),
            ("eos", (R, D), "float32"),
            ("all", (R, features_in_all(D)), "float32"),
            ("token_mask", (T,), "bool"),
            ("window_mask", (V,), "bool"),
        ):
            if name not in absent:
                create: Any = np.lib.format.open_memmap
                self.arrays[name] = create(folder / f"{name}.npy", "w+", kind, shape)
        for level, counts, spans in (
            ("token", tokens, [token_spans(cfg, 0, k) for k in tokens]),
            (
                "window",
                windows,
                [window_spans(cfg, 0, v, tokens=k) for v, k in zip(windows, tokens, strict=True)],
            ),
        ):
            np.save(folder / f"{level}_series.npy", np.repeat(np.arange(R), counts))
            np.save(folder / f"{level}_spans.npy", torch.cat(spans).numpy())
            if rate is not None:
                np.save(folder / f"{level}_times.npy", torch.cat(spans).numpy() / rate)

    def part(self, rows: Sequence[int]) -> Encoding:
        """Arrays for some neighbouring recordings of equal length, to write into."""
        first, end = rows[0], rows[-1] + 1

        def cut(name: str, ends: np.ndarray | None) -> Any:
            if name not in self.arrays:
                return None
            start, stop = (first, end) if ends is None else (ends[first], ends[end])
            values = torch.from_numpy(self.arrays[name][start:stop])
            return values if ends is None else values.view(len(rows), -1, *values.shape[1:])

        return Encoding(
            tokens=cut("tokens", self.token_ends),
            memory=cut("memory", self.window_ends),
            sequence=cut("sequence", None),
            eos=cut("eos", None),
            token_mask=cut("token_mask", self.token_ends),
            window_mask=cut("window_mask", self.window_ends),
            token_spans=torch.empty(0, 2),
            window_spans=None,
        )
