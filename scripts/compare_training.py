"""Train the code of an older commit and the working tree side by side, and compare what they learn.

    python scripts/compare_training.py [--base COMMIT]

A refactoring must not change a number. Both trees train the same tiny models for a few steps on
made recordings, on a CPU in float64, and a row is printed for each case with the largest difference
of the weights, of the losses of all steps, and of what the models give for a few series. A
difference is relative to the largest entry of its tensor. The exit code is 1 if any is above 1e-10,
which a sum in another order stays below and a changed formula does not.

Only what users see is called, because everything else may move: `python -m progmem`,
`progmem.load`, `state_dict`, `encode` and metrics.jsonl, which also shows a head that is trained
alone. Weights that were renamed are paired in the order of their definition.
"""

import argparse
import json
import math
import os
import runpy
import subprocess
import sys
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 1e-10
SETTINGS = [
    "model.dim=16", "model.heads=2", "model.blocks=2", "model.patch=6", "model.patch_stride=3",
    "model.window=4", "model.stride=2", "train.batch_size=7", "train.device=cpu",
    "train.precision=64", "train.lr=1e-3", "train.log_every=1", "views.preset=strong",
    "data.longest=100", "data.window=60", "data.hop=40",
]  # fmt: skip
PRETRAIN = ["pretrain", "gaps", "train.epochs=3", "loss.negatives=40", *SETTINGS]
FINETUNE = ["finetune", "gaps", "--labels", "labels.csv", "train.epochs=3", *SETTINGS]
CASES = {  # the command that trains; the folder it writes to is added
    "all objectives": PRETRAIN,
    "icl": [*PRETRAIN, "loss.pcl=0", "loss.hgcl=0"],
    "pcl": [*PRETRAIN, "loss.icl=0", "loss.hgcl=0"],
    "hgcl": [*PRETRAIN, "loss.icl=0", "loss.pcl=0"],
    "hgcl, soft positives": [*PRETRAIN, "loss.hgcl_form=soft_positive", "views.align=index"],
    "no gaps, equal lengths": ["pretrain", "equal.npy", *PRETRAIN[2:]],
    "read-out of the block": [*PRETRAIN, "model.readout=block", "model.gate_carry=false"],
    "odd windows, no memory": [*PRETRAIN, "model.window=5", "model.slots=0", "loss.pcl=0"],
    "train.parts=2": [*PRETRAIN, "train.parts=2"],
    "dropout": [*PRETRAIN, "model.dropout=0.2"],
    "finetune from scratch": [*FINETUNE, "finetune.views=strong", "train.parts=2"],
    "finetune a run": [*FINETUNE, "--from", "all-objectives"],
    "finetune, head only": [*FINETUNE, "--from", "all-objectives", "--only-head"],
}
OLD_WORDS = {"--labels": "--y"}  # what options and settings were called while cli.py was a file
TWO_PROCESSES = {
    "two processes": PRETRAIN,
    "two processes, parts": [*PRETRAIN, "train.parts=2", "model.dropout=0.2"],
    "two processes, finetune": [*FINETUNE, "finetune.views=weak"],
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Plain)
    parser.add_argument("--base", default="79d49a8", help="commit to compare with")
    base = parser.parse_args().base
    with tempfile.TemporaryDirectory() as parent:
        trees = {"base": Path(parent) / "tree", "here": ROOT}
        archive = ["git", "-C", str(ROOT), "archive", base, "src"]
        packed = subprocess.run(archive, capture_output=True)
        if packed.returncode:
            parser.error(f"--base {base}: {packed.stderr.decode().strip()}")
        with tarfile.open(fileobj=BytesIO(packed.stdout)) as tar:
            tar.extractall(trees["base"], filter="data")
        folders = {name: Path(parent) / name for name in trees}
        for folder in folders.values():
            folder.mkdir()
            write_data(folder)
        for launcher, cases in (([], "one"), (["torch.distributed.run", "--standalone"], "two")):
            running = [start(trees[n] / "src", folders[n], launcher, cases) for n in trees]
            for name, process in zip(trees, running, strict=True):
                _, errors = process.communicate()
                if process.returncode:
                    print(f"the code of {name} failed:\n{errors[-3000:]}", file=sys.stderr)
                    return 1
        return 0 if report(folders["base"], folders["here"]) else 1


class Plain(argparse.RawDescriptionHelpFormatter):
    """Help that shows the docstring as it is written."""


def write_data(folder: Path) -> None:
    """Recordings of unequal length, with gaps, one cut into overlapping rows; others without."""
    rng = np.random.default_rng(0)
    (folder / "gaps").mkdir()
    lengths = [*(48 - 3 * (i % 4) for i in range(12)), 140]
    for i, length in enumerate(lengths):
        values = rng.normal(size=(length, 2)).cumsum(0)
        if i % 4 == 1:
            values[10:22, i % 3 :] = np.nan
        np.save(folder / "gaps" / f"series{i:02d}.npy", values)
    np.save(folder / "equal.npy", rng.normal(size=(14, 48, 2)).cumsum(1))
    labels = [f"series{i:02d},{'even' if i % 2 else 'odd'}\n" for i in range(len(lengths))]
    (folder / "labels.csv").write_text("series,label\n" + "".join(labels))


