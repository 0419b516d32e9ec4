"""The trainer: what a training needs, one update of the weights, and the loop over updates.

A `Task` defines the network, its batches and its loss: one for each method of training without
labels, and one for training with labels. All else is common to them.
"""

import gc
import math
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, TypeVar

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn

from progmem import ops
from progmem.config import TrainConfig
from progmem.data.windows import TrainingWindows
from progmem.errors import ConfigError, TrainingError
from progmem.model.encode import eval_mode
from progmem.ops.cuda_graphs import GraphedUpdate
from progmem.progress import Log, silent
from progmem.training import checkpoint, randomness, run_folder
from progmem.training.distributed import any_process, split_batch
from progmem.training.grad_cache import backward_in_parts
from progmem.training.metrics import MetricsLog, NotFiniteError, StepMetrics
from progmem.training.out_of_memory import explain_oom, explain_shortage, raise_explained


class Task(Protocol):
    """What is trained, on which batches, and its loss.

    A batch is a named tuple of tensors and constants; it has a ``size`` (rows of the global
    batch), the ``lengths`` of this process' rows, and a method ``rows(part)`` that selects some.
    """

    rows: TrainingWindows
    batch_size: int  # rows of every global batch
    compares_rows: bool  # whether the loss of a row depends on other rows of the batch
    fixed_shapes: bool  # whether batches have the same shapes in every step

    @property
    def learner(self) -> nn.Module:
        """What is trained, the network with its heads, on its device."""

    def make_batch(self, step: int, *, batch_size: int | None = None) -> Any:
        """The batch of a step, a function of seed, step and rows alone."""

    def embed(self, learner: nn.Module, batch: Any) -> tuple[Any, Tensor]:
        """What the loss takes, and sequence vectors; ``learner`` is its own or Fabric's wrapper."""

    def losses(self, batch: Any, embedded: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of the own rows to be differentiated; it and its parts over all processes."""

    def row_losses(self, batch: Any, embedded: Any) -> Tensor:
        """A loss of each own row by itself (b,), to find the row that a failed step failed by."""

    def parameter_groups(self) -> list[dict[str, Any]]:
        """What the optimiser is given; a group's rate is ``factor`` times that of the run."""

    def updated(self) -> None:
        """What follows an update of the weights, such as their average over the steps."""


M = TypeVar("M", bound=nn.Module)

FEW = 16  # rows that are embedded at a time to find the one that a step failed by
SHOWN = 3  # names in a line
SMALL_STEP = 2**24  # weights times rows of a batch; a tiny model with 32 rows has less


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """A training that is ready to run; `build_trainer` makes it."""

    task: Task
    optimizer: Any
    update: Callable[[int, int], StepMetrics]  # of a step, in so many parts
    fabric: Fabric
    train: TrainConfig
    total: int  # steps of the whole run
    threads: int  # of a CPU
    divisible: bool  # whether a batch can be held in parts

    def run(self, out: Path, *, fingerprint: Mapping[str, Any], log: Log | None) -> bool:
        """Make the steps that ``out`` has no checkpoint of; whether there were any.

        Metrics and checkpoints are written to ``out``. ``fingerprint`` describes the data and the
        start of the run; it must be the same in every call that continues it. With ``log`` None
        nothing is printed, and no metrics are written.
        """
        metrics_folder = None if log is None else out
        log, main = log or silent, self.fabric.is_global_zero
        done = self.resume(out, fingerprint, log)
        if done >= self.total:
            return False
        if main:
            run_folder.cut_metrics(out, done)
        divided = run_folder.read_parts(out)
        metrics_log = MetricsLog(
            metrics_folder, self.train, first=done, total=self.total,
            labels=not self.task.compares_rows, log=log,
        )  # fmt: skip
        try:
            with StopSignal() as stop, cpu_threads(self.threads):
                for number in range(done, self.total):
                    metrics = self.step_in_parts(number, out, divided, log)
                    metrics_log.add(metrics, lr=self.learning_rate(number))
                    finished = number + 1
                    ending = finished == self.total or any_process(self.fabric, stop.requested)
                    if ending or finished % self.train.checkpoint_every == 0:
                        metrics_log.flush()  # checks the newest values before they are saved
                        if main:
                            checkpoint.save_checkpoint(
                                out / "checkpoints", finished, self.task.learner, self.optimizer,
                                fingerprint,
                            )  # fmt: skip
                    if ending and finished < self.total:
                        if stop.requested:
                            log(
                                f"stopped after step {finished}; the same command goes on from "
                                "there"
                            )
                        raise SystemExit(stop.exit_code)
        except NotFiniteError as error:
            raise TrainingError(
                f"{error}; {self.rows_of(error.step)}; the last good checkpoint is kept. "
                "Look for extreme values in the data, or lower train.lr"
            ) from error
        finally:
            metrics_log.close()
        return True

    def step(self, number: int, *, parts: int | None = None) -> StepMetrics:
        """One step: the learning rate, the seed of the dropout, the update in so many parts."""
        set_learning_rate(self.optimizer, self.learning_rate(number))
        dropout = f"dropout {self.fabric.global_rank}"
        torch.manual_seed(randomness.mixed_seed(self.train.seed, number, dropout))
        return self.update(number, self.train.parts if parts is None else parts)

    def step_in_parts(
        self, number: int, out: Path, divided: dict[int, int], log: Log
    ) -> StepMetrics:
        """One step; where memory is too short for it, again with its batch in twice the parts.

        ``divided`` is how many parts there are, by the step they began with; ``out`` keeps it.
        Until the update of the weights a step changes nothing but gradients, so that it can be made
        again. Several processes cannot: the others wait for what this one was to send. Here all of
        them end, and divide the step when they go on from the last checkpoint.
        """
        parts, world = parts_at(number, divided, self.train.parts), self.fabric.world_size
        most = max(1, self.task.batch_size // world) if self.divisible else 1  # one row each
        short = ""
        while True:
            try:
                metrics = self.step(number, parts=parts)
                break
            except RuntimeError as error:
                found = explain_shortage(error, self.fabric.device)
                if found is None or parts >= most:
                    raise_explained(error, self.fabric.device)
                short, parts = short or found, min(2 * parts, most)
                again = f"from step {number + 1} on a batch is held in {parts} parts"
                if world > 1:
                    run_folder.note_parts(out, divided | {number: parts})
                    raise TrainingError(f"{found}; {again} when the run goes on") from error
            self.optimizer.zero_grad()
            release_memory()
        if short:
            divided[number] = parts
            run_folder.note_parts(out, divided)
            log(f"{short}; {again}, with the same gradients")
        return metrics

    @torch.no_grad()
    def rows_of(self, number: int) -> str:
        """The recordings of a step's own rows, and the row with the largest loss of its own."""
        task = self.task
        rows = randomness.batch_rows(len(task.rows), task.batch_size, self.train.seed, number)
        batch = task.make_batch(number)
        own = split_batch(batch.size).rows
        few = [slice(i, i + FEW) for i in range(0, own.stop - own.start, FEW)]
        with eval_mode(task.learner):  # in which no row depends on others
            losses = torch.cat(
                [
                    task.row_losses(some, task.embed(task.learner, some)[0])
                    for some in map(batch.rows, few)
                ]
            )
        names = [task.rows.describe(row) for row in rows[own].tolist()]
        bad = ~losses.isfinite()
        if bad.all():
            return f"none of its {len(names)} rows ({_some(names)}) gives finite numbers"
        worst = int(bad.int().argmax() if bad.any() else losses.argmax())
        does = "gives others" if bad.any() else "has the largest loss"
        others = _some(names[:worst] + names[worst + 1 :])
        return f"of its {len(names)} rows {names[worst]} {does} (the rest: {others})"

    def learning_rate(self, number: int) -> float:
        return learning_rate(number, self.total, self.train)

    def resume(self, out: Path, fingerprint: Mapping[str, Any], log: Log) -> int:
        """Restore the newest good checkpoint, if there is one; the steps already done."""
        newest = checkpoint.newest_checkpoint(out / "checkpoints", log=log)
        if newest is None:
            return 0
        before = newest.fingerprint
        # earlier versions noted less
        differ = [n for n, value in fingerprint.items() if n in before and before[n] != value]
        if differ:
            raise ConfigError(
                f"{out} was begun with other data: {', '.join(differ)} differ; "
                "give another folder with -o"
            )
        checkpoint.restore(newest, self.task.learner, self.optimizer)
        log(f"going on from step {newest.step} of {out}")
        return newest.step


def build_trainer(
    task: Task, fabric: Fabric, train: TrainConfig, *, total: int, capture: bool = True
) -> Trainer:
    """All that a training of ``total`` steps needs, from a task on its device.

    On one GPU updates are replayed as a CUDA graph, unless ``capture`` is False.
    """
    divisible = not normalises_batches(task.learner)
    if train.parts > 1 and not divisible:
        raise ConfigError(
            f"train.parts must be 1, got {train.parts}: this encoder's batch normalisation needs "
            "all rows of a batch at once; set a smaller train.batch_size"
        )
    with explain_oom(fabric.device):  # a few rows show which parameters the loss depends on
        few = task.make_batch(0, batch_size=min(task.batch_size, 2 * fabric.world_size))
        freeze_unreached(task.learner, lambda: compute_loss(task, task.learner, few)[0])
    optimizer = make_optimizer(task.parameter_groups(), train.lr, fabric.device)
    learner, optimizer = fabric.setup(task.learner, optimizer)
    eager = Update(task, learner, optimizer, fabric, train)
    alone = fabric.device.type == "cuda" and fabric.world_size == 1
    replays = capture and task.fixed_shapes and alone
    return Trainer(
        task=task, optimizer=optimizer, update=ReplayedUpdate(eager) if replays else eager,
        fabric=fabric, train=train, total=total,
        threads=threads_for(task.learner, task.batch_size), divisible=divisible,
    )  # fmt: skip


def parts_at(number: int, divided: Mapping[int, int], least: int) -> int:
    """The parts of a step's batch, where ``divided`` has them by the step they began with."""
    return max([least, *(parts for begun, parts in divided.items() if begun <= number)])


class Update:
    """An eager update; its metrics are checked before the weights change.

    ``learner`` is Fabric's wrapper of the task's.
    """

    def __init__(
        self, task: Task, learner: Any, optimizer: Any, fabric: Fabric, train: TrainConfig
    ) -> None:
        self.task, self.learner, self.optimizer = task, learner, optimizer
        self.fabric, self.train = fabric, train

    def __call__(self, number: int, parts: int) -> StepMetrics:
        return self.on_batch(number, self.task.make_batch(number), parts)

    def on_batch(self, number: int, batch: Any, parts: int) -> StepMetrics:
        """The update of step ``number`` on its batch, of which a part is held at a time."""
        if parts == 1:
            metrics, sequence = self.gradients(batch)
        else:
            metrics, sequence = backward_in_parts(
                self.task, self.learner, batch,
                parts=parts, seed=self.train.seed, step=number,
                backward=self.backward, no_sync=self.no_sync,
            )  # fmt: skip
            metrics["gradient"] = self.clip()
        values = torch.stack(list(metrics.values())).cpu()
        step_metrics = StepMetrics(number, tuple(metrics), values, sequence, batch.size)
        step_metrics.read()  # raises before a value that is not finite reaches the weights
        try:
            self.optimizer.step()
        except RuntimeError as error:  # some weights may have changed: it is not repeated
            raise_explained(error, self.fabric.device)
        self.task.updated()
        self.optimizer.zero_grad()
        return step_metrics

    def sync_free(self, batch: Any) -> tuple[tuple[str, ...], Tensor, Tensor]:
        """An update that never waits for the device, as a CUDA graph requires.

        If a metric is not finite, a flag on the device makes the optimiser skip the step. Returns
        the names and values of the metrics, and sequence vectors.
        """
        metrics, sequence = self.gradients(batch)
        values = torch.stack(list(metrics.values()))
        raw = self.optimizer.optimizer  # inside Fabric's wrapper
        raw.found_inf = (~values.isfinite().all()).float()
        try:
            raw.step()
        finally:
            del raw.found_inf
        self.task.updated()
        raw.zero_grad()
        return tuple(metrics), values, sequence

    def gradients(self, batch: Any) -> tuple[dict[str, Tensor], Tensor]:
        """Compute clipped gradients; loss, its parts and the gradient's norm; sequence vectors."""
        loss, metrics, sequence = compute_loss(self.task, self.learner, batch)
        self.backward(loss)
        return {**metrics, "gradient": self.clip()}, sequence

    def backward(self, loss: Tensor) -> None:
        self.fabric.backward(loss * self.fabric.world_size)  # data parallelism will average

    def clip(self) -> Tensor:
        """Clip the gradient; its norm before that."""
        norm = self.fabric.clip_gradients(
            self.learner, self.optimizer, max_norm=self.train.clip, error_if_nonfinite=False
        )
        return torch.as_tensor(norm)

    def no_sync(self) -> AbstractContextManager[None]:
        """Inside, backward passes do not synchronise gradients between processes."""
        return self.fabric.no_backward_sync(self.learner, enabled=self.fabric.world_size > 1)


class ReplayedUpdate:
    """An update replayed as a CUDA graph; a batch of another shape, or in parts, is eager.

    The graph's memory is given back when there are parts.
    """

    def __init__(self, eager: Update) -> None:
        self.eager = eager
        self.graphed: GraphedUpdate | None = None

    def __call__(self, number: int, parts: int) -> StepMetrics:
        if parts > 1:
            if self.graphed is not None:
                self.graphed = None
                release_memory()
            return self.eager(number, parts)
        if self.graphed is None:
            task = self.eager.task
            self.graphed = GraphedUpdate(
                task.make_batch, self.eager.sync_free, self.eager.optimizer
            )
        batch = self.graphed.batch(number)
        outputs = self.graphed(batch)
        if outputs is None:
            return self.eager.on_batch(number, batch, 1)  # waits until the device has read it
        (names, values, sequence), arrived = outputs
        return StepMetrics(number, names, values, sequence, batch.size, arrived)


def release_memory() -> None:
    """Give back what nothing refers to any more."""
    gc.collect()
    torch.cuda.empty_cache()


def compute_loss(
    task: Task, learner: nn.Module, batch: Any
) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """The loss of a batch, to be differentiated; it and its parts by name; sequence vectors."""
    embedded, sequence = task.embed(learner, batch)
    loss, metrics = task.losses(batch, embedded)
    return loss, metrics, sequence


def to_device(learner: M, device: torch.device, train: TrainConfig) -> M:
    """The learner on its device, in float64 if that is the precision of the run."""
    return (learner.double() if train.precision == "64" else learner).to(device)


def normalises_batches(learner: nn.Module) -> bool:
    """Whether what it makes of a row depends on all rows that it is given with it."""
    return any(isinstance(part, nn.BatchNorm1d) for part in learner.modules())


def freeze_unreached(learner: nn.Module, loss: Callable[[], Tensor]) -> None:
    """Stop asking for gradients of parameters that ``loss`` does not depend on."""
    buffers = [(buffer, buffer.clone()) for buffer in learner.buffers()]
    with ops.use_backend("plain"):  # one step is not worth compiling kernels for
        torch.autograd.backward(loss())
    for buffer, before in buffers:  # such as the statistics of a batch normalisation
        buffer.copy_(before)
    for parameter in learner.parameters():
        if parameter.grad is None:
            parameter.requires_grad_(False)
        parameter.grad = None


def parameter_groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Matrices decay; norms, biases, slots, CLS and other vectors do not."""
    decay: list[nn.Parameter] = []
    keep: list[nn.Parameter] = []
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            plain = parameter.dim() < 2 or name.endswith(("reset", "segments", "bias", "taps"))
            (keep if plain else decay).append(parameter)
    return [
        {"params": decay, "weight_decay": weight_decay},
        {"params": keep, "weight_decay": 0.0},
    ]


def make_optimizer(groups: list[dict[str, Any]], lr: float, device: torch.device) -> Any:
    """AdamW; on a GPU its learning rate and step counts are there, so that it can be captured."""
    if device.type != "cuda":
        return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.999), fused=True)
    groups = [{**group, "lr": torch.tensor(lr, device=device)} for group in groups]
    return torch.optim.AdamW(groups, betas=(0.9, 0.999), fused=True, capturable=True)


def set_learning_rate(optimizer: Any, lr: float) -> None:
    """Set the learning rate of every group, times its ``factor`` if it has one."""
    for group in optimizer.param_groups:
        rate = lr * group.get("factor", 1.0)
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def learning_rate(step: int, total: int, train: TrainConfig) -> float:
    """Linear warm-up to the peak, then a cosine down to the end."""
    warmup = round(train.warmup * total)
    if step < warmup:
        return train.lr * (step + 1) / warmup
    progress = (step - warmup) / max(1, total - 1 - warmup)
    return train.lr_end + (train.lr - train.lr_end) * (1 + math.cos(math.pi * progress)) / 2


class StopSignal:
    """While entered, SIGTERM and Ctrl-C are remembered, so that the step can be finished."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __enter__(self) -> "StopSignal":
        self.before = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self.before[number] = signal.signal(number, self._remember)
        return self

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.signal = number

    def __exit__(self, *error: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    @property
    def requested(self) -> bool:
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        """143 for SIGTERM, 130 for Ctrl-C; 1 if only another process had the signal."""
        return 1 if self.signal is None else 128 + self.signal


def threads_for(learner: nn.Module, batch_size: int) -> int:
    """CPU threads of a step: all that torch has, or one where a step is small.

    Threads meet after every operation. Where operations are short, two of them save less than a
    third of the time on a free machine, and on a busy one each waits until the other is scheduled:
    steps were seen to take twelve times as long beside one other process.
    """
    weights = sum(parameter.numel() for parameter in learner.parameters())
    return torch.get_num_threads() if weights * batch_size > SMALL_STEP else 1


@contextmanager
def cpu_threads(count: int) -> Iterator[None]:
    """Inside, torch computes with ``count`` threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
