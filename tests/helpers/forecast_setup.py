"""Series to forecast and encoders simple enough to follow by hand."""

import gzip
import hashlib

import numpy as np
import pandas as pd
import torch

import progmem
from progmem.data.datasets import DatedFile
from progmem.data.sets import DatedSeries

SMALL = {"size": "tiny", "dim": 16, "heads": 2, "blocks": 1, "patch": 1, "patch_stride": 1,
         "window": 8, "stride": 4}  # fmt: skip


class LastValues:
    """The newest sample of each channel, 0 where it is missing, and nothing else."""

    def __init__(self):
        self.seen = []

    def encode(self, x):
        self.seen.append(x)
        tokens, start = x.nan_to_num(0.0), torch.arange(x.shape[1])
        spans = torch.stack([start, start + 1], dim=1)
        return progmem.Encoding(
            tokens, None, tokens[:, -1], None, ~x.isnan().all(2), None, spans, None
        )


def hours(count, first="2024-01-01"):
    return pd.date_range(first, periods=count, freq="h")


def daily_waves(count, columns=1, seed=0):
    """A day's rhythm and noise, each column in other units, (count, columns)."""
    rng = np.random.default_rng(seed)
    wave = np.sin(2 * np.pi * np.arange(count) / 24)[:, None]
    values = wave * rng.uniform(0.5, 2, columns) + 0.1 * rng.normal(size=(count, columns))
    return 10.0 ** np.arange(columns) * values + 5


def dated(count=120, columns=2, ends=(60, 90, 120)):
    names = tuple("abcdefg"[:columns])
    bounds = dict(
        zip(("train", "validation", "test"), zip((0, *ends), ends, strict=False), strict=True)
    )
    values, index = daily_waves(count, columns), hours(count).to_numpy()
    return DatedSeries("made", values, names, index, names[-1], bounds)


def dated_file(folder, columns=("x", "OT"), count=400, ends=(260, 330, 400), **facts):
    """A file of a dated set, and what the registry is to know about it."""
    table = pd.DataFrame(daily_waves(count, len(columns)), hours(count, "2016-07-01"), columns)
    text = table.rename_axis("date").to_csv().encode()
    (folder / "d.csv.gz").write_bytes(gzip.compress(text))
    known = {"columns": columns, "target": "OT", "first": None,
             "sha256": hashlib.sha256(text).hexdigest()} | facts  # fmt: skip
    return DatedFile("d.csv.gz", count, ends=ends, **known)


def small_model(channels, **settings):
    torch.manual_seed(0)
    return progmem.PMT(progmem.ModelConfig(channels=channels, **SMALL | settings))
