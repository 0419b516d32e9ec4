"""Recordings to train on: from a file, a folder, or one of the paper's sets by name."""

from collections.abc import Sequence
from pathlib import Path

from progmem.data.datasets import FILES, LABELLED, check_name, load_labelled
from progmem.data.forecast_sets import VARIANTS, forecast_set
from progmem.data.reader import Recording, read_recordings, without_covariates
from progmem.errors import InputError


def open_source(
    source: str | Path, data_dir: str | Path | None, split: str, *, covariates: bool = True
) -> tuple[Sequence[Recording], dict[str, str]]:
    """The recordings, for a set the training rows of its ``split``, and the name of their source.

    Dated series begin with the time ``covariates``, unless these are switched off. A set's name
    takes precedence over a folder of that name, which can be given as ./NAME.
    """
    path = Path(source)
    named = str(source) in FILES or str(source) in VARIANTS
    if not named and (path.exists() or path.suffix or len(path.parts) > 1):
        if split != "official":
            raise InputError(f"split is for data sets by name; {path} is trained on whole")
        return read_recordings(path, covariates=covariates), {"name": path.name}
    origin = {"name": str(source), "split": split}
    if str(source) in VARIANTS:
        if split != "official":
            raise InputError(f"{source} has its own split by date, and no other")
        recordings = forecast_set(str(source), data_dir).training_recordings()
        return recordings if covariates else without_covariates(recordings), origin
    try:
        name = check_name(str(source), data_dir)
    except InputError as error:
        raise InputError(f"there is no file or folder {path}; {error}") from error
    if name not in LABELLED:
        ways = [way for way, variant in VARIANTS.items() if variant.file == name]
        raise InputError(f"{name} is trained on as {' or '.join(ways)}, which says what it is for")
    return load_labelled(name, data_dir, split=split).training_recordings(), origin
