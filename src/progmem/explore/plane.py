"""The map: every window as a point of a plane, near others that are like it.

Shapes: n windows, V numbers of a vector.
"""

import importlib.util

import numpy as np

from progmem.errors import InputError
from progmem.explore.folder import Index
from progmem.explore.stretches import means_around

UMAP_FITTED = 10_000  # windows that a map by UMAP is fitted to


def map(idx: Index) -> np.ndarray:
    """Places (n, 2) of all windows, with those around them; NaN where nothing is observed.

    By UMAP if the package umap is installed, else on two principal axes.

    Example:
        >>> import numpy as np, progmem, tempfile
        >>> from progmem import explore
        >>> model = progmem.PMT(progmem.ModelConfig(channels=1, size="tiny"))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     idx = explore.index(model, {"a": np.sin(np.arange(600) / 3)[:, None]}, folder)
        >>> explore.map(idx).shape == (len(idx), 2)
        True
    """
    x = np.concatenate([means_around(idx, name) for name in idx.names])
    rows = np.flatnonzero(idx.all_observed)
    if not len(rows):
        raise InputError("nothing is observed; there is no map of it")
    found = np.full((len(x), 2), np.nan, dtype=np.float32)
    some = x[rows[:: -(-len(rows) // UMAP_FITTED)]]
    if importlib.util.find_spec("umap") is not None and len(some) > 15:
        import umap

        found[rows] = umap.UMAP(random_state=0).fit(some).transform(x[rows])
        return found
    mean = x[rows].mean(0)
    _, axes = np.linalg.eigh(np.cov(x[rows].T - mean[:, None], bias=True).reshape(x.shape[1], -1))
    axes = axes[:, ::-1][:, :2]
    found[rows, : axes.shape[1]] = (x[rows] - mean) @ axes
    found[rows, axes.shape[1] :] = 0
    return found
