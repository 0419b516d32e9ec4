"""What each part of the default recipe gives: the recipe without it, on the seven sets.

    python -m benchmarks.recipe_parts --data-dir DATA    # wants a GPU

Every variant is trained on every set for as many steps, one training seed, and scored as in
`benchmarks.few_labels` with all features and heads: so features and head are parts as well. Writes
results/recipe_parts/<device>.json.
"""

import argparse
import json
from typing import Any

from benchmarks.few_labels import add_options, measure, row_arguments
from benchmarks.few_labels_tables import recipe_parts_table
from benchmarks.short_training import take_labelled_rows
from benchmarks.side_by_side import add_arguments, run_rows
from progmem.data.datasets import LABELLED
from progmem.model.saving import gpu_or_cpu
from progmem.probes.classify import SEEDS
from progmem.report import record

STEPS = 400
VARIANTS: dict[str, list[str]] = {
    "untrained": [],
    "default": [],
    "with PCL": ["loss.pcl=1"],
    "without HGCL": ["loss.hgcl=0"],
    "nothing hidden": ["views.hide=0", "loss.pcl=0"],
    "hidden, not predicted": ["loss.predict=0"],
    "learning rate 1e-4": ["train.lr=1e-4"],
    "former default": ["views.preset=medium", "train.lr=1e-4"],
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser)
    parser.set_defaults(seeds=[0], validation=False)
    parser.add_argument("--sets", nargs="+", default=list(LABELLED), choices=LABELLED)
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--device", choices=("cpu", "cuda"), default=gpu_or_cpu())
    parser.add_argument("--steps", type=int, default=STEPS)
    add_arguments(parser, "recipe_parts")
    chosen = parser.parse_args()
    if chosen.row is not None:
        variant, row = chosen.row.split(":")
        chosen.settings = [f"train.steps={chosen.steps}", *VARIANTS[variant], *chosen.settings]
        print(json.dumps(measure(row, chosen) | {"variant": variant}), flush=True)
        return
    names = [
        f"{variant}:{name}-{'untrained' if variant == 'untrained' else 'trained'}-{seed}"
        for variant in chosen.variants for name in chosen.sets for seed in chosen.seeds
    ]  # fmt: skip
    more = [*row_arguments(chosen), "--steps", str(chosen.steps)]
    rows = run_rows("benchmarks.recipe_parts", names, chosen, more)
    config: dict[str, Any] = {}
    for row in rows:
        config.setdefault(row["variant"], {})[row["set"]] = row.pop("config")
    labelled = {n: take_labelled_rows([r for r in rows if r["set"] == n]) for n in chosen.sets}
    result = {
        "config": config, "settings": {name: VARIANTS[name] for name in chosen.variants},
        "steps": chosen.steps, "seeds": chosen.seeds, "label_seeds": SEEDS,
        **record.environment(chosen.device, chosen.commit), "labelled_rows": labelled,
        "rows": rows,
    }  # fmt: skip
    print(f"written: {record.save('recipe_parts', chosen.device, result, folder=chosen.out)}\n")
    print(recipe_parts_table([result]))


if __name__ == "__main__":
    main()
