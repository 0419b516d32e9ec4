"""Figures of a run and of a model's encodings; each takes plain arrays and returns a figure.

Shapes: T tokens or windows, D width, R series, L samples, C channels.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

COLOURS = ["#1b9e77", "#d95f02", "#7570b3", "#e7298a", "#66a61e", "#e6ab02", "#a6761d", "#666666"]


def loss_curves(metrics: Sequence[dict[str, float]]) -> Figure:
    """Each objective over the steps of a run, one panel each."""
    names = [name for name in ("loss", "icl", "pcl", "hgcl", "predict") if name in metrics[0]]
    figure = Figure(figsize=(3 * len(names), 2.6), layout="constrained")
    for axis, name in zip(np.atleast_1d(figure.subplots(1, len(names))), names, strict=True):
        axis.plot([m["step"] for m in metrics], [m[name] for m in metrics], color=COLOURS[2], lw=1)
        axis.set_title(name)
        axis.set_xlabel("step")
    return figure


def similarity(
    values: np.ndarray,
    levels: dict[str, np.ndarray],
    edges: dict[str, Sequence[float]],
    names: Sequence[str],
) -> Figure:
    """A splice of recordings (L, C) above the cosine similarity within each level (T, D) of it.

    ``edges`` are where the pieces of the splice begin and end at each level.
    """
    figure = Figure(figsize=(4.6 * len(levels), 5.2), layout="constrained")
    axes = figure.subplots(2, len(levels), squeeze=False, height_ratios=[1, 4])
    scaled = (values - values.mean(0)) / values.std(0).clip(1e-12)  # (L, C)
    image: Any = None
    for (top, axis), (name, vectors) in zip(axes.T, levels.items(), strict=True):
        place = np.linspace(-0.5, len(vectors) - 0.5, len(values))  # of each sample, in vectors
        for c in range(values.shape[1]):
            top.plot(place, scaled[:, c] - 4 * c, lw=0.4, color=COLOURS[c % len(COLOURS)])
        top.set_xlim(-0.5, len(vectors) - 0.5)
        top.set_axis_off()
        top.set_title(f"{name}: {len(vectors)} vectors")
        unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-12)
        image = axis.imshow(unit @ unit.T, vmin=-1, vmax=1, cmap="RdBu_r", interpolation="nearest")
        for edge in edges[name][1:-1]:
            axis.axhline(edge - 0.5, color="black", lw=0.8, ls="--")
            axis.axvline(edge - 0.5, color="black", lw=0.8, ls="--")
        middles = [(a + b) / 2 for a, b in zip(edges[name][:-1], edges[name][1:], strict=True)]
        axis.set_xticks(middles, names)
        axis.set_yticks(middles, names)
    figure.colorbar(image, ax=axes[1].tolist(), shrink=0.9, label="cosine similarity")
    return figure


def scatter_by_class(
    panels: dict[str, np.ndarray], y: np.ndarray, classes: Sequence[str]
) -> Figure:
    """First two principal components of each panel's features (R, D), coloured by class."""
    figure = Figure(figsize=(4.2 * len(panels) + 1, 3.8), layout="constrained")
    axes = np.atleast_1d(figure.subplots(1, len(panels)))
    for axis, (name, features) in zip(axes, panels.items(), strict=True):
        points, share = principal_components(features)
        for label, title in enumerate(classes):
            inside = y == label
            axis.scatter(*points[inside].T, s=9, color=COLOURS[label % len(COLOURS)], label=title)
        axis.set_title(name)
        axis.set_xlabel(f"PC 1 ({100 * share[0]:.0f} %)")
        axis.set_ylabel(f"PC 2 ({100 * share[1]:.0f} %)")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", fontsize=8, markerscale=2)
    return figure


def principal_components(features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Features (R, D) on their first two components (R, 2), and the variance each explains."""
    centred = features - features.mean(0)
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    share = values**2 / max(float((values**2).sum()), 1e-30)
    return left[:, :2] * values[:2], share[:2]


def memory_along_time(
    values: np.ndarray, channels: Sequence[str], memory: np.ndarray, spans: np.ndarray, rate: float
) -> Figure:
    """A recording (L, C) above, its memory (T, D) below: components, and change per window."""
    figure = Figure(figsize=(10, 5.6), layout="constrained")
    top, middle, bottom = figure.subplots(3, 1, sharex=True, height_ratios=[2, 2, 1])
    seconds = np.arange(len(values)) / rate
    spread = values.std(0).clip(1e-12)
    for c in range(len(channels)):
        top.plot(seconds, (values[:, c] - values[:, c].mean()) / spread[c] - 4 * c, lw=0.6,
                 color=COLOURS[c % len(COLOURS)])  # fmt: skip
    top.set_yticks([-4 * c for c in range(len(channels))], channels)
    top.set_title("one whole recording")
    top.set_xlim(0, len(values) / rate)
    centre = spans.mean(1) / rate
    centred = memory - memory.mean(0)
    varied = centred[:, np.argsort(-centred.std(0))[:24]].T  # the most varied channels
    starts = spans[:, 0] / rate  # windows overlap: each is drawn up to the start of the next
    edges = np.append(starts, 2 * starts[-1] - starts[-2])
    largest = np.abs(varied).max()
    middle.pcolormesh(
        edges, np.arange(len(varied) + 1), varied, cmap="RdBu_r", vmin=-largest, vmax=largest
    )
    middle.set_ylabel("memory channels")
    unit = memory / np.linalg.norm(memory, axis=1, keepdims=True).clip(1e-12)
    change = 1 - (unit[1:] * unit[:-1]).sum(1)
    bottom.plot(centre[1:], change, color=COLOURS[3], lw=1)
    bottom.set_ylabel("change")
    bottom.set_xlabel("seconds")
    return figure
