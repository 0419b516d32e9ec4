"""Cue retention of the variants in experiments/cue: PMT with and without PCL, other encoders.

    python -m benchmarks.cue --data-dir DIR      # wants a GPU; writes results/cue/FordA-<row>.json
    python -m benchmarks.cue --data-dir DIR --small      # a CPU's; results/cue_small/

Each row is a variant and a training seed: pretrained on FordA's training rows, probed on its test
rows beside its untrained copy. A training that was broken off goes on. Cues lie where they do for
an encoder with five windows that do not overlap, also where an encoder has no windows.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.results import render
from benchmarks.side_by_side import add_arguments, run_rows, training_folder
from progmem.baselines import ENCODERS
from progmem.config import RunConfig, read_config
from progmem.probes.protocols import evaluate_cue
from progmem.report import record
from progmem.training.pretrain import pretrain

SET = "FordA"
EXPERIMENTS = Path(__file__).parent.parent / "experiments/cue"
VARIANTS = tuple(sorted(path.stem for path in EXPERIMENTS.glob("*.yaml")))
FINAL = 352  # first sample of the last of five windows
SMALL = {  # what a CPU trains in minutes, of encoders in the frame of PMT and of SoftCLT
    True: ("model.size=tiny", "train.epochs=3", "train.batch_size=32"),
    False: ("encoder.distance=euclidean",),
}


def read_variant(
    variant: str, seed: int, settings: Sequence[str] = (), *, small: bool = False
) -> RunConfig:
    """The settings of a variant; ``small`` ones where that is asked for."""
    given = [f"train.seed={seed}", *settings]
    path = EXPERIMENTS / f"{variant}.yaml"
    name = read_config(path).encoder["name"]
    if not small:
        return read_config(path, given)
    return read_config(path, [*SMALL[ENCODERS[name].in_frame], *given])


def folder_of(chosen: argparse.Namespace) -> str:
    """The experiment under which results are kept."""
    return "cue_small" if chosen.small else "cue"


def measure(row: str, chosen: Any) -> dict[str, Any]:
    """Train one row, or go on with it, and probe it."""
    variant, seed = row.rsplit("-", 1)
    cfg = read_variant(variant, int(seed), chosen.settings, small=chosen.small)
    run = training_folder(chosen.work, row, cfg.to_dict(), chosen.commit)
    out = chosen.out / folder_of(chosen) / f"{SET}-{row}.json"
    model = pretrain(SET, run, cfg, data_dir=chosen.data_dir, log=None)
    final = None if ENCODERS[model.name].in_frame else FINAL
    result = evaluate_cue(
        run / "model", SET, out, data_dir=chosen.data_dir, final=final, log=lambda _: None
    )
    if chosen.commit is not None:
        record.write(out, result | {"commit": chosen.commit, "dirty": None})
    return {"seconds": result["seconds"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--small", action="store_true", help="sizes and steps for a CPU")
    parser.add_argument("--settings", nargs="*", default=[], metavar="section.key=value")
    add_arguments(parser, "cue")
    chosen = parser.parse_args()
    if chosen.row is not None:
        print(json.dumps(measure(chosen.row, chosen)), flush=True)
        return
    more = ["--small"] if chosen.small else []
    more += ["--work", str(chosen.work), "--out", str(chosen.out), "--settings", *chosen.settings]
    rows = [f"{variant}-{seed}" for variant in chosen.variants for seed in chosen.seeds]
    run_rows("benchmarks.cue", rows, chosen, more)
    print(render(folder_of(chosen), chosen.out))


if __name__ == "__main__":
    main()
