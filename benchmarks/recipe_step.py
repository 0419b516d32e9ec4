"""A training step of the default recipe beside one of the paper's: what hidden spans cost.

    python -m benchmarks.recipe_step         # writes results/recipe_step/<device>.json

HAR's shape, `base`, as in `benchmarks.training_step`. The two take turns in one process; a time is
the median of stretches of steps.
"""

import argparse
import statistics
from functools import partial
from typing import Any

from benchmarks import timing
from benchmarks.training_step import LENGTH, SETTINGS, STRETCH, Training, begin, made_rows
from progmem.config import read_config

RECIPES = {"the paper's": ["views.preset=medium"], "default": ["views.preset=hidden"]}
SHAPE = [setting for setting in SETTINGS if not setting.startswith("views.")]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    timing.add_arguments(parser)
    parser.add_argument("--size", default="base")
    parser.add_argument("--batch", type=int, default=256)
    chosen = parser.parse_args()
    device, total = chosen.device, STRETCH[chosen.device] * (chosen.repeats + 10)
    where = [f"model.size={chosen.size}", f"train.batch_size={chosen.batch}",
             f"train.device={device}"]  # fmt: skip
    trainings = {}
    for name, recipe in RECIPES.items():
        cfg = read_config(None, [*SHAPE, *recipe, *where])
        trainings[name] = begin(made_rows(4 * chosen.batch, cfg), cfg, total)
    seconds: dict[str, list[float]] = {name: [] for name in RECIPES}
    for turn in range(chosen.repeats + 2):
        for name, training in trainings.items():
            found = timing.seconds_of(partial(_steps, training, device), device)
            if turn >= 2:  # the first ones compile and record
                seconds[name].append(found / STRETCH[device])
    rows: list[dict[str, Any]] = [
        {"recipe": name, "seconds": statistics.median(found)} for name, found in seconds.items()
    ]
    config = {"shape": [*SHAPE, *where], "samples": LENGTH, "recipes": RECIPES}
    timing.keep("recipe_step", chosen, {"config": config, "seeds": [0], "rows": rows})


def _steps(training: Training, device: str) -> None:
    for _ in range(STRETCH[device]):
        training.step()
        while len(training.metrics) > 1:
            training.metrics.pop(0).read()


if __name__ == "__main__":
    main()
