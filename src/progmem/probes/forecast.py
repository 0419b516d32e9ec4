"""Forecasting as TS2Vec does it: frozen features of a moment, one ridge a horizon.

The feature at t predicts t+1 .. t+H. Ridges learn from the training part, their penalty is chosen
on the validation part, errors are those of the test part, whose features may look back across its
first sample. All on values scaled by the training part.

Shapes: I instances, T samples, F values, H horizon, n places, D width.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.model_selection import train_test_split
from torch import Tensor

from progmem.data.forecast_sets import HORIZONS, ForecastData
from progmem.encoding import Encoder
from progmem.errors import InputError
from progmem.probes.ridge import Ridge, Totals, choose, errors, ridge_path
from progmem.probes.sliding import PADDING, Features, Places, device_of, sliding_features
from progmem.series import check_count

MOST = 100_000  # samples a ridge is fitted on or chosen by, as TS2Vec
AT_ONCE = 2**24  # predicted numbers held at a time
HEADS = {"ridge": False, "ridge, standardised": True}  # are the features scaled to sd 1?


class TestErrors(NamedTuple):
    """Errors on scaled values, as papers print them, and in the units of the data."""

    mse: float
    mae: float
    mse_raw: float
    mae_raw: float


def samples(
    data: ForecastData, part: str, horizon: int, *, padding: int, most: int | None = MOST
) -> Places:
    """The moments of a part whose next ``horizon`` samples lie in it, at most ``most`` of them.

    The first ``padding`` of the training part are left out: their windows are not full.
    """
    check_count("horizon", horizon)
    start, end = data.bounds[part]
    first = start + padding if part == "train" else start
    if end - horizon <= first:
        raise InputError(
            f"horizon {horizon} does not fit into the {part} part of {data.name}: of {end - start} "
            f"samples {max(0, end - first - 1)} can be ahead"
        )
    time = np.tile(np.arange(first, end - horizon), len(data.x))
    instance = np.repeat(np.arange(len(data.x)), end - horizon - first)
    if most is not None and len(time) > most:
        kept, _ = train_test_split(np.arange(len(time)), train_size=most, random_state=0)
        time, instance = time[kept], instance[kept]
    return Places(instance, time)


def futures(target: Tensor, places: Places, horizon: int) -> Tensor:
    """The next ``horizon`` samples of each place, (n, H * F), of a target (I, T, F)."""
    view = target.unfold(1, horizon, 1)  # (I, T-H+1, F, H)
    instance, time = (torch.from_numpy(index).to(target.device) for index in places)
    return view[instance, time + 1].transpose(1, 2).flatten(1)


def probe_forecast(
    encoder: Encoder,
    data: ForecastData,
    *,
    horizons: Sequence[int] = HORIZONS,
    padding: int = PADDING,
) -> dict[str, Any]:
    """Every error of an encoder on a series, for a json file.

    Only moments that some ridge needs are encoded.
    """
    parts = {"train": MOST, "validation": MOST, "test": None}
    plan = {
        (part, horizon): samples(data, part, horizon, padding=padding, most=most)
        for part, most in parts.items()
        for horizon in horizons
    }
    known = Known(encoder, data, list(plan.values()), padding)
    target = torch.as_tensor(data.target, device=device_of(encoder))
    scores: dict[str, Any] = {}
    for horizon in horizons:
        train, validation = (
            (known.at(plan[part, horizon]), futures(target, plan[part, horizon], horizon))
            for part in ("train", "validation")
        )
        for head, standardise in HEADS.items():
            ridge = choose(ridge_path(*train, standardise=standardise), *validation)
            found = {
                "alpha": ridge.alpha,
                "validation": errors(ridge.predict(validation[0]), validation[1])._asdict(),
                "test": score(ridge, known, data, target, plan["test", horizon], horizon)._asdict(),
            }
            scores.setdefault(str(horizon), {})[head] = found
    return {"set": data.name, "padding": padding, "encoded": len(known.keys), "scores": scores}


class Known:
    """Features of the moments of some lists of places, each encoded once."""

    def __init__(
        self, encoder: Encoder, data: ForecastData, wanted: Sequence[Places], padding: int
    ) -> None:
        self.length = data.x.shape[1]
        self.keys = np.unique(np.concatenate([self._key(places) for places in wanted]))
        places = Places(*np.divmod(self.keys, self.length))
        self.features: Features = sliding_features(encoder, data.x, places, padding=padding)

    def at(self, places: Places) -> Tensor:
        """Features (n, D)."""
        return self.features.values[self._rows(places)]

    def there(self, places: Places) -> np.ndarray:
        """Whether anything was observed, (n,)."""
        return self.features.there[self._rows(places)].cpu().numpy()

    def newest(self) -> Features:
        """The last moment of the last instance."""
        return Features(*(part[-1:] for part in self.features))

    def _rows(self, places: Places) -> Tensor:
        rows = torch.from_numpy(np.searchsorted(self.keys, self._key(places)))
        return rows.to(self.features.values.device)

    def _key(self, places: Places) -> np.ndarray:
        return places.instance * self.length + places.time


def score(
    ridge: Ridge, known: Known, data: ForecastData, target: Tensor, places: Places, horizon: int
) -> TestErrors:
    """Errors over all ``places`` of the test part, some at a time."""
    scale = torch.as_tensor(data.scale, device=target.device)  # (I, F)
    size = max(1, AT_ONCE // (horizon * target.shape[2]))
    scaled, raw = Totals(), Totals()
    for first in range(0, len(places.time), size):
        some = Places(*(index[first : first + size] for index in places))
        difference = ridge.predict(known.at(some)) - futures(target, some, horizon)
        unit = scale[torch.from_numpy(some.instance).to(scale.device)].repeat(1, horizon)
        scaled.add(difference)
        raw.add(difference * unit)
    return TestErrors(*scaled.errors(), *raw.errors())
