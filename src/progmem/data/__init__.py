"""Data in: the paper's sets by name, a user's arrays, tables and files."""

from progmem.data.collection import as_collection
from progmem.data.registry import load

__all__ = ["as_collection", "load"]
