"""Training on all labels, from scratch: PMT and the vanilla transformer on four sets, and every
architecture that differs from PMT in its layers alone on HAR.

    python -m benchmarks.supervised --data-dir DIR      # wants a GPU; writes results/finetune/

Settings are those of experiments/supervised/<set>.yaml; ``--split validation`` compares others
(``--settings``) on training rows that are held out. A training that was broken off goes on.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.results import render
from benchmarks.side_by_side import add_arguments, run_rows, training_folder
from progmem import baselines
from progmem.config import read_finetune_config
from progmem.report import record
from progmem.training.finetune import finetune

SETS = ("HAR", "FordA", "FordB", "Wafer")
ENCODERS = tuple(name for name, method in baselines.ENCODERS.items() if method.in_frame)
ON_EVERY_SET = ("pmt", "vanilla")
EXPERIMENTS = Path(__file__).parent.parent / "experiments/supervised"


def encoders_on(name: str) -> tuple[str, ...]:
    """The encoders that are trained on a set where none are named."""
    return ENCODERS if name == "HAR" else ON_EVERY_SET


def measure(row: str, chosen: Any) -> dict[str, Any]:
    """Train one row, or go on with it, and score it."""
    name, encoder, seed = row.split("-")
    settings = [f"encoder.name={encoder}", f"train.seed={seed}", *chosen.settings]
    cfg = read_finetune_config(EXPERIMENTS / f"{name}.yaml", settings)
    split = "" if chosen.split == "official" else f"-{chosen.split}"
    out = chosen.out / "finetune" / f"{row}{split}.json"
    run = training_folder(chosen.work, f"{row}{split}", cfg.to_dict(), chosen.commit)
    _, result = finetune(
        name, run, cfg, data_dir=chosen.data_dir, split=chosen.split, result=out, log=None
    )
    if chosen.commit is not None:
        record.write(out, result | {"commit": chosen.commit, "dirty": None})
    return {"seconds": result["seconds"], **result["rows"][0]["scores"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=SETS)
    parser.add_argument("--encoders", nargs="+", choices=ENCODERS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--split", default="official")
    parser.add_argument("--settings", nargs="*", default=[], metavar="section.key=value")
    add_arguments(parser, "supervised")
    chosen = parser.parse_args()
    if chosen.row is not None:
        print(json.dumps(measure(chosen.row, chosen)), flush=True)
        return
    more = ["--settings", *chosen.settings]
    for name in ("split", "work", "out"):
        more += [f"--{name}", str(getattr(chosen, name))]
    encoders = {name: chosen.encoders or encoders_on(name) for name in chosen.sets}
    rows = [f"{n}-{e}-{s}" for n in chosen.sets for e in encoders[n] for s in chosen.seeds]
    run_rows("benchmarks.supervised", rows, chosen, more)
    print(render("finetune", chosen.out))


if __name__ == "__main__":
    main()
