"""Data in: the paper's sets by name, a user's arrays, tables and files.

Example:
    >>> import numpy as np, progmem
    >>> made = progmem.data.as_collection([np.zeros((2, 30)), np.zeros((2, 50))])
    >>> [case.shape for case in made.x]  # (channels, time)
    [(2, 30), (2, 50)]
"""

from progmem.data.datasets import load
from progmem.data.tables import as_collection

__all__ = ["as_collection", "load"]
