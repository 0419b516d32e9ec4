"""Find motifs, regimes and oddities in recordings, and label them with few labels."""

from progmem.explore.clusters import States, states
from progmem.explore.folder import Index, index, open_index
from progmem.explore.labelling import Label, Predictions, classify
from progmem.explore.nearest import Match, search
from progmem.explore.novelty import surprise
from progmem.explore.plane import map
from progmem.explore.regimes import Segment, segment
from progmem.explore.stretches import STRETCH
from progmem.explore.suggestion import Suggestion, suggest

__all__ = [
    "STRETCH",
    "Index",
    "Label",
    "Match",
    "Predictions",
    "Segment",
    "States",
    "Suggestion",
    "classify",
    "index",
    "map",
    "open_index",
    "search",
    "segment",
    "states",
    "suggest",
    "surprise",
]
