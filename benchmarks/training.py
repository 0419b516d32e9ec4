"""Training on the CPU: series a second and peak memory against the batch size, as ratios.

python -m benchmarks.training            # writes results/training/cpu.json
"""

import argparse
import json
import subprocess
import sys
import time
from typing import Any

import numpy as np
import torch

from benchmarks.backbone import peak_memory, reset_peak_memory
from progmem.config import read_config
from progmem.data.recordings import Recording
from progmem.data.windows import TrainingWindows
from progmem.model.pmt import PMT
from progmem.report import record
from progmem.training.pmt import Learner, PretrainTask
from progmem.training.pretrain import model_for
from progmem.training.trainer import compute_loss

BATCHES = (16, 32, 64, 128, 256)
SETTINGS = ["model.size=tiny", "views.preset=strong"]
LENGTH, CHANNELS, STEPS = 200, 6, 5


def measure(batch: int) -> dict[str, float]:
    """Seconds of a step, forward and backward with all objectives, and what it adds to memory."""
    rng = np.random.default_rng(0)
    series = rng.normal(size=(batch, LENGTH, CHANNELS)).astype(np.float32)
    cfg = read_config(None, [*SETTINGS, f"train.batch_size={batch}"])
    rows = TrainingWindows([Recording(str(i), x) for i, x in enumerate(series)], cfg.data)
    torch.manual_seed(0)
    learner = Learner(PMT(model_for(rows, cfg)), cfg.loss)
    task = PretrainTask(learner, rows, cfg, total=STEPS + 1, device=torch.device("cpu"))
    few = task.make_batch(0, batch_size=4)
    torch.autograd.backward(compute_loss(task, learner, few)[0])  # warm-up
    before = reset_peak_memory()
    seconds = []
    for number in range(STEPS):
        start = time.perf_counter()
        loss, *_ = compute_loss(task, learner, task.make_batch(number))
        torch.autograd.backward(loss)
        learner.zero_grad()
        seconds.append(time.perf_counter() - start)
    return {"seconds": float(np.median(seconds)), "peak_mb": peak_memory() - before}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--row", type=int, help=argparse.SUPPRESS)
    row = parser.parse_args().row
    if row is not None:
        print(json.dumps(measure(row)))
        return
    rows: list[dict[str, Any]] = []
    print("| batch | series a second | peak memory |\n|---|---|---|")
    for batch in BATCHES:
        command = [sys.executable, "-m", "benchmarks.training", "--row", str(batch)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        rows.append({"batch": batch} | json.loads(done.stdout))
        rate = (batch / rows[-1]["seconds"]) / (BATCHES[0] / rows[0]["seconds"])
        print(
            f"| {batch} | {rate:.2f}x | {rows[-1]['peak_mb'] / rows[0]['peak_mb']:.1f}x |",
            flush=True,
        )
    facts = {"config": SETTINGS, "length": LENGTH, "channels": CHANNELS, "seeds": [0]}
    result = {**facts, **record.environment(), "rows": rows}
    print(f"\nwritten: {record.save('training', 'cpu', result)}")


if __name__ == "__main__":
    main()
