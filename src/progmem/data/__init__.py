"""Data in: the paper's sets by name; a user's own are read by `progmem.read`.

Example:
    >>> import progmem
    >>> progmem.data.time_covariates(["2024-12-31 23:59"])  # minute, hour, weekday, day, …
    array([[ 59.,  23.,   1.,  31., 366.,  12.,   1.]])
"""

from progmem.data.datasets import load
from progmem.data.dates import time_covariates

__all__ = ["load", "time_covariates"]
