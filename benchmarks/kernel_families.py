"""What each family of kernels is worth: the training step at HAR's shape, and `encode`.

    python -m benchmarks.kernel_families      # writes results/kernel_families/<device>.json

All variants of a measure are measured in one run:
- step: that of `benchmarks.training_step` in bf16 (on a CPU in float32), a tenth of ten steps
- encode: 8 series of 100,000 samples, patch 16/8, six blocks, W = .1K, one slot, bf16 autocast; as
  it is launched, and its forward pass as a replayed CUDA graph
Variants: plain torch launched one operation after the other (eager), the same as a CUDA graph,
compiled by `torch.compile`, compiled and as a graph, what a run does (ours), and that with one
family of kernels at a time left out. The compiled variants run in a process of their own, since
compiling takes minutes; a lock keeps the timings of the two processes apart. Compiling itself does
not wait for the lock and may slow down what is timed beside it: hold the lock (``--lock``) from
outside until compiling is done where that matters.
"""

import argparse
import fcntl
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import timing
from benchmarks.compute_vectorised import geometry
from benchmarks.training_step import SETTINGS, begin, made_rows
from progmem import ops
from progmem.config import read_config
from progmem.model.pmt import PMT

MEASURES = ("step", "encode")
STEPS, FIRST = 10, 5  # between two synchronisations; before anything is timed
FAMILIES = {
    "window attention": {"window_attention"},
    "neighbourhood attention": {"neighbourhood_attention"},
    "all attention": {
        "window_attention", "neighbourhood_attention", "memory_scan", "short_attention"
    },
    "norm": {"norm"},
    "linear": {"linear"},
    "gated mix": {"gated_mix"},
    "overlap pool": {"overlap_pool"},
    "sampled contrast": {"sampled_contrast"},
    "unfold": {"window_layout"},
}  # fmt: skip
Row = dict[str, Any]


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Nothing is timed in the other process meanwhile."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def time_step(chosen: argparse.Namespace, *, graph: bool, compiled: bool = False) -> Row:
    """Milliseconds of a step, the peak of the first ones with their capture, and their losses."""
    precision = "bf16" if chosen.device == "cuda" else "32"
    settings = [f"model.size={chosen.size}", f"train.batch_size={chosen.batch}",
                f"train.device={chosen.device}", f"train.precision={precision}"]  # fmt: skip
    cfg = read_config(None, [*SETTINGS, *settings])
    training = begin(made_rows(8 * chosen.batch, cfg), cfg, 1000, capture=graph, compiled=compiled)
    losses: list[float] = []

    def first_steps() -> None:
        for _ in range(FIRST):
            training.step()
        losses.extend(metrics.read()["loss"] for metrics in training.metrics)

    peak = timing.peak_mb(first_steps, chosen.device)  # a replayed graph allocates nothing

    def stretch() -> None:
        for _ in range(STEPS):
            training.step()
            while len(training.metrics) > 1:
                training.metrics.pop(0).read()

    with alone(chosen.lock):
        seconds = timing.median_seconds(stretch, chosen.device, repeats=chosen.repeats, warmup=1)
    return {"ms": 1e3 * seconds / STEPS, "peak_mb": peak, "losses": losses}


@torch.no_grad()
def time_encode(chosen: argparse.Namespace, *, compiled: bool = False) -> Row:
    """Milliseconds of `encode` (compiled: of the forward pass), and of the pass as a graph."""
    torch.manual_seed(0)
    model = PMT(geometry(chosen.samples, chosen.dim)).eval().to(chosen.device)
    x = torch.randn(8, chosen.samples, 1, device=chosen.device)
    forward = torch.compile(model) if compiled else model
    with timing.autocast(chosen.device):
        size = float(forward(x).sequence.float().norm())
        call = (lambda: forward(x)) if compiled else (lambda: model.encode(x))
        with alone(chosen.lock):
            row = timing.measure(call, chosen.device, repeats=chosen.repeats)
        replay = timing.replayed(lambda: forward(x), chosen.device)
        with alone(chosen.lock):
            graph = timing.median_seconds(replay, chosen.device, repeats=chosen.repeats)
    return {"ms": 1e3 * row["seconds"], "graph_ms": 1e3 * graph, "peak_mb": row["peak_mb"],
            "norm": size}  # fmt: skip


def tried(name: str, call: Callable[[], Row]) -> Row:
    """A row, or why there is none: another version of torch may not compile what this one does."""
    began = time.time()
    torch.compiler.reset()
    try:
        row = call()
    except RuntimeError as error:
        row = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
    print(name, {k: v for k, v in row.items() if k != "losses"}, flush=True)
    return {"variant": name, **row, "took": time.time() - began}


def measure(chosen: argparse.Namespace) -> Iterator[tuple[str, Row]]:
    """Rows of the step and of `encode`, those that are asked for."""

    def both(name: str) -> Iterator[tuple[str, Row]]:
        if "step" in chosen.measures:
            yield "step", tried(name, lambda: time_step(chosen, graph=name != "eager"))
        if "encode" in chosen.measures and name != "graph":  # its rows have a column for graphs
            yield "encode", tried(name, lambda: time_encode(chosen))

    for name in ("ours", "ours again"):
        yield from both(name)
    for name in ("eager", "graph"):
        with ops.use_backend("plain"):
            yield from both(name)
    for name, family in FAMILIES.items():
        with ops.use_backend("auto", without=family):
            yield from both(f"without {name}")


def measure_compiled(chosen: argparse.Namespace) -> Iterator[tuple[str, Row]]:
    if "step" in chosen.measures:
        for name, graph in {"torch.compile": False, "torch.compile + graph": True}.items():
            yield "step", tried(name, partial(time_step, chosen, graph=graph, compiled=True))
    if "encode" in chosen.measures:
        yield "encode", tried("torch.compile", lambda: time_encode(chosen, compiled=True))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    timing.add_arguments(parser)
    parser.add_argument("--measures", nargs="+", choices=MEASURES, default=list(MEASURES))
    parser.add_argument("--size", default="base")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=320)
    parser.add_argument("--limit", type=int, default=480, help="seconds for compiled variants")
    parser.add_argument("--lock", type=Path, help="a file whose lock timings wait for")
    parser.add_argument("--compiled", action="store_true", help=argparse.SUPPRESS)  # that process
    chosen = parser.parse_args()
    if chosen.compiled:
        for kind, row in measure_compiled(chosen):
            print("ROW", json.dumps([kind, row]), flush=True)
        return
    found: dict[str, list[Row]] = {kind: [] for kind in chosen.measures}
    with tempfile.TemporaryDirectory() as folder:
        chosen.lock, log = chosen.lock or Path(folder) / "lock", Path(folder) / "log"
        command = [sys.executable, "-m", "benchmarks.kernel_families", *sys.argv[1:], "--compiled"]
        began = time.time()
        with log.open("w") as out:
            other = subprocess.Popen([*command, "--lock", str(chosen.lock)], stdout=out)
        for kind, row in measure(chosen):
            found[kind].append(row)
        try:
            other.wait(timeout=max(1.0, chosen.limit - (time.time() - began)))
        except subprocess.TimeoutExpired:
            other.kill()
        rows = [line[4:] for line in log.read_text().splitlines() if line.startswith("ROW ")]
    for kind, row in map(json.loads, rows):
        found[kind].append(row)
    config = {name: getattr(chosen, name) for name in ("size", "batch", "samples", "dim")}
    timing.keep("kernel_families", chosen, {"config": config, "seeds": [0], **found})


if __name__ == "__main__":
    main()
