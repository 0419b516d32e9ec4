"""What the work since a commit costs on a CPU: the calls of two trees in turns, on one thread.

    git worktree add ../older 55a546d
    python scripts/compare_cpu_speed.py ../older --base-commit 55a546d

Each tree has a process of its own, which prepares a call and makes it whenever it is told to. They
take turns, call by call. What counts is the processor time of a call, in which waiting for other
work on the machine is not: the ratio after / before of each turn, their median, and its 95 %
interval by the bootstrap. The median must not be above the bound.

- step: a training step of a CPU's default recipe at HAR's shape
- encode: `PMT.encode` of 8 series of 4,000 samples, six blocks, W = .1K
- encode, short: of 256 series of 128 samples, `tiny`
- load: `progmem.load` of a `base` model that the same tree has saved

Writes results/before_and_after/cpu-<base commit>.json; further turns are added to it as long as the
commit of this tree is the same.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent.parent
BOUNDS = {"step": 1.02, "encode": 1.02, "encode, short": 1.02, "load": 1.5}
STEP = ("model.size=tiny", "model.patch=8", "model.patch_stride=2", "train.batch_size=32",
        "train.device=cpu", "train.seed=0")  # fmt: skip
WARMUP = 3  # calls that are not counted


def prepare(measure: str, folder: str) -> Callable[[], Any]:
    """A call of the tree that this process imports."""
    import torch

    import progmem

    torch.manual_seed(0)
    torch.set_num_threads(1)
    if measure == "step":
        from benchmarks.training_step import begin, made_rows
        from progmem.config import read_config

        cfg = read_config(None, list(STEP))
        return begin(made_rows(256, cfg), cfg, 10**6).step
    if measure == "load":
        cfg = progmem.ModelConfig.for_length(128, 9, size="base")
        progmem.PMT(cfg).save(Path(folder) / "model")
        return lambda: progmem.load(Path(folder) / "model")
    if measure == "encode, short":
        model, x = progmem.PMT(progmem.ModelConfig.for_length(128, 9, size="tiny")), (256, 128, 9)
    else:
        stride = ((4000 - 16) // 8 + 1) // 20
        cfg = progmem.ModelConfig(channels=1, dim=128, heads=4, blocks=6, slots=1, patch=16,
                                  patch_stride=8, window=2 * stride, stride=stride)  # fmt: skip
        model, x = progmem.PMT(cfg), (8, 4000, 1)
    values = torch.randn(x)
    return lambda: model.encode(values)


def call_when_told(tree: str, measure: str, folder: str) -> None:
    """Answer every line by the processor seconds of one call."""
    call = prepare(measure, folder)
    assert Path(sys.modules["progmem"].__file__ or "").is_relative_to(tree), "another tree"
    for _ in range(WARMUP):
        call()
    print("ready", flush=True)
    for _ in sys.stdin:
        began = time.process_time()
        call()
        print(time.process_time() - began, flush=True)


class Worker:
    """A process with one of the trees."""

    def __init__(self, tree: Path, measure: str, folder: str) -> None:
        env = os.environ | {"PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}",
                            "OMP_NUM_THREADS": "1"}  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, __file__, str(tree), "--measures", measure, "--worker", folder],
            cwd=tree, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.answer()

    def answer(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a process that was measured has ended")
        return line

    def __call__(self) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.answer())


def compare(trees: list[Path], measure: str, turns: int) -> list[list[float]]:
    """Seconds before and after, turn by turn; who begins changes."""
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        workers = [Worker(t, measure, f) for t, f in zip(trees, (first, second), strict=True)]
        found = []
        for turn in range(turns):
            order = (0, 1) if turn % 2 else (1, 0)
            seconds = {which: workers[which]() for which in order}
            found.append([seconds[0], seconds[1]])
        for worker in workers:
            worker.process.kill()
            worker.process.communicate()
    return found


def summarise(turns: list[list[float]]) -> dict[str, Any]:
    """The median ratio and its interval."""
    ratios = np.array([after / before for before, after in turns])
    rng = np.random.default_rng(0)
    medians = np.median(rng.choice(ratios, (2000, len(ratios))), axis=1)
    low, high = np.quantile(medians, (0.025, 0.975))
    return {"ratio": float(np.median(ratios)), "interval": [float(low), float(high)]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("base", type=Path, help="folder of the older tree")
    parser.add_argument("--measures", nargs="+", choices=BOUNDS, default=list(BOUNDS))
    parser.add_argument("--base-commit", default="?")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--out", type=Path, help="folder of results, by default results/")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.worker is not None:
        call_when_told(str(chosen.base), chosen.measures[0], chosen.worker)
        return

    from progmem.report import record

    if not (chosen.base / "src/progmem").is_dir():
        parser.error(f"{chosen.base} holds no src/progmem: check an older commit out there")
    trees = [chosen.base.resolve(), HERE.resolve()]
    out = chosen.out or record.RESULTS
    path = out / f"before_and_after/cpu-{chosen.base_commit}.json"
    result: dict[str, Any] = {
        **record.environment("cpu"), "base": chosen.base_commit, "seeds": [0], "threads": 1,
        "config": {"clock": "processor time of a call", "step": list(STEP)}, "rows": [],
    }  # fmt: skip
    if path.exists() and record.read(path)["commit"] == result["commit"]:
        result["rows"] = record.read(path)["rows"]
    rows = {row["measure"]: row for row in result["rows"]}
    for measure in chosen.measures:
        turns = rows.get(measure, {"turns": []})["turns"]
        turns = turns + compare(trees, measure, chosen.turns)
        rows[measure] = {"measure": measure, "bound": BOUNDS[measure], **summarise(turns),
                         "repeats": len(turns), "turns": turns}  # fmt: skip
        result["rows"] = list(rows.values())
        record.write(path, result)
        row = rows[measure]
        print(f"{measure:14} {row['ratio']:.3f}x, 95 % interval {row['interval'][0]:.3f} to "
              f"{row['interval'][1]:.3f}, {len(turns)} turns", flush=True)  # fmt: skip
    slower = [row["measure"] for row in result["rows"] if row["ratio"] > row["bound"]]
    print(f"written: {path}" + (f"; above its bound: {', '.join(slower)}" if slower else ""))
    raise SystemExit(1 if slower else 0)


if __name__ == "__main__":
    main()
