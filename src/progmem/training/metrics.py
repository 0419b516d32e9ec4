"""The metrics of a run: metrics.jsonl, TensorBoard, a progress bar, a warning of collapse.

The metrics of a step are read when the next step has been launched, so that the host never waits
for a GPU that replays its updates.

Shapes: b own rows, D width.
"""

import importlib.util
import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from progmem.config import TrainConfig
from progmem.errors import TrainingError
from progmem.files import raise_not_written
from progmem.progress import Log, duration, make_bar

PACED = 4  # steps after which the time of a run is foretold
SLOW = 10.0  # seconds without a line after which a step is told, whichever it is
PRINTED = ("loss", "icl", "pcl", "hgcl", "predict", "accuracy")
# below these a run is warned: healthy ones, from the first step on, were seen above 0.15 and 1.7
COLLAPSED_SD, COLLAPSED_RANK = 0.02, 1.5
ENOUGH = 8  # rows, of which fewer have a low rank anyway


class NotFiniteError(TrainingError):
    """A metric of a step, counted from 0, is not a finite number."""

    def __init__(self, step: int, names: str) -> None:
        super().__init__(f"step {step + 1}: {names} is not a finite number")
        self.step = step


class StepMetrics(NamedTuple):
    """The metrics of one update; on a GPU their values may still be on their way to the host."""

    step: int  # from 0
    names: tuple[str, ...]
    values: Tensor  # one a name
    sequence: Tensor  # (b, D), sequence vectors of the first view
    rows: int  # of the global batch
    arrived: torch.cuda.Event | None = None

    def read(self) -> dict[str, float]:
        """The values by name; raises if one is not finite."""
        if self.arrived is not None:
            self.arrived.synchronize()
        values = dict(zip(self.names, self.values.tolist(), strict=True))
        bad = [name for name, value in values.items() if not math.isfinite(value)]
        if bad:
            causes = [name for name in bad if name not in ("loss", "gradient")]
            raise NotFiniteError(self.step, ", ".join(causes or bad[:1]))
        return values


class MetricsLog:
    """Writes every step to metrics.jsonl and every few to TensorBoard and the screen.

    Without a ``folder`` it writes nothing, and only checks that the values are finite. With
    ``labels`` a low rank is no collapse: two classes lie on a line.
    """

    def __init__(
        self,
        folder: Path | None,
        train: TrainConfig,
        *,
        first: int,
        total: int,
        labels: bool,
        log: Log,
    ) -> None:
        self.least_rank = 0.0 if labels else COLLAPSED_RANK
        self.first, self.total, self.every, self.log = first, total, train.log_every, log
        self.last: tuple[StepMetrics, float] | None = None
        self.warned = False
        self.paced_from = 0.0
        self.began = time.perf_counter()
        self.rows = 0
        self.path = Path() if folder is None else folder / "metrics.jsonl"
        self.file = None if folder is None else self.path.open("a")
        self.board = None if folder is None else _tensorboard(folder)
        self.bar = None if folder is None or log is not print else make_bar(first, total)
        self.said = self.began

    def add(self, metrics: StepMetrics, *, lr: float) -> None:
        """Keep the metrics of the newest step, and write those of the step before it."""
        self.flush()
        self.last = metrics, lr

    def flush(self) -> None:
        """Write the metrics of the newest step too."""
        if self.last is not None:
            metrics, lr = self.last
            self.last = None
            values = metrics.read()
            if self.file is not None:
                self.write(metrics.step + 1, self._logged(metrics, values, lr), metrics.rows)

    def _logged(
        self, metrics: StepMetrics, values: dict[str, float], lr: float
    ) -> dict[str, float]:
        """The logged values of a step; every few steps with the gradient's norm and the spread."""
        gradient, finished = values.pop("gradient"), metrics.step + 1
        values |= {"lr": lr}
        if finished % self.every:
            return values
        values |= {"gradient": gradient}
        if len(metrics.sequence) > 1:  # one vector has no spread
            values |= spread(metrics.sequence.cpu())
            sd, rank = values["feature_sd"], values["effective_rank"]
            low = len(metrics.sequence) >= ENOUGH and rank < self.least_rank
            if (sd < COLLAPSED_SD or low) and not self.warned:
                self.warned = True
                self.log(
                    f"step {finished}: the sequence vectors have collapsed (feature sd {sd:.1e}, "
                    f"effective rank {rank:.1f}); try other views or a lower lr"
                )
        return values

    def write(self, step: int, values: Mapping[str, float], rows: int) -> None:
        """Write the values of step number ``step`` (from 1), which trained on ``rows`` series."""
        assert self.file is not None
        self.rows += rows
        try:
            self.file.write(json.dumps({"step": step, **values}) + "\n")
            self.file.flush()
        except OSError as error:
            raise_not_written(error, self.path, was_there=True)
        rate = self.rows / (time.perf_counter() - self.began)
        text = "  ".join(f"{name} {values[name]:.3f}" for name in PRINTED if name in values)
        if self.bar is not None:
            self.bar.update(0, completed=step, description=f"{text}  {rate:.0f} series/s")
        now = time.perf_counter()
        if step == self.first + PACED and self.total > 2 * PACED and self.bar is None:
            pace = (now - self.paced_from) / (PACED - 1)
            self.log(f"{self.total} steps, about {duration(pace * (self.total - step))} from here")
            self.said = now
        if step == self.first + 1:
            self.paced_from = now  # the first step also prepares what the rest use
        due = step % self.every == 0 or step == self.total
        if due and self.board is not None:
            self.board.log_metrics(dict(values), step)
        if self.bar is None and (due or now - self.said > SLOW):
            self.said = now
            left = (now - self.began) / (step - self.first) * (self.total - step)
            self.log(
                f"step {step}/{self.total}  {text}  {rate:.0f} series/s  {duration(left)} left"
            )

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
        if self.board is not None:
            self.board.finalize("success")
        if self.bar is not None:
            self.bar.stop()


def spread(sequence: Tensor) -> dict[str, float]:
    """Spread of sequence vectors (b, D): mean feature sd, effective rank; 0 and 1 on collapse."""
    centred = (sequence - sequence.mean(0)).double()
    share = torch.linalg.svdvals(centred) ** 2
    share = share / share.sum().clamp(min=1e-30)
    rank = torch.exp(-(share * share.clamp(min=1e-30).log()).sum())
    return {"feature_sd": float(centred.std(0).mean()), "effective_rank": float(rank)}


def _tensorboard(folder: Path) -> Any:
    if importlib.util.find_spec("tensorboard") is None:
        return None
    from lightning.fabric.loggers.tensorboard import TensorBoardLogger

    return TensorBoardLogger(folder, name="tensorboard", version="")
