"""What a refactoring costs: an older tree and this one, timed in one run on a GPU.

    git archive 79d49a8 src benchmarks | tar -x -C base
    python scripts/compare_speed.py base --base-commit 79d49a8 --data-dir DIR

The two trees take turns. Measured, each as after / before, which must stay below 1.05:
- step: a training step at HAR's shape, by each tree's `python -m benchmarks.training_step`
- encode: `PMT.encode` of 8 series of 100,000 samples, six blocks, W = .1K, bf16 autocast
- HAR: `progmem pretrain HAR`, 250 epochs, `base`, each from an empty Triton cache (last, as it
  takes minutes)
Writes results/before_and_after/<device>.json.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from progmem.report import record

HERE = Path(__file__).parent.parent
BOUND = 1.05
ENCODE = """
import statistics, sys, time, torch, progmem
device, samples, repeats = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
stride = ((samples - 16) // 8 + 1) // 20
cfg = progmem.ModelConfig(channels=1, dim=320, heads=8, blocks=6, slots=1, encoder_layers=2,
                          patch=16, patch_stride=8, window=2 * stride, stride=stride)
torch.manual_seed(0)
model, x = progmem.PMT(cfg).eval().to(device), torch.randn(8, samples, 1, device=device)
def wait():
    if device == "cuda": torch.cuda.synchronize()
    return time.perf_counter()
with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
    for _ in range(3): model.encode(x)
    took = []
    for _ in range(repeats):
        began = wait(); model.encode(x); took.append(wait() - began)
print(statistics.median(took))
"""
HAR = ("model.size=base", "model.patch=8", "model.patch_stride=4", "model.window=6",
       "model.stride=3", "model.slots=2", "train.batch_size=256", "train.seed=0",
       "views.preset=medium", "train.lr=1e-4", "train.checkpoint_every=1000")  # fmt: skip


def run(tree: Path, *arguments: str, **more: str) -> str:
    """What a Python command prints that imports ``tree``."""
    env = os.environ | {"PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}", **more}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=tree, env=env, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)[:200]} failed in {tree}:\n{done.stdout[-2000:]}")
    return done.stdout


def time_step(tree: Path, chosen: argparse.Namespace) -> float:
    precision = "bf16" if chosen.device == "cuda" else "32"
    with tempfile.TemporaryDirectory() as out:
        run(
            tree, "-m", "benchmarks.training_step", "--precisions", precision, "--steps", "1",
            "--rows", str(2 * chosen.batch), "--batch", str(chosen.batch), "--size", chosen.size,
            "--repeats", str(chosen.repeats), "--device", chosen.device, "--commit", "-",
            "--out", out,
        )  # fmt: skip
        found = json.loads((Path(out) / f"training_step/{chosen.device}.json").read_text())
    return float(next(r["seconds"] for r in found["rows"] if r["variant"] == "as in a run"))


def time_encode(tree: Path, chosen: argparse.Namespace) -> float:
    arguments = (chosen.device, str(chosen.samples), str(chosen.repeats))
    return float(run(tree, "-c", ENCODE, *arguments).split()[-1])


def time_har(tree: Path, chosen: argparse.Namespace) -> float:
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        run(
            tree, "-m", "progmem", "pretrain", "HAR", "-o", f"{folder}/run", *HAR,
            "--data-dir", str(chosen.data_dir.resolve()), f"train.epochs={chosen.epochs}",
            TRITON_CACHE_DIR=f"{folder}/triton",
        )  # fmt: skip
        return time.perf_counter() - began


MEASURES = {"encode": time_encode, "step": time_step, "HAR": time_har}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("base", type=Path, help="folder of the older tree")
    parser.add_argument("--base-commit", default="?")
    parser.add_argument("--commit", help="of this tree, where there is no repository to ask")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--data-dir", type=Path, help="where HAR.npz lies")
    parser.add_argument("--measures", nargs="+", choices=MEASURES, default=list(MEASURES))
    parser.add_argument("--turns", type=int, default=2, help="of encode and step")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--size", default="base")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--epochs", type=int, default=250)
    parser.add_argument("--out", type=Path, default=record.RESULTS)
    chosen = parser.parse_args()
    if "HAR" in chosen.measures and chosen.data_dir is None:
        parser.error("HAR needs --data-dir, the folder of HAR.npz; or leave it out of --measures")
    if not (chosen.base / "src/progmem").is_dir():
        parser.error(f"{chosen.base} holds no src/progmem: unpack an older commit there")
    trees = {"before": chosen.base.resolve(), "after": HERE.resolve()}
    config = {n: getattr(chosen, n) for n in ("size", "batch", "samples", "epochs")}
    result: dict[str, Any] = {
        **record.environment(chosen.device, chosen.commit), "base": chosen.base_commit,
        "config": config, "seeds": [0], "bound": BOUND, "rows": [],
    }  # fmt: skip
    rows, path = result["rows"], chosen.out / f"before_and_after/{chosen.device}.json"
    if path.exists():  # other measures of the same trees stay
        kept = record.read(path)
        if all(kept.get(name) == result[name] for name in ("commit", "base", "config", "device")):
            rows += [row for row in kept["rows"] if row["measure"] not in chosen.measures]
    for name in chosen.measures:
        measure, seconds = MEASURES[name], {when: list[float]() for when in trees}
        for _ in range(1 if name == "HAR" else chosen.turns):
            for when, tree in trees.items():
                seconds[when].append(measure(tree, chosen))
        before, after = (statistics.median(seconds[when]) for when in trees)
        row = {"measure": name, "repeats": chosen.repeats, "seconds": seconds}
        rows.append({**row, "ratio": after / before})
        print(f"{name:7} {before:9.4f} s -> {after:9.4f} s  {after / before:.3f}x", flush=True)
        record.write(path, result)
    slower = [row["measure"] for row in rows if row["ratio"] > BOUND]
    print(f"written: {path}" + (f"; above {BOUND}: {', '.join(slower)}" if slower else ""))
    raise SystemExit(1 if slower else 0)


if __name__ == "__main__":
    main()
