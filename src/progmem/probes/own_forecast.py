"""Forecasts of a user's own files: from the files to predictions, a picture and what to expect."""

from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from progmem import artifact
from progmem.data.dates import COVARIATES, has_calendar
from progmem.data.options import BY_RULE, ReadOptions
from progmem.data.own_series import read_series
from progmem.data.recordings import Recording
from progmem.errors import InputError
from progmem.files import check_output, unfinished
from progmem.forecaster import PMTForecaster
from progmem.forecasting import kept
from progmem.model.saving import AnyEncoder, load
from progmem.names import to_cell
from progmem.progress import Log
from progmem.provenance import digests, history_of, seen_in
from progmem.series import check_count
from progmem.training.run_folder import check_columns, columns_before, run_of

if TYPE_CHECKING:
    import pandas as pd


def forecast_files(
    source: str,
    out: Path | None = None,
    *,
    horizons: Sequence[int],
    model: Path | None = None,
    probe: Path | None = None,
    plot: Path | None = None,
    context: int | None = None,
    data_dir: Path | None = None,
    options: ReadOptions = BY_RULE,
    log: Log | None = print,
) -> "pd.DataFrame":
    """The next samples of each recording of a file or a folder, or of a data set.

    They go to the .csv file ``out``, where that is given, and the fitted forecaster is kept beside
    it. It says how well the last part would have been predicted.

    Args:
        model: the folder of a model to take tokens of; by default one is trained on the series.
        probe: a kept forecaster to use; nothing is fitted.
        plot: the picture to draw.
        context: how many samples before the newest one a forecast uses; by default what suits the
            series.
        options: how files are read.
    """
    import pandas as pd

    for horizon in horizons:  # before anything is trained
        check_count("horizon", horizon)
    _check(source, out, probe, plot, context)
    encoder = None if model is None else load(model, device="auto")
    if encoder is not None and Path(source).exists():
        options = options.or_missing(encoder.info.missing)
    tables = read_series(source, data_dir, options, log=log)
    many = "" not in tables
    keeps = None if out is None or probe is not None else _kept_as(out, model, many=many)
    if keeps is not None:
        _check_kept(keeps)
    if model is not None and encoder is not None:
        for table in tables.values():
            _check_columns(table, source, run_of(model), encoder)
    if log is not None and not any(isinstance(t.index, pd.DatetimeIndex) for t in tables.values()):
        log(f"{source} has no dates: predictions are numbered by samples")
    series = tables if many else tables[""]
    if log is not None and encoder is not None:
        known = seen_in(history_of(encoder), digests([t.to_numpy() for t in tables.values()])).rows
        if known.any():
            log(
                f"the model was trained on {known.sum()} of these {len(known)} series, their last "
                "part too: errors of the encoder are too small by as much as that helps"
            )
    if probe is not None:
        forecaster = PMTForecaster.load(probe, encoder)
        forecaster.verbose = log is not None
        predicted = forecaster.predict(list(horizons), series)
    else:
        forecaster = PMTForecaster(encoder, context=context, verbose=log is not None)
        predicted = forecaster.fit(series).predict(list(horizons))
        if log is not None:
            log("\n".join(_told(forecaster, horizons)))
    if out is not None:
        written = predicted if len(horizons) > 1 else predicted.droplevel("horizon")
        with unfinished(out) as new:
            as_cells(written).to_csv(new)
            if keeps is not None:  # of the same call, however many there are at a time
                forecaster.save(keeps)
    if plot is not None:
        _draw(plot, tables, predicted)
    if log is not None:
        log(_ending(predicted, source, out, plot, keeps or probe, horizons, model, options))
    return predicted


def as_cells(table: "pd.DataFrame") -> "pd.DataFrame":
    """A table of predictions with names that no spreadsheet runs."""
    table = table.rename(columns=to_cell)
    named = "series" in table.index.names
    return table.rename(index=to_cell, level="series") if named else table


def _kept_as(out: Path, model: Path | None, *, many: bool) -> Path:
    """Where the fitted forecaster goes: a file without its model, or a folder with all it needs."""
    single = model is not None and not many
    return out.with_suffix(".safetensors" if single else ".forecaster")


def _check(
    source: str,
    out: Path | None,
    probe: Path | None,
    plot: Path | None,
    context: int | None,
) -> None:
    """Refuse what cannot end well, before anything is read or trained."""
    if probe is not None and context is not None:
        raise InputError("--context is chosen when a forecaster is fitted; a kept one has its own")
    if probe is not None and out is None:
        raise InputError("--probe needs -o: the .csv file for the predictions")
    if out is not None:
        if out.suffix != ".csv":
            raise InputError(f"-o must name the .csv file to write, got {out}")
        check_output(out, Path(source))
    if plot is not None:
        if plot.suffix not in (".png", ".pdf", ".svg"):
            raise InputError(f"--plot must name a .png, .pdf or .svg file, got {plot}")
        check_output(plot, Path(source))


def _check_kept(keeps: Path) -> None:
    """Refuse to put a forecaster where something else is."""
    if keeps.suffix == ".safetensors":
        artifact.check_replaceable(keeps, "forecaster")
    else:
        kept.check_folder(keeps)


def _check_columns(table: "pd.DataFrame", source: str, run: Path, model: AnyEncoder) -> None:
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


def _told(forecaster: PMTForecaster, horizons: Sequence[int]) -> list[str]:
    from progmem.report.forecasts import estimate_lines

    interval = max(forecaster.quantiles) - min(forecaster.quantiles)
    estimate = forecaster.estimate(list(horizons))
    return estimate_lines(estimate, share=forecaster.validation, interval=interval)


def _draw(plot: Path, tables: "dict[str, pd.DataFrame]", predicted: "pd.DataFrame") -> None:
    import pandas as pd

    from progmem.report.forecasts import forecast_plot

    if "series" not in predicted.index.names:
        predicted = pd.concat({"": predicted}, names=["series"])
    with unfinished(plot) as new:
        forecast_plot(tables, predicted).savefig(new, dpi=120, format=plot.suffix[1:])


def _ending(
    predicted: "pd.DataFrame",
    source: str,
    out: Path | None,
    plot: Path | None,
    forecaster: Path | None,
    horizons: Sequence[int],
    model: Path | None,
    options: ReadOptions,
) -> str:
    """One line: what was written, and what a user would do next."""
    import pandas as pd

    ahead = " ".join(map(str, horizons)) + options.flags()
    needs = f" --model {quote(str(model))}" if model is not None else ""
    files = ", ".join(str(file) for file in (out, plot) if file is not None)
    again = f"progmem forecast {quote(str(source))} --horizon {ahead}"
    if out is None:
        wrote = f"written: {files}; " if files else "nothing was written; "
        return f"{wrote}to keep predictions: {again} -o next.csv"
    when = predicted.index.get_level_values(-1)
    sample = "" if isinstance(when, pd.DatetimeIndex) else "sample "
    return (
        f"written: {files} ({len(predicted)} rows from {sample}{when.min()} to {when.max()}); when "
        f"there are newer samples: {again}{needs} --probe {quote(str(forecaster))} "
        f"-o {quote(str(out))}"
    )
