"""The encoder that a forecaster trains for itself, on the series alone."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from progmem.config import LONGEST_TRAINING_WINDOW, read_config
from progmem.data.recordings import Recording
from progmem.model.pmt import PMT
from progmem.progress import Log

if TYPE_CHECKING:
    import pandas as pd

# Values without the calendar, tokens of a day, HGCL alone and a short training did well on the
# validation parts of docs/LOG.md; bent time would not fit its hours.
DEFAULTS = (
    "views.preset=gentle", "views.time_warp=0", "views.crop=0", "loss.icl=0", "loss.pcl=0",
    "train.steps=40", "train.batch_size=32", "train.lr=1e-3",
)  # fmt: skip
PARAMETERS = {"size": "model.size", "seed": "train.seed"}


def trained_encoder(
    parts: Sequence[np.ndarray],
    dates: "pd.DatetimeIndex | pd.RangeIndex",
    *,
    context: int,
    size: str,
    seed: int,
    settings: Sequence[str] | None,
    log: Log | None,
) -> PMT:
    """An encoder of (T, F) values, trained without labels on the training part of each series."""
    from progmem.estimators import ONE_CHECKPOINT, check_settings, training  # they load slowly
    from progmem.training.pretrain import pretrain

    more = check_settings(settings, PARAMETERS)
    given = [f"{PARAMETERS['size']}={size}", f"{PARAMETERS['seed']}={seed}"]
    if any(text.startswith("train.epochs=") for text in more):
        given.append("train.steps=null")  # they are in place of the default's steps
    shortest = min(map(len, parts))
    window = max(2, min(context + 1, shortest // 4, LONGEST_TRAINING_WINDOW))
    patch, stride = tokens_of_a_day(dates, context, window)
    geometry = [f"model.patch={patch}", f"model.patch_stride={stride}", f"data.longest={window}",
                f"data.window={window}", f"data.hop={max(1, window // 10)}"]  # fmt: skip
    cfg = read_config(None, [ONE_CHECKPOINT, *DEFAULTS, *geometry, *given, *more])
    recordings = [Recording(f"series {i}", values) for i, values in enumerate(parts)]
    with training() as folder:
        return pretrain(recordings, folder / "run", cfg, log=log)


def tokens_of_a_day(
    dates: "pd.DatetimeIndex | pd.RangeIndex", context: int, window: int
) -> tuple[int, int]:
    """Patch and patch stride: a day, if one fits well into a window, and a quarter of it.

    The last token of ``context`` + 1 samples ends with them: the patch is made a little longer
    until it does. Where a day does not fit, and without dates, a patch is an eighth of the
    training window.
    """
    import pandas as pd

    day = 0  # samples
    if not isinstance(dates, pd.RangeIndex):
        day = int((dates < dates[0] + pd.Timedelta(days=1)).sum())
    patch = day if 4 <= day <= window // 3 else max(1, window // 8)
    stride = max(1, round(patch / 4))
    return patch + (context + 1 - patch) % stride, stride
