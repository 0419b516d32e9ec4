"""What a run does where its user has not said: size, patches, batch and steps, by the device.

A GPU takes the size and the steps up to which results on held-out rows grew (docs/recipe.md). A CPU
takes what is done in a minute or two: a smaller model, fewer tokens a series, fewer series a step.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from progmem.baselines import method_of
from progmem.config import ModelConfig, RunConfig, given

GEOMETRY = ("patch", "patch_stride")
SHAPE = ("size", "dim", "heads", "blocks")


class Defaults(NamedTuple):
    """The open settings of a run on one kind of device."""

    size: str
    batch_size: int
    steps: int
    strides_in_patch: int  # so many tokens begin within a patch


DEFAULTS = {
    "cuda": Defaults("small", batch_size=256, steps=1600, strides_in_patch=8),
    "cpu": Defaults("tiny", batch_size=32, steps=320, strides_in_patch=4),
}


def fill_defaults(
    cfg: RunConfig, length: int, *, device: str, begun: Mapping[str, Any], values: int = 0
) -> RunConfig:
    """``cfg`` with everything decided, for training rows of ``length`` samples on ``device``.

    ``values`` of them are trained on, by which some methods choose how long.

    A run that was ``begun`` with settings keeps them, whichever device it goes on with.
    """
    model, train, default = dict(cfg.model), cfg.train, DEFAULTS[device]
    method = method_of(cfg.encoder["name"])
    steps = default.steps if method.steps is None else method.steps(values)
    lasting: dict[str, Any] = {"steps": steps}
    batch_size: int = default.batch_size
    if begun:
        before, trained = (begun.get(section) or {} for section in ("model", "train"))
        if method.in_frame:
            model = {name: before[name] for name in (*SHAPE, *GEOMETRY) if name in before} | model
        lasting = {name: trained.get(name) for name in ("epochs", "steps")}
        batch_size = trained.get("batch_size", batch_size)
    elif method.in_frame:
        model.setdefault("size", default.size)
        if not any(name in model for name in GEOMETRY):
            patch = ModelConfig.for_length(length, 1).patch
            model["patch_stride"] = max(1, round(patch / default.strides_in_patch))
    if train.epochs is None and train.steps is None:
        train = replace(train, **given(lasting))
    if train.batch_size is None:
        train = replace(train, batch_size=batch_size)
    return replace(cfg, model=model, train=train)
