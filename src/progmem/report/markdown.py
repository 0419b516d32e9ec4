"""A table in Markdown, and numbers for its cells."""

from collections.abc import Sequence

import numpy as np


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = ["| " + " | ".join(cells) + " |" for cells in (header, *lines)]
    return "\n".join([rows[0], "|" + "---|" * len(header), *rows[1:]])


def mean_and_sd(values: np.ndarray, digits: int) -> str:
    """Of one value only itself."""
    sd = f" ± {values.std(ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{values.mean():.{digits}f}{sd}"
