"""Recordings to train on: from a file, a folder, or one of the paper's sets by name."""

from collections.abc import Sequence
from pathlib import Path

from progmem.data.datasets import FILES, LABELLED, check_name, load_labelled
from progmem.data.forecast_sets import VARIANTS, forecast_set
from progmem.data.options import BY_RULE, ReadOptions
from progmem.data.reader import read_with
from progmem.data.recordings import Recording, Recordings, without_covariates
from progmem.errors import InputError
from progmem.progress import Log


def open_source(
    source: str | Path,
    data_dir: str | Path | None,
    split: str,
    *,
    covariates: bool | None = None,
    options: ReadOptions = BY_RULE,
    log: Log | None = None,
) -> tuple[Sequence[Recording], dict[str, str]]:
    """The recordings, for a set the training rows of its ``split``, and the name of their source.

    Dated series begin with the time ``covariates`` where these are asked for, sets for forecasts
    unless they are switched off. A set's name
    takes precedence over a folder of that name, which can be given as ./NAME.
    """
    path = Path(source)
    named = str(source) in FILES or str(source) in VARIANTS
    if not named and (path.exists() or path.suffix or len(path.parts) > 1):
        if split != "official":
            raise InputError(f"split is for data sets by name; {path} is trained on whole")
        found = open_files(path, options, covariates=bool(covariates), log=log)
        return found, {"name": path.name}
    if options != BY_RULE:
        raise InputError(f"{source} is a data set by name; options of reading are for own files")
    origin = {"name": str(source), "split": split}
    if str(source) in VARIANTS:
        if split != "official":
            raise InputError(f"{source} has its own split by date, and no other")
        recordings = forecast_set(str(source), data_dir).training_recordings()
        return without_covariates(recordings) if covariates is False else recordings, origin
    try:
        name = check_name(str(source), data_dir)
    except InputError as error:
        raise InputError(f"there is no file or folder {path}; {error}") from error
    if name not in LABELLED:
        ways = [way for way, variant in VARIANTS.items() if variant.file == name]
        raise InputError(f"{name} is trained on as {' or '.join(ways)}, which says what it is for")
    return load_labelled(name, data_dir, split=split).training_recordings(), origin


def open_files(
    path: Path, options: ReadOptions, *, covariates: bool, log: Log | None = None
) -> Recordings:
    """Own recordings, those with dates beginning with the time ``covariates``."""
    found = read_with(path, options, log=log)
    return found.with_covariates() if covariates else found
