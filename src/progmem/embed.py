"""Embeddings of recordings on disk: every level with its spans, masks and series, memory-mapped.

Shapes: R recordings, T tokens and V windows of all of them, n slots, D width, H convolutions.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from progmem.data.options import BY_RULE, ReadOptions
from progmem.data.recordings import ChannelInfo, Recording
from progmem.encoding import Encoding
from progmem.errors import InputError
from progmem.features import FeatureStats, FeatureSummary, features_in_all
from progmem.files import (
    AT_ONCE,
    check_outside,
    make_folder,
    new_array,
    to_json,
    unfinished,
    write_sums,
)
from progmem.geometry import count_tokens, count_windows, token_spans, window_spans
from progmem.missing import tell_of_missing
from progmem.model.encode import (
    encode_in_chunks,
    equal_neighbours,
    eval_mode,
    moments_for,
    write,
)
from progmem.model.pmt import PMT, SERIES_AT_ONCE
from progmem.model.saving import AnyEncoder, load
from progmem.names import to_cell
from progmem.progress import Advance, Log, progress
from progmem.series import Series, check_finite
from progmem.training.run_folder import data_settings, read_as_trained, run_of

CHUNK = 65_536  # samples encoded at a time
TOKENS = 32_768  # summarised at a time
ROWS = 100_000  # of the index written at a time


def embed_files(
    model_folder: Path,
    data: Path,
    out: Path,
    *,
    sampling_rate: float | None = None,
    options: ReadOptions = BY_RULE,
    log: Log | None = print,
) -> None:
    """`embed` for a saved model and files, which are read as those of the model's run were.

    The default of ``sampling_rate`` is that of the recordings, or else of the run.
    """
    check_outside(out, data)
    model = load(model_folder, device="auto")
    run = run_of(model_folder)
    if sampling_rate is not None and not 0 < sampling_rate < float("inf"):
        raise InputError(f"--sampling-rate must be a number above 0, got {sampling_rate:g}")
    recordings = read_as_trained(data, run, options, model.info, log=log)
    if sampling_rate is None and recordings[0].rate is None:
        sampling_rate = model.info.rate or data_settings(run).sampling_rate
    embed(model, recordings, out, sampling_rate=sampling_rate, log=log)


@torch.no_grad()
def embed(
    model: AnyEncoder,
    recordings: Sequence[Recording],
    out: Path,
    *,
    sampling_rate: float | None = None,
    log: Log | None = print,
) -> None:
    """Write the three levels of all recordings into the new folder ``out``.

    sequence.npy is (R, D) and eos.npy too; all.npy (R, 4D + H) is one vector from all scales, if
    the model has feature statistics; tokens.npy (T, D) and memory.npy (V, n, D) hold all
    recordings one after the other. Files beside them hold the series each row belongs to, its span
    in samples (in seconds too, if ``sampling_rate`` is given or known) and whether anything of it
    was observed. index.csv says of every row of every level what it is of, with dates where these
    are known. Encoders other than PMT have no memory here. series.json names the recordings, their
    channels and units.
    """
    if out.exists():
        raise InputError(f"{out} exists already; give a new folder")
    names = [r.name for r in recordings]
    info = ChannelInfo.of(recordings, ())
    sampling_rate = info.rate if sampling_rate is None else sampling_rate
    values = [r.values for r in recordings]
    series = Series(values, None, model.cfg, names, columns=model.info.columns)
    tell_of_missing(series.arrays, names, info.columns or model.info.columns)
    make_folder(out.parent)
    with unfinished(out, wait=AT_ONCE) as folder:
        if out.exists():  # another has finished it just now
            raise InputError(f"{out} exists already; give a new folder")
        folder.mkdir()
        files = _LevelFiles(folder, model, series.lengths)
        files.write_places(recordings, series.lengths, sampling_rate)
        stats = model.feature_stats.values
        told = f"encoding {len(names)} recordings"
        passes = 1 if stats is None else 2  # over the samples: the second is for the features
        with eval_mode(model), progress(told, passes * sum(series.lengths), log=log) as advance:
            for rows in equal_neighbours(series.lengths, CHUNK, SERIES_AT_ONCE):
                part, index = files.part(rows), torch.arange(len(rows))
                if isinstance(model, PMT):
                    moments = moments_for(model.cfg, model.stats, series, rows)
                    encode_in_chunks(
                        model, series, rows, part, index,
                        moments=moments, chunk=CHUNK, advance=advance,
                    )  # fmt: skip
                else:
                    write(part, index.tolist(), model.encode([values[i] for i in rows]))
                    advance(sum(series.lengths[i] for i in rows))
                check_finite(part.sequence, [names[i] for i in rows])
                if stats is not None:
                    features = _all_scales(part, series, rows, stats, advance)
                    files.arrays["all"][rows[0] : rows[-1] + 1] = features
        note = {
            "names": names, "lengths": series.lengths, "sampling_rate": sampling_rate,
            "channels": list(info.columns or model.info.columns),
            "units": list(info.units or model.info.units),
            "starts": [None if r.calendar is None else str(r.calendar.start) for r in recordings],
        }  # fmt: skip
        (folder / "series.json").write_bytes(to_json(note))
        write_sums(folder)
    if log is None:
        return
    whole = "all" if "all" in files.arrays else "sequence"
    log(
        f"written: {out} ({len(names)} recordings, {len(files.arrays['tokens'])} tokens); next: "
        f'np.load("{out}/{whole}.npy") has one row for each recording, index.csv says what lies '
        "where in the others"
    )


def _all_scales(
    z: Encoding, series: Series, rows: Sequence[int], stats: FeatureStats, advance: Advance
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
        advance(len(rows) * (stop - start))
    return summary.features(z.sequence).numpy()


class _LevelFiles:
    """Arrays on disk for all recordings, which are filled part by part."""

    def __init__(self, folder: Path, model: AnyEncoder, lengths: Sequence[int]) -> None:
        R, cfg, self.model = len(lengths), model.cfg, model
        if isinstance(model, PMT):
            tokens = [count_tokens(model.cfg, length) for length in lengths]
            windows = [count_windows(model.cfg, count) for count in tokens]
        else:  # no windows are known of others
            tokens, windows = [len(model.token_spans(length)) for length in lengths], [0] * R
        self.token_ends, self.window_ends = (
            np.cumsum([0, *counts]) for counts in (tokens, windows)
        )
        self.folder = folder
        self.arrays: dict[str, Any] = {}
        T, V, n, D = sum(tokens), sum(windows), cfg.slots, cfg.dim
        absent = set() if V and n else {"memory", "eos"}
        if not V:
            absent.add("window_mask")
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
                self.arrays[name] = new_array(folder / f"{name}.npy", kind, shape)

    def write_places(
        self, recordings: Sequence[Recording], lengths: Sequence[int], rate: float | None
    ) -> None:
        """Where each row lies, as arrays and as one table of level, row, series, start, end, time.

        The time is the date at which a row starts, or the seconds from the start of its recording.
        """
        with (self.folder / "index.csv").open("w", newline="") as file:
            file.write("level,row,series,start,end,time\n")
            for level, kind, ends in (
                ("tokens", "token", self.token_ends),
                ("memory", "window", self.window_ends),
            ):
                total = int(ends[-1])
                if not total:
                    continue
                arrays = {
                    "series": new_array(self.folder / f"{kind}_series.npy", "int64", (total,)),
                    "spans": new_array(self.folder / f"{kind}_spans.npy", "int64", (total, 2)),
                }
                if rate is not None:
                    path = self.folder / f"{kind}_times.npy"
                    arrays["times"] = new_array(path, "float64", (total, 2))
                for i, (recording, length) in enumerate(zip(recordings, lengths, strict=True)):
                    for row in range(ends[i], ends[i + 1], ROWS):
                        rows = slice(row, min(row + ROWS, ends[i + 1]))
                        spans = self._spans(kind, length, row - ends[i], rows.stop - ends[i])
                        arrays["series"][rows], arrays["spans"][rows] = i, spans
                        if rate is not None:
                            arrays["times"][rows] = spans / rate
                        if level in self.arrays:
                            _write_index(file, level, rows, recording, spans, rate)
            for i, (recording, length) in enumerate(zip(recordings, lengths, strict=True)):
                whole = np.array([[0, length]])
                _write_index(file, "sequence", slice(i, i + 1), recording, whole, rate)

    def _spans(self, kind: str, length: int, start: int, stop: int) -> np.ndarray:
        """Samples of some tokens or windows of a recording of ``length`` samples, (rows, 2)."""
        if not isinstance(self.model, PMT):
            return self.model.token_spans(length)[start:stop].numpy()
        cfg = self.model.cfg
        if kind == "token":
            return token_spans(cfg, start, stop).numpy()
        tokens = count_tokens(cfg, length)
        return window_spans(cfg, start, stop, tokens=tokens).numpy()

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


def _write_index(
    file: IO[str], level: str, rows: slice, recording: Recording, spans: np.ndarray,
    rate: float | None,
) -> None:  # fmt: skip
    import pandas as pd

    times: Any = spans[:, 0] / rate if rate is not None else ""
    if recording.calendar is not None:
        times = recording.calendar.texts(spans[:, 0])
    name = to_cell(recording.name)
    table = {"level": level, "row": np.arange(rows.start, rows.stop), "series": name,
             "start": spans[:, 0], "end": spans[:, 1], "time": times}  # fmt: skip
    pd.DataFrame(table).to_csv(file, header=False, index=False)
