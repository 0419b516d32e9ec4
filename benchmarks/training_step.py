"""The training step at HAR's shape: time, agreement of variants, determinism, and by kernel.

    python -m benchmarks.training_step         # writes results/training_step/<device>.json

256 rows x 2 views of 128 samples and 9 channels (made ones), patch 8/4: K = 31, W = 6, S = 3, two
slots, `base`, all objectives, AdamW; bf16 and float32 on a GPU, float32 on a CPU. A step is all
that a run repeats: rows, views, negatives, forward, losses, backward, the checks, clipping and the
optimiser; logging and checkpoints are not in it. On a GPU a step's views are made beside the update
before it, and its metrics are read when the next has been launched: stretches of ten steps are
timed there, and a tenth of one is given.

Every variant trains before anything is timed: its losses must be finite and begin as those of the
first variant; how far the curves lie apart is kept. What a run does trains twice from the same
seed: whether the two are equal bit for bit is kept too.
"""

import argparse
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from benchmarks import timing
from progmem import ops
from progmem.config import RunConfig, read_config
from progmem.data.recordings import Recording
from progmem.data.windows import TrainingWindows
from progmem.series import ChannelStats
from progmem.training.distributed import make_fabric
from progmem.training.metrics import StepMetrics
from progmem.training.pretrain import initial_model, make_pretrainer, model_for

SETTINGS = ("model.patch=8", "model.patch_stride=4", "model.window=6", "model.stride=3",
            "model.slots=2", "views.preset=strong", "train.lr=1e-4", "train.seed=0")  # fmt: skip
LENGTH, CHANNELS = 128, 9
FIRST = 0.02  # relative difference of the first loss that precision and kernels may make
KERNELS = 40  # kept of a profile
PROFILED = 3  # steps
STRETCH = {"cuda": 10, "cpu": 1}  # steps between two synchronisations


class Training(NamedTuple):
    """A training that has begun: ``step`` makes one more whole step."""

    step: Callable[[], None]
    metrics: list[StepMetrics]  # of the steps so far
    learner: nn.Module


def begin(
    rows: TrainingWindows,
    cfg: RunConfig,
    total: int,
    *,
    capture: bool = True,
    compiled: bool = False,
) -> Training:
    """A training as `progmem.training.pretrain` begins it; ``compiled`` for comparison only."""
    stats = ChannelStats(rows.channels)
    rows.set_statistics(stats)
    model = initial_model(model_for(rows, cfg), stats, cfg.train.seed)
    trainer = make_pretrainer(model, rows, cfg, make_fabric(cfg), total=total, capture=capture)
    if compiled:
        plain: Any = getattr(trainer.update, "plain", trainer.update)
        plain.learner = torch.compile(plain.learner)
        trainer.task.losses = torch.compile(trainer.task.losses)  # type: ignore[method-assign]
    metrics: list[StepMetrics] = []
    numbers = itertools.count()
    return Training(
        lambda: metrics.append(trainer.step(next(numbers))), metrics, trainer.task.learner
    )


def plain(rows: TrainingWindows, cfg: RunConfig, total: int) -> Training:
    """One operation after the other, through torch's own kernels alone."""
    with ops.use_backend("plain"):
        training = begin(rows, cfg, total, capture=False)

    def one() -> None:
        with ops.use_backend("plain"):
            training.step()

    return training._replace(step=one)


VARIANTS: dict[str, Callable[[TrainingWindows, RunConfig, int], Training]] = {
    "plain": plain, "as in a run": begin
}  # fmt: skip


def made_rows(count: int, cfg: RunConfig) -> TrainingWindows:
    """Noisy oscillations, each row with its own frequencies: something to tell apart."""
    rng = np.random.default_rng(0)
    time = np.arange(LENGTH)[:, None]
    recordings = []
    for i in range(count):
        speed, phase = rng.uniform(0.02, 0.6, CHANNELS), rng.uniform(0, 6.28, CHANNELS)
        noise = rng.normal(size=(LENGTH, CHANNELS))
        values = np.sin(speed * time + phase) + 0.3 * noise
        recordings.append(Recording(str(i), values.astype(np.float32)))
    return TrainingWindows(recordings, cfg.data)


class Settled(NamedTuple):
    """What all variants train with."""

    settings: list[str]
    rows: int
    steps: int  # of a loss curve
    device: str
    repeats: int

    def begin(self, variant: str, precision: str) -> Training:
        where = [f"train.device={self.device}", f"train.precision={precision}"]
        cfg = read_config(None, [*self.settings, *where])
        total = self.steps + STRETCH[self.device] * (self.repeats + 10) + PROFILED
        return VARIANTS[variant](made_rows(self.rows, cfg), cfg, total)


