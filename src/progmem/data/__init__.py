"""Data in: the paper's sets by name, a user's arrays, tables and files."""

from progmem.data.datasets import load
from progmem.data.tables import as_collection

__all__ = ["as_collection", "load"]