def start(source: Path, folder: Path, launcher: list[str], cases: str) -> subprocess.Popen[str]:
    """A process that trains ``cases`` in ``folder`` with the code in ``source``."""
    env = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    module = ["-m", *launcher, "--nproc-per-node=2"] if launcher else []
    command = [sys.executable, *module, __file__, "--train", cases, str(source)]
    return subprocess.Popen(
        command, cwd=folder, env=env, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def train(cases: str, source: str) -> None:
    """Train in this process, with the code in ``source``; leave NAME.npz for each case."""
    import torch

    import progmem

    assert Path(progmem.__file__).is_relative_to(source), f"{progmem.__file__} is not compared"
    torch.set_default_dtype(torch.float64)  # Fabric gives the losses tensors of the default type
    for name, command in (CASES if cases == "one" else TWO_PROCESSES).items():
        out = file_name(name)
        sys.argv = ["progmem", *translate(command, Path(source)), "-o", out]
        try:
            runpy.run_module("progmem", run_name="__main__", alter_sys=True)
        except SystemExit as ended:
            if ended.code:
                raise
        if os.environ.get("RANK", "0") == "0":
            np.savez(f"{out}.npz", **results_of(Path(out)))
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def translate(command: list[str], source: Path) -> list[str]:
    """``command`` in the words that the code in ``source`` knows."""
    if not (source / "progmem/cli.py").is_file():
        return command
    pairs = [word.partition("=") for word in command]
    return ["".join([OLD_WORDS.get(name, name), *rest]) for name, *rest in pairs]


def results_of(run: Path) -> dict[str, np.ndarray]:
    """The weights of a finished run, its losses, and its encoding of a few series."""
    import progmem

    model = progmem.load(run / "model")
    # feature statistics are left out: not every commit has them, and the encodings they are of
    # are compared below
    state = {n: t for n, t in model.state_dict().items() if "feature_stats" not in n}
    arrays = {f"weight {n}": t.numpy() for n, t in state.items()}
    lines = (run / "metrics.jsonl").read_text().splitlines()
    arrays["losses"] = np.array([json.loads(line)["loss"] for line in lines])
    z = model.encode([np.load(f"gaps/series{i:02d}.npy") for i in (0, 1, 12)])
    levels = {"tokens": z.tokens, "memory": z.memory, "sequence": z.sequence, "eos": z.eos}
    return arrays | {f"encoding {n}": t.numpy() for n, t in levels.items() if t is not None}


def report(base: Path, here: Path) -> bool:
    """A row a case; whether all differences are small."""
    good = True
    print(f"{'case':24}  {'weights':>8}  {'losses':>8}  {'encoding':>8}  steps")
    for name in [*CASES, *TWO_PROCESSES]:
        old, new = (dict(np.load(folder / f"{file_name(name)}.npz")) for folder in (base, here))
        worst = {"weight": 0.0, "losses": 0.0, "encoding": 0.0}
        for (key, a), (other, b) in pairs(old, new):
            if key != other:
                print(f"{name}: {key} is called {other}")
            kind = key.split()[0]
            worst[kind] = max(worst[kind], difference(a, b))
        good &= all(value <= LIMIT for value in worst.values())
        columns = "  ".join(f"{value:8.1e}" for value in worst.values())
        print(f"{name:24}  {columns}  {len(old['losses'])}")
    print("no difference is" if good else "some difference is", f"above {LIMIT:g}")
    return good


Named = tuple[str, np.ndarray]


def pairs(old: dict[str, np.ndarray], new: dict[str, np.ndarray]) -> list[tuple[Named, Named]]:
    """Arrays of one name; then those with a name that only one side has, in order."""
    gone = [name for name in old if name not in new]
    come = [name for name in new if name not in old]
    if len(gone) != len(come):
        raise SystemExit(f"only at the base: {gone}; only here: {come}")
    names = [(name, name) for name in old if name in new] + list(zip(gone, come, strict=True))
    return [((a, old[a]), (b, new[b])) for a, b in names]


def difference(a: np.ndarray, b: np.ndarray) -> float:
    """The largest difference, relative to the largest entry; inf where shapes or NaN differ."""
    if a.shape != b.shape or not np.array_equal(np.isnan(a), np.isnan(b)):
        return math.inf
    apart = float(np.nanmax(np.abs(a - b), initial=0.0))
    return apart / float(np.nanmax(np.abs(a), initial=0.0)) if apart else 0.0


def file_name(case: str) -> str:
    return case.replace(",", "").replace(" ", "-")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        train(*sys.argv[2:])
    else:
        sys.exit(main())
