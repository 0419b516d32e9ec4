"""Find motifs, regimes and oddities in recordings, and label them with few labels."""

from progmem.explore.folder import Index, index, open_index
from progmem.explore.nearest import Match, search

__all__ = ["Index", "Match", "index", "open_index", "search"]
