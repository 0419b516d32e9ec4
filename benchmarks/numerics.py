"""How exact is a training step? Its first outputs, loss and gradients against float64.

    python -m benchmarks.numerics         # writes results/numerics/<device>.json

The step of `benchmarks.training_step`, before any update: plain torch and what a run does (on a GPU
our kernels), each in bf16 and float32 on a GPU, float32 on a CPU, beside plain torch in float64
from the same weights and draws. Relative errors are norms over norms, over everything of a kind.
What a run does may be off by 1e-4 in float32 and .02 in bf16, or by twice what plain torch is.
"""

import argparse
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from benchmarks import timing
from benchmarks.training_step import SETTINGS, made_rows
from progmem import ops
from progmem.config import read_config
from progmem.series import ChannelStats
from progmem.training.distributed import make_fabric
from progmem.training.pmt import Learner, PretrainTask
from progmem.training.pretrain import initial_model, model_for

TOLERANCE = {"32": 1e-4, "bf16": 0.02}
Kinds = dict[str, list[Tensor]]


def first_step(settings: list[str], rows: int, precision: str, *, plain: bool) -> Kinds:
    """Outputs, loss and gradients of a run's first step, in float64."""
    cfg = read_config(None, [*settings, f"train.precision={precision}"])
    series = made_rows(rows, cfg)
    stats = ChannelStats(series.channels)
    series.set_statistics(stats)
    fabric = make_fabric(cfg)
    learner = Learner(initial_model(model_for(series, cfg), stats, cfg.train.seed), cfg.loss)
    task = PretrainTask(learner, series, cfg, total=1, device=fabric.device)
    wrapped = fabric.setup(learner)
    with ops.use_backend("plain") if plain else nullcontext():
        batch = task.make_batch(0)
        views, _ = task.embed(wrapped, batch)
        loss, _ = task.losses(batch, views)
        fabric.backward(loss)
    found: Kinds = {"loss": [loss], "sequence": [], "memory": [], "tokens": []}
    for view in views:
        for kind in ("sequence", "memory", "tokens"):
            found[kind].append(getattr(view, kind))
    found["gradients"] = [p.grad for p in learner.parameters() if p.grad is not None]
    return {kind: [t.detach().double() for t in parts] for kind, parts in found.items()}


def distances(found: Kinds, exact: Kinds) -> dict[str, float]:
    """Relative errors by kind."""
    return {
        kind: float(_norm([a - b for a, b in zip(parts, exact[kind], strict=True)]))
        / float(_norm(exact[kind]))
        for kind, parts in found.items()
    }


def _norm(parts: list[Tensor]) -> Tensor:
    return torch.stack([part.norm() for part in parts]).norm()


def check(row: dict[str, Any], plain: dict[str, Any]) -> None:
    """Refuse numbers that are further from float64 than they may be."""
    for kind, error in row["errors"].items():
        most = max(TOLERANCE[row["precision"]], 2 * plain["errors"][kind])
        name = f"{row['path']}, {row['precision']}"
        assert error <= most, f"{name}: {kind} off by {error:.1e}, at most {most:.1e} allowed"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    timing.add_arguments(parser)
    parser.add_argument("--size", default="base")
    parser.add_argument("--batch", type=int, default=256)
    chosen = parser.parse_args()
    settings = [*SETTINGS, f"model.size={chosen.size}", f"train.batch_size={chosen.batch}",
                f"train.device={chosen.device}"]  # fmt: skip
    exact = first_step(settings, chosen.batch, "64", plain=True)
    rows = []
    for precision in ("bf16", "32") if chosen.device == "cuda" else ("32",):
        for path in ("plain", "as in a run"):
            found = first_step(settings, chosen.batch, precision, plain=path == "plain")
            errors = distances(found, exact)
            rows.append({"path": path, "precision": precision, "errors": errors})
        check(rows[-1], rows[-2])
    facts = {"config": settings, "seeds": [0], "tolerance": TOLERANCE}
    timing.keep("numerics", chosen, {**facts, "rows": rows})


if __name__ == "__main__":
    main()
