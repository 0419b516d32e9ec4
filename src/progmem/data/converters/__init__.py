"""Converters from publishers' archives to the files of `progmem.data`, one module per archive."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from progmem.data.converters import electricity, epilepsy, ett, har, ucr
from progmem.data.converters.archive import Archive


class Converter(NamedTuple):
    """How an archive is recognised and read."""

    what: str
    suffix: str  # of the file that is written
    find: Callable[[Archive], list[str]]  # the names of the sets that are in it
    read: Callable[[Archive, str], dict[str, np.ndarray] | bytes]  # arrays, or a csv of dates


CONVERTERS: dict[str, Converter] = {
    "har": Converter("UCI HAR Dataset.zip", ".npz", har.find, har.read),
    "epilepsy": Converter("the data.csv of Epileptic Seizure Recognition", ".npz", epilepsy.find,
                          epilepsy.read),
    "ucr": Converter("UCR and UEA zips", ".npz", ucr.find, ucr.read),
    "ett": Converter("the csv of ETT", ".csv.gz", ett.find, ett.read),
    "electricity": Converter("LD2011_2014.txt", ".csv.gz", electricity.find, electricity.read),
}  # fmt: skip
