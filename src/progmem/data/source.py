"""Recordings to train on: from a file, a folder, or one of the paper's sets by name."""

from collections.abc import Sequence
from pathlib import Path

from progmem.data.recordings import Recording, read_recordings
from progmem.data.registry import FILES, LABELLED, check_name, load, load_labelled
from progmem.data.sets import DatedSeries
from progmem.errors import InputError


def open_source(
    source: str | Path, data_dir: str | Path | None, split: str
) -> tuple[Sequence[Recording], dict[str, str]]:
    """The recordings, of a set the training rows of its ``split``; and a note of what they are.

    A set's name wins over a folder of that name, which can be given as ./NAME.
    """
    path = Path(source)
    if str(source) not in FILES and (path.exists() or path.suffix or len(path.parts) > 1):
        if split != "official":
            raise InputError(f"split is for data sets by name; {path} is trained on whole")
        return read_recordings(path), {"name": path.name}
    try:
        name = check_name(str(source), data_dir)
    except InputError as error:
        raise InputError(f"there is no file or folder {path}; {error}") from error
    noted = {"name": name, "split": split}
    if name in LABELLED:
        return load_labelled(name, data_dir, split=split).training_recordings(), noted
    dated = load(name, data_dir, split=split)
    assert isinstance(dated, DatedSeries)
    start, end = dated.bounds["train"]
    return [Recording(name, dated.values[start:end])], noted