def learn(settled: Settled, variant: str, precision: str) -> dict[str, Any]:
    """The loss curve; of what a run does a second one, and whether it is equal bit for bit."""
    weights, curves = [], []
    for _ in range(1 if variant == "plain" else 2):
        training = settled.begin(variant, precision)
        for _ in range(settled.steps):
            training.step()
        curves.append([metrics.read()["loss"] for metrics in training.metrics])
        weights.append([p.detach().clone() for p in training.learner.parameters()])
    row: dict[str, Any] = {"variant": variant, "precision": precision, "losses": curves[0]}
    if len(curves) == 1:
        return row
    same = all(torch.equal(a, b) for a, b in zip(*weights, strict=True))
    return row | {"second_losses": curves[1], "same_twice": same and curves[0] == curves[1]}


def compare(rows: list[dict[str, Any]]) -> None:
    """Note how far each loss curve goes from the first one's, and from its own repetition."""
    first = np.array(rows[0]["losses"])
    for row in rows:
        name, losses = f"{row['variant']}, {row['precision']}", np.array(row["losses"])
        assert np.isfinite(losses).all(), f"{name}: a loss is not finite"
        apart = np.abs(losses / first - 1)
        assert apart[0] < FIRST, f"{name}: the first loss is off by {apart[0]:.1e}"
        row["largest_difference"] = float(apart.max())
        if "second_losses" in row:
            repeated = np.array(row["second_losses"])
            row["difference_of_repeat"] = float(np.abs(repeated / losses - 1).max())


def clock(settled: Settled, variant: str, precision: str) -> dict[str, Any]:
    """Time and profile of a step; `benchmarks.kernel_families` measures its peak memory."""
    device = settled.device
    training = settled.begin(variant, precision)

    def stretch() -> None:
        for _ in range(STRETCH[device]):
            training.step()
            while len(training.metrics) > 1:
                training.metrics.pop(0).read()

    seconds = timing.median_seconds(stretch, device, repeats=settled.repeats) / STRETCH[device]
    return {"seconds": seconds, "profile": profile(training.step, device)}


def profile(step: Callable[[], None], device: str) -> dict[str, Any]:
    """Where the time of a step goes: kernels by total time (on a CPU: operations)."""
    kinds = [torch.profiler.ProfilerActivity.CPU]
    if device == "cuda":
        kinds.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=kinds, acc_events=True) as profiler:
        for _ in range(PROFILED):
            step()
        timing.synchronise(device)
    events: list[Any] = list(profiler.key_averages())
    if device == "cuda":
        events = [e for e in events if e.device_type.name == "CUDA" and not e.is_user_annotation]
    spent = [(_own_time(event, device) / 1e3 / PROFILED, event) for event in events]
    spent = sorted((pair for pair in spent if pair[0] > 0), key=lambda pair: -pair[0])
    return {
        "ms": sum(ms for ms, _ in spent),
        "count": sum(event.count for _, event in spent) / PROFILED,
        "top": [
            {"name": event.key[:160], "ms": ms, "count": event.count / PROFILED}
            for ms, event in spent[:KERNELS]
        ],
    }


def _own_time(event: Any, device: str) -> float:
    return event.self_device_time_total if device == "cuda" else event.self_cpu_time_total


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    timing.add_arguments(parser)
    parser.add_argument("--size", default="base")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rows", type=int, default=2048, help="made series to draw batches from")
    parser.add_argument("--steps", type=int, default=200, help="of the loss curves")
    parser.add_argument("--precisions", nargs="+", help="by default bf16 and 32, on a CPU 32")
    chosen = parser.parse_args()
    settings = [*SETTINGS, f"model.size={chosen.size}", f"train.batch_size={chosen.batch}"]
    settled = Settled(settings, chosen.rows, chosen.steps, chosen.device, chosen.repeats)
    precisions = chosen.precisions or (("bf16", "32") if chosen.device == "cuda" else ("32",))
    pairs = [(variant, precision) for precision in precisions for variant in VARIANTS]
    rows = []
    for pair in pairs:
        rows.append(learn(settled, *pair))
        print(f"{', '.join(pair)}: loss {rows[-1]['losses'][-1]:.3f}", flush=True)
    compare(rows)
    for row, pair in zip(rows, pairs, strict=True):
        row |= clock(settled, *pair)
    result = {"config": settings, "seeds": [0], "steps": chosen.steps, "rows": rows}
    timing.keep("training_step", chosen, result)


if __name__ == "__main__":
    main()
