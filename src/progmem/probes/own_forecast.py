"""Forecasts of a user's own dated series by a saved model, and the fitted forecaster kept."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from progmem import artifact
from progmem.data.dates import COVARIATES
from progmem.data.own_series import read_dated
from progmem.data.reader import Recording, has_calendar
from progmem.errors import InputError
from progmem.files import check_output
from progmem.forecaster import PMTForecaster
from progmem.model.pmt import PMT
from progmem.model.saving import load
from progmem.probes.forecast import PADDING
from progmem.training.run_folder import check_columns, columns_before, run_of

if TYPE_CHECKING:
    import pandas as pd


def forecast_file(
    model_folder: Path,
    source: str,
    out: Path | None = None,
    *,
    horizon: int,
    probe: Path | None = None,
    context: int | None = None,
    data_dir: Path | None = None,
    log: Callable[[str], None] = print,
) -> "pd.DataFrame":
    """The next ``horizon`` samples of a .csv file with a column date, or of a data set.

    They go to the .csv file ``out``, where that is given, and the fitted forecaster is kept beside
    it.

    Args:
        probe: a kept forecaster to use; nothing is fitted.
        context: how many samples before the newest one a feature is made of, by default 200.
    """
    if probe is not None and context is not None:
        raise InputError("--context is chosen when a forecaster is fitted; a kept one has its own")
    if probe is not None and out is None:
        raise InputError("--probe needs -o: the .csv file for the predictions")
    if out is not None:
        if out.suffix != ".csv":
            raise InputError(f"-o must name the .csv file to write, got {out}")
        check_output(out, Path(source))
        if probe is None:
            artifact.check_replaceable(out.with_suffix(".safetensors"), "forecaster")
    table = read_dated(source, data_dir)
    model = load(model_folder, device="auto")
    _check_columns(table, source, run_of(model_folder), model)
    if probe is not None:
        predicted = PMTForecaster.load(probe, model).predict(horizon, table)
    else:
        context = PADDING if context is None else context
        forecaster = PMTForecaster(model, context=context).fit(table)
        predicted = forecaster.predict(horizon)
        ours, newest = forecaster.estimate(horizon)
        log(
            f"{source}, the last fifth predicted {horizon} samples ahead: MSE {ours.mse:.3f}, MAE "
            f"{ours.mae:.3f} in standard deviations; repeating the newest value {newest.mse:.3f}, "
            f"{newest.mae:.3f}"
        )
        if out is not None:
            forecaster.save(out.with_suffix(".safetensors"))
            log(f"the fitted forecaster: {out.with_suffix('.safetensors')}")
    if out is not None:
        predicted.to_csv(out)
        first, last = predicted.index[0], predicted.index[-1]
        log(f"{len(predicted)} predictions from {first} to {last}: {out}")
    return predicted


def _check_columns(table: "pd.DataFrame", source: str, run: Path, model: PMT) -> None:
    """Refuse a table whose columns a model would take for others, or for the calendar."""
    trained, columns = columns_before(run), tuple(map(str, table.columns))
    calendar = has_calendar(trained)
    if calendar and model.cfg.channels == len(columns):
        raise InputError(
            f"{source} has {len(columns)} columns; {run} was trained on the calendar and "
            f"{', '.join(trained[len(COVARIATES) :])}"
        )
    seen = (*COVARIATES, *columns) if calendar else columns
    check_columns([Recording(source, table, columns=seen)], run)
