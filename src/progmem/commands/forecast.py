"""What the command ``probe forecast`` does: score a model on a set, or predict an own series."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from progmem.commands.pair import Pair, Say
from progmem.data import datasets
from progmem.data.dates import COVARIATES, by_date
from progmem.data.forecast_sets import HORIZONS, VARIANTS, forecast_set
from progmem.data.reader import Recording, has_calendar, read_csv
from progmem.data.sets import DatedSeries
from progmem.errors import InputError
from progmem.files import check_output, check_result_file
from progmem.forecaster import PMTForecaster
from progmem.model.pmt import PMT
from progmem.model.saving import load
from progmem.probes.forecast import PADDING, probe_forecast, samples
from progmem.report.tables import forecast_table
from progmem.training.run_folder import check_columns, columns_before, run_of

if TYPE_CHECKING:
    import pandas as pd


def forecast_scores(
    model_folder: Path,
    name: str,
    out: Path,
    *,
    data_dir: Path | None = None,
    horizons: Sequence[int] = HORIZONS,
    say: Say = print,
) -> dict[str, Any]:
    """Probe a model and its untrained twin on a set; the errors go to the json file ``out``."""
    check_result_file(out)
    data = forecast_set(name, data_dir)
    for part in data.bounds:
        samples(data, part, max(horizons), padding=PADDING)  # refused before anything is encoded
    pair = Pair(model_folder)
    data = data.seen_by(pair.model.cfg.channels)
    rows = []
    for kind, encoder in pair.encoders:
        started = time.perf_counter()
        row = {"encoder": kind} | probe_forecast(encoder, data, horizons=horizons)
        row["seconds"] = time.perf_counter() - started
        say(f"{name}, {kind}: {row['encoded']} windows encoded, {row['seconds']:.0f} s")
        rows.append(row)
    result = pair.write(out, rows)
    what = "MSE / MAE on the test part, values scaled by the training part, ridge on the last token"
    say(f"\n{what}\n\n{forecast_table([result])}\n\nwritten: {out}")
    return result


def forecast_series(
    model_folder: Path,
    source: str,
    *,
    horizon: int,
    out: Path | None = None,
    kept: Path | None = None,
    data_dir: Path | None = None,
    padding: int | None = None,
    say: Say = print,
) -> "pd.DataFrame":
    """The next ``horizon`` samples of a .csv file with a column date, or of a set by name.

    They go to the .csv file ``out``, if it is given, and the forecaster is kept beside it.
    """
    if kept is not None and padding is not None:
        raise InputError("--padding is chosen when a forecaster is fitted; a kept one has its own")
    if kept is not None and out is None:
        raise InputError("--probe needs --predict: the .csv file for the samples to come")
    if out is not None:
        if out.suffix != ".csv":
            raise InputError(f"--predict must name the .csv file to write, got {out}")
        check_output(out, Path(source))
    table = read_table(source, data_dir)
    model = load(model_folder, device="auto")
    _check_columns(table, source, run_of(model_folder), model)
    if kept is not None:
        found = PMTForecaster.load(kept, model).predict(horizon, table)
    else:
        context = PADDING if padding is None else padding
        forecaster = PMTForecaster(model, context=context).fit(table)
        found = forecaster.predict(horizon)
        ours, last = forecaster.estimate(horizon)
        say(
            f"{source}, the last fifth predicted {horizon} samples ahead: MSE {ours.mse:.3f}, MAE "
            f"{ours.mae:.3f} in standard deviations; repeating the newest value {last.mse:.3f}, "
            f"{last.mae:.3f}"
        )
        if out is not None:
            forecaster.save(out.with_suffix(".safetensors"))
            say(f"the fitted forecaster: {out.with_suffix('.safetensors')}")
    if out is not None:
        found.to_csv(out)
        say(f"{len(found)} predictions from {found.index[0]} to {found.index[-1]}: {out}")
    return found


def _check_columns(table: "pd.DataFrame", source: str, run: Path, model: PMT) -> None:
    """Refuse a table whose columns a model would take for others, or for the calendar."""
    known, columns = columns_before(run), tuple(map(str, table.columns))
    calendar = has_calendar(known)
    if calendar and model.cfg.channels == len(columns):
        raise InputError(
            f"{source} has {len(columns)} columns; {run} was trained on the calendar and "
            f"{', '.join(known[len(COVARIATES) :])}"
        )
    seen = (*COVARIATES, *columns) if calendar else columns
    check_columns([Recording(source, table, columns=seen)], run)


def read_table(source: str, data_dir: Path | None) -> "pd.DataFrame":
    """A series by date: of a .csv file, or of a set."""
    import pandas as pd

    if source in VARIANTS:
        series = datasets.load(VARIANTS[source].file, data_dir)
        assert isinstance(series, DatedSeries)
        table = pd.DataFrame(series.values, pd.DatetimeIndex(series.dates), list(series.columns))
        return table if VARIANTS[source].form != "target" else table[[series.target]]
    path = Path(source)
    if path.suffix.lower() != ".csv":
        raise InputError(f"give a .csv file with a column date, or one of {', '.join(VARIANTS)}; "
                         f"got {source}")  # fmt: skip
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    try:
        read = read_csv(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error
    return by_date(read, str(path))
